"""Estimates of the time to compile some kernels, predicted from the compiles that the store has records of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cache_engine.cache.cache import Cache
from cache_engine.cache.making import compile_of
from cache_engine.cache.selection import Selection
from cache_engine.usage.compile_time import CompileTimes, predicted_compile_seconds


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate of the time that compiling takes.

    Attributes:
        seconds: predicted, with as many compiles at a time as are asked for and have a slot; 0 where there is nothing
            to compile.
        times: the model that predicts them; ``None`` where there is nothing to compile.
    """

    seconds: float
    times: CompileTimes | None

    @property
    def records(self) -> int:
        """The number of compiles it is drawn from."""
        return 0 if self.times is None else self.times.records

    @property
    def error(self) -> float | None:
        """The median error of predicting one compile, as a share; ``None`` where too few are known to say."""
        return None if self.times is None else self.times.error

    @property
    def by(self) -> str:
        """The basis of the prediction; empty where there is nothing to compile."""
        return "" if self.times is None else f"predicted {self.times.in_words}"


def estimate(cache: Cache, missing: Sequence[Selection], jobs: int) -> Estimate:
    """An estimate for these kernels, ``jobs`` at a time, as far as the store has slots.

    It reads records, but none where nothing is missing.
    """
    if not missing:
        return Estimate(0.0, None)
    each, times = predicted_compile_seconds(list(map(compile_of, missing)), cache.records() if cache.has_store else ())
    return Estimate(max(*each, sum(each) / min(jobs, cache.settings.slots)), times)
