"""Deleting rows of cuTile's database: what goes, what stays, and that no lock is held for long."""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cache_engine.frameworks import deletion
from cache_engine.frameworks.deletion import Deleted, delete
from cache_engine.frameworks.readers.cutile import CuTile
from cache_engine.frameworks.values import DeletePlan, Entry, Place
from tests.frameworks.fixtures import unpack


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A cache that cuTile 1.7.0 made: one kernel for two targets, with two tiles each."""
    return Place("cutile", unpack("cutile", tmp_path), "given")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a lock."""
    monkeypatch.setattr(deletion, "_PAUSE_S", 0.0)


def _entries(place: Place) -> list[Entry]:
    return [seen for seen in CuTile().scan(place, {}) if isinstance(seen, Entry)]


def _plan(place: Place) -> DeletePlan:
    plan = CuTile().plan_delete(place, _entries(place))
    assert isinstance(plan, DeletePlan)
    return plan


def _change(place: Place, statement: str) -> None:
    with closing(sqlite3.connect(place.path / "cache.db")) as database:
        database.executescript(statement)


def test_the_rows_that_the_plan_names_go_and_the_others_stay(place: Place) -> None:
    first, second, *others = sorted(_entries(place), key=lambda entry: entry.id)
    size = (place.path / "cache.db").stat().st_size
    plan = CuTile().plan_delete(place, [first, second])
    assert isinstance(plan, DeletePlan)
    done = delete(place, plan, Deleted())
    assert sorted(done.ids) == [first.id, second.id]
    assert (done.size_bytes, done.left) == (first.size_bytes + second.size_bytes, {})
    assert sorted(_entries(place), key=lambda entry: entry.id) == others
    assert (place.path / "cache.db").stat().st_size == size
    assert [path.name for path in place.path.iterdir()] == ["cache.db"]
    assert set(delete(place, plan, Deleted()).left.values()) == {"it is gone"}


def test_rows_go_a_few_at_a_time_and_others_have_their_turn_between(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "ROWS_AT_ONCE", 1)
    counts = []

    def other(_: float) -> None:
        with closing(sqlite3.connect(place.path / "cache.db", timeout=0)) as database:
            database.execute("UPDATE cache SET atime = atime + 1")  # takes the lock
            counts.append(database.execute("SELECT count(*) FROM cache").fetchone()[0])
            database.commit()

    monkeypatch.setattr("cache_engine.frameworks.deletion.time.sleep", other)
    assert len(delete(place, _plan(place), Deleted()).ids) == 4
    assert counts == [3, 2, 1]


@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE", "BEGIN; SELECT * FROM cache"])
def test_while_another_has_a_lock_nothing_goes_and_no_lock_stays(place: Place, lock: str) -> None:
    plan = _plan(place)
    with closing(sqlite3.connect(place.path / "cache.db", timeout=0, isolation_level=None)) as other:
        for statement in lock.split("; "):
            cursor = other.execute(statement)
        cursor.fetchone()
        done = delete(place, plan, Deleted())
        assert (done.ids, len(done.left)) == ([], 4)
        assert all("locked" in why for why in done.left.values())
        cursor.close()
        other.execute("COMMIT")
        other.execute("BEGIN EXCLUSIVE")  # ours is gone
        other.execute("COMMIT")
    assert len(_entries(place)) == 4
    assert len(delete(place, plan, Deleted()).ids) == 4


def test_a_transaction_that_takes_too_long_is_taken_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "MOST_HELD_S", -1.0)
    _change(
        place,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000) "
        "INSERT INTO cache SELECT 'k' || i, x'00', 1, 0.0, NULL FROM n;",
    )
    monkeypatch.setattr(deletion, "ROWS_AT_ONCE", 10_000)
    plan = _plan(place)
    done = delete(place, plan, Deleted())
    assert done.ids == []
    assert set(done.left.values()) == {"SQLite cannot delete it: interrupted"}
    assert len(_entries(place)) == len(plan.deletions) == 2004


def _no_database(place: Place) -> None:
    (place.path / "cache.db").write_bytes(b"no database" * 1000)


def _empty(place: Place) -> None:
    (place.path / "cache.db").write_bytes(b"")


def _cut(place: Place) -> None:
    path = place.path / "cache.db"
    path.write_bytes(path.read_bytes()[:5000])


def _link(place: Place) -> None:
    (place.path / "cache.db").rename(place.path / "other.db")
    (place.path / "cache.db").symlink_to("other.db")


def _trigger(place: Place) -> None:
    _change(place, "CREATE TRIGGER more AFTER DELETE ON cache BEGIN DELETE FROM cache; END;")


def _view(place: Place) -> None:
    _change(place, "ALTER TABLE cache RENAME TO other; CREATE VIEW cache AS SELECT * FROM other;")


def _write_ahead(place: Place) -> None:
    _change(place, "PRAGMA journal_mode = WAL;")


@pytest.mark.parametrize("change", [_no_database, _empty, _cut, _link, _trigger, _view, _write_ahead])
def test_a_database_that_is_not_as_cutile_makes_it_is_left_as_it_is(
    place: Place, change: Callable[[Place], None]
) -> None:
    plan = _plan(place)
    change(place)
    before = (place.path / "cache.db").read_bytes()
    done = delete(place, plan, Deleted())
    assert (done.ids, len(done.left)) == ([], 4)
    assert (place.path / "cache.db").read_bytes() == before


def test_where_there_is_no_database_none_is_made(place: Place) -> None:
    plan = _plan(place)
    (place.path / "cache.db").unlink()
    assert set(delete(place, plan, Deleted()).left.values()) == {"it is gone"}
    assert list(place.path.iterdir()) == []


def plant_journal(folder: Path, victim: Path) -> None:
    """A journal that SQLite rolls back as it opens the database, and then deletes the super-journal it names.

    https://sqlite.org/fileformat2.html#the_rollback_journal: a header of one sector, no pages, and the name.
    """
    size = int.from_bytes((folder / "cache.db").read_bytes()[16:18], "big")
    pages = (folder / "cache.db").stat().st_size // size
    magic, name = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", os.fsencode(victim)
    header = magic + struct.pack(">5I", 0, 0, pages, 512, size)
    ending = struct.pack(">I", 2**30 // size + 1) + name + struct.pack(">2I", len(name), sum(name)) + magic
    (folder / "cache.db-journal").write_bytes(header.ljust(512, b"\0") + ending)


def test_the_planted_journal_has_sqlite_delete_a_file(place: Place, tmp_path: Path) -> None:
    """Else the two tests that follow could not fail."""
    (tmp_path / "victim").write_text("mine")
    plant_journal(place.path, tmp_path / "victim")
    _change(place, "SELECT count(*) FROM cache")
    assert not (tmp_path / "victim").exists()


def _everyone(place: Place) -> None:
    place.path.chmod(0o777)


def _written_by_everyone(place: Place) -> None:
    (place.path / "cache.db").chmod(0o666)


def _above(place: Place) -> None:
    place.path.parent.chmod(0o777)


def _of_another(place: Place) -> None:
    os.chown(place.path, 65534, 65534)


def _database_of_another(place: Place) -> None:
    os.chown(place.path / "cache.db", 65534, 65534)


def _journal_of_everyone(place: Place) -> None:
    """An empty journal is none to SQLite, until another user writes to it."""
    (place.path / "cache.db-journal").touch()
    (place.path / "cache.db-journal").chmod(0o666)


def _journal_of_another(place: Place) -> None:
    (place.path / "cache.db-journal").touch(0o600)
    os.chown(place.path / "cache.db-journal", 65534, 65534)


def _ours(place: Place) -> None:
    """The journal alone is why it stays: it may have come with an archive, for example."""


@pytest.mark.parametrize(
    "open_to",
    [
        _everyone, _written_by_everyone, _above, _of_another, _database_of_another, _journal_of_everyone,
        _journal_of_another, _ours,
    ],
)  # fmt: skip
def test_where_others_may_put_a_journal_nothing_is_deleted(
    place: Place, tmp_path: Path, open_to: Callable[[Place], None]
) -> None:
    """SQLite would delete any file of the user: the super-journal that a journal names. Root is refused too."""
    if os.geteuid() and open_to in (_of_another, _database_of_another, _journal_of_another):
        pytest.skip("only root may give files away")
    (tmp_path / "victim").write_text("mine")
    plan = _plan(place)
    open_to(place)
    if open_to is _ours:
        plant_journal(place.path, tmp_path / "victim")
    done = delete(place, plan, Deleted())
    assert (done.ids, len(done.left)) == ([], 4)
    reason = "a process writes to it" if open_to is _ours else "another user could plant a journal"
    assert all(reason in why for why in done.left.values()), done.left
    assert (tmp_path / "victim").read_text() == "mine"


def test_sqlite_does_not_wait_for_a_pipe_in_place_of_a_journal(place: Place) -> None:
    plan = _plan(place)
    os.mkfifo(place.path / "cache.db-journal")
    assert all("a process writes to it" in why for why in delete(place, plan, Deleted()).left.values())


def test_a_file_that_cutile_did_not_write_is_not_deleted(place: Place) -> None:
    (place.path / "notes").write_text("mine")
    assert set(delete(place, _plan(place), Deleted()).left) == {"notes"}
    assert (place.path / "notes").exists()
