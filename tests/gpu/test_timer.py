"""On a real GPU: what is timed, the reference, and the report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache.cache import Cache
from cache_engine.gpu.launch import poisoned, random_operands
from cache_engine.gpu.memory_pool import shared_pool
from cache_engine.gpu.reference import Reference, cublas, largest_error, tolerance
from cache_engine.gpu.timer import time_kernel
from cache_engine.model.gemm import DType, Epilogue, GemmProblem, Layout

TYPES = [
    (DType.FP16, None), (DType.FP16, DType.FP32), (DType.BF16, None), (DType.BF16, DType.FP32), (DType.TF32, None),
    (DType.FP32, None), (DType.FP64, None), (DType.INT8, None),
]  # fmt: skip


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES)
def test_cublas_is_asked_for_the_same_product(
    dtype: DType, out_dtype: DType | None, layout: Layout, batch: int
) -> None:
    """Else its time would be that of something else. Sizes are multiples of 16, as cuBLAS wants them for int8."""
    import cupy

    problem = GemmProblem(48, 80, 112, batch=batch, dtype=dtype, out_dtype=out_dtype, layout=layout)
    with shared_pool().serving():
        operands = random_operands(problem)
        reference = cublas(problem, operands)
        if dtype is DType.INT8 and isinstance(reference, str):
            pytest.skip(reference)
        assert isinstance(reference, Reference), reference
        assert reference.name.startswith("cuBLAS 1")
        operands.c[...] = poisoned(problem)
        reference.run()
        cupy.cuda.get_current_stream().synchronize()
        assert largest_error(problem, operands, None) <= tolerance(problem)


def test_cublas_scales_and_adds_c_and_says_what_it_leaves_out() -> None:
    problem = GemmProblem(48, 80, 112, dtype=DType.FP32, epilogue=Epilogue(alpha=True, beta=True))
    with shared_pool().serving():
        operands = random_operands(problem)
        reference = cublas(problem, operands)
        assert isinstance(reference, Reference), reference
        before = operands.c.copy()
        reference.run()
        assert largest_error(problem, operands, before) <= tolerance(problem)
        with_bias = GemmProblem(48, 80, 112, epilogue=Epilogue.parse("bias+gelu"))
        named = cublas(with_bias, random_operands(with_bias))
    assert isinstance(named, Reference), named
    assert named.name.endswith(", without bias and gelu")


@pytest.mark.parametrize(("m", "n", "k"), [(16, 2112, 7168), (4096, 4096, 4096)])
def test_a_timing_is_whole(kernels: Cache, m: int, n: int, k: int) -> None:
    kernel = kernels.get_or_compile(GemmProblem(m, n, k))
    timing = time_kernel(kernel.cubin, kernel.record.name, kernel.launch, kernel.problem)
    assert timing.verified, timing
    assert 0 < timing.p10_us <= timing.median_us <= timing.p90_us
    assert 10 <= timing.repeats <= 50
    assert timing.reference is not None, timing.no_reference
    assert timing.reference_median_us is not None
    assert timing.speed_ratio == pytest.approx(timing.reference_median_us / timing.median_us)
    assert (timing.sm_clock_mhz is None) == (timing.sm_clock_before_mhz is None)
    # No GPU computes faster than its data sheet, nor reads faster than its memory: else something was not waited for.
    assert timing.tflops < 10_000
    again = time_kernel(kernel.cubin, kernel.record.name, kernel.launch, kernel.problem, compare=False, profile=True)
    assert (again.reference, again.no_reference) == (None, "it was not requested")
    assert again.seed != timing.seed, "every verification is on other operands"


def test_a_type_that_cublas_does_not_take_is_timed_without_it(kernels: Cache) -> None:
    device = kernels.targeted(GemmProblem(1, 1, 1)).arch or ""
    if device in ("sm_75", "sm_80", "sm_86", "sm_87", "sm_88"):
        pytest.skip(f"{device} has no fp8")
    kernel = kernels.get_or_compile(GemmProblem(64, 256, 512, dtype=DType.FP8_E4M3))
    timing = time_kernel(kernel.cubin, kernel.record.name, kernel.launch, kernel.problem)
    assert timing.verified, timing
    assert (timing.reference, timing.speed_ratio) == (None, None)
    assert "cublasGemmEx does not make" in timing.no_reference


def test_time_prints_the_documented_fields(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cache_engine", "--store", tmp_path / "store", "time", "64", "576", "7168", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    promised = {
        "device", "median_us", "p10_us", "p90_us", "tflops", "reference", "reference_median_us", "speed_ratio",
        "max_rel_error", "verified", "sm_clock_mhz", "device_memory",
    }  # fmt: skip
    assert promised <= set(document)
    assert document["verified"] is True
    memory = document["device_memory"]
    assert memory["peak_bytes"] >= memory["in_use_bytes"] >= 0
    assert memory["allocations"] > 0


def test_kernels_are_compared_with_cublas_and_not_measured_twice(tmp_path: Path) -> None:
    def bench(limit: int) -> dict[str, Any]:
        done = subprocess.run(
            [
                sys.executable, "-m", "benchmarks", "--store", tmp_path / "store", "kernels", "--json",
                "--limit", str(limit), "--output", tmp_path / "measured",
            ],
            capture_output=True,
            text=True,
            timeout=500,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    first, second = bench(2), bench(1)
    assert (first["measured"], first["kept"], second["measured"], second["kept"]) == (2, 0, 1, 2)
    assert second["left"] == first["left"] - 1
    assert all(one["verified"] for one in second["measurements"])
    assert Path(second["file"]).with_suffix(".csv").read_text().count("\n") == 4
