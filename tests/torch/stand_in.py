"""What stands for a GPU: the questions that a launch asks PyTorch, and kernels that the PTX machine executes."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy
import pytest

from cache_engine.gpu import multiply
from cache_engine.kernels.family import launch_of
from cache_engine.kernels.select import choose
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.torch import launches
from tests.device import numpy_gpu
from tests.ptx.problems import Case, kernel_of


class StandIn(launches.Gpu):
    """A GPU whose memory is the CPU's."""

    def __init__(self) -> None:
        self.is_captured, self.handle = False, 0

    def owns(self, tensor: Any) -> bool:
        """Those of the CPU are on it."""
        return bool(tensor.device.type == "cpu")

    def on(self, tensor: Any) -> AbstractContextManager[Any]:
        """It is the only one."""
        return nullcontext()

    def current(self) -> int:
        """The only one."""
        return 0

    def stream(self) -> int:
        """As the test says."""
        return self.handle

    def is_capturing(self) -> bool:
        """As the test says."""
        return self.is_captured


def standing(monkeypatch: pytest.MonkeyPatch, stand_in: StandIn) -> StandIn:
    """Has launches take it for the GPU."""
    monkeypatch.setattr(launches, "gpu", stand_in)
    monkeypatch.setattr(launches, "require_gpu", lambda what: numpy_gpu.DEVICE)
    monkeypatch.setattr(launches, "_plans", {})
    # Kernels for sm_90, not sm_90a: the driver encodes hopper's tensor maps; tests/ptx executes that family.
    monkeypatch.setattr(multiply, "compiled_for", str)
    multiply._stream_of_handle.cache_clear()
    return stand_in


def on_the_machine(monkeypatch: pytest.MonkeyPatch) -> list[GemmProblem]:
    """Has the PTX machine execute every launch; returns the problems of those, as they come."""
    executed: list[GemmProblem] = []
    loaded = launches._Loaded.__init__

    def load(self: Any, cubin: bytes, name: str, launch: Any, problem: GemmProblem, function: Any) -> None:
        family, config = choose(problem)
        kernel = kernel_of(Case(family, problem, config))
        assert launch == launch_of(family, problem, config)

        def run(grid: Any, block: Any, arguments: tuple[Any, ...], shared_mem: int) -> None:
            executed.append(problem)
            given = _arrays(problem, launch, arguments)
            kernel.unwritten = (given[2],)
            kernel(grid, block, tuple(given), shared_mem)

        loaded(self, cubin, name, launch, problem, run)

    monkeypatch.setattr(launches._Loaded, "__init__", load)
    return executed


def _arrays(problem: GemmProblem, launch: Any, arguments: tuple[Any, ...]) -> list[Any]:
    """The arguments with arrays in place of addresses: the machine has to know where each ends."""
    p = problem
    of_a, of_b = p.scales.sizes(p.m, p.n, p.k)
    sizes = {
        "a": p.row_matrices * p.m * p.k * p.dtype.itemsize,
        "b": p.batch * p.n * p.k * p.dtype.itemsize,
        "c": p.row_matrices * p.m * p.n * p.output.itemsize,
        "bias": (p.batch if p.mode else 1) * p.n * p.output.itemsize,
        "a_scales": p.row_matrices * of_a,
        "b_scales": p.batch * of_b,
        "counts": p.batch * DType.INT32.itemsize,
        "workspace": launch.workspace_bytes,
    }
    given = []
    for name, value in zip(launch.arguments, arguments, strict=True):
        if name in sizes and int(value):
            memory: Any = (ctypes.c_uint8 * sizes[name]).from_address(int(value))
            array = numpy.frombuffer(memory, dtype=numpy.uint8)
            array.flags.writeable = name in ("c", "workspace")
            given.append(array.view(numpy_gpu.Array))
        else:
            given.append(value)
    return given
