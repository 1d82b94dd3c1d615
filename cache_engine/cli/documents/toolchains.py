"""The document of ``regressions``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from cache_engine.insight import regressions


class MetricRow(msgspec.Struct, kw_only=True):
    """A figure over all kernels; see ``insight.regressions.Summary``."""

    metric: str
    compared: int
    median_ratio: float | None
    worse: int
    better: int


class WorseRow(msgspec.Struct, kw_only=True):
    """A figure that is worse; see ``insight.regressions.Change``.

    Attributes:
        from_key, to_key: empty for the compile time, which is judged over all kernels.
        ratio: ``None`` where there was nothing before.
    """

    name: str
    from_key: str
    to_key: str
    metric: str
    before: float
    after: float
    ratio: float | None
    where: str


class Regressions(msgspec.Struct, kw_only=True):
    """What ``regressions`` prints."""

    from_toolchain: str
    to_toolchain: str
    threshold: float
    kernels: int
    summaries: list[MetricRow]
    worse: list[WorseRow]


def comparison(found: regressions.Regressions, threshold: float) -> Regressions:
    """The document of a comparison."""
    return Regressions(
        from_toolchain=found.from_toolchain,
        to_toolchain=found.to_toolchain,
        threshold=threshold,
        kernels=found.kernels,
        summaries=[
            MetricRow(
                metric=one.metric,
                compared=one.compared,
                median_ratio=_finite(one.median_ratio),
                worse=one.worse,
                better=one.better,
            )
            for one in found.summaries
        ],
        worse=[
            WorseRow(
                name=one.name,
                from_key=one.from_key,
                to_key=one.to_key,
                metric=one.metric,
                before=one.before,
                after=one.after,
                ratio=_finite(one.ratio),
                where=one.where,
            )
            for one in found.worse
        ],
    )


def _finite(ratio: float | None) -> float | None:
    """Infinity is no number in JSON."""
    return None if ratio is None or math.isinf(ratio) else ratio
