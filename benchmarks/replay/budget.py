"""The choice of kernels to compile ahead under a budget, when not all can be: a knapsack.

Kernels overlap: two configs of one shape serve the same m, and the second gains only where it is faster than the first.
The gain of a set is a coverage (each demand counts its best kernel), which is submodular, so the greedy choice by gain
per cost, or the best single kernel if that is better, gains at least (1 - 1/e) / 2 of what the best set gains (Khuller,
Moss, Naor: "The Budgeted Maximum Coverage Problem", Information Processing Letters 1999). Where no demand has two
kernels it is a plain knapsack, and the same choice gains at least half (Dantzig's bound). An exact choice is not worth
its time: predicted gains are less exact than the bound's loss in practice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """A kernel that could be compiled.

    Attributes:
        name: what it is.
        cost_s: seconds of compiling; above 0.
        gains_s: by each demand that it serves, the GPU seconds that it is expected to save.
    """

    name: Any
    cost_s: float
    gains_s: Mapping[Any, float]


def within_budget(options: Sequence[Option], budget_s: float, least_gain: float = 0.0) -> list[Option]:
    """The options to take, in the order of gain per cost.

    Args:
        least_gain: take none that gains less than this for each second of cost. With 1, each must earn its own price.
    """
    served: dict[Any, float] = {}
    left, remaining, taken = budget_s, [one for one in options if one.cost_s <= budget_s], list[Option]()
    while remaining:
        gains = [_added_s(one, served) for one in remaining]
        best = max(range(len(remaining)), key=lambda i: (gains[i] / remaining[i].cost_s, -i))
        if gains[best] <= 0 or gains[best] < least_gain * remaining[best].cost_s:
            break
        option = remaining.pop(best)
        taken.append(option)
        left -= option.cost_s
        for demand, gain_s in option.gains_s.items():
            served[demand] = max(served.get(demand, 0.0), gain_s)
        remaining = [one for one in remaining if one.cost_s <= left]
    single = max(options, key=lambda one: (one.cost_s <= budget_s, _added_s(one, {})), default=None)
    if single is not None and single.cost_s <= budget_s and _added_s(single, {}) > sum(served.values()):
        return [single] if _added_s(single, {}) >= least_gain * single.cost_s else taken
    return taken


def gain_s(options: Sequence[Option]) -> float:
    """The gain of a set of options: each demand counts its best one."""
    served: dict[Any, float] = {}
    for option in options:
        for demand, each_s in option.gains_s.items():
            served[demand] = max(served.get(demand, 0.0), each_s)
    return sum(served.values())


def _added_s(option: Option, served: Mapping[Any, float]) -> float:
    return sum(max(0.0, gain_s - served.get(demand, 0.0)) for demand, gain_s in option.gains_s.items())
