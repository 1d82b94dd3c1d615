"""The log of decisions: it survives what the journal survives, and has a bounded size."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from cache_engine.model.decision import MISS, Decision
from cache_engine.model.events import CORRUPT, EVICT, PUBLISH, SET_ASIDE, UNPUBLISHED
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import (
    DecisionReader,
    Journal,
    append_decisions,
    damaged_decisions,
    mend_decisions,
    read_journal,
)
from cache_engine.store.journal import decisions as log
from cache_engine.store.lock import file_lock
from cache_engine.store.ownership import open_file

KEY = CacheKey("ab" * 32)


def _journal(store: DiskStore) -> Journal:
    return Journal(store.layout.journal, 3600.0, log=store.layout)


def _decision(number: int, at: float | None = None) -> Decision:
    return Decision(kind=MISS, at=time.time() if at is None else at, key=KEY, detail=f"number {number}")


def _read(store: DiskStore) -> list[str]:
    return [one.detail for one in DecisionReader(store.layout).new()]


def test_decisions_come_out_as_they_went_in(store: DiskStore) -> None:
    journal, before = _journal(store), time.time()
    journal.decided(MISS, key=KEY, name="gemm", reason="forced", detail="with\nline\x1b[31m breaks", margin=0.25)
    journal.close()
    (one,) = DecisionReader(store.layout).new()
    assert (one.kind, one.key, one.name, one.reason, one.margin) == (MISS, KEY, "gemm", "forced", 0.25)
    assert one.detail == "with\nline\x1b[31m breaks"
    assert before <= one.at <= time.time()


def test_a_hit_writes_nothing(store: DiskStore) -> None:
    journal = _journal(store)
    journal.hit(KEY, "disk")
    journal.close()
    assert not store.layout.decisions.exists()


def test_events_that_are_decisions_are_in_the_log_too(store: DiskStore) -> None:
    journal = _journal(store)
    journal.event(EVICT, key=KEY, stored_bytes=7, detail="expired", by="automatic")
    journal.event(CORRUPT, key=KEY, detail="a flipped bit")
    journal.event(UNPUBLISHED, key=KEY, detail="the disk is full")
    journal.event(PUBLISH, key=KEY)
    found = [(one.kind, one.reason, one.detail, one.by) for one in DecisionReader(store.layout).new()]
    assert found == [
        ("eviction", "expired", "", "automatic"),
        ("quarantine", "a flipped bit", "", ""),
        ("refusal", "not stored", "the disk is full", ""),
    ]
    journal.close()


def test_the_name_of_a_file_that_is_no_text_loses_neither_its_line_nor_the_counts_that_wait(store: DiskStore) -> None:
    journal = _journal(store)
    journal.hit(KEY, "disk")
    journal.decided(MISS, key=KEY, detail="a\udcffb")
    journal.event(SET_ASIDE, detail="proofs/a\udcffb: misnamed file")
    journal.close()
    tally = read_journal(store.layout.journal)
    assert tally.totals.hits == {"disk": 1}
    assert [event.detail for event in tally.recent] == ["proofs/a?b: misnamed file"]
    assert _read(store)[0] == "a?b"


def test_a_reader_continues_where_it_stopped_also_when_the_files_change_places(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "LONG_BYTES", 1000)
    reader, seen = DecisionReader(store.layout), []
    for number in range(50):
        append_decisions(store.layout, [_decision(number)])
        seen += [one.detail for one in reader.new()]
    assert seen == [f"number {number}" for number in range(50)]


@pytest.mark.parametrize("lines", [20, 40, 60])
def test_a_reader_skips_nothing_when_the_files_change_places_twice_between_its_looks(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    """ext4 gives the number of a deleted file to the next one."""
    monkeypatch.setattr(log, "LONG_BYTES", 1000)
    reader, seen = DecisionReader(store.layout), []
    for start in range(0, 6 * lines, lines):
        for number in range(start, start + lines):
            append_decisions(store.layout, [_decision(number)])
        seen += [one.detail for one in reader.new()]
        assert set(_read(store)) <= set(seen)
    assert len(seen) == len(set(seen))


def test_decisions_keep_their_order_when_the_files_change_places_during_a_look(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a kernel that was demoted, then promoted, would count as demoted."""
    append_decisions(store.layout, [_decision(0)])
    monkeypatch.setattr(log, "LONG_BYTES", 1)
    append_decisions(store.layout, [_decision(1)])
    monkeypatch.undo()
    append_decisions(store.layout, [_decision(2)])

    def open_late(path: Path, **options: Any) -> int:
        if path == store.layout.decisions_log and not late:
            late.append(path.replace(store.layout.older_decisions_log))
            append_decisions(store.layout, [_decision(3)])
        return open_file(path, **options)

    late: list[Path] = []
    monkeypatch.setattr(log, "open_file", open_late)
    found = [int(one.detail.split()[1]) for one in DecisionReader(store.layout).new()]
    assert late
    assert found == sorted(found)
    assert {2, 3} <= set(found)


def test_when_another_has_just_moved_the_long_file_nothing_is_called_lost(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(path: Path, timeout_s: float, *, shared: bool = False) -> AbstractContextManager[None]:
        if not shared:
            store.layout.decisions_log.replace(store.layout.older_decisions_log)
        return file_lock(path, timeout_s, shared=shared)

    monkeypatch.setattr(log, "LONG_BYTES", 1)
    monkeypatch.setattr(log, "file_lock", locked)
    append_decisions(store.layout, [_decision(1)])
    assert _read(store) == ["number 1"]


def test_a_file_that_has_the_number_of_a_deleted_one_is_read_from_its_start(store: DiskStore) -> None:
    append_decisions(store.layout, [_decision(1)])
    reader = DecisionReader(store.layout)
    reader.new()
    path = store.layout.decisions_log
    number = path.stat().st_ino
    path.write_bytes(b"")  # as a new file has it
    append_decisions(store.layout, [_decision(number) for number in range(2, 9)])
    assert path.stat().st_ino == number
    assert [one.detail for one in reader.new()] == [f"number {number}" for number in range(2, 9)]


def test_the_size_is_bounded_and_the_latest_stay(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LONG_BYTES", 2000)
    for number in range(200):
        append_decisions(store.layout, [_decision(number)])
        assert sum(path.stat().st_size for path in store.layout.decisions.iterdir()) < 2 * 2000 + 300
    kept = _read(store)
    assert kept == [f"number {number}" for number in range(200 - len(kept), 200)]
    assert 10 < len(kept) < 40


def test_a_cut_a_flipped_and_a_future_line_are_skipped_and_counted(store: DiskStore) -> None:
    append_decisions(store.layout, [_decision(number) for number in range(3)])
    append_decisions(store.layout, [_decision(3, at=time.time() + 30 * 86_400)])
    path = store.layout.decisions_log
    data = bytearray(path.read_bytes())
    data[data.index(b"number 1") + 7] ^= 1
    path.write_bytes(bytes(data) + b'\n0123456789abcdef {"kind":"mi')
    append_decisions(store.layout, [_decision(4)])
    reader = DecisionReader(store.layout)
    assert [one.detail for one in reader.new()] == ["number 0", "number 2", "number 4"]
    assert reader.damaged == 3
    assert damaged_decisions(path) == (3, 6)


def test_a_clock_that_was_set_back_makes_no_line_one_of_the_future(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_decisions(store.layout, [_decision(1)])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 66 * 365 * 86_400)
    assert _read(store) == ["number 1"]
    assert damaged_decisions(store.layout.decisions_log) == (0, 1)


def test_a_line_a_year_old_counts(store: DiskStore) -> None:
    append_decisions(store.layout, [_decision(1, at=time.time() - 366 * 86_400)])
    assert _read(store) == ["number 1"]


def test_mending_keeps_the_sound_lines_and_a_copy_of_the_file(store: DiskStore) -> None:
    append_decisions(store.layout, [_decision(1), _decision(2)])
    path = store.layout.decisions_log
    damaged = path.read_bytes().replace(b"number 1", b"number 7")
    path.write_bytes(damaged)
    mend_decisions(store.layout, path)
    assert _read(store) == ["number 2"]
    assert damaged_decisions(path) == (0, 1)
    assert [copy.read_bytes() for copy in store.layout.quarantine.iterdir()] == [damaged]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd")], ids=["pipe", "link"])
def test_what_is_no_file_is_neither_read_nor_appended_to(store: DiskStore, make: object) -> None:
    store.layout.decisions.mkdir()
    make(store.layout.decisions_log)  # type: ignore[operator]
    journal = _journal(store)
    journal.decided(MISS, key=KEY)
    journal.close()
    assert _read(store) == []


def test_a_file_that_others_may_write_is_not_read(store: DiskStore) -> None:
    append_decisions(store.layout, [_decision(1)])
    store.layout.decisions_log.chmod(0o666)
    assert _read(store) == []


def test_a_killed_process_loses_its_last_batch_at_most(store: DiskStore) -> None:
    program = (
        "import os, sys, signal\nfrom cache_engine import open_cache\n"
        "cache = open_cache(sys.argv[1])\n"
        "cache.journal.decided('miss', key='ab' * 32, detail='written')\ncache.journal.flush()\n"
        "cache.journal.decided('miss', key='ab' * 32, detail='lost')\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(store.layout.root)])
    assert done.returncode == -signal.SIGKILL
    assert _read(store) == ["written"]


def test_a_forked_child_does_not_write_its_parents_decisions(store: DiskStore) -> None:
    journal = _journal(store)
    journal.decided(MISS, key=KEY, detail="of the parent")
    child = os.fork()
    if not child:
        journal.flush()
        os._exit(0)
    os.waitpid(child, 0)
    assert _read(store) == []
    journal.close()
    assert _read(store) == ["of the parent"]


def test_the_log_is_appended_to_while_another_process_appends(store: DiskStore, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom cache_engine.model.decision import Decision\n"
        "from cache_engine.store.journal import append_decisions\nfrom cache_engine.store.layout import StoreLayout\n"
        "from cache_engine.store.journal import decisions as log\nlog.LONG_BYTES = 20_000\n"
        "for number in range(300):\n"
        "    line = Decision(kind='miss', at=1.0, detail=f'{sys.argv[2]} {number}')\n"
        "    append_decisions(StoreLayout(Path(sys.argv[1])), [line])\n"
    )
    arguments = [sys.executable, "-c", program, str(store.layout.root)]
    writers = [subprocess.Popen([*arguments, name]) for name in "abc"]
    reader = DecisionReader(store.layout)
    seen: set[str] = set()
    while any(writer.poll() is None for writer in writers):
        seen.update(one.detail for one in reader.new())
    seen.update(one.detail for one in reader.new())
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert reader.damaged == 0
    latest = _read(store)
    assert len(latest) > 100
    assert set(latest) <= seen
    assert {f"{name} 299" for name in "abc"} & set(latest)


def test_an_eviction_of_a_signal_handler_is_written_once(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler interrupts writing, whose loop writes what the handler adds."""
    journal = _journal(store)
    appended: list[list[str]] = []

    def interrupted(_: object, decided: list[Decision]) -> None:
        appended.append([one.reason for one in decided])
        if len(appended) == 1:
            journal.event(EVICT, key=KEY, detail="eviction in a handler")  # as a handler would, in the same thread

    monkeypatch.setattr(log, "append_decisions", interrupted)
    journal.event(EVICT, key=KEY, detail="eviction of a user")
    journal.flush()
    journal.close()
    assert sorted(reason for batch in appended for reason in batch) == ["eviction in a handler", "eviction of a user"]
