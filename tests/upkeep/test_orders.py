"""Orders of eviction other than the least recently used, kernels that serve any size, and pins."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.errors import KeyNotFound, StoreError, UsageError
from cache_engine.model.artifact import Blob, Record
from cache_engine.model.events import EntryUsage
from cache_engine.model.key import CacheKey
from cache_engine.store import notes
from cache_engine.store.journal import Journal, fold
from cache_engine.upkeep.cleanup import apply, plan_cleaning
from cache_engine.upkeep.integrity import check
from cache_engine.upkeep.plan import DAY_S, EntryFacts, Limits, plan
from tests.helpers import make_entry, record_file

NOW = 1_800_000_000.0
FACTS = st.builds(
    EntryFacts,
    key=st.text("0123456789abcdef", min_size=4, max_size=4),
    stored_bytes=st.integers(1, 1000),
    last_used_at=st.floats(NOW - 20 * DAY_S, NOW),
    used_before_at=st.floats(NOW - 40 * DAY_S, NOW - 20 * DAY_S) | st.just(-math.inf),
    hits=st.floats(0, 100),
    compile_s=st.floats(0, 10),
    is_floor=st.booleans(),
    pinned=st.booleans(),
)
ENTRIES = st.lists(FACTS, unique_by=lambda entry: entry.key, max_size=30)


@given(ENTRIES, st.integers(0, 30))
def test_by_value_nothing_goes_while_something_of_less_value_stays(entries: list[EntryFacts], most: int) -> None:
    made = plan(entries, Limits(max_entries=most, order="value"), NOW)
    gone = {victim.key for victim in made.victims}
    for floors in (False, True):
        those = [entry for entry in entries if entry.is_floor is floors and not entry.pinned]
        most_gone = max((entry.worth(NOW).value for entry in those if entry.key in gone), default=0.0)
        assert all(entry.worth(NOW).value >= most_gone for entry in those if entry.key not in gone)


@given(ENTRIES, st.integers(0, 30), st.sampled_from(["lru", "lru2", "value"]))
def test_kernels_that_serve_any_size_go_last(entries: list[EntryFacts], most: int, order: str) -> None:
    gone = {victim.key for victim in plan(entries, Limits(max_entries=most, order=order), NOW).victims}
    free = [entry for entry in entries if not entry.pinned]
    if any(entry.key in gone for entry in free if entry.is_floor):
        assert all(entry.key in gone for entry in free if not entry.is_floor)


@given(ENTRIES, st.builds(
    Limits, expire_days=st.none() | st.floats(0, 20), max_entries=st.none() | st.integers(0, 30),
    max_bytes=st.none() | st.integers(0, 10_000), everything=st.booleans(), foreign_format=st.booleans(),
    order=st.sampled_from(["lru", "lru2", "value"]), archs=st.sampled_from([frozenset(), frozenset({""})]),
))  # fmt: skip
def test_no_rule_evicts_what_is_pinned_unless_pins_are_included(entries: list[EntryFacts], limits: Limits) -> None:
    made = plan(entries, limits, NOW)
    pinned = {entry.key for entry in entries if entry.pinned}
    assert not pinned & {victim.key for victim in made.victims}
    assert made.pinned == len(pinned)
    assert made.kept_entries == len(entries) - len(made.victims)
    included = plan(entries, replace(limits, pinned=True), NOW)
    unpinned = plan([msgspec.structs.replace(entry, pinned=False) for entry in entries], limits, NOW)
    assert {victim.key for victim in included.victims} == {victim.key for victim in unpinned.victims}
    assert included.pinned == 0


def test_by_the_last_use_but_one_an_entry_used_once_goes_before_one_in_steady_use() -> None:
    steady = EntryFacts("steady", 1, NOW - 5 * DAY_S, used_before_at=NOW - 6 * DAY_S)
    once = EntryFacts("once", 1, NOW - DAY_S)
    assert [v.key for v in plan([steady, once], Limits(max_entries=1, order="lru2"), NOW).victims] == ["once"]
    assert [v.key for v in plan([steady, once], Limits(max_entries=1, order="lru"), NOW).victims] == ["steady"]


def test_what_serves_any_size_does_not_expire_but_goes_with_everything() -> None:
    floor = EntryFacts("floor", 1, NOW - 90 * DAY_S, is_floor=True, stale=True)
    assert plan([floor], Limits(expire_days=7), NOW).victims == ()
    for limits in (Limits(everything=True), Limits(stale_toolchain=True), Limits(keys=frozenset({"floor"}))):
        assert [victim.key for victim in plan([floor], limits, NOW).victims] == ["floor"]


# ---- In a store ----


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with open_cache(tmp_path / "store", durability="fast") as opened:
        yield opened


def _publish(cache: Cache, seed: int, *, compile_ms: float = 150.0, specialisation: str = "nk") -> CacheKey:
    key, artifact, describe = make_entry(seed, compile_ms=compile_ms)

    def described(blob: Blob) -> Record:
        record = describe(blob)
        problem = msgspec.structs.replace(record.problem, specialisation=specialisation)
        return msgspec.structs.replace(record, problem=problem)

    cache.store.publish(key, artifact, described)
    return key


def _hit(cache: Cache, key: CacheKey, count: int) -> None:
    made_at = next(record.created_at for record in cache.records() if record.key == key)
    for _ in range(count):
        cache.journal.hit(key, "disk", made_at=made_at)
    cache.journal.flush()


@pytest.mark.parametrize("folded", [False, True])
def test_a_kernel_with_sixty_hits_is_never_evicted_before_one_with_none_of_the_same_size_and_price(
    cache: Cache, folded: bool
) -> None:
    used, unused = _publish(cache, 4), _publish(cache, 8)
    _hit(cache, used, 60)
    if folded:
        cache.journal.close()
        assert fold(cache.layout.journal, cache.layout.temp, keep=lambda _: True)
    sizes = {entry.stored_bytes for entry in cache.admin.plan_cleaning(Limits(everything=True)).victims}
    assert max(sizes) - min(sizes) < 50
    # The one that was never used was published last, long after the other's last use.
    import os
    import time

    later = time.time() + 3 * DAY_S
    os.utime(record_file(cache.store, unused), (later, later))
    by_value = plan_cleaning(cache.store, Limits(max_entries=1, order="value"), now=later + 60)
    assert [victim.key for victim in by_value.victims] == [unused]
    by_last_use = plan_cleaning(cache.store, Limits(max_entries=1, order="lru"), now=later + 60)
    assert [victim.key for victim in by_last_use.victims] == [used]


def test_the_setting_orders_also_explicit_limits(tmp_path: Path) -> None:
    with open_cache(tmp_path / "store", eviction="value", durability="fast") as cache:
        cheap, dear = _publish(cache, 4, compile_ms=10.0), _publish(cache, 8, compile_ms=10_000.0)
        for key in (dear, cheap):
            _hit(cache, key, 3)
        plan = cache.admin.plan_cleaning(Limits(max_entries=1))
        assert [victim.key for victim in plan.victims] == [cheap]
        assert plan.compile_s == pytest.approx(0.01)


def test_the_dry_run_says_how_many_seconds_of_compiling_would_go(cache: Cache) -> None:
    for seed, compile_ms in ((4, 250.0), (8, 500.0)):
        _publish(cache, seed, compile_ms=compile_ms)
    assert cache.admin.plan_cleaning(Limits(everything=True)).compile_s == pytest.approx(0.75)


def test_a_kernel_that_serves_any_size_outlives_all_others(cache: Cache) -> None:
    floor = _publish(cache, 0, specialisation="dynamic")
    others = [_publish(cache, seed) for seed in range(1, 6)]
    _hit(cache, others[0], 5)
    plan = cache.admin.plan_cleaning(Limits(max_entries=2))
    assert floor not in {victim.key for victim in plan.victims}
    assert len(plan.victims) == 4


def test_pinned_kernels_stay_until_they_are_unpinned(cache: Cache) -> None:
    keys = [_publish(cache, seed) for seed in range(3)]
    assert cache.admin.pin(keys[0][:12], keys[1], by="Ann") == keys[:2]
    assert cache.admin.pinned() == sorted(keys[:2])
    assert cache.admin.clean(Limits(everything=True)).pinned == 2
    assert {record.key for record in cache.records()} == set(keys[:2])
    assert cache.admin.unpin(keys[0], by="Ann") == [keys[0]]
    cache.admin.clean(Limits(everything=True))
    assert [record.key for record in cache.records()] == [keys[1]]
    cache.admin.clean(Limits(everything=True, pinned=True))
    assert list(cache.records()) == []
    assert cache.admin.pinned() == [keys[1]], "a pin outlives its entry"
    acts = [(one.kind, one.key, one.by) for one in cache.admin.decisions(kinds=["pin", "unpin"])]
    assert acts == [("pin", keys[0], "Ann"), ("pin", keys[1], "Ann"), ("unpin", keys[0], "Ann")]
    assert list(check(cache.store)) == []


def test_a_kernel_pinned_after_the_plan_was_made_stays(cache: Cache) -> None:
    key = _publish(cache, 1)
    plan = cache.admin.plan_cleaning(Limits(everything=True))
    cache.admin.pin(key)
    assert apply(cache.store, cache.journal, plan).evicted == 0
    assert [record.key for record in cache.records()] == [key]


def test_a_wrong_key_pins_nothing(cache: Cache) -> None:
    key = _publish(cache, 1)
    for wrong, error in (("0" * 12, KeyNotFound), ("no key", UsageError)):
        with pytest.raises(error):
            cache.admin.pin(key, wrong)
        with pytest.raises(error):
            cache.admin.unpin(wrong)
    assert cache.admin.pinned() == []


def test_pins_are_bounded(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "MOST_PINS", 2)
    keys = [_publish(cache, seed) for seed in range(3)]
    cache.admin.pin(*keys[:2])
    cache.admin.pin(keys[0])  # again
    with pytest.raises(StoreError, match="pin --remove"):
        cache.admin.pin(keys[2])


def test_verify_names_what_is_no_pin(cache: Cache) -> None:
    cache.admin.pin(_publish(cache, 1))
    (cache.layout.pins / "note.txt").write_text("x")
    (cache.layout.pins / ("a" * 64)).symlink_to("/etc/passwd")
    found = {finding.path for finding in cache.admin.verify(repair=True)}
    assert found == {"pins/note.txt", f"pins/{'a' * 64}"}
    assert cache.admin.verify() == []


# ---- Decayed hits ----


def test_hits_are_halved_with_every_week_and_a_clock_that_was_ahead_counts_in_full() -> None:
    week = 7 * DAY_S
    start = 2000 * week
    usage = EntryUsage("k", 0.0, {"disk": 60})
    usage.used(start + 1, 60)
    assert usage.recent_hits(start + 2) == 60
    assert usage.recent_hits(start + 2 * week) == pytest.approx(30)
    assert usage.recent_hits(start - 50 * week) == 60
    assert usage.recent_hits(start + 10_000 * week) == 0.0


@given(st.lists(st.tuples(st.floats(0, 3e9), st.integers(1, 5)), max_size=20), st.randoms())
def test_decayed_hits_do_not_depend_on_the_order_of_arrival(uses: list[tuple[float, int]], random: object) -> None:
    one, other = EntryUsage("k", 0.0), EntryUsage("k", 0.0)
    for usage, order in ((one, uses), (other, random.sample(uses, len(uses)))):  # type: ignore[attr-defined]
        for at, count in order:
            usage.used(at, count)
    assert one.weeks == other.weeks
    assert one.recent_hits(2e9) == pytest.approx(other.recent_hits(2e9))


def test_hits_that_an_older_version_counted_are_not_lost() -> None:
    usage = EntryUsage("k", 0.0, {"disk": 61}, last_used_at=2e9)
    assert usage.recent_hits(2e9) == pytest.approx(61, rel=0.6)
    usage.used(2e9, 1)
    assert usage.recent_hits(2e9) > 30


def test_folding_keeps_what_counts_and_bounds_the_rest() -> None:
    usage = EntryUsage("k", 0.0, {"disk": 1000})
    for week in range(1000):
        usage.used(week * 7 * DAY_S, 1)
    now = 999 * 7 * DAY_S
    folded = usage.without_old_weeks(now)
    assert len(folded.weeks) == 10
    assert usage.recent_hits(now) == pytest.approx(3, rel=0.01)
    assert folded.recent_hits(now) == pytest.approx(3, rel=0.01)
    assert folded.without_old_weeks(now) == folded


def test_a_journal_is_counted_by_week(cache: Cache) -> None:
    journal = Journal(cache.layout.journal, 3600.0, now=lambda: 2000 * 7 * DAY_S)
    journal.hit(CacheKey("k"), "disk", made_at=1.0)
    journal.hit(CacheKey("k"), "memory", made_at=1.0)
    journal.close()
    from cache_engine.store.journal import read_journal

    (usage,) = read_journal(cache.layout.journal).usage
    assert usage.weeks == {2000: 2}
