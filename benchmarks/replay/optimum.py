"""The cost of the best choice of kernels in hindsight: a facility location problem for each shape.

A kernel costs its price once. Each m that was asked for is served by the fastest kernel there is, and costs the
seconds that it is slower than the fastest of all. Choosing the kernels is uncapacitated facility location, which is
NP-hard. Two numbers enclose the optimum:

- ``bound_s``: from below, by dual ascent (Erlenkotter, "A Dual-Based Procedure for Uncapacitated Facility Location",
  Operations Research 1978). Each m offers to pay; no kernel may be offered more than its price; what is offered is a
  lower bound by linear-programming duality.
- ``cost_s``: from above, by a choice that no kernel added, removed or exchanged makes better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LEAST_GAIN_S = 1e-9


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best choice of kernels in hindsight.

    Attributes:
        bound_s: no choice costs less.
        cost_s: what ``chosen`` costs: its prices, and the seconds lost to faster kernels.
        chosen: positions of the kernels.
    """

    bound_s: float
    cost_s: float
    chosen: frozenset[int]


def optimum(lost_s: Floats, prices_s: Floats) -> Optimum:
    """The optimum of one shape.

    Args:
        lost_s: kernels × m: seconds lost in all when this kernel serves this m. The least of each column is 0.
        prices_s: of each kernel; 0 for one that is there anyway.
    """
    asked = lost_s.any(axis=0)
    lost_s = lost_s[:, asked]
    free = frozenset(np.flatnonzero(prices_s <= 0).tolist())
    if not lost_s.shape[1]:
        chosen = free or frozenset({int(prices_s.argmin())})
        cost_s = float(prices_s[list(chosen)].sum())
        return Optimum(cost_s, cost_s, chosen)
    chosen, cost_s = _improved(lost_s, prices_s, free)
    return Optimum(min(_bound_s(lost_s, prices_s), cost_s), cost_s, chosen)


def _improved(lost_s: Floats, prices_s: Floats, free: frozenset[int]) -> tuple[frozenset[int], float]:
    """A choice that no single addition, removal or exchange makes better, and its cost."""

    def cost_s(chosen: frozenset[int]) -> float:
        if not chosen:
            return np.inf
        members = list(chosen)
        return float(lost_s[members].min(axis=0).sum() + prices_s[members].sum())

    everyone = frozenset(range(len(prices_s)))
    chosen = free or frozenset({min(everyone, key=lambda one: cost_s(frozenset({one})))})
    present_s = cost_s(chosen)
    while True:
        added = (chosen | {one} for one in everyone - chosen)
        removed = (chosen - {one} for one in chosen - free)
        exchanged = ((chosen - {old}) | {new} for old in chosen - free for new in everyone - chosen)
        tried = [(cost_s(each), sorted(each)) for each in (*added, *removed, *exchanged)]
        least_s, best = min(tried, default=(np.inf, []))
        if least_s >= present_s - _LEAST_GAIN_S:
            return chosen, present_s
        chosen, present_s = frozenset(best), least_s


def _bound_s(lost_s: Floats, prices_s: Floats) -> float:
    """Dual ascent: raises each offer to the seconds of the next kernel, as far as every kernel has slack."""
    slack = prices_s.astype(np.float64)
    levels = np.sort(lost_s, axis=0)
    offers = levels[0].copy()
    # Those that lose little with any kernel first: they rise in small steps.
    rising = np.argsort(levels[-1], kind="stable").tolist()
    while rising:
        still = []
        for j in rising:
            offer, column = offers[j], levels[:, j]
            near = lost_s[:, j] <= offer
            room = slack[near].min()
            if room <= 0:
                continue  # for good: slack never grows
            place = column.searchsorted(offer, side="right")
            if place < len(column) and column[place] - offer <= room:
                offers[j] = column[place]
                still.append(j)
            else:
                offers[j] = offer + room
            slack[near] -= offers[j] - offer
        rising = still
    return float(offers.sum())
