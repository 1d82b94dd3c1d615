"""Timing things side by side, so that what is reported is a ratio and not a machine."""

from __future__ import annotations

import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from benchmarks.results import Result

Thunk = Callable[[], object]


def compare(
    name: str,
    measured: Thunk,
    beside: str,
    reference: Thunk,
    *,
    goal_seconds: float | None = None,
    goal_ratio: float | None = None,
    samples: int = 200,
    calls: int = 1,
) -> Result:
    """Times two things in turn and takes the median of each.

    Args:
        samples: how often each is timed.
        calls: how often it is called within one timing; for what takes microseconds.
    """
    seconds, reference_seconds = medians([measured, reference], samples, calls)
    return Result(name, seconds, beside, reference_seconds, goal_seconds, goal_ratio)


def medians(thunks: Sequence[Thunk], samples: int, calls: int = 1) -> list[float]:
    """Median seconds of one call of each, the samples taken in turn; the first of each is not counted."""
    times: list[list[float]] = [[] for _ in thunks]
    for sample in range(samples + 1):
        for thunk, kept in zip(thunks, times, strict=True):
            started = time.perf_counter()
            for _ in range(calls):
                thunk()
            elapsed = (time.perf_counter() - started) / calls
            if sample:
                kept.append(elapsed)
    return [statistics.median(kept) for kept in times]


def processor_seconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """The processor time of a process: other work on the machine hardly counts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
