"""Times a kernel on the local GPU, and checks its result. Needs a GPU."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cache_engine.gpu.launch import LoadedKernel
from cache_engine.gpu.memory_pool import shared_pool
from cache_engine.gpu.probe import require_gpu, sm_clock_mhz
from cache_engine.gpu.reference import Reference, check, cublas, tolerance
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import Launch

_WARM_UP = 10
_FEWEST, _REPEATS = 10, 50
_FEWEST_IN_TURN = 20
# The total time of all launches of one kernel, in microseconds: slower kernels are repeated less often.
_BUDGET_US = 500_000
# Bytes written between launches so that no operand stays in the L2 cache. Writing them must take the GPU longer than
# Python takes to queue the next launch; otherwise the time of a short kernel would include the wait for Python.
_FLUSH_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Timing:
    """A kernel's timing on a device.

    Attributes:
        median_us, p10_us, p90_us: the median, the 10th and the 90th percentile of ``repeats`` launches in microseconds,
            each with a cold L2 cache.
        tflops: the problem's operations divided by the median time, in 10¹² per second.
        max_rel_error: the largest error against CuPy in higher precision, relative to the largest element of C.
        verified: whether that error is within tolerance and every element was written.
        seed: the seed of the random operands.
        reference: the name of the program that computed the same, such as cuBLAS, timed alternately with the kernel;
            ``None`` without one.
        no_reference: the reason why there is no reference.
        reference_median_us: the reference's median time, in microseconds.
        speed_ratio: the reference's median divided by the kernel's: above 1, the kernel is faster.
        sm_clock_mhz: the clock of the SMs just after the last launch; ``None`` if it cannot be read.
        sm_clock_before_mhz: the clock of the SMs before the first launch.
    """

    device: DeviceFingerprint
    median_us: float
    p10_us: float
    p90_us: float
    repeats: int
    tflops: float
    max_rel_error: float
    verified: bool
    seed: int = 0
    reference: str | None = None
    no_reference: str = ""
    reference_median_us: float | None = None
    speed_ratio: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_before_mhz: int | None = None


def time_kernel(
    cubin: bytes,
    name: str,
    launch: Launch,
    problem: GemmProblem,
    *,
    compare: bool = True,
    profile: bool = False,
) -> Timing:
    """Launches a kernel on random operands: checks its result, then times it.

    Args:
        compare: whether to time cuBLAS as well.
        profile: whether to launch the kernel once more at the end, between the start and the stop of a profiler, so
            that the profiler records only this launch.

    Raises:
        GpuRequired: when there is no GPU.
        NotHereError: when cuBLAS is not installed.
        OutOfDeviceMemory: when the operands do not fit on the GPU.
    """
    device = require_gpu("timing a kernel")
    import cupy
    import numpy

    seed = secrets.randbits(32)
    bus = cupy.cuda.Device().pci_bus_id
    with shared_pool().serving():
        kernel = LoadedKernel(cubin, name, launch, problem)
        operands, error = check(kernel, problem, seed)
        found = cublas(problem, operands) if compare else "it was not requested"
        reference, reason = (found, "") if isinstance(found, Reference) else (None, found)
        clock_before = sm_clock_mhz(bus)
        launches = [lambda: kernel(operands), *([reference.run] if reference else [])]
        samples = _launch_times_us(launches, device.l2_bytes)
        clock = sm_clock_mhz(bus)
        if profile:
            _profiled(launches[0])
    reference_median = float(numpy.median(samples[1])) if reference else None
    return replace(
        _timing(device, problem, samples[0], error, seed),
        reference=reference.name if reference else None,
        no_reference=reason,
        reference_median_us=reference_median,
        speed_ratio=None if reference_median is None else reference_median / float(numpy.median(samples[0])),
        sm_clock_mhz=clock,
        sm_clock_before_mhz=clock_before,
    )


def time_in_turn(kernels: Sequence[LoadedKernel], budget_us: float = _BUDGET_US) -> list[Timing]:
    """Times kernels of one problem alternately, so that a change of the GPU's clock affects all of them alike.

    Each kernel is first checked on the same operands, then launched at least 20 times.

    Args:
        budget_us: the microseconds for all launches of the slowest kernel, unless 20 launches take longer.

    Raises:
        OutOfDeviceMemory: when the operands do not fit on the GPU.
    """
    device, problem, seed = require_gpu("timing a kernel"), kernels[0].problem, secrets.randbits(32)
    checked = [check(kernel, problem, seed) for kernel in kernels]
    operands = checked[0][0]
    launches = [partial(kernel, operands) for kernel in kernels]
    samples = _launch_times_us(launches, device.l2_bytes, budget_us, _FEWEST_IN_TURN)
    return [_timing(device, problem, times, error, seed) for times, (_, error) in zip(samples, checked, strict=True)]


def _timing(
    device: DeviceFingerprint, problem: GemmProblem, times_us: Sequence[float], error: float, seed: int
) -> Timing:
    """The timing of a kernel from the times of its launches."""
    import numpy

    p10, median, p90 = (float(value) for value in numpy.percentile(times_us, [10, 50, 90]))
    return Timing(
        device=device,
        median_us=median,
        p10_us=p10,
        p90_us=p90,
        repeats=len(times_us),
        tflops=problem.flops / median / 1e6,
        max_rel_error=error,
        # NaN, from an element never written, compares false.
        verified=error <= tolerance(problem),
        seed=seed,
    )


def _launch_times_us(
    launches: Sequence[Callable[[], None]], l2_bytes: int, budget_us: float = _BUDGET_US, fewest: int = _FEWEST
) -> list[list[float]]:
    """For each of ``launches``, its times in microseconds; they run alternately, each with a cold L2 cache.

    All are queued without waiting, so that the GPU is busy from the first to the last.
    """
    import cupy

    stream = cupy.cuda.get_current_stream()
    flush = cupy.empty(max(4 * l2_bytes, _FLUSH_BYTES), dtype=cupy.uint8)

    def queued() -> list[tuple[Any, Any]]:
        events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in launches]
        for launch, (start, end) in zip(launches, events, strict=True):
            flush.fill(0)
            start.record(stream)
            launch()
            end.record(stream)
        return events

    queued()  # loads everything that is loaded at its first use
    first = queued()
    stream.synchronize()
    repeats = max(fewest, repeats_within(max(_elapsed_us(*pair) for pair in first), budget_us))
    for _ in range(min(_WARM_UP, repeats)):
        for launch in launches:
            launch()
    passes = [queued() for _ in range(repeats)]
    stream.synchronize()
    return [[_elapsed_us(*pairs[number]) for pairs in passes] for number in range(len(launches))]


def _profiled(launch: Callable[[], None]) -> None:
    """One launch between the start and the stop of a profiler."""
    import cupy
    from cupyx.profiler import profile

    with profile():
        launch()
        cupy.cuda.get_current_stream().synchronize()


def repeats_within(once_us: float, budget_us: float = _BUDGET_US) -> int:
    """The number of launches that fit in ``budget_us``, if one takes ``once_us``; limited from below and above."""
    return max(_FEWEST, min(_REPEATS, int(budget_us / max(once_us, 1.0))))


def _elapsed_us(start: Any, end: Any) -> float:
    import cupy

    return float(cupy.cuda.get_elapsed_time(start, end)) * 1e3
