"""A store's own requests, for ``evictions``: what was asked for in each period, and the kernels that serve it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from benchmarks.replay.costs import PUBLISHED
from benchmarks.replay.evictions import Kernel, Played, Requests, play
from cache_engine.cache.cache import Cache
from cache_engine.cache.miss import compile_of
from cache_engine.cache.selection import Selection
from cache_engine.errors import GemmCacheError
from cache_engine.model.gemm import Specialisation
from cache_engine.model.key import CacheKey
from cache_engine.model.shapes import Shape
from cache_engine.store.codec import stored_bytes
from cache_engine.upkeep.plan import ORDERS
from cache_engine.usage.compile_time import fitted

_SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Stored:
    """The requests that a store has counted.

    Attributes:
        requests: by period and kernel, the earliest first.
        kernels: those that serve them, by key: of this store where it has them, else as predicted.
        predicted: how many of them the store does not have.
        left_out: how often problems were asked for that cannot be keyed here, such as with a compiler that is not
            installed.
        since: when counting began, seconds since 1970; 0 where nothing was counted.
    """

    requests: list[Requests]
    kernels: dict[str, Kernel]
    predicted: int
    left_out: float
    since: float

    @property
    def needed_bytes(self) -> int:
        """The bytes of all kernels together."""
        return sum(kernel.stored_bytes for kernel in self.kernels.values())


def requests_of(cache: Cache, on_period: Callable[[], object] = lambda: None) -> Stored:
    """The requests to the store of a cache. A size that only the histogram has stands for others near it."""
    timeline = cache.demand.timeline()
    found: dict[tuple[Shape, int], Selection | None] = {}
    requests: list[Requests] = []
    left_out = 0.0
    for period in timeline.periods:
        counts: dict[str, float] = {}
        for shape, sketch in period.sketches.items():
            for m, count in sketch.spread():
                asked = (shape, m)
                if asked not in found:
                    found[asked] = _selection(cache, shape, m)
                selection = found[asked]
                if selection is None:
                    left_out += count
                else:
                    counts[selection.key] = counts.get(selection.key, 0.0) + count
        at = (period.start + period.end) / 2
        requests += [Requests(at, key, counts[key]) for key in sorted(counts)]
        on_period()
    selections = {selection.key: selection for selection in found.values() if selection is not None}
    kernels, predicted = _kernels(cache, selections)
    return Stored(requests, kernels, predicted, left_out, timeline.since)


def played(stored: Stored, sizes_bytes: list[int], half_life_s: float) -> list[Played]:
    """Each order of eviction at each size; see ``evictions.play``."""
    return [play(stored.requests, stored.kernels, name, size, half_life_s) for size in sizes_bytes for name in ORDERS]


def sizes_of(stored: Stored) -> list[int]:
    """The sizes that are played unless others are asked for: shares of what all kernels take."""
    return [max(1, round(share * stored.needed_bytes)) for share in _SHARES]


def _selection(cache: Cache, shape: Shape, m: int) -> Selection | None:
    try:
        return cache.select(shape.problem(m))
    except GemmCacheError:
        return None


def _kernels(cache: Cache, selections: Mapping[CacheKey, Selection]) -> tuple[dict[str, Kernel], int]:
    """The kernels of some keys, and how many of them are predicted."""
    records = {record.key: record for record in cache.records()}
    times = fitted(iter(records.values()))
    usual_bytes = round(median(map(stored_bytes, records.values())) if records else PUBLISHED.stored_bytes)
    kernels: dict[str, Kernel] = {}
    for key, one in selections.items():
        is_floor = one.problem.specialisation is Specialisation.DYNAMIC
        record = records.get(one.key)
        if record is not None:
            kernels[key] = Kernel(stored_bytes(record), record.compile_ms / 1e3, is_floor)
        else:
            kernels[key] = Kernel(usual_bytes, times.seconds(compile_of(one)), is_floor)
    return kernels, len(kernels.keys() - records.keys())
