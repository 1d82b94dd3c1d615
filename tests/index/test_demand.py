"""Demand in the index: the ledger that it gives is the one of the files."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from cache_engine.index import summaries
from cache_engine.index.sync import Index
from cache_engine.model.gemm import GemmProblem
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, fold_journal
from cache_engine.store.journal.demand import read_timeline
from cache_engine.usage.demand import Ledger
from tests.helpers import publish

PROBLEM = GemmProblem(16, 7168, 2048, arch="sm_90a")
HOUR_S = 3600.0


def ask(store: DiskStore, ago_s: float, *sizes: int, n: int = 7168) -> None:
    journal = Journal(store.layout.journal, HOUR_S, now=lambda: time.time() - ago_s)
    for m in sizes:
        journal.asked(replace(PROBLEM, m=m, n=n))
    journal.close()


def indexed(store: DiskStore, half_life_s: float, now: float, since: float | None = None) -> Ledger:
    index = Index(store)
    index.sync()
    return index.query(summaries.ledger, half_life_s, now, since)


@pytest.mark.parametrize("half_life_s", [HOUR_S, 7 * 24 * HOUR_S, math.inf])
@pytest.mark.parametrize("folded", [False, True])
def test_its_ledger_is_that_of_the_files(store: DiskStore, half_life_s: float, folded: bool) -> None:
    ask(store, 40 * 24 * HOUR_S, *range(1, 200))
    ask(store, 5 * HOUR_S, 1, 1, 16, 3000)
    ask(store, -9 * HOUR_S, 1, n=64)
    if folded:
        fold_journal(store.layout)
    ask(store, 0, 7)
    now = time.time()
    for since in (None, now - 6 * HOUR_S):
        timeline = read_timeline(store.layout)
        expected = (timeline if since is None else timeline.after(since)).ledger(half_life_s, now)
        found = indexed(store, half_life_s, now, since)
        assert {s: k.total for s, k in found.sketches.items()} == pytest.approx(
            {s: k.total for s, k in expected.sketches.items()}
        )
        assert max(len(sketch.counters) for sketch in found.sketches.values()) <= 64
        for shape, sketch in expected.sketches.items():
            assert found.sketches[shape].by_power() == pytest.approx(sketch.by_power())
        assert (found.at, found.half_life_s) == (now, half_life_s)
        assert found.since == pytest.approx(expected.since, abs=1)


def test_lines_are_added_and_a_fold_changes_nothing(store: DiskStore) -> None:
    index = Index(store)
    ask(store, 0, 16)
    index.sync()
    ask(store, 0, 16, 1)
    assert index.sync().changed
    now = time.time()
    before = index.query(summaries.ledger, math.inf, now).total
    fold_journal(store.layout)
    index.sync()
    assert index.query(summaries.ledger, math.inf, now).total == before == 3
    assert not index.sync().changed


def test_a_damaged_file_of_sums_stops_no_sync(store: DiskStore) -> None:
    ask(store, 0, 16)
    fold_journal(store.layout)
    data = store.layout.demand.read_bytes()
    store.layout.demand.write_bytes(data.replace(b'"n":7168', b'"n":-1'))
    ask(store, 0, 1)
    assert indexed(store, math.inf, time.time()).total == 1


def test_an_empty_mirror_has_an_empty_ledger(store: DiskStore) -> None:
    ledger = indexed(store, math.inf, 1.8e9)
    assert (ledger.sketches, ledger.total, ledger.since, ledger.at) == ({}, 0, 1.8e9, 1.8e9)


def test_the_compile_times_of_kernels_that_exist_are_found_by_key(store: DiskStore) -> None:
    key = publish(store, 1)
    publish(store, 2)
    index = Index(store)
    index.sync()
    assert index.query(summaries.compile_times, [key, "ab" * 32]) == {key: 150.0}
