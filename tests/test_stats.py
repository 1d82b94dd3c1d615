"""Sums of events."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from cache_engine.stats import CLEAN, RECENT, USE, Event, Statistics, Tally, Totals, hit_rate

EVENTS = st.lists(
    st.builds(
        Event,
        kind=st.sampled_from(["use", "publish", "unpublished", "corrupt", "evict", "clean", "of the future"]),
        at=st.floats(0, 1e10),
        key=st.sampled_from(["a", "b"]),
        made_at=st.sampled_from([0.0, 5.0]),
        hits=st.dictionaries(st.sampled_from(["memory", "disk"]), st.integers(0, 1000)),
        misses=st.integers(0, 100),
        saved_us=st.integers(0, 10**12),
        compile_us=st.integers(0, 10**12),
        stored_bytes=st.integers(0, 10**12),
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


@given(EVENTS)
def test_totals_are_the_sum_of_usage(events: list[Event]) -> None:
    tally = Tally()
    for event in events:
        tally.add(event)
    for tier, count in tally.totals.hits.items():
        assert count == sum(usage.hits.get(tier, 0) for usage in tally.usage)


def test_only_the_newest_events_are_kept() -> None:
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
    stats = Statistics(1, 1, 1, 1, Totals(hits={"memory": 2, "disk": 1}, misses=1))
    assert stats.hits == 3
    assert stats.hit_rate == 0.75
