"""References for our kernels: the same product in higher precision, to check results; and cuBLAS, to compare speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cache_engine.errors import NotHereError
from cache_engine.gpu.fp8 import LARGEST, fp8_values, scaled
from cache_engine.gpu.groups import rows_of_groups
from cache_engine.gpu.launch import CHUNK_ELEMENTS, LoadedKernel, Operands, from_stored, random_operands, to_stored
from cache_engine.gpu.probe import gpu_extra
from cache_engine.model.gemm import FP8, NO_EPILOGUE, Activation, DType, Epilogue, GemmProblem

# The largest error allowed, relative to the largest element of C: eight units in the last place of the coarser of the
# output type and the accumulator. For fp8, one unit: its units are so large that eight would hide mistakes.
_TOLERANCE = {
    DType.BF16: 2**-5, DType.FP16: 2**-8, DType.FP32: 2**-16, DType.FP64: 2**-45, DType.INT32: 0.0,
    DType.FP8_E4M3: 2**-3, DType.FP8_E5M2: 2**-2,
}  # fmt: skip
# Inputs of tf32 keep as many bits as those of fp16. Tensor cores may sum products of fp8 with fewer bits than fp32 has:
# those of the H100 use 14 (DeepSeek-V3 Technical Report, 2024, section 3.3.2).
_COARSE = (DType.TF32, *FP8)

# cudaDataType_t, from library_types.h; CuPy names most of them, but not all.
_CUDA_TYPES = {
    DType.FP32: 0,
    DType.TF32: 0,
    DType.FP64: 1,
    DType.FP16: 2,
    DType.INT8: 3,
    DType.INT32: 10,
    DType.BF16: 14,
}
# The arguments of cublasGemmEx by the types of A and B and of C: the name of its compute type, and the type of its
# factors. Source: cuBLAS documentation, "cublasGemmEx()".
_CUBLAS = {
    (DType.FP16, DType.FP16): ("CUBLAS_COMPUTE_32F", "float32"),
    (DType.FP16, DType.FP32): ("CUBLAS_COMPUTE_32F", "float32"),
    (DType.BF16, DType.BF16): ("CUBLAS_COMPUTE_32F", "float32"),
    (DType.BF16, DType.FP32): ("CUBLAS_COMPUTE_32F", "float32"),
    (DType.TF32, DType.FP32): ("CUBLAS_COMPUTE_32F_FAST_TF32", "float32"),
    (DType.FP32, DType.FP32): ("CUBLAS_COMPUTE_32F", "float32"),
    (DType.FP64, DType.FP64): ("CUBLAS_COMPUTE_64F", "float64"),
    (DType.INT8, DType.INT32): ("CUBLAS_COMPUTE_32I", "int32"),
}


@dataclass(frozen=True, slots=True)
class Reference:
    """Another program for the same product: its name, its version, and a function that starts it on the stream."""

    name: str
    run: Callable[[], None]


def tolerance(problem: GemmProblem) -> float:
    """The largest relative error with which a result still counts as correct."""
    allowed = _TOLERANCE[problem.output]
    return max(allowed, _TOLERANCE[DType.FP16]) if problem.dtype in _COARSE else allowed


def check(kernel: LoadedKernel, problem: GemmProblem, seed: int | None = None) -> tuple[Operands, float]:
    """Launches a kernel on random operands; returns the operands and the result of ``largest_error``.

    Args:
        seed: the seed of the operands; by default they differ each time.

    Raises:
        OutOfDeviceMemory: when the operands do not fit on the GPU.
    """
    operands = random_operands(problem, seed)
    before = operands.c.copy() if problem.epilogue.beta else None
    kernel(operands)
    return operands, largest_error(problem, operands, before)


def largest_error(problem: GemmProblem, operands: Operands, before: Any) -> float:
    """The largest difference between C and its exact value, relative to the largest exact element; or NaN.

    The exact value is computed in higher precision, in parts that fit in the memory beside the operands. For groups,
    only their rows count.

    Args:
        before: C before the launch, if the epilogue reads C; otherwise unused.

    Raises:
        NotHereError: when cuBLAS, with which CuPy multiplies, is not installed.
    """
    import numpy

    errors, sizes = [0.0], [0.0]
    for matrix, part, expected in _expected(problem, operands, before):
        computed = from_stored(operands.c[matrix][part], problem.output, str(expected.dtype))
        errors.append(float(abs(computed - expected).max()))
        sizes.append(float(abs(expected).max()))
    largest = float(numpy.max(sizes))
    # If all expected elements are 0, which random operands do not give, a relative error is not defined. NaN stays NaN.
    return float(numpy.max(errors)) / (largest or 1.0)


def wrong_elements(problem: GemmProblem, operands: Operands, before: Any) -> int:
    """The number of elements of C that are not the exact value, rounded once to C's type.

    Use it with operands that ``random_operands`` made exact, for which a correct kernel has no wrong element. GELU is
    not exact: with it, only elements beyond the tolerance count as wrong. Rows of C that belong to no group must not
    change.

    Args:
        before: C before the launch.
    """
    import cupy
    import numpy

    wrong, c = 0, operands.c
    is_free = numpy.ones(c.shape[:2], dtype=bool)  # on the host, as the rows of groups are few
    for matrix, part, expected in _expected(problem, operands, before):
        computed = from_stored(c[matrix][part], problem.output, str(expected.dtype))
        if problem.epilogue.activation is Activation.GELU:
            allowed = tolerance(problem) * float(abs(expected).max())
            wrong += int((~(abs(computed - expected) <= allowed)).sum())
        else:
            # 16 bits and less are rounded from fp32, which holds the exact value too.
            exact = expected.astype("float32") if problem.output.itemsize < 4 else expected
            right = from_stored(to_stored(exact, problem.output), problem.output, str(expected.dtype))
            wrong += int((computed != right).sum())
        is_free[matrix, part] = False
    for matrix in range(len(c)) if is_free.any() else ():
        rows = cupy.asarray(is_free[matrix])
        wrong += int((bits_of(c[matrix])[rows] != bits_of(before[matrix])[rows]).any(axis=1).sum())
    return wrong


def bits_of(array: Any) -> Any:
    """The bytes of a contiguous array of two or more axes, row by row; compared as bytes, NaN equals itself."""
    return array.view("uint8")


def _expected(problem: GemmProblem, operands: Operands, before: Any) -> Iterator[tuple[int, slice, Any]]:
    """The exact value of C in parts that fit in memory: the index of the matrix, the rows, and their exact elements."""
    import cupy

    _cublas_library()
    precision = "float64" if problem.dtype in (DType.FP32, DType.FP64, DType.INT8) else "float32"
    rows = max(1, CHUNK_ELEMENTS // max(problem.n, problem.k))
    for batch, (matrix, whole) in enumerate(_rows(problem, operands)):
        b = from_stored(operands.b[batch], problem.dtype, precision)
        if problem.scales:
            b = scaled(b, operands.b_scales[batch], problem.scales.b_columns)
        b = b.T if problem.layout.b_transposed else b
        for start in range(whole.start, whole.stop, rows):
            part = slice(start, min(start + rows, whole.stop))
            a = operands.a[matrix][:, part].T if problem.layout.a_transposed else operands.a[matrix][part]
            a = from_stored(cupy.ascontiguousarray(a), problem.dtype, precision)
            expected = cupy.matmul(scaled(a, operands.a_scales[matrix][part]) if problem.scales else a, b)
            old = from_stored(before[matrix][part], problem.output, precision) if problem.epilogue.beta else None
            bias = operands.bias[batch] if problem.mode and problem.epilogue.bias else operands.bias
            finish(expected, problem, replace(operands, bias=bias), old)
            yield matrix, part, expected


def _rows(problem: GemmProblem, operands: Operands) -> list[tuple[int, slice]]:
    """For each product, the index of the matrix of A and C that has its rows, and the range of its rows there."""
    if not problem.mode:
        return [(batch, slice(0, problem.m)) for batch in range(problem.batch)]
    return rows_of_groups(problem, operands.counts.tolist())


def finish(expected: Any, problem: GemmProblem, operands: Operands, old: Any) -> None:
    """Applies the epilogue, in place, to a part of A · B.

    Args:
        expected: the part, of any float type, with as many columns as the bias.
        operands: have the factors, and the bias as stored.
        old: the same part of C before the launch, in the same type; used only if the epilogue has beta.
    """
    import cupy

    epilogue = problem.epilogue
    if epilogue.alpha:
        expected *= operands.alpha
    if epilogue.beta:
        expected += operands.beta * old
    if epilogue.bias:
        expected += from_stored(operands.bias, problem.output, str(expected.dtype))
    if epilogue.activation is Activation.RELU:
        cupy.maximum(expected, 0, out=expected)
    elif epilogue.activation is Activation.GELU:
        from cupyx.scipy.special import erf

        expected *= (1 + erf(expected / 2**0.5)) / 2
    if problem.has_result_scale:
        expected *= operands.scale_result
        largest = float(fp8_values(problem.output)[LARGEST[problem.output]])
        cupy.clip(expected, -largest, largest, out=expected)


def cublas(problem: GemmProblem, operands: Operands) -> Reference | str:
    """The same product by cuBLAS, which has already computed it once; or, as text, the reason why cuBLAS cannot.

    cuBLAS writes to C. It multiplies, scales and adds C; it leaves out a bias and an activation, and the name says so.

    Raises:
        NotHereError: when cuBLAS is not installed.
    """
    if problem.mode:
        return "cublasGemmEx does not multiply groups that are counted on the device"
    known = _CUBLAS.get((problem.dtype, problem.output))
    if known is None:
        return f"cublasGemmEx does not make {problem.output} of {problem.dtype}"
    import cupy
    import numpy

    library = _cublas_library()
    compute, factor = getattr(library, known[0]), numpy.dtype(known[1]).type
    handle = cupy.cuda.Device().cublas_handle
    alpha, beta = numpy.array([operands.alpha], dtype=factor), numpy.array([operands.beta], dtype=factor)
    in_type, out_type = _CUDA_TYPES[problem.dtype], _CUDA_TYPES[problem.output]
    first, second, sizes = _column_major(problem)
    (b_op, b_row), (a_op, a_row) = first, second
    a, b, c = operands.a.data.ptr, operands.b.data.ptr, operands.c.data.ptr
    m, n, k = problem.m, problem.n, problem.k

    def run() -> None:
        by_a, by_b = alpha.ctypes.data, beta.ctypes.data
        if problem.batch == 1:
            library.gemmEx(
                handle, b_op, a_op, *sizes, by_a, b, in_type, b_row, a, in_type, a_row, by_b, c, out_type, n,
                compute, library.CUBLAS_GEMM_DEFAULT,
            )  # fmt: skip
        else:
            library.gemmStridedBatchedEx(
                handle, b_op, a_op, *sizes, by_a, b, in_type, b_row, n * k, a, in_type, a_row, m * k,
                by_b, c, out_type, n, m * n, problem.batch, compute, library.CUBLAS_GEMM_DEFAULT,
            )  # fmt: skip

    try:
        run()
        version = library.getVersion(handle)
    except library.CUBLASError as error:
        return f"cuBLAS refuses it: {error}"
    return Reference(f"cuBLAS {version // 10_000}.{version // 100 % 100}.{version % 100}{_without(problem)}", run)


def _cublas_library() -> Any:
    """CuPy's binding of cuBLAS, with which CuPy itself multiplies.

    Raises:
        NotHereError: when the library is not installed.
    """
    try:
        from cupy.cuda import cublas as library
    except ImportError as error:
        package = "nvidia-cublas-cu12" if gpu_extra() == "cuda12" else "nvidia-cublas"
        raise NotHereError(
            f"checking a result needs cuBLAS, and CuPy does not find it; run: pip install {package}"
        ) from error
    return library


def _column_major(problem: GemmProblem) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int, int]]:
    """The arguments for cuBLAS, whose matrices are stored by columns, so that it computes C stored by rows.

    A matrix stored by rows is, read by columns, its transpose; and the transpose of C is that of B times that of A.

    Returns:
        For B, which is cuBLAS's first operand, and then for A: 1 if cuBLAS must transpose it, else 0, and the length of
        its columns. Then the m, n and k of cuBLAS.
    """
    m, n, k = problem.m, problem.n, problem.k
    b = (1, k) if problem.layout.b_transposed else (0, n)
    a = (1, m) if problem.layout.a_transposed else (0, k)
    return b, a, (n, m, k)


def _without(problem: GemmProblem) -> str:
    """A text with the parts of the epilogue that cuBLAS leaves out, for its name."""
    epilogue = problem.epilogue
    left_out = Epilogue(bias=epilogue.bias, activation=epilogue.activation)
    return "" if left_out == NO_EPILOGUE else f", without {str(left_out).replace('+', ' and ')}"
