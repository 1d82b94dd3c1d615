"""Eviction plans: within the limits, no more than needed, oldest first, and a reason for each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from cache_engine.settings import Settings
from cache_engine.upkeep.plan import (
    DAY_S,
    EVERYTHING,
    EXPIRED,
    FOREIGN,
    LITTLE_SPACE,
    NAMED,
    NAMED_ARCH,
    STALE,
    TOO_LARGE,
    TOO_MANY,
    EntryFacts,
    Limits,
    is_far_above,
    plan,
)

NOW = 1_800_000_000.0
ENTRIES = st.lists(
    st.builds(
        EntryFacts,
        key=st.text("0123456789abcdef", min_size=4, max_size=4),
        stored_bytes=st.integers(1, 1000),
        last_used_at=st.floats(NOW - 20 * DAY_S, NOW + 2 * DAY_S),
        stale=st.just(False),
        foreign=st.sampled_from([False, False, False, True]),
    ),
    unique_by=lambda entry: entry.key,
    max_size=30,
)
LIMITS = st.builds(
    Limits,
    expire_days=st.none() | st.floats(0, 20),
    max_entries=st.none() | st.integers(0, 30),
    max_bytes=st.none() | st.integers(0, 10_000),
    max_disk_share=st.none() | st.floats(0, 1),
    free_bytes=st.none() | st.integers(0, 10_000),
    stale_toolchain=st.booleans(),
    down_to=st.floats(0.1, 1),
    everything=st.booleans(),
    foreign_format=st.booleans(),
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
    stay = [entry for entry in entries if entry.foreign and not limits.foreign_format]
    assert {entry.key for entry in stay} <= {entry.key for entry in kept}
    assert made.foreign == len(stay)
    assert limits.max_entries is None or made.kept_entries <= max(limits.max_entries, len(stay))
    assert limits.max_bytes is None or made.kept_bytes <= limits.max_bytes or kept == stay
    assert not (limits.everything and kept != stay)


@given(ENTRIES, LIMITS)
def test_nothing_is_evicted_while_something_older_stays(entries: list[EntryFacts], limits: Limits) -> None:
    made = plan(entries, limits, NOW)
    evicted = {victim.key for victim in made.victims}
    newest_gone = max((min(v.last_used_at, NOW) for v in made.victims if v.reason != FOREIGN), default=-1.0)
    assert all(
        min(entry.last_used_at, NOW) >= newest_gone
        for entry in entries
        if entry.key not in evicted and not entry.foreign
    )


def test_entries_of_another_format_stay_and_count_until_they_are_to_go() -> None:
    entries = [changed(entry, foreign=number < 2) for number, entry in enumerate(_entries(9.0, 8.0, 2.0, 1.0))]
    foreign, own = [entry.key for entry in entries[:2]], [entry.key for entry in entries[2:]]
    limited = plan(entries, Limits(expire_days=5, max_entries=3, archs=frozenset({""}), keys=frozenset(foreign)), NOW)
    assert [victim.key for victim in limited.victims] == own
    everything = plan(entries, Limits(everything=True), NOW)
    assert ([victim.key for victim in everything.victims], everything.foreign) == (own, 2)
    counted = plan(entries, Limits(max_entries=3), NOW)
    assert [victim.key for victim in counted.victims] == own[:1], "those that stay count"
    asked = plan(entries, Limits(foreign_format=True, spare_s=20 * DAY_S), NOW)
    assert [(victim.key, victim.reason) for victim in asked.victims] == [(key, FOREIGN) for key in foreign]
    assert (asked.kept_entries, asked.foreign) == (2, 0)
    assert plan(entries, Limits(everything=True, foreign_format=True), NOW).kept_entries == 0


@given(ENTRIES)
def test_within_all_limits_nothing_goes(entries: list[EntryFacts]) -> None:
    limits = Limits(expire_days=30, max_entries=30, max_bytes=30_000, down_to=0.5)
    assert plan(entries, limits, NOW).victims == ()


@given(ENTRIES, LIMITS)
def test_a_second_plan_on_the_remaining_entries_evicts_nothing(entries: list[EntryFacts], limits: Limits) -> None:
    made = plan(entries, limits, NOW)
    evicted = {victim.key for victim in made.victims}
    kept = [entry for entry in entries if entry.key not in evicted]
    if limits.free_bytes is not None:  # what was evicted is free by then
        limits = replace(limits, free_bytes=limits.free_bytes + made.freed_bytes)
    assert plan(kept, limits, NOW).victims == ()


@given(ENTRIES, LIMITS, st.floats(0, 20 * DAY_S))
def test_recently_used_entries_are_spared_unless_far_above_the_limit(
    entries: list[EntryFacts], limits: Limits, spare_s: float
) -> None:
    if limits.everything:
        return
    entries = [changed(entry, foreign=False) for entry in entries]
    made = plan(entries, replace(limits, spare_s=spare_s), NOW)
    evicted = {victim.key for victim in made.victims}
    recent = {entry.key: entry for entry in entries if max(0.0, NOW - entry.last_used_at) < spare_s}
    others_left = len(entries) - len(evicted | set(recent))
    if limits.free_bytes is not None:  # what was evicted is free by then
        limits = replace(limits, free_bytes=limits.free_bytes + made.freed_bytes)
    assert not is_far_above(limits, made.kept_entries, made.kept_bytes)
    given_up = [recent[victim.key] for victim in made.victims if victim.key in recent]
    if given_up:
        assert others_left == 0
        assert _exceeded(limits, made.kept_entries + 1, made.kept_bytes + given_up[-1].stored_bytes, made.kept_bytes)
        return
    # The others go as far as the limits want it, and no further than without sparing.
    if limits.max_entries is not None and made.kept_entries > limits.max_entries:
        assert others_left == 0
    if limits.max_bytes is not None and made.kept_bytes > limits.max_bytes:
        assert others_left == 0


def _exceeded(limits: Limits, entries: int, stored_bytes: int, kept_bytes: int) -> bool:
    share = limits.max_disk_share if limits.max_disk_share is not None and limits.free_bytes is not None else None
    return (
        (limits.max_entries is not None and entries > limits.max_entries)
        or (limits.max_bytes is not None and stored_bytes > limits.max_bytes)
        or (share is not None and stored_bytes > share * ((limits.free_bytes or 0) + kept_bytes))
    )


@pytest.mark.parametrize(("entries", "kept"), [(3, 3), (8, 8), (9, 3), (300, 3)])
def test_new_entries_far_above_a_limit_go_until_it_holds(entries: int, kept: int) -> None:
    """Those beyond it by five or fewer stay, since they may be in use."""
    made = plan(_entries(*[0.0] * entries), Limits(max_entries=3, down_to=0.5, spare_s=600), NOW)
    assert (made.kept_entries, len(made.victims)) == (kept, entries - kept)


@pytest.mark.parametrize(
    ("entries", "stored_bytes", "far"),
    [(1025, 1000, False), (1026, 1000, True), (100, 102_500, False), (100, 105_001, False), (100, 105_300, True)],
)
def test_far_above_is_by_more_than_a_fortieth_and_by_more_than_five_entries(
    entries: int, stored_bytes: int, far: bool
) -> None:
    assert is_far_above(Limits(max_entries=1000, max_bytes=100_000), entries, stored_bytes) is far
    assert not is_far_above(Limits(), entries, stored_bytes)


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
        (Limits(max_disk_share=0.5, free_bytes=300), {"0003": LITTLE_SPACE}),
        (Limits(max_disk_share=0.5, free_bytes=400), {}),
        (Limits(max_bytes=100, max_disk_share=0.5, free_bytes=100), dict.fromkeys(("0003", "0002", "0001"), TOO_LARGE)),
        (Limits(max_entries=1, spare_s=1.5 * DAY_S), {"0003": TOO_MANY, "0002": TOO_MANY}),
        (Limits(), {}),
    ],
)
def test_each_rule_gives_its_reason(limits: Limits, reasons: dict[str, str]) -> None:
    made = plan(_entries(0, 1, 2, 8), limits, NOW)
    assert {victim.key: victim.reason for victim in made.victims} == reasons


def test_stale_entries_are_evicted_only_on_request() -> None:
    entries = [EntryFacts("old", 100, NOW, stale=True), EntryFacts("new", 100, NOW - DAY_S)]
    assert plan(entries, Limits(expire_days=7), NOW).victims == ()
    made = plan(entries, Limits(stale_toolchain=True), NOW)
    assert [(victim.key, victim.reason) for victim in made.victims] == [("old", STALE)]


def test_named_entries_are_evicted_at_any_age_and_no_others() -> None:
    entries = [
        EntryFacts("a", 100, NOW, arch="sm_80"),
        EntryFacts("b", 200, NOW),
        EntryFacts("c", 300, 0, arch="sm_90"),
    ]
    by_key = plan(entries, Limits(keys=frozenset({"a", "gone"})), NOW)
    assert [(victim.key, victim.reason) for victim in by_key.victims] == [("a", NAMED)]
    by_arch = plan(entries, Limits(archs=frozenset({"sm_90"})), NOW)
    assert [(victim.key, victim.reason) for victim in by_arch.victims] == [("c", NAMED_ARCH)]
    assert (by_arch.kept_entries, by_arch.kept_bytes) == (2, 300)


def test_a_last_use_in_the_future_counts_as_now() -> None:
    """It outlives older ones, and is evicted when all are; a clock set back evicts nothing."""
    entries = [EntryFacts("future", 100, NOW + 365 * DAY_S), EntryFacts("now", 100, NOW)]
    assert {v.key for v in plan(entries, Limits(max_entries=0), NOW).victims} == {"future", "now"}
    assert plan(entries, Limits(expire_days=7), NOW).victims == ()
    later = plan(entries, Limits(expire_days=7), NOW + 400 * DAY_S)
    assert [victim.key for victim in later.victims] == ["now", "future"]


def test_the_limits_of_a_store_are_those_of_its_settings() -> None:
    settings = Settings(expire_days=3.0, max_entries=7, max_bytes=11, max_disk_share=0.25)
    limits = Limits(expire_days=3.0, max_entries=7, max_bytes=11, max_disk_share=0.25, down_to=0.8, order="lru")
    assert Limits.of(settings) == limits
    assert Limits.of(replace(settings, eviction="value")).order == "value"


def test_a_store_at_its_limits_is_within_them() -> None:
    """Nothing goes for the share that a store above them is brought down to."""
    entries = [EntryFacts(f"{number}", 10, NOW - DAY_S) for number in range(10)]
    for limits in (Limits(max_entries=10), Limits(max_bytes=100), Limits(expire_days=1.0)):
        assert plan(entries, replace(limits, down_to=0.5), NOW).victims == ()


def test_where_both_limits_on_bytes_are_the_same_the_size_is_the_reason() -> None:
    entries = [EntryFacts(f"{number}", 10, NOW - DAY_S) for number in range(10)]
    made = plan(entries, Limits(max_bytes=50, max_disk_share=0.25, free_bytes=100), NOW)
    assert {victim.reason for victim in made.victims} == {TOO_LARGE}


def test_an_entry_used_within_the_last_second_can_be_spared() -> None:
    entry = EntryFacts("a", 10, NOW - 0.25)
    assert plan([entry], Limits(keys=frozenset("a"), spare_s=0.5), NOW).victims == ()
