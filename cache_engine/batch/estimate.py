"""How long compiling some kernels takes, from what the store has seen. Nothing is estimated that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

from cache_engine.engine.cache import Cache
from cache_engine.engine.selection import Selection

MOST_RECORDS = 2000
"""Of those in the store, in the order of their keys, which is as good as chance."""

_Kind = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long compiling takes.

    Attributes:
        seconds: by the mean compile time of kernels of the same family, compiler and target, with as many compiles at a
            time as asked; ``None`` where the store has no such kernel.
        records: how many compiles this is drawn from.
        unknown: the kinds of kernel that the store has none of, in words.
    """

    seconds: float | None
    records: int
    unknown: tuple[str, ...] = ()


def estimate(cache: Cache, missing: Sequence[Selection], jobs: int) -> Estimate:
    """An estimate for these kernels, ``jobs`` at a time."""
    kinds = [(one.family.name, one.compiler.name, one.problem.arch or "") for one in missing]
    seen: dict[_Kind, list[float]] = {kind: [] for kind in kinds}
    if seen and cache.has_store:
        for record in islice(cache.records(), MOST_RECORDS):
            seen.get((record.family, record.compiler, record.arch), []).append(record.compile_ms)
    unknown = tuple(f"{family} by {compiler} for {arch}" for (family, compiler, arch), ms in seen.items() if not ms)
    if unknown:
        return Estimate(None, 0, unknown)
    means = {kind: fmean(ms) for kind, ms in seen.items()}
    at_a_time = min(jobs, len(missing)) or 1
    return Estimate(sum(means[kind] for kind in kinds) / at_a_time / 1e3, sum(map(len, seen.values())))
