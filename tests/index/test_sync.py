"""The index: equal to the files after any history, and disposable at any moment."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_engine.errors import IndexUnavailable
from cache_engine.index import sync as sync_module
from cache_engine.index.sync import Index
from cache_engine.model.events import CORRUPT, PUBLISH
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, fold
from cache_engine.store.timings import Timings
from tests.helpers import fill, invented_timing, make_store, publish, record_file

TABLES = (
    "kernels",
    "usage",
    "events",
    "totals",
    "periods",
    "misses",
    "spans",
    "unreadable",
    "timings",
    "demand",
    "demand_dropped",
    "demand_read",
)


def _content(index: Index) -> dict[str, list[Any]]:
    with index.read() as connection:
        return {table: sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr) for table in TABLES}


def _rebuilt(store: DiskStore) -> dict[str, list[Any]]:
    index = Index(store)
    index.sync(rebuild=True)
    return _content(index)


def test_new_records_and_events_are_taken_over(store: DiskStore) -> None:
    index, journal = Index(store), Journal(store.layout.journal, 3600.0)
    keys = fill(store, 12)
    journal.hit(keys[0], "disk", saved_us=5000)
    journal.event(PUBLISH, key=keys[0], compile_us=150_000)
    synced = index.sync()
    assert (synced.added, synced.removed, synced.unreadable) == (12, 0, 0)
    content = _content(index)
    assert sorted(row[0] for row in content["kernels"]) == sorted(keys)
    assert [row[:5] for row in content["usage"]] == [(keys[0], 0.0, 0, 0, 1)]
    assert content["totals"][0][:8] == (0, 0, 1, 0, 0, 5000, 1, 150_000)


def test_a_sync_with_nothing_new_changes_nothing(store: DiskStore) -> None:
    index = Index(store)
    fill(store, 3)
    first, second = index.sync(), index.sync()
    assert first.changed
    assert not second.changed
    assert first.generation == second.generation


def test_replaced_and_deleted_records_are_followed(store: DiskStore) -> None:
    index = Index(store)
    keys = fill(store, 5)
    index.sync()
    store.delete(keys[0])
    publish(store, 1)
    synced = index.sync()
    assert (synced.added, synced.removed) == (1, 1)
    assert _content(index) == _rebuilt(store)


def test_a_damaged_record_is_counted_and_does_not_stop_the_rest(store: DiskStore) -> None:
    keys = fill(store, 5)
    record_file(store, keys[2]).write_bytes(b"{")
    index = Index(store)
    synced = index.sync()
    assert (synced.added, synced.unreadable) == (4, 1)
    assert _content(index)["unreadable"][0][0] == keys[2]
    publish(store, 2)
    assert index.sync().added == 1
    assert _content(index)["unreadable"] == []


def _replace(path: Path, data: bytes) -> None:
    """As editors and copying programs do. What is changed in place, its folder untouched, is for verify to find."""
    other = path.with_name("being-written")
    other.write_bytes(data)
    other.rename(path)


OPERATIONS = st.lists(
    st.sampled_from([
        "publish", "delete", "damage", "hit", "miss", "ask", "wait", "event", "clock", "fold", "reopen", "time", "sync",
        "settle",
    ]),
    max_size=25,
)  # fmt: skip


def _time(store: DiskStore, key: CacheKey, generator: random.Random) -> None:
    timed, config = GemmProblem(generator.randrange(1, 9), 64, 64, arch="sm_90"), KernelConfig(64, 64, 32, 2, 2, 3)
    one = invented_timing(timed, config, 5.0, key=key, measured_at=generator.random() * 1e9)
    Timings(store.layout, durable=False).add([one])


def _ask(journal: Journal, generator: random.Random) -> None:
    journal.asked(GemmProblem(generator.choice([1, 2, 3000]), generator.choice([64, 128]), 64, arch="sm_90"))
    journal.flush()


@settings(max_examples=15)
@given(operations=OPERATIONS, seed=st.integers(0, 2**32))
def test_after_any_history_the_mirror_equals_a_rebuilt_one(
    operations: list[str], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = make_store(tmp_path_factory.mktemp("history") / "store")
    layout, generator = store.layout, random.Random(seed)
    clock = time.time()

    def now() -> float:
        return clock

    index, journal = Index(store), Journal(store.layout.journal, 3600.0, now=now)
    keys = fill(store, 3)
    for operation in operations:
        key = generator.choice(keys)
        if operation == "publish":
            keys.append(publish(store, generator.randrange(8)))
        elif operation == "delete":
            store.delete(key)
        elif operation == "damage" and record_file(store, key).exists():
            _replace(record_file(store, key), b"damaged")
        elif operation == "hit":
            tier, made_at = generator.choice(["memory", "disk"]), generator.choice([0.0, 5.0])
            journal.hit(key, tier, made_at=made_at, saved_us=generator.randrange(1000))
            journal.flush()
        elif operation == "miss":
            journal.miss(generator.choice(["sm_80", "sm_90"]))
        elif operation == "ask":
            _ask(journal, generator)
        elif operation == "wait":
            journal.lock_wait(generator.random(), timed_out=generator.random() < 0.5)
        elif operation == "clock":
            clock = generator.choice([time.time(), generator.random() * 1e11])
        elif operation == "event":
            journal.event(generator.choice([PUBLISH, CORRUPT]), key=key, compile_us=generator.randrange(1000))
        elif operation == "fold":
            fold(layout.journal, layout.temp, keep=lambda key: record_file(store, CacheKey(key)).exists())
        elif operation == "time":
            _time(store, key, generator)
        elif operation == "reopen":
            journal.close()
            journal = Journal(layout.journal, 3600.0, now=now)
        elif operation == "settle":
            # Folders last changed long ago are not looked at again.
            for shard in layout.metadata.iterdir():
                os.utime(shard, ns=(0, generator.randrange(10**18)))
        else:
            index.sync()
    index.sync()
    assert _content(index) == _rebuilt(store)


def test_a_change_within_the_clocks_grain_is_not_missed(store: DiskStore) -> None:
    """Two records may reach a folder without its time changing in between."""
    index = Index(store)
    first = publish(store, 0)
    index.sync()
    shard = record_file(store, first).parent
    before = shard.stat()
    twin = f"{first[:2]}{'0' * 62}"
    (shard / f"{twin}.json").write_bytes(b'{"format": 99}')
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert index.sync().unreadable == 1


def test_deleting_the_mirror_loses_nothing(store: DiskStore) -> None:
    index, journal = Index(store), Journal(store.layout.journal, 3600.0)
    for key in fill(store, 4):
        journal.hit(key, "memory")
    journal.flush()
    index.sync()
    before = _content(index)
    index.path.unlink()
    index.sync()
    assert _content(index) == before


def test_a_rebuilt_mirror_reuses_no_generation(store: DiskStore) -> None:
    """Pages keep answers by that number."""
    index = Index(store)
    given = []
    for seed in range(3):
        publish(store, seed)
        given.append(index.sync().generation)
        index.path.unlink()
    assert len(set(given)) == 3


def test_a_record_in_the_wrong_folder_is_no_entry(store: DiskStore) -> None:
    path = record_file(store, publish(store))
    elsewhere = store.layout.metadata / ("00" if path.parent.name != "00" else "01")
    elsewhere.mkdir()
    path.rename(elsewhere / path.name)
    index = Index(store)
    assert index.sync().added == 0
    assert list(store.keys()) == []


@pytest.mark.parametrize("content", [b"", b"no database", b"\0" * 100_000])
def test_a_damaged_mirror_is_built_again(store: DiskStore, content: bytes) -> None:
    index = Index(store)
    fill(store, 4)
    index.sync()
    before = _content(index)
    index.path.write_bytes(content)
    again = Index(store)
    again.sync()
    assert _content(again) == before


def test_a_mirror_with_a_damaged_middle_is_built_again(store: DiskStore) -> None:
    """DuckDB opens such a file and fails only when it reads the damage."""
    index = Index(store)
    fill(store, 300)
    index.sync()
    before = _content(index)
    size = index.path.stat().st_size
    for start in range(12_288, size, 65_536):
        with index.path.open("r+b") as file:
            file.seek(start)
            file.write(os.urandom(4096))
    publish(store, 1000)
    store.delete(publish(store, 1001))
    again = Index(store)
    again.sync()
    assert len(_content(again)["kernels"]) == len(before["kernels"]) + 1
    assert _content(again) == _rebuilt(store)


def test_a_record_that_could_not_be_read_for_a_moment_comes_with_the_next_sync(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = fill(store, 3)
    really = store.record

    def failing(key: CacheKey) -> Any:
        if key == keys[1]:
            raise OSError(24, "Too many open files")
        return really(key)

    monkeypatch.setattr(store, "record", failing)
    for shard in store.layout.metadata.iterdir():
        os.utime(shard, (1.7e9, 1.7e9))  # long ago, so that nothing else makes the folders be looked at again
    index = Index(store)
    synced = index.sync()
    assert (synced.added, synced.unreadable, synced.settled) == (2, 1, False)
    assert index.sync().changed is False
    monkeypatch.undo()
    synced = index.sync()
    assert (synced.added, synced.settled) == (1, True)
    assert _content(index)["unreadable"] == []


def test_a_mirror_of_another_version_is_built_again(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 4)
    monkeypatch.setattr(sync_module, "SCHEMA_VERSION", "another")
    Index(store).sync()
    monkeypatch.undo()
    index = Index(store)
    assert index.sync().added == 4


def test_another_programs_database_in_its_place_is_built_over(store: DiskStore) -> None:
    """What is called mirror.duckdb inside a store is ours to make."""
    import duckdb

    with duckdb.connect(str(store.layout.index)) as connection:
        connection.execute("CREATE TABLE wines (name VARCHAR)")
    fill(store, 2)
    assert Index(store).sync().added == 2


def test_a_mirror_held_open_by_another_program_is_left_alone(store: DiskStore) -> None:
    fill(store, 2)
    Index(store).sync()
    code = "import duckdb, sys\nheld = duckdb.connect(sys.argv[1])\nprint('open', flush=True)\nsys.stdin.readline()\n"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(store.layout.index)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        publish(store, 9)
        with pytest.raises(IndexUnavailable, match="another program"):
            Index(store).sync()
        other.communicate("\n")
    assert Index(store).sync().added == 1


def test_reading_without_a_mirror_is_a_clear_error(store: DiskStore) -> None:
    with pytest.raises(IndexUnavailable, match="cannot read"), Index(store).read():
        pass


def test_a_store_that_cannot_be_written_is_mirrored_elsewhere(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(store, 3)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "temp"))
    index = Index(store)
    assert index.sync().added == 3
    assert not store.layout.index.exists()
    assert index.path.is_relative_to(tmp_path / "temp")


def test_processes_sync_and_read_at_once(store: DiskStore) -> None:
    fill(store, 30)
    code = (
        "import sys; from pathlib import Path; from cache_engine.index.sync import Index\n"
        "from cache_engine.index import queries; from tests.helpers import make_store, publish\n"
        "store = make_store(Path(sys.argv[1])); index = Index(store)\n"
        "for n in range(8):\n"
        "    publish(store, 1000 + n); index.sync()\n"
        "    with index.read() as connection:\n"
        "        assert queries.overview(connection)['entries'] >= 30\n"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", code, str(store.layout.root)], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
    index = Index(store)
    index.sync()
    assert len(_content(index)["kernels"]) == 38


def test_threads_sync_and_read_at_once(store: DiskStore) -> None:
    fill(store, 10)
    index, failures = Index(store), list[BaseException]()
    index.sync()

    def work(number: int) -> None:
        try:
            for step in range(5):
                publish(store, 100 + number * 10 + step)
                index.sync()
                _content(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    index.sync()
    assert len(_content(index)["kernels"]) == 30


def test_a_query_that_takes_too_long_is_interrupted(store: DiskStore) -> None:
    """And the index goes on being read and written."""
    index = Index(store)
    index.sync()
    index.query_limit_s = 0.2
    with pytest.raises(
        IndexUnavailable, match=r"stopped after 0\.2 s; ask for less, or raise the setting page_limit_s"
    ):
        index.query(
            lambda connection: connection.execute(
                "SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b"
            ).fetchall()
        )
    publish(store, 1)
    assert index.sync().added == 1
    assert index.query(lambda connection: connection.execute("SELECT count(*) FROM kernels").fetchone()) == (1,)
