"""The process of the canaries where there is no GPU: its own program, with NumPy, or the PTX machine, for the GPU.

Its argument says how kernels behave: ``right``; ``ptx``, or ``ptx`` and the words of a mistake of ``tests/ptx``, as the
machine executes them; or one of ``_BEHAVIOURS``.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cache_engine.cache.proving import canary_process
from cache_engine.cache.selection import Selection
from cache_engine.gpu import tensor_map
from cache_engine.gpu.launch import LoadedKernel
from cache_engine.gpu.timer import Timing
from cache_engine.kernels.canaries import canaries
from cache_engine.kernels.source import render
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import Launch
from tests.device import numpy_gpu
from tests.ptx import hopper_mistakes, maps
from tests.ptx.canaries import launched
from tests.ptx.machine import Kernel
from tests.ptx.problems import ptx_of

CANARIES = 2  # of the family, besides the problem that was asked for

_launches = itertools.count()


def _fault(c: Any, more: str = "") -> None:
    raise RuntimeError(f"CUDARuntimeError: cudaErrorIllegalAddress: an illegal memory access was encountered{more}")


def _gone(c: Any) -> None:
    raise RuntimeError("CUDARuntimeError: cudaErrorNoDevice: no CUDA-capable device is detected")


def _beyond(c: Any) -> None:
    ctypes.c_uint8.from_address(c.ctypes.data + c.nbytes).value = 0


def _before(c: Any) -> None:
    ctypes.c_uint8.from_address(c.ctypes.data - 1).value = 0


def _differs(c: Any) -> None:
    if next(_launches):
        c.view("uint8").reshape(-1)[0] ^= 1


def _wrong(c: Any) -> None:
    c.view("uint8").reshape(-1)[-1] ^= 1


_BEHAVIOURS: dict[str, Callable[[Any], object]] = {
    "right": lambda c: None, "inexact": lambda c: None,
    "fault": _fault, "fault at length": lambda c: _fault(c, " x" * 32_700), "gone": _gone,
    "beyond": _beyond, "before": _before,
    "differs": _differs, "wrong": _wrong,
    "hangs": lambda c: threading.Event().wait(),
    "crashes": lambda c: os.kill(os.getpid(), signal.SIGSEGV),
    "is killed": lambda c: os.kill(os.getpid(), signal.SIGKILL),
}  # fmt: skip


def main(behaviour: str, device: str = "") -> None:
    """Installs the stand-ins and runs the program; ``device`` is a fingerprint as JSON."""
    here = msgspec.json.decode(device, type=DeviceFingerprint) if device else numpy_gpu.DEVICE
    patch = pytest.MonkeyPatch()
    numpy_gpu.install(patch)
    on_machine, _, mistake = behaviour.partition(" ") if behaviour.startswith("ptx") else ("", "", "")
    if on_machine:
        patch.setattr(tensor_map, "encode", _encode)
    patch.setattr(canary_process, "require_gpu", lambda what: here)
    patch.setattr(canary_process, "canaries", lambda *asked: canaries(*asked)[:CANARIES])
    patch.setattr(canary_process, "time_in_turn", _inexact if behaviour == "inexact" else _no_clock)

    def make(selection: Selection, given: bytes) -> bytes:
        source = render(selection.family.template, selection.constants)
        if mistake:
            source = next(one for one in hopper_mistakes.MISTAKES if one.what == mistake).make(source)
        return ptx_of(source, selection.problem.arch or "").encode() if on_machine else b""

    def load(cubin: bytes, name: str, launch: Launch, problem: GemmProblem, **given: bool) -> LoadedKernel:
        function = launched(Kernel(cubin.decode()), launch, problem) if on_machine else _behaving(launch, problem)
        return LoadedKernel(cubin, name, launch, problem, function, **given)

    def _behaving(launch: Launch, problem: GemmProblem) -> Callable[..., None]:
        right = numpy_gpu.kernel(problem, launch.parameters)

        def run(grid: Any, block: Any, arguments: tuple[Any, ...], shared_mem: int) -> None:
            right(grid, block, arguments, shared_mem)
            _BEHAVIOURS[behaviour](arguments[2])

        return run

    patch.setattr(canary_process, "_cubin", make)
    patch.setattr(canary_process, "LoadedKernel", load)
    canary_process.main()


def _no_clock(*_: object) -> None:
    raise RuntimeError("there is no clock of a device")


def _inexact(*_: object) -> list[Timing]:
    return [Timing(numpy_gpu.DEVICE, 1.0, 1.0, 1.0, 20, 1.0, 0.5, False, seed=7)] * 2


def _encode(tensor: Any) -> Any:
    kind = {"fp8_e4m3": 0, "fp8_e5m2": 0, "fp16": 6, "bf16": 9, "tf32": 11, "fp32": 7}[tensor.dtype]
    return maps.encode(kind, tensor.address, tensor.sizes, tensor.strides, tensor.box, maps.SWIZZLE_128B)


if __name__ == "__main__":
    main(*sys.argv[1:-1])  # the last one is the program's own
