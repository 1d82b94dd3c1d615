"""What was evicted and asked for again, as the log of decisions tells it."""

from __future__ import annotations

from cache_engine.model.decision import EVICTION, FORCED, MISS, Decision
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import append_decisions
from cache_engine.upkeep.decisions import EarlyEviction, RecentDecisions, early_evictions

ONE, TWO = "a" * 64, "b" * 64


def log(store: DiskStore, *decided: tuple[float, str, str, str]) -> None:
    append_decisions(store.layout, [Decision(at=at, kind=kind, key=key, reason=why) for at, kind, key, why in decided])


def test_each_kernel_that_was_evicted_and_missed_later_is_there_once_the_latest_first(store: DiskStore) -> None:
    recent = RecentDecisions(store.layout)

    def found() -> list[EarlyEviction]:
        return early_evictions(reversed(recent.all()))

    assert found() == []
    log(store, (1, MISS, ONE, ""), (2, EVICTION, ONE, "unused"), (3, EVICTION, TWO, "too large"))
    assert found() == []  # no miss since
    log(store, (4, MISS, ONE, ""), (5, MISS, TWO, ""), (6, MISS, ONE, ""))
    assert [(one.key, one.times, one.rule, one.evicted_at, one.asked_at) for one in found()] == [
        (TWO, 1, "too large", 3, 5),
        (ONE, 1, "unused", 2, 4),  # the miss at 6 has another cause
    ]
    log(store, (7, EVICTION, ONE, "too large"), (8, MISS, ONE, ""))
    assert [(one.key, one.times, one.rule, one.evicted_at, one.asked_at) for one in found()] == [
        (ONE, 2, "too large", 7, 8),
        (TWO, 1, "too large", 3, 5),
    ]
    assert early_evictions(reversed(RecentDecisions(store.layout).all())) == found()


def test_the_recent_misses_are_those_decisions_alone(store: DiskStore) -> None:
    log(store, (1, MISS, ONE, ""), (2, EVICTION, ONE, "unused"), (3, MISS, TWO, ""))
    assert [(one.at, one.key) for one in RecentDecisions(store.layout).misses()] == [(3, TWO), (1, ONE)]


def test_a_compile_that_was_asked_for_is_no_early_eviction(store: DiskStore) -> None:
    log(store, (1, EVICTION, ONE, "unused"), (2, MISS, ONE, FORCED))
    assert early_evictions(reversed(RecentDecisions(store.layout).all())) == []
