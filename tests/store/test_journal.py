"""The journal: no count is lost or counted twice, however its writers end."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.background import BackgroundQueue, Thread
from cache_engine.model.decision import DEMOTION, PROMOTION, SPECULATION
from cache_engine.model.events import PUBLISH
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.store import lock
from cache_engine.store.journal import Journal, fold, journal_bytes, read_journal, writer
from cache_engine.store.journal.demand import read_timeline
from cache_engine.store.layout import StoreLayout
from tests.remote.waiting import until

KEY, OTHER = CacheKey("a" * 64), CacheKey("b" * 64)
PROBLEM = GemmProblem(16, 7168, 2048, arch="sm_90a")
NEVER = 3600.0  # seconds between flushes: tests flush themselves


def _fold(folder: Path) -> int:
    return fold(folder, folder.parent / "temp", keep=lambda key: True)


def _hits(folder: Path) -> dict[str, int]:
    return read_journal(folder).totals.hits


def _asked(folder: Path) -> float:
    """How many requests were counted as demand."""
    return read_timeline(StoreLayout(folder.parent)).ledger(math.inf, time.time()).total


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
    until(lambda: bool(_hits(folder)))
    assert _hits(folder) == {"memory": 1}
    journal.close()


def test_promotions_and_demotions_are_counted(folder: Path) -> None:
    journal = Journal(folder, NEVER)
    for kind in (PROMOTION, SPECULATION, DEMOTION, "choice"):
        journal.decided(kind, key="ab" * 32)
    journal.close()
    tally = read_journal(folder)
    assert (tally.totals.promotions, tally.totals.demotions) == (2, 1)
    assert [(one.promotions, one.demotions) for one in tally.periods] == [(2, 1)]


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
        "from cache_engine.model.gemm import GemmProblem\n"
        f"journal, problem = Journal(Path(sys.argv[1]), {NEVER}), GemmProblem(16, 7168, 2048, arch='sm_90a')\n"
        f"for _ in range(2):\n    journal.flush(); journal.hit('{KEY}', 'disk', problem=problem)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)])
    assert done.returncode == -signal.SIGKILL
    assert (_hits(folder), _asked(folder)) == ({"disk": 1}, 1)


def test_threads_lose_no_count(folder: Path) -> None:
    journal = Journal(folder, 0.001)

    def work() -> None:
        for _ in range(2000):
            journal.hit(KEY, "memory", problem=PROBLEM)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    assert (_hits(folder), _asked(folder)) == ({"memory": 8000}, 8000)


def test_a_forked_child_counts_only_its_own(folder: Path) -> None:
    journal = Journal(folder, NEVER)
    journal.event(PUBLISH, key=KEY)
    journal.hit(KEY, "memory", problem=PROBLEM)
    child = os.fork()
    if child == 0:
        journal.hit(KEY, "disk", problem=PROBLEM)
        journal.flush()
        os._exit(0)
    os.waitpid(child, 0)
    journal.close()
    assert (_hits(folder), _asked(folder)) == ({"memory": 1, "disk": 1}, 2)
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
def test_a_line_cut_short_is_skipped_and_the_next_is_read(folder: Path, torn: bytes) -> None:
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


def test_the_more_entries_a_process_uses_the_less_often_it_writes(folder: Path) -> None:
    """So it writes about a kibibyte a second at most, and every five minutes at least."""
    journal = Journal(folder, 5.0)
    for count, least_s, most_s in ((1, 5, 5), (200, 20, 60), (5000, 300, 300)):
        for number in range(count):
            journal.hit(CacheKey(f"{number:064x}"), "memory", made_at=1.0)
        wait_s = journal.write_counts()
        assert wait_s is not None
        assert least_s <= wait_s <= most_s
    journal.close()


def test_hits_on_ever_new_entries_do_not_pile_up_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_MOST_WAITING", 10)
    journal = Journal(folder, NEVER)
    for number in range(11):
        journal.hit(CacheKey(f"{number:064x}"), "disk")
    until(lambda: bool(_hits(folder)))
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


def test_a_full_file_is_left_for_a_new_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "ROTATE_BYTES", 500)
    monkeypatch.setattr(lock, "ROTATE_BYTES", 500)
    journal = Journal(folder, NEVER)
    for _ in range(20):
        journal.event(PUBLISH, key=KEY)
    assert len(list(folder.iterdir())) > 2
    assert read_journal(folder).totals.compiles == 20


def test_a_journal_that_cannot_be_written_complains_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(tmp_path / "missing", NEVER)
    for _ in range(3):
        journal.event(PUBLISH, key=KEY)
    assert (
        sum("could not be written" in record.message for record in caplog.records if record.levelname == "WARNING") == 1
    )


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
        patched.setattr(Thread, "join", refuse)
        patched.setattr(BackgroundQueue, "settle", refuse)
        assert journal.is_interrupted
        journal.close()
        journal.event(PUBLISH, key=KEY)
    until(lambda: journal._queue is None)
    journal.close()
    assert (_hits(folder), read_journal(folder).totals.compiles) == ({"disk": 1}, 1)
    journal.asked(PROBLEM)  # after the end: the thread is started again
    journal.close()
    assert _asked(folder) == 1


def test_a_closed_journal_leaves_no_thread(folder: Path) -> None:
    """One stopped by the end of the interpreter keeps the locks it has, and who waits for them waits for ever."""
    journals = [Journal(folder, 60) for _ in range(20)]
    for journal in journals:
        journal.hit(KEY, "memory")
    threads = [thread for journal in journals if journal._queue is not None for thread in journal._queue._threads]
    assert [thread.is_alive for thread in threads] == [True] * 20
    for journal in journals:
        journal.close()
    assert not any(thread.is_alive for thread in threads)


def test_a_closed_journal_can_be_dropped(folder: Path) -> None:
    """Neither its thread nor the hooks at fork and exit keep it alive."""
    import gc
    import weakref

    journal = Journal(folder, 0.01)
    journal.hit(KEY, "memory")
    journal.close()
    gone = weakref.ref(journal)
    del journal
    until(lambda: gc.collect() >= 0 and gone() is None)
    assert gone() is None


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_bytes_crash_the_reader_or_hide_later_events(folder: Path, noise: bytes, snapshot: bytes) -> None:
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
def test_a_line_with_invalid_numbers_is_skipped(folder: Path, fields: str) -> None:
    (folder / "1.jsonl").write_text(
        '{"kind":"use","at":1.0,"key":"a",' + fields + '}\n{"kind":"use","at":1.0,"misses":2}\n'
    )
    totals = read_journal(folder).totals
    assert (totals.misses, totals.hits, totals.saved_us) == (2, {}, 0)
