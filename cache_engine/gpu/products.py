"""Products without a kernel of ours: by CuPy, the last resort while a kernel is compiled; epilogues in separate steps.

The steps also serve to find out where a difference comes from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cache_engine.gpu.fp8 import scaled
from cache_engine.gpu.launch import ARRAY_TYPES, CHUNK_ELEMENTS, Operands, Startable, from_stored, to_stored
from cache_engine.gpu.memory_pool import shared_pool
from cache_engine.gpu.reference import finish
from cache_engine.model.gemm import DType, Epilogue, GemmProblem


class Unfused:
    """A kernel without an epilogue, then the epilogue. Called as a ``LoadedKernel``.

    The product is rounded to C's type, as every kernel without an epilogue does; the steps are in the type of the sums,
    and their result is rounded again. A kernel with the epilogue rounds once, so the two may differ by one unit in the
    last place of the product, times alpha, and what the activation makes of that.
    """

    def __init__(self, kernel: Startable, epilogue: Epilogue) -> None:
        """Starts nothing yet."""
        self._kernel, self.name = kernel, kernel.name
        self.problem = replace(kernel.problem, epilogue=epilogue)

    def __call__(self, operands: Operands) -> None:
        """Starts all steps on the current stream; takes memory for a part of C at a time, and with beta for all of it.

        Raises:
            OutOfDeviceMemory: when there is no room for that.
        """
        problem = self.problem
        epilogue, output, rows = problem.epilogue, problem.output, problem.batch * problem.m
        c = array_at(operands.c, output, rows, problem.n)
        steps = replace(operands, bias=array_at(operands.bias, output, problem.n) if epilogue.bias else None)
        precision = ARRAY_TYPES[problem.accumulate]
        with shared_pool().serving():
            before = c.copy() if epilogue.beta and operands.beta else None
            self._kernel(replace(operands, alpha=1.0, beta=0.0, bias=None))
            at_a_time = max(1, CHUNK_ELEMENTS // problem.n)
            for start in range(0, rows, at_a_time):
                part = slice(start, start + at_a_time)
                values = from_stored(c[part], output, precision)
                old = 0.0 if before is None else from_stored(before[part], output, precision)
                finish(values, problem, steps, old)
                c[part] = to_stored(values, output)


def array_at(place: Any, dtype: DType, *shape: int) -> Any:
    """An array, or what is at an address, as elements that CuPy knows."""
    import cupy
    import numpy

    if isinstance(place, cupy.ndarray):
        return place.view(ARRAY_TYPES[dtype]).reshape(shape)
    size = int(numpy.prod(shape)) * dtype.itemsize
    memory = cupy.cuda.UnownedMemory(int(place), size, None)  # the caller holds its array
    return cupy.ndarray(shape, dtype=ARRAY_TYPES[dtype], memptr=cupy.cuda.MemoryPointer(memory, 0))


# What CuPy multiplies as it lies, sums in at least fp32, and returns in the same type.
_AS_IT_LIES = (DType.FP16, DType.FP32, DType.FP64)


class ByCupy:
    """C = A · B without an epilogue, by CuPy, which multiplies with cuBLAS. Called as a ``LoadedKernel``.

    Where C is of fp8, it applies the epilogue, before it rounds.
    Types that CuPy does not know are converted to fp32, whole numbers to fp64, in which their sums are exact. So it is
    slower than a kernel, and takes memory for that.
    """

    name = "cuBLAS, by CuPy"

    def __init__(self, problem: GemmProblem) -> None:
        """Starts nothing yet."""
        self.problem = problem

    def __call__(self, operands: Operands) -> None:
        """Starts it on the current stream.

        Raises:
            OutOfDeviceMemory: when there is no room for what is converted.
        """
        import cupy

        p, layout = self.problem, self.problem.layout
        a = array_at(operands.a, p.dtype, p.batch, *((p.k, p.m) if layout.a_transposed else (p.m, p.k)))
        b = array_at(operands.b, p.dtype, p.batch, *((p.n, p.k) if layout.b_transposed else (p.k, p.n)))
        c = array_at(operands.c, p.output, p.batch, p.m, p.n)
        with shared_pool().serving():
            if p.dtype is not p.output or p.dtype not in _AS_IT_LIES:
                precision = "float64" if p.dtype is DType.INT8 else ARRAY_TYPES[DType.FP32]
                a, b = (from_stored(one, p.dtype, precision) for one in (a, b))
            if p.scales:
                of_a, of_b = p.scales.shapes(p.m, p.n, p.k)
                a = scaled(a, self._scales(operands.a_scales, of_a))
                b = scaled(b, self._scales(operands.b_scales, of_b), p.scales.b_columns)
            a = a.swapaxes(1, 2) if layout.a_transposed else a
            b = b.swapaxes(1, 2) if layout.b_transposed else b
            product = cupy.matmul(a, b)
            if p.has_result_scale:
                bias = array_at(operands.bias, p.output, p.n) if p.epilogue.bias else None
                finish(product, p, replace(operands, bias=bias), None)
            c[...] = product if product.dtype == c.dtype else to_stored(product, p.output)

    def _scales(self, place: Any, shape: tuple[int, int]) -> Any:
        # Bytes of E8M0 are of the size, and of CuPy's type, of fp8.
        return array_at(
            place, DType.FP8_E4M3 if self.problem.scales.is_e8m0 else DType.FP32, self.problem.batch, *shape
        )
