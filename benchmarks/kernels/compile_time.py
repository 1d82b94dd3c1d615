"""Compiling: NVRTC compared with NVCC on the same sources, none of which either has seen before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.entries.subjects import PROBLEM
from benchmarks.results import LeftOut, Report, Result
from benchmarks.timing import Thunk, compare, medians
from cache_engine.compilers import COMPILERS
from cache_engine.errors import NotHereError
from cache_engine.kernels.hopper import TARGET as HOPPER
from cache_engine.kernels.select import choose
from cache_engine.kernels.source import render
from cache_engine.model.gemm import Epilogue
from cache_engine.model.kernel import KernelConfig

_GOAL_S, _HOPPER_GOAL_S = 0.2, 0.4
_GOAL = 1 / 5
_ARCH = PROBLEM.arch or ""
_IN_A_NEW_PROCESS = (
    "import sys; from cache_engine.compilers import COMPILERS\n"
    "COMPILERS[sys.argv[1]].compile(open(sys.argv[2], encoding='utf-8').read(), sys.argv[3])\n"
)


def compiling(report: Report, place: Path) -> None:
    """A tensor-core kernel, compiled by a process that has its compiler ready and by a new one; hopper's largest."""
    for compiler in (COMPILERS["nvrtc"], COMPILERS["nvcc"]):
        try:
            compiler.load()
        except NotHereError as error:
            report(LeftOut(compiler.name, str(error)))
            return
    name, beside = "compile a tensor_core kernel, nvrtc", "nvcc, same source"
    nvrtc, nvcc = _new_source_each_time("nvrtc"), _new_source_each_time("nvcc")
    report(compare(name, nvrtc, beside, nvcc, goal_seconds=_GOAL_S, goal_ratio=_GOAL, samples=7))
    source = place / "kernel.cu"
    source.write_text(_source(PROBLEM.k))
    fresh = [partial(_in_a_new_process, name, source) for name in ("nvrtc", "nvcc")]
    seconds, beside_seconds = medians(fresh, samples=5)
    report(Result("the same in a new process, Python included", seconds, beside, beside_seconds))
    name, hopper = "compile hopper's largest kernel, all in it, nvrtc", partial(_compile_hopper, count(PROBLEM.k, 64))
    report(compare(name, hopper, "a tensor_core kernel, nvrtc", nvrtc, goal_seconds=_HOPPER_GOAL_S, samples=7))


def _new_source_each_time(compiler: str) -> Thunk:
    depths = count(PROBLEM.k, 64)
    return lambda: COMPILERS[compiler].compile(_source(next(depths)), _ARCH)


def _compile_hopper(depths: Iterator[int]) -> None:
    """The kernel that takes longest to compile: every feature, in one of the two largest tiles."""
    problem = replace(PROBLEM, k=next(depths), arch=HOPPER, epilogue=Epilogue.parse("alpha+beta+bias+gelu"))
    family, config = choose(problem, "hopper", KernelConfig(128, 256, 64, 8, 1, stages=4, split_k=4))
    COMPILERS["nvrtc"].compile(render(family.template, family.constants(problem, config)), HOPPER)


def _source(k: int) -> str:
    problem = replace(PROBLEM, k=k)
    family, config = choose(problem, family="tensor_core")
    return render(family.template, family.constants(problem, config))


def _in_a_new_process(compiler: str, source: Path) -> None:
    subprocess.run([sys.executable, "-c", _IN_A_NEW_PROCESS, compiler, source, _ARCH], check=True)
