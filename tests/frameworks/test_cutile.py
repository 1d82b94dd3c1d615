"""What is read of cuTile's database, and that no reader or writer of it ever waits for us."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from cache_engine.frameworks import deletion
from cache_engine.frameworks.readers import cutile
from cache_engine.frameworks.readers.cutile import CuTile
from cache_engine.frameworks.values import DeletePlan, Entry, Fault, KeyFactors, Place, ScanFinding, Seen
from tests.frameworks.fixtures import unpack


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A cache that cuTile 1.7.0 made: one kernel for two targets, with two tiles each."""
    return Place("cutile", unpack("cutile", tmp_path), "given")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a writer."""
    monkeypatch.setattr(cutile, "_PAUSE_S", 0.0)


def _scan(place: Place) -> list[Seen]:
    return list(CuTile().scan(place, {}))


def _entries(place: Place) -> list[Entry]:
    found = _scan(place)
    assert all(isinstance(seen, Entry) for seen in found), found
    return [seen for seen in found if isinstance(seen, Entry)]


def test_the_facts_are_those_of_the_row_and_of_the_code(place: Place) -> None:
    found = _entries(place)
    assert sorted((entry.arch, entry.name) for entry in found) == [
        (arch, f"scale_Kt1_A1f16_1l0_A1f16_1l0_I{tile}") for arch in ("sm_100a", "sm_90a") for tile in (128, 256)
    ]
    for entry in found:
        assert entry.compiler == "tileiras 13.4.92"
        assert entry.compile_ms is not None
        assert 10 < entry.compile_ms < 60_000
        assert entry.created_at is not None
        assert entry.last_used_at is not None
        assert entry.created_at <= entry.last_used_at
        factors = CuTile().key_factors(place, entry)
        assert isinstance(factors, KeyFactors)
        assert {factor.name for factor in factors.factors} == {"kernel", "target", "compiler"}


def test_a_use_that_cuTile_notes_changes_the_stamp(place: Place) -> None:  # noqa: N802
    known = {entry.id: entry.stamp for entry in _entries(place)}
    used = next(iter(known))
    with closing(sqlite3.connect(place.path / "cache.db")) as database:
        database.execute("UPDATE cache SET atime = atime + 60 WHERE key = ?", (used,))
        database.commit()
    (changed,) = [seen for seen in CuTile().scan(place, known) if isinstance(seen, Entry)]
    assert changed.id == used


def test_a_process_that_holds_the_lock_does_not_keep_us_and_we_hold_none(place: Place) -> None:
    with closing(sqlite3.connect(place.path / "cache.db", timeout=0)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert len(_entries(place)) == 4
        writer.rollback()
        scan = CuTile().scan(place, {})
        next(scan)  # in the middle of the rows
        writer.execute("BEGIN EXCLUSIVE")
        writer.execute("DELETE FROM cache")
        writer.commit()
        assert len(list(scan)) == 3


def test_a_transaction_that_is_being_written_is_not_read(place: Place) -> None:
    (place.path / "cache.db-journal").write_bytes(b"pages as they were")
    (seen,) = _scan(place)
    assert isinstance(seen, ScanFinding)
    assert (seen.fault, seen.id) == (Fault.LOCKED, "cache.db")


def test_a_large_database_is_read_in_place_and_not_changed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {entry.id: entry.digest for entry in _entries(place)}
    before = (place.path / "cache.db").read_bytes()
    monkeypatch.setattr(cutile, "MOST_BINARY_BYTES", len(before) - 1)
    assert {entry.id: entry.digest for entry in _entries(place)} == whole
    assert (place.path / "cache.db").read_bytes() == before
    assert [path.name for path in place.path.iterdir()] == ["cache.db"]


def test_the_database_of_an_older_version_has_no_metadata(place: Place) -> None:
    with closing(sqlite3.connect(place.path / "cache.db")) as database:
        database.execute("ALTER TABLE cache DROP COLUMN metadata")
        database.commit()
    for entry in _entries(place):
        assert (entry.name, entry.compile_ms) == (None, None)
        assert entry.unread["name"] == "this version of cuTile stores nothing about the kernel"
        assert entry.registers is not None


@pytest.mark.parametrize(
    "change",
    [
        "DROP TABLE cache",
        "ALTER TABLE cache RENAME COLUMN blob TO bytes",
        "UPDATE cache SET metadata = 'no JSON', blob = 'no blob', atime = 'never'",
        "DELETE FROM cache",
        "INSERT INTO cache VALUES (NULL, x'00', 1, 0.0, NULL)",
        """CREATE VIEW other AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
           SELECT i AS key, x'00' AS blob, 1 AS blob_size, 0.0 AS atime, NULL AS metadata FROM n""",
    ],
)
def test_a_database_of_another_kind_is_read_as_far_as_it_goes(place: Place, change: str) -> None:
    with closing(sqlite3.connect(place.path / "cache.db")) as database:
        database.execute(change)
        if "VIEW" in change:  # rows without end
            database.execute("DROP TABLE cache")
            database.execute("PRAGMA writable_schema = ON")
            database.execute("UPDATE sqlite_master SET name = 'cache', tbl_name = 'cache' WHERE name = 'other'")
            database.execute("UPDATE sqlite_master SET sql = replace(sql, 'VIEW other', 'VIEW cache')")
        database.commit()
    seen = _scan(place) if "VIEW" not in change else [*_some(place)]
    assert all(isinstance(each, Entry | ScanFinding) for each in seen)


def _some(place: Place) -> list[Seen]:
    """What a scan without end yields at first, and at last."""
    found = []
    for each in CuTile().scan(place, {}):
        found.append(each)
        if isinstance(each, ScanFinding) or len(found) > 1_000:
            break
    return found


def test_this_process_reads_no_database_while_it_deletes_from_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To close another descriptor of the file would drop the locks of the one that deletes."""
    monkeypatch.setattr(deletion, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(deletion, "_PAUSE_S", 0.0)
    plan = CuTile().plan_delete(place, _entries(place))
    assert isinstance(plan, DeletePlan)
    assert plan.rows is not None
    at_once = deletion.delete_rows(place.path, plan.rows, plan.deletions)
    next(at_once)
    scans: list[list[Seen]] = []
    scanning = Thread(target=lambda: scans.append(_scan(place)))
    scanning.start()
    scanning.join(0.3)
    assert scanning.is_alive()
    assert len(list(at_once)) == 3
    scanning.join(60)
    assert scans == [[]]


def test_rows_that_are_larger_than_the_database_are_not_read(place: Place) -> None:
    """A few kilobytes, of which each row would take 100 MB."""
    (place.path / "cache.db").unlink()
    with closing(sqlite3.connect(place.path / "cache.db")) as database:
        database.execute("CREATE VIEW cache AS SELECT 'k' AS key, zeroblob(100000000) AS blob, 1.0 AS atime")
    (found,) = _scan(place)
    assert isinstance(found, ScanFinding)
    assert "more bytes" in found.detail
