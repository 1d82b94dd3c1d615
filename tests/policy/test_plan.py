"""Eviction plans: within the limits, no more than needed, oldest first, and a reason for each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.policy.plan import DAY_S, EVERYTHING, EXPIRED, TOO_LARGE, TOO_MANY, EntryFacts, Limits, plan

NOW = 1_800_000_000.0
ENTRIES = st.lists(
    st.builds(
        EntryFacts,
        key=st.text("0123456789abcdef", min_size=4, max_size=4),
        stored_bytes=st.integers(1, 1000),
        last_used_at=st.floats(NOW - 20 * DAY_S, NOW + 2 * DAY_S),
    ),
    unique_by=lambda entry: entry.key,
    max_size=30,
)
LIMITS = st.builds(
    Limits,
    expire_days=st.none() | st.floats(0, 20),
    max_entries=st.none() | st.integers(0, 30),
    max_bytes=st.none() | st.integers(0, 10_000),
    down_to=st.floats(0.1, 1),
    everything=st.booleans(),
)


@given(ENTRIES, LIMITS)
def test_a_plan_keeps_within_the_limits_and_accounts_for_all(entries: list[EntryFacts], limits: Limits) -> None:
    made = plan(entries, limits, NOW)
    evicted = {victim.key for victim in made.victims}
    kept = [entry for entry in entries if entry.key not in evicted]
    assert len(evicted) == len(made.victims)
    assert made.kept_entries == len(kept)
    assert made.kept_bytes == sum(entry.stored_bytes for entry in kept)
    assert made.freed_bytes == sum(entry.stored_bytes for entry in entries) - made.kept_bytes
    assert limits.max_entries is None or made.kept_entries <= limits.max_entries
    assert limits.max_bytes is None or made.kept_bytes <= limits.max_bytes
    assert not (limits.everything and kept)


@given(ENTRIES, LIMITS)
def test_nothing_is_evicted_while_something_older_is_kept(entries: list[EntryFacts], limits: Limits) -> None:
    made = plan(entries, limits, NOW)
    evicted = {victim.key for victim in made.victims}
    newest_gone = max((min(victim.last_used_at, NOW) for victim in made.victims), default=-1.0)
    assert all(min(entry.last_used_at, NOW) >= newest_gone for entry in entries if entry.key not in evicted)


@given(ENTRIES)
def test_within_all_limits_nothing_goes(entries: list[EntryFacts]) -> None:
    limits = Limits(expire_days=30, max_entries=30, max_bytes=30_000, down_to=0.5)
    assert plan(entries, limits, NOW).victims == ()


@given(ENTRIES, LIMITS)
def test_a_second_plan_on_what_was_kept_evicts_nothing(entries: list[EntryFacts], limits: Limits) -> None:
    evicted = {victim.key for victim in plan(entries, limits, NOW).victims}
    kept = [entry for entry in entries if entry.key not in evicted]
    assert plan(kept, limits, NOW).victims == ()


def _entries(*ages_in_days: float, stored_bytes: int = 100) -> list[EntryFacts]:
    return [EntryFacts(f"{number:04x}", stored_bytes, NOW - age * DAY_S) for number, age in enumerate(ages_in_days)]


def test_a_limit_of_one_leaves_one() -> None:
    assert plan(_entries(0, 1), Limits(max_entries=1, down_to=0.8), NOW).kept_entries == 1


@pytest.mark.parametrize(
    ("limits", "reasons"),
    [
        (Limits(expire_days=7), {"0003": EXPIRED}),
        (Limits(max_entries=2), {"0003": TOO_MANY, "0002": TOO_MANY}),
        (Limits(max_bytes=250), {"0003": TOO_LARGE, "0002": TOO_LARGE}),
        (Limits(max_bytes=399, down_to=0.5), {"0003": TOO_LARGE, "0002": TOO_LARGE, "0001": TOO_LARGE}),
        (Limits(expire_days=7, max_entries=2), {"0003": EXPIRED, "0002": TOO_MANY}),
        (Limits(everything=True), dict.fromkeys(("0000", "0001", "0002", "0003"), EVERYTHING)),
        (Limits(), {}),
    ],
)
def test_each_rule_gives_its_reason(limits: Limits, reasons: dict[str, str]) -> None:
    made = plan(_entries(0, 1, 2, 8), limits, NOW)
    assert {victim.key: victim.reason for victim in made.victims} == reasons


def test_a_last_use_in_the_future_counts_as_now() -> None:
    """It is kept before older ones, and goes when all must; a clock set back evicts nothing."""
    entries = [EntryFacts("future", 100, NOW + 365 * DAY_S), EntryFacts("now", 100, NOW)]
    assert {v.key for v in plan(entries, Limits(max_entries=0), NOW).victims} == {"future", "now"}
    assert plan(entries, Limits(expire_days=7), NOW).victims == ()
    later = plan(entries, Limits(expire_days=7), NOW + 400 * DAY_S)
    assert [victim.key for victim in later.victims] == ["now", "future"]
