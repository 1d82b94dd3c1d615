"""Compares the cost model's predictions with timings, and derives corrections of the cost model.

A time depends much more on the problem than on the config, and the cost model does not include the time of a launch. So
only timings of one problem on one device are compared. A residual is log(measured / predicted), minus the mean of this
value over the problem's timings.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, median

Tile = tuple[int, int]
"""The rows and columns of C that a block computes. Configs with the same tile get one correction."""
Factors = tuple[tuple[str, Tile, float], ...]
"""Factors for predicted cycles, as (family, tile, factor)."""

_LEAST_TIMINGS = 4
_SHRUNK_BY = 4
_SURE = 2.0
# With fewer timings (beyond one for each tile), their spread is not known, and so nothing is corrected.
_LEAST_FREEDOM = 2


@dataclass(frozen=True, slots=True)
class Compared:
    """The timing of one config, and the cost model's prediction for it.

    Attributes:
        problem: a value that is equal for timings that may be compared: of one problem on one device.
    """

    problem: Hashable
    family: str
    tile: Tile
    predicted_cycles: float
    median_us: float


@dataclass(frozen=True, slots=True)
class Correction:
    """The correction of the predictions for a family's configs with one tile, from their timings.

    Attributes:
        ratio: measured time over predicted time, relative to the other configs of the same problems. It is the mean
            of the timings and four additional values of exactly 1, so that few timings change it little.
        uncertainty: the standard deviation of the logarithm of ``ratio``, which is about its relative error.
        timings: the number of timings that the correction is based on.
    """

    family: str
    tile: Tile
    ratio: float
    uncertainty: float
    timings: int

    @property
    def applies(self) -> bool:
        """Whether the cost model uses this correction: it needs four timings and a ratio over two deviations from 1."""
        return self.timings >= _LEAST_TIMINGS and abs(log(self.ratio)) > _SURE * self.uncertainty


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement between the order of configs by predicted time and their order by measured time.

    Attributes:
        problems: the number of problems with at least three timed configs of one family.
        timings: the number of timings of these problems.
        rank_correlation: the median of Spearman's coefficient between predicted and measured time over these problems:
            1 for the same order, 0 for no relation; ``None`` without a problem.
        lowest: the lowest of these coefficients.
        corrections: the correction for each family and tile.
    """

    problems: int
    timings: int
    rank_correlation: float | None
    lowest: float | None
    corrections: tuple[Correction, ...]


def agreement(compared: Iterable[Compared]) -> Agreement:
    """The agreement between one device's timings and their predictions."""
    by_problem: dict[Hashable, list[Compared]] = {}
    for one in compared:
        by_problem.setdefault((one.problem, one.family), []).append(one)
    ranked = [group for group in by_problem.values() if len(group) >= 3]
    found = [
        coefficient
        for group in ranked
        if (coefficient := spearman([one.predicted_cycles for one in group], [one.median_us for one in group]))
        is not None
    ]
    return Agreement(
        problems=len(ranked),
        timings=sum(map(len, ranked)),
        rank_correlation=median(found) if found else None,
        lowest=min(found, default=None),
        corrections=_corrections(by_problem.values()),
    )


def _corrections(groups: Iterable[Sequence[Compared]]) -> tuple[Correction, ...]:
    residuals: dict[tuple[str, Tile], list[float]] = {}
    for group in groups:
        if len({one.tile for one in group}) > 1:  # with a single tile there is nothing to compare
            logs = [log(one.median_us / one.predicted_cycles) for one in group]
            mean = fmean(logs)
            for one, each in zip(group, logs, strict=True):
                residuals.setdefault((one.family, one.tile), []).append(each - mean)
    off = [(each - fmean(values)) ** 2 for values in residuals.values() for each in values]
    freedom = len(off) - len(residuals)
    if freedom < _LEAST_FREEDOM:
        return ()
    spread = sqrt(sum(off) / freedom)
    return tuple(
        Correction(*place, exp(sum(values) / (len(values) + _SHRUNK_BY)), spread / sqrt(len(values)), len(values))
        for place, values in sorted(residuals.items())
    )


def factors(corrections: Iterable[Correction]) -> Factors:
    """The factors for the cost model, from those corrections that are certain enough."""
    return tuple((one.family, one.tile, one.ratio) for one in corrections if one.applies)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation; equal values get the mean of their ranks.

    ``None`` if all values of ``first``, or all of ``second``, are equal.
    """
    one, other = _ranks(first), _ranks(second)
    mean = (len(one) + 1) / 2  # of the ranks, for any values
    together = sum((a - mean) * (b - mean) for a, b in zip(one, other, strict=True))
    apart = sqrt(sum((a - mean) ** 2 for a in one) * sum((b - mean) ** 2 for b in other))
    return together / apart if apart else None


def _ranks(values: Sequence[float]) -> list[float]:
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values), 1):
        places.setdefault(value, []).append(place)
    return [fmean(places[value]) for value in values]
