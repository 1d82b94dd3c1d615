"""The journal: nothing counted is lost or counted twice, whatever becomes of its writers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache_engine.engine.cache import open_cache
from cache_engine.model.events import EVICT, PUBLISH
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import (
    Journal,
    fold,
    fold_when_long,
    folding,
    journal_bytes,
    read_journal,
    read_snapshot,
    writing,
)
from cache_engine.store.journal.folding import LONG_BYTES
from cache_engine.store.lock import file_lock, try_lock
from tests.helpers import publish

KEY, OTHER = CacheKey("a" * 64), CacheKey("b" * 64)
NEVER = 3600.0  # seconds between flushes: tests flush themselves


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "journal").mkdir()
    (tmp_path / "temp").mkdir()
    return tmp_path / "journal"


def _fold(folder: Path) -> int:
    return fold(folder, folder.parent / "temp", keep=lambda key: True)


def _hits(folder: Path) -> dict[str, int]:
    return read_journal(folder).totals.hits


def test_counts_are_added_up_by_key_and_tier(folder: Path) -> None:
    journal = Journal(folder, NEVER, now=lambda: 1000.0)
    for _ in range(3):
        journal.hit(KEY, "memory")
    journal.hit(KEY, "disk", saved_us=250_000)
    journal.hit(OTHER, "disk", saved_us=1)
    journal.miss()
    journal.flush()
    tally = read_journal(folder)
    assert tally.totals.hits == {"memory": 3, "disk": 2}
    assert (tally.totals.misses, tally.totals.saved_us) == (1, 250_001)
    used = {usage.key: usage for usage in tally.usage}
    assert used[KEY].hits == {"memory": 3, "disk": 1}
    assert used[KEY].last_used_at == 1000.0


def test_an_entry_made_again_starts_with_no_hits(folder: Path) -> None:
    journal = Journal(folder, NEVER)
    for made_at in (1.0, 1.0, 2.0):
        journal.hit(KEY, "disk", made_at=made_at)
    journal.close()
    tally = read_journal(folder)
    assert {(used.made_at, used.hits["disk"]) for used in tally.usage} == {(1.0, 2), (2.0, 1)}
    assert tally.totals.hits == {"disk": 3}


def test_a_hit_writes_nothing_by_itself(folder: Path) -> None:
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "memory")
    assert list(folder.iterdir()) == []
    journal.flush()
    assert len(list(folder.iterdir())) == 1


def test_counts_are_written_by_and_by_without_being_asked(folder: Path) -> None:
    journal = Journal(folder, 0.02)
    journal.hit(KEY, "memory")
    deadline = time.monotonic() + 10
    while not _hits(folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _hits(folder) == {"memory": 1}
    journal.close()


def test_counts_are_written_when_the_process_ends(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cache_engine.store.journal import Journal\n"
        f"Journal(Path(sys.argv[1]), {NEVER}).hit('{KEY}', 'memory')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
    assert _hits(folder) == {"memory": 1}


def test_a_kill_loses_at_most_the_last_batch(folder: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from cache_engine.store.journal import Journal\n"
        f"journal = Journal(Path(sys.argv[1]), {NEVER})\n"
        f"journal.hit('{KEY}', 'disk'); journal.flush(); journal.hit('{KEY}', 'disk')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)])
    assert done.returncode == -signal.SIGKILL
    assert _hits(folder) == {"disk": 1}


def test_threads_lose_no_count(folder: Path) -> None:
    journal = Journal(folder, 0.001)

    def work() -> None:
        for _ in range(2000):
            journal.hit(KEY, "memory")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    assert _hits(folder) == {"memory": 8000}


def test_a_forked_child_counts_only_its_own(folder: Path) -> None:
    journal = Journal(folder, NEVER)
    journal.event(PUBLISH, key=KEY)
    journal.hit(KEY, "memory")
    child = os.fork()
    if child == 0:
        journal.hit(KEY, "disk")
        journal.flush()
        os._exit(0)
    os.waitpid(child, 0)
    journal.close()
    assert _hits(folder) == {"memory": 1, "disk": 1}
    # The parent still held its file, so the child opened one of its own.
    assert len(list(folder.iterdir())) == 2


def test_writers_one_after_the_other_share_a_file(folder: Path) -> None:
    """Else a store used by a thousand short commands would hold a thousand files."""
    for _ in range(5):
        journal = Journal(folder, NEVER)
        journal.hit(KEY, "disk")
        journal.close()
    assert len(list(folder.iterdir())) == 1
    assert _hits(folder) == {"disk": 5}


def test_writers_side_by_side_have_files_of_their_own(folder: Path) -> None:
    journals = [Journal(folder, NEVER) for _ in range(3)]
    for journal in journals:
        journal.event(PUBLISH, key=KEY, compile_us=5)
    assert len(list(folder.iterdir())) == 3
    assert read_journal(folder).totals.compile_us == 15


@pytest.mark.parametrize("torn", [b'{"kind":"use","at":1', b"\x00\xff\x00", b"[1,2]"])
def test_a_line_cut_short_is_passed_over_and_the_next_is_read(folder: Path, torn: bytes) -> None:
    first = Journal(folder, NEVER)
    first.event(PUBLISH, key=KEY)
    first.close()
    (path,) = folder.iterdir()
    with path.open("ab") as file:
        file.write(torn)
    second = Journal(folder, NEVER)
    second.event(PUBLISH, key=KEY)
    second.close()
    assert list(folder.iterdir()) == [path]
    assert read_journal(folder).totals.compiles == 2


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


def test_long_waits_for_a_lock_are_counted(folder: Path) -> None:
    journal = Journal(folder, NEVER)
    journal.lock_wait(2.0, timed_out=False)
    journal.lock_wait(0.5, timed_out=True)
    journal.failure("pack")
    journal.flush()
    journal.lock_wait(1.0, timed_out=False)
    journal.close()
    totals = read_journal(folder).totals
    assert (totals.lock_waits, totals.lock_timeouts, totals.lock_wait_us) == (3, 1, 3_500_000)
    assert totals.failures == {"pack": 1}


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
        journal.work(None)
        most = max(most, journal_bytes(store.layout.journal))
    journal.close()
    assert read_snapshot(store.layout.journal).generation > 0
    assert most < LONG_BYTES + 1.5 * 1024**2  # and the file at hand, and the sums
    tally = read_journal(store.layout.journal)
    assert tally.totals.hits == {"memory": rounds * len(keys)}
    assert {usage.hits["memory"] for usage in tally.usage} == {rounds}


def test_the_more_entries_a_process_uses_the_less_often_it_writes(folder: Path) -> None:
    """So it writes about a kibibyte a second at most, and every five minutes at least."""
    journal = Journal(folder, 5.0)
    for count, least_s, most_s in ((1, 5, 5), (200, 20, 60), (5000, 300, 300)):
        for number in range(count):
            journal.hit(CacheKey(f"{number:064x}"), "memory", made_at=1.0)
        wait_s = journal.work(None)
        assert wait_s is not None
        assert least_s <= wait_s <= most_s
    journal.close()


def test_hits_on_ever_new_entries_do_not_pile_up_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_MOST_WAITING", 10)
    journal = Journal(folder, NEVER)
    for number in range(11):
        journal.hit(CacheKey(f"{number:064x}"), "disk")
    deadline = time.monotonic() + 10
    while not _hits(folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _hits(folder)["disk"] >= 10
    journal.close()


def test_misses_take_a_line_for_each_target_however_many_there_are(folder: Path) -> None:
    journal = Journal(folder, NEVER)
    for _ in range(5000):
        journal.miss("sm_90")
        journal.miss("sm_80")
    journal.close()
    assert journal_bytes(folder) < 500
    assert read_journal(folder).totals.misses_by_arch == {"sm_90": 5000, "sm_80": 5000}


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


def test_a_journal_does_not_write_into_a_file_that_the_program_opened_in_its_place(folder: Path) -> None:
    """A program that becomes a daemon closes all descriptors, and its own files get their numbers."""
    journal = Journal(folder, NEVER)
    journal.event(PUBLISH, key=KEY)
    assert journal._file is not None
    number = journal._file.descriptor
    os.close(number)
    theirs = folder.parent / "theirs"
    descriptor = os.open(theirs, os.O_RDWR | os.O_CREAT)
    assert descriptor == number
    journal.event(PUBLISH, key=KEY)
    journal.close()
    assert os.fstat(descriptor).st_size == 0
    os.close(descriptor)
    assert read_journal(folder).totals.compiles == 2


def test_folding_leaves_a_file_that_is_being_written(folder: Path) -> None:
    writing, done = Journal(folder, NEVER), Journal(folder, NEVER)
    writing.event(PUBLISH, key=KEY)
    done.event(PUBLISH, key=KEY)
    done.close()
    assert _fold(folder) == 1
    writing.event(PUBLISH, key=KEY)
    assert read_journal(folder).totals.compiles == 3
    writing.close()
    _fold(folder)
    assert read_journal(folder).totals.compiles == 3


def test_a_kill_between_snapshot_and_deletion_counts_nothing_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "disk")
    journal.close()

    def killed(self: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        _fold(folder)
    monkeypatch.undo()
    assert len(list(folder.iterdir())) == 2
    assert _hits(folder) == {"disk": 1}
    # A new writer must not go on in the file that is already counted.
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "disk")
    journal.close()
    assert _hits(folder) == {"disk": 2}
    _fold(folder)
    assert _hits(folder) == {"disk": 2}
    assert [path.name for path in folder.iterdir()] == ["snapshot.json"]


def test_a_reader_that_is_overtaken_by_a_fold_misses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the snapshot and the files, the events move from the one to the other."""
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "disk")
    journal.close()
    folded: list[int] = []

    def overtaken(folder: Path) -> folding.Snapshot:
        snapshot = read_snapshot(folder)
        if not folded:
            folded.append(_fold(folder))
        return snapshot

    monkeypatch.setattr(folding, "read_snapshot", overtaken)
    assert _hits(folder) == {"disk": 1}
    assert folded == [1]


def test_folding_forgets_usage_nobody_asks_for(folder: Path) -> None:
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "disk")
    journal.hit(OTHER, "disk")
    journal.close()
    fold(folder, folder.parent / "temp", keep=lambda key: key == KEY)
    tally = read_journal(folder)
    assert [used.key for used in tally.usage] == [KEY]
    assert tally.totals.hits == {"disk": 2}


def test_a_full_file_is_left_for_a_new_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_ROTATE_BYTES", 500)
    journal = Journal(folder, NEVER)
    for _ in range(20):
        journal.event(PUBLISH, key=KEY)
    assert len(list(folder.iterdir())) > 2
    assert read_journal(folder).totals.compiles == 20


@pytest.mark.parametrize("faster", ["writer", "fold"])
def test_a_new_file_that_is_taken_before_its_maker_has_locked_it_loses_no_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch, faster: str
) -> None:
    other = Journal(folder, NEVER)
    waiting = [lambda: other.event(PUBLISH, key=OTHER) if faster == "writer" else _fold(folder)]

    def late(descriptor: int) -> bool:
        if waiting:
            waiting.pop()()
        return try_lock(descriptor)

    monkeypatch.setattr(writing, "try_lock", late)
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "disk")
    journal.flush()
    assert not waiting
    assert _hits(folder) == {"disk": 1}


def test_a_journal_that_cannot_be_written_complains_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(tmp_path / "missing", NEVER)
    for _ in range(3):
        journal.event(PUBLISH, key=KEY)
    assert (
        sum("could not be written" in record.message for record in caplog.records if record.levelname == "WARNING") == 1
    )


def test_a_damaged_snapshot_is_said_and_does_not_stop_the_reader(
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


@pytest.mark.parametrize("interrupted", ["_lock", "_writing"])
def test_closing_in_the_middle_of_counting_or_writing_waits_for_nothing_and_loses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    """As a signal handler may. The thread waits for what the handler has interrupted, so the handler must not wait."""
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "disk")

    def refuse(*_: object) -> None:
        raise AssertionError("this would wait for ever")

    with monkeypatch.context() as patched, getattr(journal, interrupted):
        patched.setattr(threading.Thread, "join", refuse)
        assert journal.is_interrupted
        journal.close()
        journal.event(PUBLISH, key=KEY)
    deadline = time.monotonic() + 10
    while journal._thread is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    journal.close()
    assert (_hits(folder), read_journal(folder).totals.compiles) == ({"disk": 1}, 1)


def test_a_closed_journal_leaves_no_thread(folder: Path) -> None:
    """One stopped by the end of the interpreter keeps the locks it has, and who waits for them waits for ever."""
    before = threading.active_count()
    journals = [Journal(folder, 60) for _ in range(20)]
    for journal in journals:
        journal.hit(KEY, "memory")
    assert threading.active_count() == before + 20
    for number, journal in enumerate(journals, 1):
        journal.close()
        assert threading.active_count() == before + 20 - number


def test_a_closed_journal_can_be_dropped(folder: Path) -> None:
    """Neither its thread nor the hooks at fork and exit keep it alive."""
    import gc
    import weakref

    journal = Journal(folder, 0.01)
    journal.hit(KEY, "memory")
    journal.close()
    gone = weakref.ref(journal)
    del journal
    deadline = time.monotonic() + 5
    while gone() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_bytes_crash_the_reader_or_hide_what_follows(folder: Path, noise: bytes, snapshot: bytes) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "1.jsonl").write_bytes(noise + b'\n{"kind":"publish","at":1.0,"compile_us":5}\n')
    (folder / "snapshot.json").write_bytes(snapshot)
    totals = read_journal(folder).totals
    assert totals.compiles >= 1
    assert totals.compile_us >= 5


@pytest.mark.parametrize(
    "fields", ['"misses":-5', '"hits":{"disk":-1}', '"saved_us":-1', '"at":-1.0', '"compile_us":1e99']
)
def test_a_line_with_numbers_that_cannot_be_is_passed_over(folder: Path, fields: str) -> None:
    (folder / "1.jsonl").write_text(
        '{"kind":"use","at":1.0,"key":"a",' + fields + '}\n{"kind":"use","at":1.0,"misses":2}\n'
    )
    totals = read_journal(folder).totals
    assert (totals.misses, totals.hits, totals.saved_us) == (2, {}, 0)
