"""Canaries on the machine: through ``gpu.canary``, as a GPU runs them, with late and early copies in turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from cache_engine.gpu.canary import run_canary
from cache_engine.gpu.launch import LoadedKernel
from cache_engine.kernels.canaries import Canary
from cache_engine.kernels.source import render
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import Launch
from tests.ptx.faults import Fault
from tests.ptx.machine import Kernel
from tests.ptx.mistakes import Mistake
from tests.ptx.parse import PtxError
from tests.ptx.problems import ptx_of

SEED = 34
_READ = {"a", "b", "bias", "a_scales", "b_scales", "counts"}


def mistake_of(canary: Canary, kernel: Kernel) -> str:
    """What is wrong with the kernel; empty for nothing. A fault of the machine begins with ``Fault``."""
    function = launched(kernel, canary.launch, canary.problem)

    def load() -> LoadedKernel:
        name = kernel.program.name
        return LoadedKernel(b"", name, canary.launch, canary.problem, function, has_workspace=False)

    try:
        return run_canary(load, canary.launch, canary.problem, SEED)[0]
    except Fault as fault:
        return f"Fault: {fault}"


def launched(kernel: Kernel, launch: Launch, problem: GemmProblem) -> Callable[..., None]:
    """Launches with copies that land late, then early. The machine learns which arrays the kernel may only read."""
    runs = itertools.count()

    def run(grid: Any, block: Any, arguments: tuple[Any, ...], shared_mem: int) -> None:
        kernel.late = next(runs) % 2 == 0
        given = dict(zip(launch.arguments, arguments, strict=True))
        for name in _READ & given.keys():
            if isinstance(given[name], np.ndarray):
                given[name].flags.writeable = False
        kernel.unwritten = () if problem.epilogue.beta else (given["c"],)
        kernel(grid, block, arguments, shared_mem)

    return run


def right(canary: Canary) -> Kernel:
    """The kernel as it is compiled."""
    return Kernel(ptx_of(_source(canary), canary.problem.arch or ""))


def refused_by(mistake: Mistake, canary: Canary) -> str | None:
    """What a canary finds wrong with a kernel that has the mistake; ``None`` if it has it not, or is not compiled."""
    source = _source(canary)
    try:
        if mistake.is_in_ptx:
            return mistake_of(canary, Kernel(mistake.make(ptx_of(source, canary.problem.arch or ""))))
        return mistake_of(canary, Kernel(ptx_of(mistake.make(source), canary.problem.arch or "")))
    except (PtxError, AssertionError):  # no assembler takes it, or the text is not in this kernel
        return None


def _source(canary: Canary) -> str:
    return render(canary.family.template, canary.family.constants(canary.problem, canary.config))
