"""Orders of eviction, on requests whose outcome can be counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.replay.evictions import Kernel, Requests, play
from cache_engine.upkeep.plan import LRU, LRU2, ORDERS, VALUE

HOUR_S = 3600.0
WEEK_S = 168 * HOUR_S


def _requests(*periods: dict[str, float]) -> list[Requests]:
    return [
        Requests(HOUR_S * (hour + 0.5), key, count)
        for hour, period in enumerate(periods)
        for key, count in period.items()
    ]


@pytest.mark.parametrize("name", ORDERS)
def test_with_room_for_all_each_kernel_is_made_once(name: str) -> None:
    kernels = {key: Kernel(100, 0.5) for key in "abc"}
    played = play(_requests({"a": 5, "b": 1}, {"a": 2, "c": 3}, {"b": 1}), kernels, name, 400, WEEK_S)
    assert (played.requests, played.hits, played.compile_s) == (12, 9, 1.5)
    assert played.again_s == played.evictions == 0
    assert played.hit_rate == pytest.approx(9 / 12)


def test_lru_loses_what_is_used_most_to_what_is_used_once_and_value_does_not() -> None:
    kernels = {key: Kernel(100, 0.5) for key in "abcdef"}
    scan = _requests({"a": 60}, {"b": 1}, {"c": 1}, {"d": 1}, {"e": 1}, {"a": 60})
    by_lru, by_lru2, by_value = (play(scan, kernels, name, 334, WEEK_S) for name in (LRU, LRU2, VALUE))
    assert by_lru.again_s == 0.5
    assert by_lru2.again_s == by_value.again_s == 0
    assert by_value.hits == by_lru.hits + 1


def test_value_keeps_what_is_dear_to_make_and_small() -> None:
    kernels = {"cheap": Kernel(100, 0.1), "dear": Kernel(100, 10.0), "other": Kernel(100, 0.1)}
    asked = _requests({"dear": 3}, {"cheap": 3}, {"other": 1}, {"dear": 1})
    assert play(asked, kernels, VALUE, 230, WEEK_S).again_s == 0
    assert play(asked, kernels, LRU, 230, WEEK_S).again_s == 10.0


def test_the_protected_stay() -> None:
    kernels = {"floor": Kernel(100, 0.1, is_protected=True), "b": Kernel(100, 0.1), "c": Kernel(100, 0.1)}
    asked = _requests({"floor": 1}, {"b": 9}, {"c": 9}, {"floor": 1})
    for name in ORDERS:
        assert play(asked, kernels, name, 230, WEEK_S).again_s == 0


def test_a_kernel_larger_than_the_store_is_made_in_each_period_and_evicts_nothing() -> None:
    kernels = {"a": Kernel(500, 0.5), "b": Kernel(100, 0.5)}
    played = play(_requests({"b": 1}, {"a": 2}, {"a": 2}, {"b": 1}), kernels, LRU, 400, WEEK_S)
    assert (played.hits, played.compile_s, played.again_s, played.evictions) == (3, 1.5, 0.5, 0)


def test_a_kernel_as_large_as_the_store_takes_the_place_of_all() -> None:
    kernels = {"a": Kernel(400, 0.5), "b": Kernel(100, 0.5)}
    played = play(_requests({"b": 1}, {"a": 2}, {"a": 2}), kernels, LRU, 400, WEEK_S)
    assert (played.hits, played.evictions) == (3, 1)


@given(
    st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 9), min_size=1), max_size=12),
    st.sampled_from(ORDERS),
    st.integers(50, 900),
)
def test_what_is_counted_adds_up(periods: list[dict[str, float]], name: str, size_bytes: int) -> None:
    kernels = {key: Kernel(100 + 10 * place, 0.25) for place, key in enumerate("abcdefgh")}
    played = play(_requests(*periods), kernels, name, size_bytes, WEEK_S)
    asked_for = {key for period in periods for key in period}
    assert played.requests == sum(sum(period.values()) for period in periods)
    assert played.compile_s == pytest.approx(0.25 * (played.requests - played.hits))
    assert played.again_s == pytest.approx(played.compile_s - 0.25 * len(asked_for))
