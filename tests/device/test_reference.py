"""What can be known of the timer and its reference without a GPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy
import pytest

from cache_engine.errors import GpuRequired, NotHereError
from cache_engine.gpu import groups, reference
from cache_engine.gpu import launch as launching
from cache_engine.gpu.launch import LoadedKernel, random_operands
from cache_engine.gpu.probe import driver_release, gpu, sm_clock_mhz
from cache_engine.gpu.reference import _column_major, _without, check, cublas, largest_error, tolerance
from cache_engine.gpu.timer import repeats_within, time_kernel
from cache_engine.kernels.family import launch_of
from cache_engine.kernels.select import choose
from cache_engine.model.gemm import FP8, INPUT_DTYPES, OUTPUT_DTYPES, DType, Epilogue, GemmProblem, Layout
from tests.device import numpy_gpu

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
        asked = cublas(problem, None)  # type: ignore[arg-type]
    except Exception:
        return None
    return asked if isinstance(asked, str) and asked.startswith("cublasGemmEx") else None


def test_epilogue_parts_that_cublas_leaves_out_are_reported() -> None:
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
        (DType.BF16, DType.FP32, 2**-16), (DType.FP8_E4M3, DType.FP8_E4M3, 2**-3), (DType.BF16, DType.FP8_E5M2, 2**-2),
    ],
)  # fmt: skip
def test_the_tolerance_follows_the_coarser_of_inputs_and_output(
    dtype: DType, out: DType | None, allowed: float
) -> None:
    assert tolerance(GemmProblem(16, 16, 16, dtype=dtype, out_dtype=out)) == allowed


def test_slow_kernels_are_launched_less_often_but_often_enough() -> None:
    assert repeats_within(0.0) == repeats_within(5.0) == 50
    assert repeats_within(20_000) == 25
    assert repeats_within(1e9) == 10


@no_gpu
def test_without_a_driver_nothing_is_known_of_clocks() -> None:
    assert sm_clock_mhz("0000:17:00.0") is None
    assert driver_release() is None


@no_gpu
def test_timing_without_a_gpu_is_a_clear_error() -> None:
    problem = GemmProblem(64, 64, 64, arch="sm_90")
    family, config = choose(problem)
    with pytest.raises(GpuRequired, match="timing a kernel needs an NVIDIA GPU"):
        time_kernel(b"", "kernel", launch_of(family, problem, config), problem)


# ---- With NumPy in the place of CuPy, and a kernel in NumPy ----


def _checked(monkeypatch: pytest.MonkeyPatch, problem: GemmProblem, changed: Any = None, seed: int | None = 7) -> float:
    """The error of a kernel for the problem, or for a ``changed`` one in its place."""
    numpy_gpu.install(monkeypatch)
    family, config = choose(problem)
    launch = launch_of(family, problem, config)
    function = numpy_gpu.kernel(changed or problem, launch.parameters)
    _, error = check(LoadedKernel(b"", "kernel", launch, changed or problem, function), problem, seed)
    return error


@pytest.mark.parametrize("chunk", [7, 2**26])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(
    ("dtype", "epilogue"),
    [
        (dtype, epilogue)
        for dtype in INPUT_DTYPES
        for epilogue in ("", "alpha+beta+bias+relu", "bias+gelu")
        if not epilogue or dtype is not DType.INT8  # which takes none
    ],
)
def test_a_right_kernel_is_found_right(
    monkeypatch: pytest.MonkeyPatch, dtype: DType, layout: Layout, epilogue: str, chunk: int
) -> None:
    """For all types, layouts and epilogues, checked whole or in parts of an odd size."""
    for module in (reference, launching):
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    parsed = Epilogue.parse(epilogue)
    problem = GemmProblem(5, 6, 11, batch=2, dtype=dtype, layout=layout, arch="sm_90", epilogue=parsed)
    assert _checked(monkeypatch, problem) <= tolerance(problem)


@pytest.mark.parametrize("out_dtype", FP8)
def test_results_of_fp8_are_compared_with_their_scale(monkeypatch: pytest.MonkeyPatch, out_dtype: DType) -> None:
    numpy_gpu.install(monkeypatch)
    problem = GemmProblem(5, 6, 11, 2, "bf16", out_dtype, arch="sm_90", epilogue="bias+gelu")
    family, config = choose(problem)
    launch = launch_of(family, problem, config)
    function = numpy_gpu.kernel(problem, launch.parameters)
    operands, error = check(LoadedKernel(b"", "kernel", launch, problem, function), problem, 7)
    assert 0 < error <= tolerance(problem)
    assert largest_error(problem, replace(operands, scale_result=1.5 * operands.scale_result), None) > tolerance(
        problem
    )


@pytest.mark.parametrize("mode", ["grouped", "masked"])
@pytest.mark.parametrize(("dtype", "scales", "k"), [("bf16", "", 11), ("fp8_e4m3", "1x128,128x128", 128)])
def test_a_right_kernel_for_groups_is_found_right_and_one_of_other_groups_wrong(
    monkeypatch: pytest.MonkeyPatch, dtype: Any, scales: Any, k: int, mode: Any
) -> None:
    monkeypatch.setattr(reference, "CHUNK_ELEMENTS", 3 * k)
    problem = GemmProblem(23, 6, k, 7, dtype, arch="sm_90", epilogue="alpha+beta+bias+relu", scales=scales, mode=mode)
    assert _checked(monkeypatch, problem) <= tolerance(problem)
    monkeypatch.setattr(groups, "rows_of_groups", lambda _, counts: [(0, slice(0, 2))] * len(counts))
    assert not _checked(monkeypatch, problem) <= tolerance(problem)


@pytest.mark.parametrize("text", ["alpha", "beta", "bias", "relu", "gelu"])
def test_a_kernel_that_forgets_a_part_of_the_epilogue_is_found_wrong(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    problem = GemmProblem(5, 6, 11, dtype=DType.FP32, arch="sm_90", epilogue=Epilogue.parse(text))
    forgetful = replace(problem, epilogue=Epilogue())
    if text == "alpha":
        monkeypatch.setattr(LoadedKernel, "__call__", _with_alpha_of_one(LoadedKernel.__call__))
        forgetful = problem
    assert not _checked(monkeypatch, problem, forgetful) <= tolerance(problem)


def _with_alpha_of_one(call: Any) -> Any:
    return lambda kernel, operands: call(kernel, replace(operands, alpha=1.0))


@pytest.mark.parametrize("changed", [{"layout": Layout.NN}, {"m": 4}, {"batch": 1}])
def test_another_product_or_an_element_not_written_is_found_wrong(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    problem = GemmProblem(5, 11, 11, batch=2, dtype=DType.FP16, arch="sm_90")
    assert not _checked(monkeypatch, problem, replace(problem, **changed)) <= tolerance(problem)


def test_operands_are_others_every_time_unless_a_seed_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_gpu.install(monkeypatch)
    problem = GemmProblem(8, 8, 8, arch="sm_90")
    one, other = random_operands(problem), random_operands(problem)
    assert not numpy.array_equal(one.a, other.a)
    assert numpy.array_equal(random_operands(problem, 3).b, random_operands(problem, 3).b)
    assert one.c.tobytes() == b"\xff" * one.c.nbytes, "C is poisoned"


def test_without_cublas_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_gpu.install(monkeypatch)
    monkeypatch.delattr(sys.modules["cupy.cuda"], "cublas")
    problem = GemmProblem(8, 8, 8, arch="sm_90")
    with pytest.raises(NotHereError, match="CuPy does not find it; run: pip install nvidia-cublas"):
        largest_error(problem, random_operands(problem), None)
