"""Demand in the journal: no request is lost or counted twice, and none stops a caller or an older version."""

from __future__ import annotations

import errno
import math
import os
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cache_engine.model.events import USE, Event, Tally
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.model.shapes import Shape
from cache_engine.store.journal import Journal, fold, read_journal, writer
from cache_engine.store.journal.demand import load_demand, read_timeline
from cache_engine.store.layout import StoreLayout
from tests.remote.waiting import until

KEY = CacheKey("a" * 64)
PROBLEM = GemmProblem(16, 7168, 2048, arch="sm_90a")
SHAPE = Shape.of(PROBLEM)
NEVER = 3600.0


def _fold(folder: Path) -> int:
    return fold(folder, folder.parent / "temp", keep=lambda key: True)


def _asked(folder: Path) -> dict[int, float]:
    """How often each m of the shape was asked for."""
    ledger = read_timeline(StoreLayout(folder.parent)).ledger(math.inf, time.time())
    assert set(ledger.sketches) <= {SHAPE}
    return {m: one.weight for m, one in ledger.sketches[SHAPE].counters.items()} if ledger.sketches else {}


def _ask(folder: Path, *sizes: int) -> None:
    journal = Journal(folder, NEVER)
    for m in sizes:
        journal.asked(replace(PROBLEM, m=m))
    journal.close()


def _hit(folder: Path, m: int) -> None:
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "disk", problem=replace(PROBLEM, m=m))
    journal.close()


def test_requests_are_added_up_by_shape_and_m(folder: Path) -> None:
    journal = Journal(folder, NEVER)
    for problem in (PROBLEM, PROBLEM, replace(PROBLEM, m=16), replace(PROBLEM, m=1)):
        journal.asked(problem)
    journal.hit(KEY, "memory", problem=PROBLEM)
    journal.hit(KEY, "memory")
    journal.miss("sm_90a")
    journal.flush()
    assert _asked(folder) == {16: 4, 1: 1}
    other = replace(PROBLEM, n=64)
    journal.asked(other)
    journal.close()
    sketches = read_timeline(StoreLayout(folder.parent)).ledger(math.inf, time.time()).sketches
    assert {shape: sketch.total for shape, sketch in sketches.items()} == {SHAPE: 5, Shape.of(other): 1}


def test_a_request_writes_nothing_by_itself_and_then_a_line_for_each_shape(folder: Path) -> None:
    journal = Journal(folder, NEVER)
    for m in range(1, 200):
        journal.asked(replace(PROBLEM, m=m))
    assert list(folder.iterdir()) == []
    journal.flush()
    (path,) = folder.iterdir()
    assert len(path.read_bytes().splitlines()) == 1
    journal.close()


def test_folding_changes_no_count_and_drops_nothing_of_evicted_kernels(folder: Path) -> None:
    _ask(folder, 1, 16)
    assert fold(folder, folder.parent / "temp", keep=lambda key: False) == 1
    assert _asked(folder) == {1: 1, 16: 1}
    _ask(folder, 16)
    assert _asked(folder) == {1: 1, 16: 2}
    _fold(folder)
    assert _asked(folder) == {1: 1, 16: 2}


@pytest.mark.parametrize("target", ["demand.json", "snapshot.json"])
def test_a_kill_anywhere_in_a_fold_counts_nothing_twice_and_loses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Before and after each of the two files is published, and before the others are deleted.

    A new writer does not go on in a file that is already counted.
    """
    _hit(folder, 16)
    rename, killed_after = os.rename, [True, False]

    def killed(source: str, there: str) -> None:
        if str(there).endswith(target):
            if killed_after.pop():
                rename(source, there)
            raise KeyboardInterrupt
        rename(source, there)

    for _ in range(2):
        monkeypatch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            _fold(folder)
        monkeypatch.undo()
        assert _asked(folder) == {16: 1}
        assert read_journal(folder).totals.hits == {"disk": 1}
    _hit(folder, 1)
    for _ in range(2):
        assert _asked(folder) == {16: 1, 1: 1}
        assert read_journal(folder).totals.hits == {"disk": 2}
        _fold(folder)
    assert [path.name for path in folder.iterdir()] == ["snapshot.json"]


def test_a_reader_that_is_overtaken_by_a_fold_misses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cache_engine.store.journal import demand

    _ask(folder, 16)
    read = demand.read_lines
    folded: list[int] = []

    def overtaken(*arguments: object) -> object:
        if not folded:
            folded.append(_fold(folder))
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(demand, "read_lines", overtaken)
    assert _asked(folder) == {16: 1}
    assert folded == [1]


def test_ever_new_problems_do_not_pile_up_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_MOST_WAITING", 10)
    journal = Journal(folder, NEVER)
    for m in range(1, 12):
        journal.asked(replace(PROBLEM, m=m))
    until(lambda: bool(_asked(folder)))
    assert len(_asked(folder)) >= 10
    journal.close()


def test_a_full_disk_costs_counts_and_raises_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(folder, NEVER)
    journal.asked(PROBLEM)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    journal.flush()
    journal.asked(PROBLEM)
    monkeypatch.undo()
    journal.close()
    assert _asked(folder) == {16: 1}
    assert "usage could not be written" in caplog.text


@pytest.mark.parametrize("mark", [0, 1, 2])
def test_lines_cut_or_flipped_are_skipped_and_the_others_count(folder: Path, mark: int) -> None:
    _ask(folder, 16)
    (path,) = folder.iterdir()
    line = path.read_bytes()
    bad = (line[:-20] + b"\n", line.replace(b'"n":7168', b'"n":-168'), line.replace(b'"16":1', b'"16":-1'))[mark]
    assert bad != line
    path.write_bytes(line + bad + b"{}\n" + line)
    assert _asked(folder) == {16: 2}


@pytest.mark.parametrize("at", [-1e9, 0.0, 4e9, 1e12])
def test_lines_from_the_future_and_the_past_count_and_go_nowhere_wild(folder: Path, at: float) -> None:
    journal = Journal(folder, NEVER, now=lambda: at)
    journal.asked(PROBLEM)
    journal.close()
    assert _asked(folder) == {16: 1}
    _fold(folder)
    assert _asked(folder) == {16: 1}
    _ask(folder, 1)
    assert _asked(folder) == {1: 1, 16: 1}
    assert read_timeline(StoreLayout(folder.parent)).ledger(7 * 86_400.0, time.time()).total > 0.99


def test_absurdly_large_counts_are_read_written_and_read_again(folder: Path) -> None:
    _ask(folder, 16)
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes().replace(b'"16":1', b'"16":9007199254740992') * 3)
    _fold(folder)
    assert _asked(folder) == {16: 3 * 2.0**53}
    layout = StoreLayout(folder.parent)
    data = layout.demand.read_bytes()
    assert b"[2.7021597764222976e16,0.0]" in data
    layout.demand.write_bytes(data.replace(b"[2.7021597764222976e16,0.0]", b"[1e30,0.0]"))
    _ask(folder, 16)
    _fold(folder)
    assert 1e29 < _asked(folder)[16] <= 1e30


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format":2}',
        '{"format":1,"timeline":{"periods":[{"start":1,"seconds":2}]}}',
        '{"generation":7,"folded":9}',
    ],
)
def test_a_damaged_or_newer_file_of_sums_is_not_folded_over_and_stops_no_reader(
    folder: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    layout = StoreLayout(folder.parent)
    layout.demand.write_text(text)
    with pytest.raises(ValueError, match=r"format|decode|period|Expected|truncated"):
        load_demand(layout)
    _ask(folder, 16)
    assert _fold(folder) == 0
    assert layout.demand.read_text() == text
    assert _asked(folder) == {16: 1}
    assert "demand.json cannot be read" in caplog.text


def test_an_older_version_reads_a_line_that_counts_nothing_and_keeps_what_is_folded(folder: Path) -> None:
    """It knows no demand: it decodes events, adds them up, writes its snapshot, and deletes the files."""
    _ask(folder, 16)
    _fold(folder)
    _ask(folder, 1)
    (path,) = folder.glob("*.jsonl")
    tally = Tally()
    for line in path.read_bytes().splitlines():
        event = msgspec.json.decode(line, type=Event)
        assert (event.kind, event.hits, event.misses) == (USE, {}, 0)
        tally.add(event)
    assert (tally.usage, tally.recent, tally.totals.hits) == ([], [], {})
    path.unlink()
    assert _asked(folder) == {16: 1}


def test_a_store_from_before_demand_was_counted_is_read_and_folded(folder: Path) -> None:
    journal = Journal(folder, NEVER)
    journal.hit(KEY, "disk")
    journal.close()
    assert _asked(folder) == {}
    _fold(folder)
    assert not StoreLayout(folder.parent).demand.exists()
    _ask(folder, 16)
    assert _asked(folder) == {16: 1}
