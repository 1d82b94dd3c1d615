"""Results of a benchmark: a time or a size compared with another, a figure, or a peer that is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """A time, and what it is compared with.

    Attributes:
        name: what was measured.
        seconds: its median time.
        beside: what it is compared with, measured alternately.
        beside_seconds: that one's median time.
        goal_seconds: what the time should not exceed, if there is such a goal.
        goal_ratio: what the ratio should not exceed, if there is such a goal.
    """

    name: str
    seconds: float
    beside: str
    beside_seconds: float
    goal_seconds: float | None = None
    goal_ratio: float | None = None

    @property
    def ratio(self) -> float:
        """The time as a multiple of the other's."""
        return self.seconds / self.beside_seconds

    @property
    def met(self) -> bool | None:
        """Whether every goal was reached; ``None`` without one."""
        return _met((self.seconds, self.goal_seconds), (self.ratio, self.goal_ratio))


@dataclass(frozen=True, slots=True)
class Size:
    """A size, and what it is compared with.

    Attributes:
        name: what it is the size of.
        size_bytes: how large that is.
        beside: what it is compared with.
        beside_bytes: how large that one is.
        goal_ratio: what the ratio should not exceed, if there is such a goal.
    """

    name: str
    size_bytes: float
    beside: str
    beside_bytes: float
    goal_ratio: float | None = None

    @property
    def ratio(self) -> float:
        """The size as a multiple of the other's."""
        return self.size_bytes / self.beside_bytes

    @property
    def met(self) -> bool | None:
        """Whether the goal was reached; ``None`` without one."""
        return _met((self.ratio, self.goal_ratio))


@dataclass(frozen=True, slots=True)
class Score:
    """A figure without a unit.

    Attributes:
        name: what it is.
        value: the figure.
        of: what it was found from.
        goal: what it should not exceed, if there is such a goal.
    """

    name: str
    value: float
    of: str
    goal: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal was reached; ``None`` without one."""
        return _met((self.value, self.goal))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A peer that was not measured, and why."""

    name: str
    reason: str

    @property
    def met(self) -> bool | None:
        """``None``: what was not measured missed no goal."""
        return None


ReportLine = Result | Size | Score | LeftOut
Report = Callable[[ReportLine], None]
"""Takes each line as soon as it is known."""


def _met(*goals: tuple[float, float | None]) -> bool | None:
    held = [value <= goal for value, goal in goals if goal is not None]
    return all(held) if held else None
