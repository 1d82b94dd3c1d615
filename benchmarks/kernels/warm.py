"""Warming a store: whether compiling side by side keeps the processors busy."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.results import Report, Result
from cache_engine.batch.warm import warm
from cache_engine.cache.cache import open_cache
from cache_engine.compilers import COMPILERS
from cache_engine.evaluator.catalogue import model_shapes
from cache_engine.insight.coverage import coverage, distinct, wanted
from cache_engine.model.gemm import DType
from cache_engine.model.shapes import parse_sizes

_MODEL = "Llama-3.1-8B"
_TOKENS = "1,16,64,256,1024,4096"
_ARCHS = ("sm_90",)
_IDLE_GOAL = 0.15


def warming(report: Report, place: Path) -> None:
    """A model's kernels compiled and stored by a worker per processor, compared with one worker; and the idle time.

    Time left idle is that of all processors, less what this process and its children used; on a machine that does
    something else as well, that counts as idle too.
    """
    COMPILERS["nvrtc"].load()
    processors = len(os.sched_getaffinity(0))
    together, used, kernels = _warm(place / "warm-together", processors)
    alone, _, _ = _warm(place / "warm-alone", 1)
    name = f"warm, {kernels} kernels, {processors} at a time"
    report(Result(name, together, "one at a time", alone))
    available = together * processors
    report(Result(f"{name}: left idle", available - used, "time of all processors", available, None, _IDLE_GOAL))


def _warm(folder: Path, jobs: int) -> tuple[float, float, int]:
    """Fills an empty store; returns wall seconds, processor seconds, and how many kernels were compiled."""
    with open_cache(folder, compile_slots=jobs) as cache:
        needed = distinct(coverage(cache, wanted(model_shapes(_MODEL), DType.BF16, _ARCHS, parse_sizes(_TOKENS))))
        started, used = time.perf_counter(), _processor_seconds()
        done = warm(cache, [kernel.selection.problem for kernel in needed], jobs)
        return time.perf_counter() - started, _processor_seconds() - used, sum(bool(warmed.kernel) for warmed in done)


def _processor_seconds() -> float:
    """The processor seconds that this process and its ended children have used so far."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
