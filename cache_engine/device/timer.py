"""Timing a kernel on the local GPU, and checking what it computed. Needs a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cache_engine.device.fp8 import FP8
from cache_engine.device.launch import LoadedKernel, Operands, from_stored, random_operands
from cache_engine.device.probe import require_gpu
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import Activation, DType, GemmProblem
from cache_engine.model.kernel import Launch

_WARM_UP = 10
_REPEATS = 50
# Largest error allowed, relative to the largest element of C: eight units in the last place of the coarser of the
# output type and the accumulator.
_TOLERANCE = {DType.BF16: 2**-5, DType.FP16: 2**-8, DType.FP32: 2**-16, DType.FP64: 2**-45, DType.INT32: 0.0}
# Inputs of tf32 keep as many bits as those of fp16. Tensor cores may sum products of fp8 with fewer bits than fp32 has:
# those of the H100 do with 14 (DeepSeek-V3 Technical Report, 2024, section 3.3.2).
_COARSE = (DType.TF32, *FP8)


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a kernel took on a device.

    Attributes:
        median_us, p10_us, p90_us: over ``repeats`` launches, each with a cold L2.
        tflops: the problem's operations over the median, in 10¹² per second.
        max_rel_error: largest error against CuPy in higher precision, relative to the largest element of C.
        verified: whether that is within tolerance and every element was written.
    """

    device: DeviceFingerprint
    median_us: float
    p10_us: float
    p90_us: float
    repeats: int
    tflops: float
    max_rel_error: float
    verified: bool


def time_kernel(cubin: bytes, name: str, launch: Launch, problem: GemmProblem) -> Timing:
    """Launches a kernel on random operands: checks its result, then times it.

    Raises:
        GpuRequired: when there is no GPU.
    """
    device = require_gpu("timing a kernel")
    import cupy
    import numpy

    kernel = LoadedKernel(cubin, name, launch, problem)
    operands = random_operands(problem)
    before = operands.c.copy()
    kernel(operands)
    error = _largest_error(problem, operands, before)
    # Writing twice the L2's size between launches leaves none of the operands in it.
    flush = cupy.empty(max(2 * device.l2_bytes, 1), dtype=cupy.uint8)
    for _ in range(_WARM_UP):
        kernel(operands)
    samples = []
    for _ in range(_REPEATS):
        flush.fill(0)
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        kernel(operands)
        end.record()
        end.synchronize()
        samples.append(cupy.cuda.get_elapsed_time(start, end) * 1e3)
    p10, median, p90 = (float(value) for value in numpy.percentile(samples, [10, 50, 90]))
    return Timing(
        device=device,
        median_us=median,
        p10_us=p10,
        p90_us=p90,
        repeats=_REPEATS,
        tflops=problem.flops / median / 1e6,
        max_rel_error=error,
        # NaN, from an element never written, compares false.
        verified=error <= _tolerance(problem),
    )


def _tolerance(problem: GemmProblem) -> float:
    tolerance = _TOLERANCE[problem.output]
    return max(tolerance, _TOLERANCE[DType.FP16]) if problem.dtype in _COARSE else tolerance


def _largest_error(problem: GemmProblem, operands: Operands, before: Any) -> float:
    """Beside the same in higher precision; ``before`` is C as it was."""
    import cupy

    precision = "float64" if problem.dtype in (DType.FP32, DType.FP64, DType.INT8) else "float32"
    a = from_stored(operands.a, problem.dtype, precision)
    b = from_stored(operands.b, problem.dtype, precision)
    reference = cupy.matmul(
        a.transpose(0, 2, 1) if problem.layout.a_transposed else a,
        b.transpose(0, 2, 1) if problem.layout.b_transposed else b,
    )
    epilogue = problem.epilogue
    reference *= operands.alpha
    if epilogue.beta:
        reference += operands.beta * from_stored(before, problem.output, precision)
    if operands.bias is not None:
        reference += from_stored(operands.bias, problem.output, precision)
    if epilogue.activation is Activation.RELU:
        reference = cupy.maximum(reference, 0)
    elif epilogue.activation is Activation.GELU:
        from cupyx.scipy.special import erf

        reference *= (1 + erf(reference / 2**0.5)) / 2
    computed = from_stored(operands.c, problem.output, precision)
    return float(abs(computed - reference).max() / abs(reference).max())
