"""What timings say of the cost model. Every timing here is invented: input for arithmetic, no measurement."""

from __future__ import annotations

import random
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.kernels.agreement import Compared, agreement, factors, spearman

TILES = ((16, 64), (64, 64), (128, 128), (256, 128))


def _compared(problems: int, noise: float, slow: dict[tuple[int, int], float], seed: int = 1) -> list[Compared]:
    """Timings of each tile for each problem: predicted times a factor of the problem, one of the tile, and noise."""
    rng = random.Random(seed)
    found = []
    for problem in range(problems):
        scale = exp(rng.gauss(0, 2))
        for tile in TILES:
            cycles = rng.uniform(1e4, 1e6)
            us = cycles / 1000 * scale * slow.get(tile, 1.0) * exp(rng.gauss(0, noise))
            found.append(Compared(problem, "tensor_core", tile, cycles, us))
    return found


def test_ranks_correlate_as_spearman_defined_it() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    # 1 - 6 Σd² / n(n² - 1) without ties: d = 0, 1, -1, 0.
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    # Ties share the mean of their ranks: 1.5, 1.5, 3 and 1, 2, 3.
    assert spearman([5, 5, 9], [1, 2, 3]) == pytest.approx(0.8660254)
    assert spearman([7, 7, 7], [1, 2, 3]) is None
    assert spearman([], []) is None


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), max_size=30))
def test_a_rank_correlation_is_between_minus_one_and_one_and_symmetric(pairs: list[tuple[float, float]]) -> None:
    one, other = [a for a, _ in pairs], [b for _, b in pairs]
    found = spearman(one, other)
    assert found == spearman(other, one)
    assert found is None or -1 - 1e-9 <= found <= 1 + 1e-9


def test_a_slow_tile_is_found_whatever_the_problems_scale() -> None:
    found = agreement(_compared(20, 0.05, {(256, 128): 1.5}))
    by_tile = {one.tile: one for one in found.corrections}
    slow = by_tile[256, 128].ratio / by_tile[64, 64].ratio
    assert 1.3 < slow < 1.5, "pulled towards 1 by a prior of four timings, and no further"
    assert by_tile[256, 128].applies
    assert (found.problems, found.timings) == (20, 80)
    assert {tile: ratio for _, tile, ratio in factors(found.corrections)}[256, 128] == by_tile[256, 128].ratio


def test_noise_alone_corrects_little_and_rarely() -> None:
    applied = sum(one.applies for seed in range(50) for one in agreement(_compared(8, 0.3, {}, seed)).corrections)
    assert applied <= 0.1 * 50 * len(TILES)


def test_few_timings_correct_nothing() -> None:
    assert agreement(_compared(1, 0.0, {(256, 128): 9.0})).corrections == ()
    found = agreement(_compared(3, 0.01, {(256, 128): 9.0}))
    assert found.corrections != ()
    assert factors(found.corrections) == ()


def test_tiles_are_compared_within_a_problem_alone() -> None:
    """One tile was timed for slow problems only, another for fast ones: that says nothing about tiles."""
    slow = [Compared(problem, "simt", (64, 64), 1e5, 900.0) for problem in range(10)]
    fast = [Compared(problem, "simt", (32, 32), 1e5, 1.0) for problem in range(10, 20)]
    assert agreement([*slow, *fast]).corrections == ()


def test_without_timings_there_is_no_coefficient() -> None:
    found = agreement([])
    assert (found.problems, found.rank_correlation, found.lowest, found.corrections) == (0, None, None, ())


def test_the_coefficient_is_the_median_over_problems() -> None:
    def problem(number: int, *times: float) -> list[Compared]:
        return [Compared(number, "simt", (32, 32), float(place), us) for place, us in enumerate(times, 1)]

    found = agreement([*problem(0, 1, 2, 3), *problem(1, 1, 3, 2), *problem(2, 3, 2, 1), *problem(3, 1, 2)])
    assert (found.problems, found.timings) == (3, 9)
    assert found.rank_correlation == pytest.approx(0.5)
    assert found.lowest == pytest.approx(-1)
