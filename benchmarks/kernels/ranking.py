"""The accuracy of the cost model's ranking of configs, by the timings of a store."""

from __future__ import annotations

from benchmarks.results import LeftOut, Report, Score
from cache_engine.batch.tuning import agreements
from cache_engine.cache.cache import Cache
from cache_engine.units import counted

_NAME = "rank correlation of predicted and measured time"


def ranking(report: Report, cache: Cache) -> None:
    """Spearman's coefficient for each device that a store has timings of, the median over its problems."""
    found = False
    for one in agreements(cache):
        value = one.agreement.rank_correlation
        if value is not None:
            found = True
            problems, timings = counted(one.agreement.problems, "problem"), counted(one.agreement.timings, "timing")
            report(Score(_NAME, value, f"{problems}, {timings} on {one.device}"))
    if not found:
        report(LeftOut(_NAME, "the store has no problem with timings of three configs; gemm-cache tune makes some"))
