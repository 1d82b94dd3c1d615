"""Orders of eviction: each is total, protects what must stay, and does what its name says."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cache_engine.upkeep.plan import LRU, LRU2, ORDERS, VALUE, Worth, order

TIMES = st.floats(0, 1e6) | st.sampled_from([1.0, 2.0])
WORTHS = st.lists(
    st.builds(
        Worth,
        key=st.text("0123456789abcdef", min_size=4, max_size=4),
        stored_bytes=st.integers(0, 10_000),
        last_used_at=TIMES,
        used_before_at=TIMES | st.just(-math.inf),
        hits=st.floats(0, 100),
        compile_s=st.floats(0, 10),
        is_protected=st.booleans(),
    ),
    unique_by=lambda one: one.key,
    max_size=20,
)
PLAIN = Worth("aaaa", 1000, 100.0, compile_s=0.2)


def evicted(entries: list[Worth], name: str) -> list[str]:
    """Keys, the first to go first."""
    return [one.key for one in sorted(entries, key=order(name))]


@given(WORTHS, st.sampled_from(ORDERS), st.randoms())
def test_the_order_does_not_depend_on_the_order_of_the_entries(entries: list[Worth], name: str, random: object) -> None:
    shuffled = list(entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert evicted(shuffled, name) == evicted(entries, name)


@given(WORTHS, st.sampled_from(ORDERS))
def test_protected_entries_go_last(entries: list[Worth], name: str) -> None:
    protected = [one.is_protected for one in sorted(entries, key=order(name))]
    assert protected == sorted(protected)


@given(WORTHS, st.floats(0, 1e6), TIMES)
def test_a_kernel_with_60_hits_goes_after_one_with_none_of_the_same_size_and_price(
    others: list[Worth], used_at: float, unused_since: float
) -> None:
    used = Worth("used", 1000, used_at, hits=60, compile_s=0.2)
    unused = replace(used, key="idle", hits=0, last_used_at=unused_since)
    keys = evicted([*others, used, unused], VALUE)
    assert keys.index("idle") < keys.index("used")


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_value_grows_with_hits_and_price_and_falls_with_size(hits: int, price: int, size: int) -> None:
    one = Worth("aaaa", size, 0.0, hits=hits, compile_s=price)
    assert one.value == pytest.approx(hits * price / size)


def test_lru_takes_the_one_unused_for_longest() -> None:
    assert evicted([PLAIN, replace(PLAIN, key="bbbb", last_used_at=99.0, hits=1e6)], LRU) == ["bbbb", "aaaa"]


def test_lru2_takes_the_one_used_only_once() -> None:
    """A scan uses many entries once; they go before what is used again and again."""
    once = replace(PLAIN, key="once", last_used_at=500.0)
    twice = replace(PLAIN, key="both", used_before_at=50.0)
    assert evicted([twice, once], LRU2) == ["once", "both"]
    assert evicted([twice, once], LRU) == ["both", "once"]


@pytest.mark.parametrize("name", ORDERS)
def test_a_demoted_entry_goes_before_others(name: str) -> None:
    assert evicted([PLAIN, replace(PLAIN, key="gone", is_demoted=True)], name) == ["gone", "aaaa"]


@pytest.mark.parametrize("name", ORDERS)
def test_an_entry_is_protected_only_where_that_is_said(name: str) -> None:
    assert evicted([replace(PLAIN, is_protected=True), replace(PLAIN, key="free")], name) == ["free", "aaaa"]


def test_an_unknown_order_is_no_order() -> None:
    with pytest.raises(KeyError):
        order("arc")
