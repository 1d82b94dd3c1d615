"""Folding the journal keeps all sums, while processes write, read or are killed."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.errors import CorruptEntry
from cache_engine.model.events import EVICT, PUBLISH
from cache_engine.model.key import CacheKey
from cache_engine.store import lock
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import (
    Journal,
    fold,
    fold_when_long,
    journal_bytes,
    read_journal,
    read_snapshot,
)
from cache_engine.store.journal import (
    snapshot as journal_snapshot,
)
from cache_engine.store.journal.lines import LONG_BYTES
from cache_engine.store.lock import file_lock, try_lock
from tests.helpers import publish
from tests.store.test_journal import KEY, NEVER, OTHER, _fold, _hits


def test_folding_changes_no_sum(folder: Path) -> None:
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "disk", saved_us=7)
    journal.event(EVICT, key=KEY, stored_bytes=100, detail="expired")
    journal.close()
    before = read_journal(folder)
    assert _fold(folder) == 1
    assert [path.name for path in folder.iterdir()] == ["snapshot.json"]
    after = read_journal(folder)
    assert (after.totals, after.usage, after.recent) == (before.totals, before.usage, before.recent)
    assert _fold(folder) == 0


def test_sums_by_time_survive_folding_however_the_clock_jumps(folder: Path) -> None:
    now = time.time()
    for at in (now, now - 86_400 * 30, now + 86_400 * 30, 0.0, now):
        journal = Journal(folder, NEVER, now=lambda at=at: at)  # type: ignore[misc]
        journal.hit(KEY, "disk", saved_us=7)
        journal.miss("sm_90")
        journal.event(PUBLISH, key=KEY, compile_us=11)
        journal.close()
        _fold(folder)
    tally = read_journal(folder)
    assert [period.hits["disk"] for period in tally.periods] == [1, 1, 2, 1]
    assert sum(period.misses for period in tally.periods) == tally.totals.misses == 5
    assert sum(period.compile_us for period in tally.periods) == tally.totals.compile_us == 55
    assert [period.seconds for period in tally.periods] == [28 * 86_400, 86_400, 3600, 86_400]
    assert tally.totals.misses_by_arch == {"sm_90": 5}


def test_a_snapshot_from_before_there_were_sums_by_time_is_read_and_folded(folder: Path) -> None:
    old = '{"format":1,"generation":7,"folded":[],"totals":{"hits":{"disk":3},"misses":1},"usage":[],"recent":[]}'
    (folder / "snapshot.json").write_text(old)
    assert (_hits(folder), read_journal(folder).periods) == ({"disk": 3}, [])
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "disk")
    journal.close()
    _fold(folder)
    tally = read_journal(folder)
    assert (tally.totals.hits, tally.totals.misses) == ({"disk": 4}, 1)
    assert [period.hits for period in tally.periods] == [{"disk": 1}]


def test_a_process_that_only_hits_has_a_journal_of_bounded_size(store: DiskStore) -> None:
    journal = Journal(store.layout.journal, NEVER, fold=partial(fold_when_long, store.layout))
    # Kernels that are there, so that folding keeps their usage.
    keys = [CacheKey(f"{number:064x}") for number in range(200)]
    for key in keys:
        Path(store.layout.record_path(key)).parent.mkdir(exist_ok=True)
        Path(store.layout.record_path(key)).touch()
    rounds, most = 400, 0
    for _ in range(rounds):
        for key in keys:
            journal.hit(key, "memory", made_at=1_700_000_000.123456)
        journal.write_counts()
        most = max(most, journal_bytes(store.layout.journal))
    journal.close()
    assert read_snapshot(store.layout.journal).generation > 0
    assert most < LONG_BYTES + 1.5 * 1024**2  # and the file at hand, and the sums
    tally = read_journal(store.layout.journal)
    assert tally.totals.hits == {"memory": rounds * len(keys)}
    assert {usage.hits["memory"] for usage in tally.usage} == {rounds}


def _old_file(store: DiskStore, key: CacheKey) -> Path:
    """A finished file of the day before yesterday with one hit."""
    journal = Journal(store.layout.journal, NEVER)
    journal.hit(key, "disk")
    journal.close()
    (path,) = store.layout.journal.glob("*.jsonl")
    return path.rename(path.with_name(f"{time.time_ns() - 2 * 86_400 * 10**9:016x}-1-old.jsonl"))


def test_a_file_of_yesterday_is_folded_by_a_process_that_only_hits(store: DiskStore) -> None:
    old = _old_file(store, publish(store))
    with open_cache(store.layout.root, cleanup_interval_h=0.0) as cache:
        cache.get(next(store.keys()))
    assert not old.exists()
    assert _hits(store.layout.journal) == {"disk": 2}


def test_folding_by_itself_waits_for_no_other_maintenance(store: DiskStore) -> None:
    _old_file(store, publish(store))
    with file_lock(store.layout.maintenance_lock, 0):
        assert fold_when_long(store.layout) == 0
    assert fold_when_long(store.layout) == 1
    assert fold_when_long(store.layout) == 0


def test_folding_leaves_a_file_that_is_being_written(folder: Path) -> None:
    writer, done = Journal(folder, NEVER), Journal(folder, NEVER)
    writer.event(PUBLISH, key=KEY)
    done.event(PUBLISH, key=KEY)
    done.close()
    assert _fold(folder) == 1
    writer.event(PUBLISH, key=KEY)
    assert read_journal(folder).totals.compiles == 3
    writer.close()
    _fold(folder)
    assert read_journal(folder).totals.compiles == 3


def test_a_folded_file_that_others_may_change_for_a_while_counts_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not be deleted when it was folded, and is left alone by the next fold."""
    _write_hits(folder, 3)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", _refuse)
        with pytest.raises(OSError, match="no"):
            _fold(folder)
    (kept,) = folder.glob("*.folding")
    kept.chmod(0o666)
    _write_hits(folder, 4)
    assert _fold(folder) == 1
    kept.chmod(0o600)
    assert _hits(folder) == {"disk": 7}
    assert _fold(folder) == 0
    assert _hits(folder) == {"disk": 7}
    assert not kept.exists()


def test_a_fold_that_meets_a_file_it_may_not_trust_stops_no_counting(folder: Path) -> None:
    def untrusted() -> None:
        raise CorruptEntry("it has just been opened to others")

    journal = Journal(folder, NEVER, fold=untrusted)
    journal.hit(KEY, "disk")
    journal.write_counts()
    assert _hits(folder) == {"disk": 1}
    journal.close()


def _write_hits(folder: Path, count: int) -> None:
    journal = Journal(folder, NEVER)
    for _ in range(count):
        journal.hit(KEY, "disk")
    journal.close()


def _refuse(*_: object, **__: object) -> None:
    raise OSError("no")


def test_a_reader_that_is_overtaken_by_a_fold_misses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the snapshot and the files, the events move from the one to the other."""
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "disk")
    journal.close()
    folded: list[int] = []

    def overtaken(folder: Path) -> journal_snapshot.Snapshot:
        snapshot = read_snapshot(folder)
        if not folded:
            folded.append(_fold(folder))
        return snapshot

    monkeypatch.setattr(journal_snapshot, "read_snapshot", overtaken)
    assert _hits(folder) == {"disk": 1}
    assert folded == [1]


def test_folding_drops_usage_of_keys_not_to_keep(folder: Path) -> None:
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "disk")
    journal.hit(OTHER, "disk")
    journal.close()
    fold(folder, folder.parent / "temp", keep=lambda key: key == KEY)
    tally = read_journal(folder)
    assert [used.key for used in tally.usage] == [KEY]
    assert tally.totals.hits == {"disk": 2}


@pytest.mark.parametrize("faster", ["writer", "fold"])
def test_a_new_file_that_is_taken_before_its_maker_has_locked_it_loses_no_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch, faster: str
) -> None:
    other = Journal(folder, NEVER)
    waiting = [lambda: other.event(PUBLISH, key=OTHER) if faster == "writer" else _fold(folder)]

    def late(descriptor: int, *, shared: bool = False) -> bool:
        if waiting:
            waiting.pop()()
        return try_lock(descriptor, shared=shared)

    monkeypatch.setattr(lock, "try_lock", late)
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "disk")
    journal.flush()
    assert not waiting
    assert _hits(folder) == {"disk": 1}


def test_a_damaged_snapshot_is_logged_and_does_not_stop_the_reader(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "snapshot.json").write_text("{")
    assert read_snapshot(folder).generation == 0
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize("text", ['{"format": 99}', "{", "\x00"])
def test_a_snapshot_that_cannot_be_read_is_not_folded_over(folder: Path, text: str) -> None:
    """It may be a newer version's."""
    (folder / "snapshot.json").write_text(text)
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "disk")
    journal.close()
    assert _fold(folder) == 0
    assert (folder / "snapshot.json").read_text() == text
    assert _hits(folder) == {"disk": 1}
