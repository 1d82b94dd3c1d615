"""What can be known of the timer and its reference without a GPU."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from cache_engine.device.nvml import driver_release, sm_clock_mhz
from cache_engine.device.probe import gpu
from cache_engine.device.reference import _column_major, _without, cublas, tolerance
from cache_engine.device.timer import repeats_within, time_kernel
from cache_engine.errors import GpuRequired
from cache_engine.kernels.family import launch_of
from cache_engine.kernels.select import choose
from cache_engine.model.gemm import INPUT_DTYPES, OUTPUT_DTYPES, DType, Epilogue, GemmProblem, Layout

no_gpu = pytest.mark.skipif(not isinstance(gpu(), str), reason="a GPU is here")


def column_major_gemm(
    b_op: int, a_op: int, m: int, n: int, k: int, first: Any, lda: int, second: Any, ldb: int, ldc: int
) -> Any:
    """As cublasGemmEx is defined: C = op(A) · op(B), where column j of a matrix starts at j · its leading dimension."""

    def matrix(memory: Any, rows: int, columns: int, leading: int) -> Any:
        return numpy.array([[memory[row + column * leading] for column in range(columns)] for row in range(rows)])

    a = matrix(first, k, m, lda).T if b_op else matrix(first, m, k, lda)
    b = matrix(second, n, k, ldb).T if a_op else matrix(second, k, n, ldb)
    c = numpy.full(ldc * n, numpy.nan)
    for (row, column), value in numpy.ndenumerate(a @ b):
        c[row + column * ldc] = value
    return c


@pytest.mark.parametrize("layout", Layout)
def test_cublas_is_asked_for_c_as_it_lies_row_by_row(layout: Layout) -> None:
    m, n, k = 3, 5, 4
    generator = numpy.random.default_rng(0)
    a, b = generator.integers(-9, 9, (m, k)), generator.integers(-9, 9, (k, n))
    stored_a, stored_b = (a.T if layout.a_transposed else a).ravel(), (b.T if layout.b_transposed else b).ravel()
    (b_op, b_row), (a_op, a_row), sizes = _column_major(GemmProblem(m, n, k, layout=layout))
    c = column_major_gemm(b_op, a_op, *sizes, stored_b, b_row, stored_a, a_row, n)
    assert numpy.array_equal(c.reshape(m, n), a @ b)


def test_cublas_is_asked_only_for_types_that_it_takes() -> None:
    takes = {
        (dtype, out) for dtype in INPUT_DTYPES for out in OUTPUT_DTYPES if not isinstance(_refusal(dtype, out), str)
    }
    assert takes == {
        (DType.FP16, DType.FP16), (DType.FP16, DType.FP32), (DType.BF16, DType.BF16), (DType.BF16, DType.FP32),
        (DType.TF32, DType.FP32), (DType.FP32, DType.FP32), (DType.FP64, DType.FP64), (DType.INT8, DType.INT32),
    }  # fmt: skip
    assert _refusal(DType.FP8_E4M3, DType.BF16) == "cublasGemmEx does not make bf16 of fp8_e4m3"


def _refusal(dtype: DType, out: DType) -> str | None:
    """Why cuBLAS is not asked; operands are looked at only after that."""
    from cache_engine.errors import InvalidProblem

    try:
        problem = GemmProblem(16, 16, 16, dtype=dtype, out_dtype=out)
    except InvalidProblem as error:
        return str(error)
    try:
        reference = cublas(problem, None)  # type: ignore[arg-type]
    except Exception:
        return None
    return reference if isinstance(reference, str) and reference.startswith("cublasGemmEx") else None


def test_what_cublas_leaves_out_of_an_epilogue_is_said() -> None:
    def of(text: str) -> str:
        return _without(GemmProblem(16, 16, 16, epilogue=Epilogue.parse(text)))

    assert of("") == of("alpha+beta") == ""
    assert of("alpha+bias") == ", without bias"
    assert of("beta+bias+gelu") == ", without bias and gelu"


@pytest.mark.parametrize(
    ("dtype", "out", "allowed"),
    [
        (DType.BF16, None, 2**-5), (DType.FP16, None, 2**-8), (DType.TF32, None, 2**-8), (DType.FP32, None, 2**-16),
        (DType.FP64, None, 2**-45), (DType.FP8_E4M3, DType.FP32, 2**-8), (DType.INT8, None, 0.0),
        (DType.BF16, DType.FP32, 2**-16),
    ],
)  # fmt: skip
def test_the_coarser_of_inputs_and_output_says_what_is_right(dtype: DType, out: DType | None, allowed: float) -> None:
    assert tolerance(GemmProblem(16, 16, 16, dtype=dtype, out_dtype=out)) == allowed


def test_what_takes_long_is_launched_less_often_but_never_too_seldom() -> None:
    assert repeats_within(0.0) == repeats_within(5.0) == 50
    assert repeats_within(20_000) == 25
    assert repeats_within(1e9) == 10


@no_gpu
def test_without_a_driver_nothing_is_known_of_clocks() -> None:
    assert sm_clock_mhz("0000:17:00.0") is None
    assert driver_release() is None


@no_gpu
def test_timing_without_a_gpu_says_so() -> None:
    problem = GemmProblem(64, 64, 64, arch="sm_90")
    family, config = choose(problem)
    with pytest.raises(GpuRequired, match="timing a kernel needs an NVIDIA GPU"):
        time_kernel(b"", "kernel", launch_of(family, problem, config), problem)
