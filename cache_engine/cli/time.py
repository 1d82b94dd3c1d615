"""``gemm-cache time``: a kernel timed on the local GPU, against cuBLAS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cache_engine.batch import results
from cache_engine.cli.compile import get_kernel, job_result, open_for
from cache_engine.cli.support import (
    SizedVerb,
    device_option,
    emit,
    json_option,
    problem_options,
    reporting,
)
from cache_engine.cli.terminal import print_fields, short_time
from cache_engine.settings import Settings
from cache_engine.units import counted, human_bytes, human_rate

if TYPE_CHECKING:
    from cache_engine.gpu.memory_pool import PoolStatistics


@click.command(
    "time",
    cls=SizedVerb,
    examples=(
        "time 4096 7168 2048",
        "time 16 7168 2048 --dtype fp16 --json",
        "time 4096 7168 2048 --profile --device 1",
    ),
    done="The kernel is timed, and its result is correct.",
    failed="The result is wrong, or the kernel cannot be compiled.",
    missing="There is no NVIDIA GPU, or the extra gpu or a library is not installed.",
)
@problem_options
@click.option("--profile", is_flag=True, help="Add one launch inside cudaProfilerStart/Stop, for ncu.")
@device_option
@json_option
@click.pass_obj
def time_verb(settings: Settings, /, profile: bool, as_json: bool, job: Path | None, **asked: Any) -> None:
    """Time a kernel on the local GPU, against cuBLAS.

    Compiles the kernel on a miss, verifies its result and stores the timing. To list timings, use gemm-cache timings.
    """
    from cache_engine.gpu.memory_pool import shared_pool
    from cache_engine.gpu.probe import require_gpu
    from cache_engine.gpu.timer import time_kernel

    with reporting(job) as reporter:
        require_gpu("timing a kernel")
        with open_for(settings, asked) as cache:
            kernel, why = get_kernel(cache, asked, reporter)
            timing = time_kernel(kernel.cubin, kernel.record.name, kernel.launch, kernel.problem, profile=profile)
            unkept = cache.keep_timing(kernel, timing)
        memory = shared_pool().statistics()
        document = results.timed(kernel, timing, unkept, memory)
        if reporter:
            reporter.finish(job_result(document, why))
    emit(document, as_json, lambda: _print_timing(document, memory), failed=not document.verified)


# ---- For people ----


def _print_timing(d: results.Timed, memory: PoolStatistics) -> None:
    clocks = d.sm_clock_before_mhz, d.sm_clock_mhz
    print_fields(
        {
            "key": d.key,
            "device": d.device,
            "median": short_time(d.median_us / 1e6),
            "p10–p90": f"{short_time(d.p10_us / 1e6)} to {short_time(d.p90_us / 1e6)}, "
            f"{d.repeats} launches with a cold L2",
            "speed": f"{d.tflops:.1f} TFLOP/s",
            "reference": _reference(d),
            "SM clock": "unknown" if None in clocks else f"{clocks[0]} MHz before, {clocks[1]} MHz after",
            "device memory": _pool(memory),
            "result": f"{'correct' if d.verified else 'WRONG'}; largest relative error {d.max_rel_error or 0:.2g}",
            **({"not saved": d.unkept} if d.unkept else {}),
        }
    )


def _reference(d: results.Timed) -> str:
    if d.reference is None or d.reference_median_us is None:
        return f"none: {d.no_reference}"
    return f"{d.reference}: {short_time(d.reference_median_us / 1e6)}; {d.speed_ratio or 0:.2f}× the speed of it"


def _pool(memory: PoolStatistics) -> str:
    return (
        f"peak {human_bytes(memory.peak_bytes)}, {counted(memory.allocations, 'allocation')}; "
        f"{human_bytes(memory.cached_bytes)} cached, fragmentation {human_rate(memory.fragmentation)}"
    )
