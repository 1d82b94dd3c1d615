"""Agreement of the cost model's predictions with timings, and the corrections that the timings make in it.

A time depends on the problem far more than on the config, and the cost model knows nothing of launching. So timings are
compared within a problem on a device alone: a residual is the logarithm of measured over predicted, less the mean of
its problem's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, median

Tile = tuple[int, int]
"""Rows and columns of C that a block computes: the class of a config."""
Factors = tuple[tuple[str, Tile, float], ...]
"""By family and tile: what predicted cycles are multiplied by."""

_LEAST_TIMINGS = 4
_SHRUNK_BY = 4
_SURE = 2.0
# With fewer timings beyond one for each tile, how much they vary is not known, and so nothing is corrected.
_LEAST_FREEDOM = 2


@dataclass(frozen=True, slots=True)
class Compared:
    """A timing next to its prediction.

    Attributes:
        problem: what it has in common with timings that it may be compared with.
    """

    problem: Hashable
    family: str
    tile: Tile
    predicted_cycles: float
    median_us: float


@dataclass(frozen=True, slots=True)
class Correction:
    """The correction by timings of a family's configs with one tile.

    Attributes:
        ratio: how much longer they take than predicted, compared with the other configs of their problems; the mean of
            its timings, pulled towards 1 by as much as four timings of exactly 1.
        uncertainty: the standard deviation of the mean's logarithm, which is about that of the ratio as a share.
        timings: how many it is drawn from.
    """

    family: str
    tile: Tile
    ratio: float
    uncertainty: float
    timings: int

    @property
    def applies(self) -> bool:
        """Whether it is so certain that the cost model uses it: at least four timings, and two standard deviations."""
        return self.timings >= _LEAST_TIMINGS and abs(log(self.ratio)) > _SURE * self.uncertainty


@dataclass(frozen=True, slots=True)
class Agreement:
    """The quality of the predictions' ranking of a problem's configs.

    Attributes:
        problems: those with at least three timed configs of a family.
        timings: of these problems.
        rank_correlation: the median over them of Spearman's coefficient of predicted and measured time; ``None``
            without one. 1 is the same order, 0 none.
        lowest: the lowest of these.
        corrections: what timings say of each family's tiles.
    """

    problems: int
    timings: int
    rank_correlation: float | None
    lowest: float | None
    corrections: tuple[Correction, ...]


def agreement(compared: Iterable[Compared]) -> Agreement:
    """The agreement of the predictions for one device's timings with these."""
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
        if len({one.tile for one in group}) > 1:  # with one tile alone there is nothing that it could be compared with
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
    """The factors that the cost model multiplies by, from those corrections that are certain enough."""
    return tuple((one.family, one.tile, one.ratio) for one in corrections if one.applies)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation; equal values share the mean of their ranks. ``None`` where either has one value."""
    one, other = _ranks(first), _ranks(second)
    mean = (len(one) + 1) / 2  # of ranks, whatever the values
    together = sum((a - mean) * (b - mean) for a, b in zip(one, other, strict=True))
    apart = sqrt(sum((a - mean) ** 2 for a in one) * sum((b - mean) ** 2 for b in other))
    return together / apart if apart else None


def _ranks(values: Sequence[float]) -> list[float]:
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values), 1):
        places.setdefault(value, []).append(place)
    return [fmean(places[value]) for value in values]
