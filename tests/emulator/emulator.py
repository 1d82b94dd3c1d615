"""Runs generated CUDA kernels on the CPU, to know that they are right without a GPU.

The kernel's own source is compiled by a C++ compiler with ``primitives.h`` in place of ``primitives.cuh``; see there
for what the emulation catches.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cache_engine.gpu.fp8 import fp8_codes, fp8_values
from cache_engine.kernels.family import Family, launch_of
from cache_engine.kernels.source import render
from cache_engine.model.gemm import FP8, DType, GemmProblem
from cache_engine.model.kernel import KernelConfig, ceil_div

HERE = Path(__file__).parent
_PRIMITIVES = HERE / "primitives.h"
_KINDS: dict[DType, Any] = {
    DType.FP16: np.float16,
    DType.TF32: np.float32,
    DType.FP32: np.float32,
    DType.FP64: np.float64,
    DType.INT8: np.int8,
    DType.INT32: np.int32,
}
ALIGNMENT = 256  # bytes; what device allocators give at least
# What a launch's parameters are given as.
_ARGUMENTS = {
    "n": "given.n",
    "k": "given.k",
    "alpha": "static_cast<SUM_TYPE>(given.alpha)",
    "beta": "static_cast<SUM_TYPE>(given.beta)",
    "bias": "static_cast<const OUT_TYPE*>(given.bias)",
    "workspace": "given.workspace",
    "a_scales": "static_cast<const SCALE_TYPE*>(given.a_scales)",
    "b_scales": "static_cast<const SCALE_TYPE*>(given.b_scales)",
}


class EmulatorFault(Exception):
    """The kernel did something the hardware would not forgive."""


@dataclass(frozen=True)
class Interleaving:
    """In which order a block's threads run, and whether asynchronous copies land early or as late as allowed."""

    order: int
    late_copies: bool


FORWARD = Interleaving(0, late_copies=False)
BACKWARD_LATE = Interleaving(1, late_copies=True)
SHUFFLED_LATE = Interleaving(12345, late_copies=True)


def cxx_compiler() -> list[str]:
    """The system's C++ compiler, else the one of PyPI's ``ziglang``."""
    for name in ("g++", "clang++", "c++"):
        if found := shutil.which(name):
            return [found]
    return [sys.executable, "-m", "ziglang", "c++"]


def build(family: Family, problem: GemmProblem, config: KernelConfig, folder: Path, source: str | None = None) -> Path:
    """Compiles a kernel for the CPU; returns the shared library.

    Args:
        source: in place of the generated source (rendered with ``emulated_source``), for seeded mistakes.
    """
    text = source if source is not None else emulated_source(family, problem, config)
    library = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.so"
    if not library.exists():
        cpp = library.with_suffix(".cpp")
        primitives = _PRIMITIVES.read_text()
        ahead = ["-include", str(_precompiled())] if text.startswith(primitives) else []
        cpp.write_text(text.removeprefix(primitives))
        _compile("-shared", *ahead, str(cpp), "-o", str(library))
    return library


@cache
def _precompiled() -> Path:
    """A copy of ``primitives.h`` as compiled once per process, which is half of what a kernel's compile would take.

    GCC and Clang look for what is compiled next to the header that is included first; the header itself is what a
    compiler takes that finds none there, or none of its own making.
    """
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    header = Path(shutil.copy(_PRIMITIVES, folder))
    _compile("-x", "c++-header", str(header), "-o", f"{header}.gch")
    return header


def _compile(*arguments: str) -> None:
    done = subprocess.run(
        [*cxx_compiler(), "-std=c++17", "-O1", "-fPIC", "-w", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def emulated_source(family: Family, problem: GemmProblem, config: KernelConfig) -> str:
    """The kernel's source with the CPU in place of the GPU, and the function that runs it."""
    constants = family.constants(problem, config)
    # Ahead of the constants: the standard headers would trip over a macro called N.
    primitives = _PRIMITIVES.read_text()
    kernel = render(family.template, constants, {"primitives.cuh": ""})
    further = "".join(f", {_ARGUMENTS[name]}" for name in launch_of(family, problem, config).parameters)
    call = (
        "struct Arguments {\n    const void *a, *b;\n    void* c;\n    int m, n, k;\n    double alpha, beta;\n"
        "    const void* bias;\n    void* workspace;\n    const void *a_scales, *b_scales;\n};\n"
        "static void call_kernel(const Arguments& given) {\n"
        "    KERNEL_NAME(static_cast<const IN_TYPE*>(given.a), static_cast<const IN_TYPE*>(given.b), "
        f"static_cast<OUT_TYPE*>(given.c), given.m{further});\n}}\n"
    )
    return f"{primitives}\n{kernel}\n{call}\n{(HERE / 'harness.h').read_text()}"


def run(
    library: Path,
    family: Family,
    problem: GemmProblem,
    config: KernelConfig,
    a: npt.NDArray[np.float64],
    b: npt.NDArray[np.float64],
    interleaving: Interleaving = FORWARD,
    *,
    alpha: float = 0.0,
    beta: float = 0.0,
    before: npt.NDArray[np.float64] | None = None,
    bias: npt.NDArray[np.float64] | None = None,
    stored_as: DType | None = None,
    scales: tuple[npt.NDArray[Any], ...] = (),
) -> npt.NDArray[np.float64]:
    """C as the kernel computes it.

    Args:
        a: batch × m × k, and
        b: batch × k × n: values that the problem's dtype represents exactly.
        alpha, beta: factors, for kernels that take them; where 0 would show, for those that do not.
        before: what C is at first, in place of bits that are NaN.
        bias: n values, for kernels that take them.
        stored_as: how A and B are stored, if not as the problem's dtype.
        scales: of A and of B, for kernels that take them.

    Returns:
        batch × m × n.

    Raises:
        EmulatorFault: on access out of bounds or misaligned, divergent barriers, or counters that are left behind.
    """
    stored_a = a.transpose(0, 2, 1) if problem.layout.a_transposed else a
    stored_b = b.transpose(0, 2, 1) if problem.layout.b_transposed else b
    raw_a, raw_b = (to_bytes(stored, stored_as or problem.dtype) for stored in (stored_a, stored_b))
    c_bytes = problem.batch * problem.m * problem.n * problem.output.itemsize
    raw_c = _aligned(c_bytes)
    raw_c[:] = 0xFF  # NaN in every floating-point type: an element never written shows
    if before is not None:
        raw_c[:] = to_bytes(before, problem.output)
    raw_bias = None if bias is None else to_bytes(bias, problem.output)
    launch = launch_of(family, problem, config)
    counters = ceil_div(launch.grid[0] * problem.batch, 64) * 256 if launch.workspace_bytes else 0
    workspace = _aligned(launch.workspace_bytes)
    workspace[:counters], workspace[counters:] = 0, 0xFF
    fault = ctypes.create_string_buffer(512)
    status = ctypes.CDLL(str(library)).emulate(
        *(
            part
            for one in (raw_a, raw_b, raw_c, raw_bias, workspace, *(scales or (None, None)))
            for part in _buffer(one)
        ),
        *map(ctypes.c_double, (alpha, beta)),
        *map(ctypes.c_int, (problem.m, problem.n, problem.k)),
        *map(ctypes.c_uint, (*launch.grid, launch.threads)),
        ctypes.c_size_t(launch.shared_bytes),
        ctypes.c_uint(interleaving.order),
        ctypes.c_int(interleaving.late_copies),
        fault,
        ctypes.c_size_t(512),
    )
    if status != 0:
        raise EmulatorFault(fault.value.decode())
    if workspace[:counters].any():
        raise EmulatorFault("the next launch would find counters that are not 0")
    return from_bytes(raw_c, problem.output).reshape(problem.batch, problem.m, problem.n)


def rounded(values: npt.NDArray[np.float64], dtype: DType) -> npt.NDArray[np.float64]:
    """``values`` rounded to what ``dtype`` represents."""
    return from_bytes(to_bytes(values, dtype), dtype).reshape(values.shape)


def to_bytes(values: npt.NDArray[np.float64], dtype: DType) -> npt.NDArray[np.uint8]:
    """The values as stored, contiguous and aligned."""
    if dtype is DType.BF16:
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
        stored: npt.NDArray[Any] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    elif dtype is DType.TF32:
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        stored = bits + 0x1000 & ~np.uint32(0x1FFF)
    elif dtype in FP8:
        stored = fp8_codes(np.ascontiguousarray(values, dtype=np.float32), dtype, np)
    else:
        whole = np.rint(values) if dtype in (DType.INT8, DType.INT32) else values
        stored = np.ascontiguousarray(whole, dtype=_KINDS[dtype])
    aligned = _aligned(stored.nbytes)
    aligned[:] = stored.reshape(-1).view(np.uint8)
    return aligned


def from_bytes(raw: npt.NDArray[np.uint8], dtype: DType) -> npt.NDArray[np.float64]:
    """The values that stored bytes mean, flat."""
    if dtype is DType.BF16:
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype in FP8:
        return fp8_values(dtype)[raw].astype(np.float64)
    values: npt.NDArray[np.float64] = raw.view(_KINDS[dtype]).astype(np.float64)
    return values


def _buffer(raw: npt.NDArray[np.uint8] | None) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    """Address and size, as C takes them; no address for none."""
    return (
        (ctypes.c_void_p(0), ctypes.c_size_t(0))
        if raw is None
        else (
            ctypes.c_void_p(raw.ctypes.data),
            ctypes.c_size_t(raw.nbytes),
        )
    )


def _aligned(size: int) -> npt.NDArray[np.uint8]:
    storage = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -storage.ctypes.data % ALIGNMENT
    return storage[start : start + size]
