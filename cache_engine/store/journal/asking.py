"""Counts what a process is asked for, as lines of a journal."""

from __future__ import annotations

from collections.abc import Mapping

from cache_engine.model.asked import Asked, Shape
from cache_engine.model.events import USE, Event
from cache_engine.model.gemm import GemmProblem


class Wanted:
    """A count of the requests for one problem."""

    __slots__ = ("count", "problem")

    def __init__(self, problem: GemmProblem) -> None:
        self.problem, self.count = problem, 1


def lines_of(asked: Mapping[int, Wanted], now: float) -> list[Event | Asked]:
    """A line for each shape that was asked for."""
    by_shape: dict[Shape, dict[int, int]] = {}
    for one in asked.values():
        by_m = by_shape.setdefault(Shape.of(one.problem), {})
        by_m[one.problem.m] = by_m.get(one.problem.m, 0) + one.count
    return [Asked(USE, now, shape, by_m) for shape, by_m in by_shape.items()]
