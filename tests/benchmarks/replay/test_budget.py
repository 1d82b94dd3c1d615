"""Compiling ahead under a budget: the choice fits, and gains its known share of the best choice's gain."""

from __future__ import annotations

import math
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.replay.budget import Option, gain_s, within_budget

COSTS, GAINS = st.floats(0.1, 5), st.floats(0, 10)
DISJOINT = st.lists(st.tuples(COSTS, GAINS), max_size=8).map(
    lambda pairs: [Option(number, cost, {number: gain}) for number, (cost, gain) in enumerate(pairs)]
)
OVERLAPPING = st.lists(st.tuples(COSTS, st.dictionaries(st.integers(0, 4), GAINS, max_size=5)), max_size=8).map(
    lambda pairs: [Option(number, cost, gains) for number, (cost, gains) in enumerate(pairs)]
)
BUDGETS = st.floats(0.1, 12)


def best_gain_s(options: list[Option], budget: float) -> float:
    sets = chain.from_iterable(combinations(options, size) for size in range(len(options) + 1))
    return max(gain_s(chosen) for chosen in sets if math.fsum(one.cost_s for one in chosen) <= budget)


@given(DISJOINT, BUDGETS)
def test_kernels_that_share_no_demand_gain_at_least_half_of_the_best_choice(
    options: list[Option], budget: float
) -> None:
    chosen = within_budget(options, budget)
    assert sum(one.cost_s for one in chosen) <= budget * (1 + 1e-9)
    assert gain_s(chosen) >= best_gain_s(options, budget) / 2 - 1e-9


@given(OVERLAPPING, BUDGETS)
def test_kernels_that_overlap_gain_their_bound_of_the_best_choice(options: list[Option], budget: float) -> None:
    chosen = within_budget(options, budget)
    assert sum(one.cost_s for one in chosen) <= budget * (1 + 1e-9)
    assert len({one.name for one in chosen}) == len(chosen)
    assert gain_s(chosen) >= best_gain_s(options, budget) * (1 - 1 / math.e) / 2 - 1e-9


@given(OVERLAPPING, BUDGETS)
def test_with_a_least_gain_each_kernel_earns_its_price_in_the_order_taken(options: list[Option], budget: float) -> None:
    chosen = within_budget(options, budget, least_gain=1.0)
    for number, one in enumerate(chosen):
        assert gain_s(chosen[: number + 1]) - gain_s(chosen[:number]) >= one.cost_s * (1 - 1e-9)


def test_a_second_config_counts_only_where_it_is_faster() -> None:
    narrow, wide = Option("narrow", 1.0, {1: 5.0, 2: 1.0}), Option("wide", 1.0, {1: 4.0, 2: 4.0})
    assert [one.name for one in within_budget([narrow, wide], 2.0)] == ["wide", "narrow"]
    assert [one.name for one in within_budget([narrow, wide], 2.0, least_gain=1.1)] == ["wide"]


def test_one_dear_kernel_is_taken_where_cheap_ones_gain_less() -> None:
    """Greedy by density alone would take the cheap one, and have no room for the other."""
    cheap, dear = Option("cheap", 0.1, {1: 0.2}), Option("dear", 10.0, {2: 15.0})
    assert [one.name for one in within_budget([cheap, dear], 10.0)] == ["dear"]


@pytest.mark.parametrize("budget", [0.0, -1.0])
def test_without_a_budget_nothing_is_taken(budget: float) -> None:
    assert within_budget([Option("a", 0.1, {1: 1.0})], budget) == []
    assert within_budget([], 1.0) == []
