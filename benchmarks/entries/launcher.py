"""The launcher of nvcc as a process: a hit, compared with a Python that does nothing."""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

from benchmarks.results import Report, Result
from benchmarks.timing import processor_seconds
from cache_engine.compilers.contents import package_files

_GOAL_S = 0.08  # of processor time
_SAMPLES = 15
_SOURCE = "__global__ void kernel(float* x) { x[threadIdx.x] *= 2; }\n"


def launcher(report: Report, place: Path) -> None:
    """Compiles a kernel once and times its hits: processor time, as a wall clock shows what else runs."""
    nvcc = next(map(str, package_files("bin/nvcc")), None)
    if nvcc is None:
        return
    place.mkdir(parents=True)
    (place / "k.cu").write_text(_SOURCE)
    environment = {**os.environ, "GEMM_CACHE_DIR": str(place / "store")}
    command = [nvcc, "-cubin", "-arch=sm_90a", str(place / "k.cu"), "-o", str(place / "k.cubin")]
    hit = [sys.executable, "-c", "import re; from cache_engine.adapters.nvcc import main; main()", *command]
    bare = [sys.executable, "-c", "import re"]
    processor_seconds(hit, environment)
    seconds = statistics.median(processor_seconds(hit, environment) for _ in range(_SAMPLES))
    beside = statistics.median(processor_seconds(bare, environment) for _ in range(_SAMPLES))
    report(Result("nvcc's launcher, hit, processor time", seconds, "a bare Python", beside, goal_seconds=_GOAL_S))
