"""Sums of events."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cache_engine.model.events import (
    CLEAN,
    DAY_S,
    HOUR_S,
    MOST_PERIODS,
    RECENT,
    USE,
    Event,
    EventCounts,
    EventPeriod,
    Statistics,
    Tally,
    Totals,
    UseCounts,
    coarsened,
    hit_rate,
    tier_hit_rates,
)

EVENTS = st.lists(
    st.builds(
        Event,
        kind=st.sampled_from(["use", "publish", "unpublished", "corrupt", "evict", "clean", "of the future"]),
        at=st.floats(0, 1e10),
        key=st.sampled_from(["a", "b"]),
        made_at=st.sampled_from([0.0, 5.0]),
        hits=st.dictionaries(st.sampled_from(["memory", "disk"]), st.integers(0, 1000)),
        misses=st.integers(0, 100),
        arch=st.sampled_from(["", "sm_80", "sm_90"]),
        failures=st.dictionaries(st.sampled_from(["pack", "disk"]), st.integers(0, 1000)),
        lock_waits=st.integers(0, 100),
        lock_timeouts=st.integers(0, 100),
        lock_wait_us=st.integers(0, 10**12),
        saved_us=st.integers(0, 10**12),
        compile_us=st.integers(0, 10**12),
        stored_bytes=st.integers(0, 10**12),
        spans=st.dictionaries(st.sampled_from(["disk/61", "memory/47", "disk/ns", "compile/90"]), st.integers(0, 1000)),
    ),
    max_size=40,
)


@given(EVENTS, st.randoms(use_true_random=False))
def test_the_order_of_events_does_not_matter(events: list[Event], shuffler: random.Random) -> None:
    tally, shuffled = Tally(), Tally()
    for event in events:
        tally.add(event)
    shuffler.shuffle(events)
    for event in events:
        shuffled.add(event)
    assert tally.totals == shuffled.totals
    assert {(it.key, it.made_at): it for it in tally.usage} == {(it.key, it.made_at): it for it in shuffled.usage}
    assert tally.periods == shuffled.periods


@given(EVENTS)
def test_totals_are_the_sum_of_usage(events: list[Event]) -> None:
    tally = Tally()
    for event in events:
        tally.add(event)
    for tier, count in tally.totals.hits.items():
        assert count == sum(usage.hits.get(tier, 0) for usage in tally.usage)


def test_a_period_has_the_number_of_lookups_by_how_long_they_took() -> None:
    """Of other durations, sums and names of other versions it has none."""
    spans = {f"memory/{bucket}": 1 for bucket in (0, 47, 48, 63, 64, 79, 80, 95, 96, 111, 112, 191)}
    others = {"memory/ns": 9, "compile/50": 9, "disk/x": 9, "disk/": 9, "disk/\u0662": 9, "of the future/3": 9}
    tally = Tally()
    for start in (0.0, 1.0, 2.0 * HOUR_S):
        tally.add(Event(kind=USE, at=start, spans={**spans, **others, "disk/64": 10}))
    once = {"0": 2, "1": 2, "2": 12, "3": 2, "4": 2, "5": 2}
    assert [period.lookups for period in tally.periods] == [{place: 2 * n for place, n in once.items()}, once]


SUMS = [name for name in EventPeriod.__struct_fields__ if name not in ("start", "seconds")]


def _sums(periods: list[EventPeriod]) -> EventPeriod:
    summed = EventPeriod(0, 0)
    for period in periods:
        summed.add(period)
    return summed


@given(EVENTS, st.lists(st.floats(0, 1e10), max_size=3))
def test_coarsened_periods_add_up_to_the_totals_at_any_clock(events: list[Event], clocks: list[float]) -> None:
    tally = Tally()
    for event in events:
        tally.add(event)
    periods = tally.periods
    for now in clocks:
        periods = coarsened(periods, now)
        assert coarsened(periods, now) == periods
    summed = _sums(periods)
    for name in SUMS:
        assert getattr(summed, name) == getattr(tally.totals, name), name
    assert len({(period.start, period.seconds) for period in periods}) == len(periods)
    assert all(period.start % period.seconds == 0 for period in periods)


def test_periods_are_the_longer_the_farther_away_they_are() -> None:
    now = 1_800_000_000
    tally = Tally()
    for hours in range(24 * 500):
        tally.add(Event(kind=USE, at=float(now - hours * HOUR_S), misses=1))
    lengths = {(now - period.start) // DAY_S: period.seconds for period in coarsened(tally.periods, now)}
    assert {seconds for days, seconds in lengths.items() if days < 7} == {HOUR_S}
    assert {seconds for days, seconds in lengths.items() if 9 < days < 399} == {DAY_S}
    assert {seconds for days, seconds in lengths.items() if days > 428} == {28 * DAY_S}


def test_a_clock_that_is_never_right_leaves_a_bounded_number_of_periods() -> None:
    generator = random.Random(1)
    tally = Tally()
    for _ in range(10_000):
        tally.add(Event(kind=USE, at=generator.random() * 1e12, misses=1))
    now = 1_800_000_000
    tally.add(Event(kind=USE, at=float(now), misses=5))
    kept = coarsened(tally.periods, now)
    assert len(kept) == MOST_PERIODS
    assert EventPeriod(now // HOUR_S * HOUR_S, HOUR_S, misses=5) in kept


def test_periods_that_are_coarsened_are_left_as_they_were() -> None:
    periods = [EventPeriod(0, HOUR_S, hits={"disk": 1}), EventPeriod(HOUR_S, HOUR_S, hits={"disk": 2})]
    assert coarsened(periods, 1e9) == [EventPeriod(0, 28 * DAY_S, hits={"disk": 3})]
    assert [period.hits for period in periods] == [{"disk": 1}, {"disk": 2}]


def test_misses_are_counted_by_target_if_known() -> None:
    tally = Tally()
    for arch, misses in (("sm_90", 2), ("sm_80", 1), ("sm_90", 3), ("", 7)):
        tally.add(Event(kind=USE, at=1.0, misses=misses, arch=arch))
    assert tally.totals.misses_by_arch == {"sm_90": 5, "sm_80": 1}
    assert tally.totals.misses == 13


def test_only_the_newest_events_are_stored() -> None:
    tally = Tally()
    for number in range(RECENT + 50):
        tally.add(Event(kind="evict", at=float(number)))
    assert len(tally.recent) == RECENT
    assert tally.recent[0].at == RECENT + 49
    assert tally.totals.evictions == RECENT + 50


def test_acts_outlast_the_events_that_drown_them() -> None:
    tally = Tally()
    tally.add(Event(kind=CLEAN, at=0.5, by="somebody"))
    for number in range(RECENT + 50):
        tally.add(Event(kind="evict", at=float(number)))
    assert len(tally.recent) == RECENT + 1
    assert [event.by for event in tally.recent if event.kind == CLEAN] == ["somebody"]


def test_uses_are_no_events_to_show() -> None:
    tally = Tally()
    tally.add(Event(kind=USE, at=1.0, key="a"))
    assert tally.recent == []


def test_the_hit_rate_counts_all_tiers() -> None:
    assert hit_rate(0, 0) is None
    stats = Statistics(1, 1, 1, 1, 1, Totals(hits={"memory": 2, "disk": 1}, misses=1))
    assert stats.hits == 3
    assert stats.hit_rate == 0.75


def test_each_tier_has_the_hit_rate_of_the_lookups_that_reach_it() -> None:
    assert tier_hit_rates({"memory": 90}, 10) == {"memory": 0.9, "pack": 0.0, "disk": 0.0}
    assert tier_hit_rates({"memory": 50, "pack": 10, "disk": 30}, 10) == {"memory": 0.5, "pack": 0.2, "disk": 0.75}
    assert tier_hit_rates({"disk": 3}, 0) == {"memory": 0.0, "pack": 0.0, "disk": 1.0}
    assert tier_hit_rates({"memory": 5}, 0) == {"memory": 1.0, "pack": None, "disk": None}
    assert tier_hit_rates({}, 0) == dict.fromkeys(("memory", "pack", "disk"))
    totals = Totals(hits={"memory": 3}, misses=1)
    assert Statistics(1, 1, 1, 1, 1, totals).tier_hit_rates["memory"] == 0.75


def test_a_remote_that_never_hits_has_a_rate_where_it_is_asked_or_has_failed() -> None:
    totals = Totals(hits={"memory": 3}, misses=1)
    assert "remote" not in Statistics(1, 1, 1, 1, 1, totals).tier_hit_rates
    assert Statistics(1, 1, 1, 1, 1, totals, asks_remote=True).tier_hit_rates["remote"] == 0.0
    assert Statistics(1, 1, 1, 1, 1, Totals(), asks_remote=True).tier_hit_rates["remote"] is None
    failed = Totals(misses=1, failures={"remote": 1})
    assert Statistics(1, 1, 1, 1, 1, failed).tier_hit_rates["remote"] == 0.0
    assert "remote" not in Statistics(1, 1, 1, 1, 1, Totals(failures={"disk": 1})).tier_hit_rates


def test_a_counter_is_declared_once() -> None:
    """Lines and sums share one declaration, so a new counter is added up everywhere."""
    for holder in (Event, Totals, EventPeriod):
        assert issubclass(holder, UseCounts)
        assert not set(UseCounts.__struct_fields__) & set(vars(holder).get("__annotations__", {}))
    values: dict[str, Any] = {
        name: {"disk": 2} if name in ("hits", "failures", "passed", "lookups") else 3
        for name in EventCounts.__struct_fields__
    }
    full = EventCounts(**values)
    period = EventPeriod(0, HOUR_S)
    period.add(full)
    copy = period.copied(0, 2 * HOUR_S)
    period.add(full)
    assert copy == EventPeriod(0, 2 * HOUR_S, **values)
    for name in EventCounts.__struct_fields__:
        assert getattr(period, name) in ({"disk": 4}, 6), name
