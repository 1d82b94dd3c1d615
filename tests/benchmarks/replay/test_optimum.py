"""The best kernels in hindsight: what trying every choice finds lies between the two numbers."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.replay.optimum import Floats, _bound_s, optimum

MATRICES = st.integers(1, 5).flatmap(
    lambda kernels: st.lists(
        st.lists(st.floats(0, 5) | st.just(0.0), min_size=kernels, max_size=kernels), min_size=1, max_size=8
    )
)
PRICES = st.lists(st.floats(0.1, 6) | st.just(0.0), min_size=5, max_size=5)


def lost(columns: list[list[float]]) -> Floats:
    matrix = np.array(columns, dtype=np.float64).T
    least: Floats = matrix - matrix.min(axis=0)
    return least


def by_trying(lost_s: Floats, prices_s: Floats) -> float:
    everyone = range(len(prices_s))
    sets = chain.from_iterable(combinations(everyone, size) for size in range(1, len(prices_s) + 1))
    return min(float(lost_s[list(chosen)].min(axis=0).sum() + prices_s[list(chosen)].sum()) for chosen in sets)


@given(MATRICES, PRICES)
def test_the_optimum_lies_between_the_bound_and_the_choice(columns: list[list[float]], prices: list[float]) -> None:
    lost_s = lost(columns)
    prices_s = np.array(prices[: len(lost_s)])
    found, true = optimum(lost_s, prices_s), by_trying(lost_s, prices_s)
    assert found.bound_s <= true * (1 + 1e-9) + 1e-9
    assert found.cost_s >= true * (1 - 1e-9) - 1e-9
    free = set(np.flatnonzero(prices_s <= 0).tolist())
    alone = ([*(free | {one})] for one in range(len(prices_s)))
    single = min(float(lost_s[each].min(axis=0).sum() + prices_s[each].sum()) for each in alone)
    assert found.cost_s <= single + 1e-9, "the search begins with the best single kernel"
    assert _bound_s(lost_s[:, lost_s.any(axis=0)], prices_s) <= true * (1 + 1e-9) + 1e-9
    members = list(found.chosen)
    assert found.cost_s == pytest.approx(float(lost_s[members].min(axis=0).sum() + prices_s[members].sum()))


@given(MATRICES, PRICES)
def test_no_kernel_removed_from_the_choice_makes_it_cheaper(columns: list[list[float]], prices: list[float]) -> None:
    lost_s = lost(columns)
    prices_s = np.array(prices[: len(lost_s)])
    found = optimum(lost_s, prices_s)
    for kernel in found.chosen:
        others = sorted(found.chosen - {kernel})
        if others:
            cost_s = float(lost_s[others].min(axis=0).sum() + prices_s[others].sum())
            assert cost_s >= found.cost_s - 1e-6


def test_a_kernel_that_later_ones_make_needless_is_removed() -> None:
    """The middle one is the best alone; two others together are better, and then it serves nothing."""
    lost_s = np.array([[0.0, 0.0, 9.0, 9.0], [9.0, 9.0, 0.0, 0.0], [3.0, 3.0, 3.0, 3.0]])
    assert set(optimum(lost_s, np.array([1.0, 1.0, 1.0])).chosen) == {0, 1}


def test_bound_and_choice_meet_where_kernels_differ_clearly() -> None:
    lost_s = np.array([[0.0, 9.0, 9.0, 0.1], [9.0, 0.0, 9.0, 0.0], [4.0, 4.0, 0.0, 5.0]])
    found = optimum(lost_s, np.array([1.0, 1.0, 20.0]))
    assert found.chosen == {0, 1}
    assert found.cost_s == pytest.approx(11.0)
    assert found.bound_s == pytest.approx(11.0)


def test_a_kernel_that_is_there_anyway_is_chosen_and_costs_nothing() -> None:
    found = optimum(np.array([[0.0, 0.4], [0.5, 0.0]]), np.array([0.0, 1.0]))
    assert (set(found.chosen), found.cost_s, found.bound_s) == ({0}, 0.4, 0.4)


def test_without_demand_the_cheapest_kernel_is_enough() -> None:
    found = optimum(np.zeros((2, 3)), np.array([2.0, 1.0]))
    assert (set(found.chosen), found.cost_s) == ({1}, 1.0)
