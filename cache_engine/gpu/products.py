"""Products without one of our kernels: CuPy multiplies while a kernel is compiled; epilogues run in separate steps.

The separate steps also help to find the cause of a numerical difference.
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
    """A kernel without an epilogue, then the epilogue in separate steps. Called like a ``LoadedKernel``.

    The product is rounded to C's type, as by every kernel without an epilogue. The steps compute in the type of the
    accumulators, and their result is rounded again. A kernel with the epilogue rounds once. So the two results may
    differ by one unit in the last place of the product, times alpha, and by the effect of the activation on this.
    """

    def __init__(self, kernel: Startable, epilogue: Epilogue) -> None:
        """Starts nothing yet."""
        self._kernel, self.name = kernel, kernel.name
        self.problem = replace(kernel.problem, epilogue=epilogue)

    def __call__(self, operands: Operands) -> None:
        """Starts all steps on the current stream; needs device memory for a part of C, and with beta for all of C.

        Raises:
            OutOfDeviceMemory: when the GPU does not have this memory.
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
    """A CuPy array of a type that CuPy knows, from an array or an address."""
    import cupy
    import numpy

    if isinstance(place, cupy.ndarray):
        return place.view(ARRAY_TYPES[dtype]).reshape(shape)
    size = int(numpy.prod(shape)) * dtype.itemsize
    memory = cupy.cuda.UnownedMemory(int(place), size, None)  # the caller holds its array
    return cupy.ndarray(shape, dtype=ARRAY_TYPES[dtype], memptr=cupy.cuda.MemoryPointer(memory, 0))


# The types that CuPy multiplies without conversion, with sums in at least fp32, and with a result of the same type.
_AS_IT_LIES = (DType.FP16, DType.FP32, DType.FP64)


class ByCupy:
    """C = A · B without an epilogue, by CuPy, which multiplies with cuBLAS. Called like a ``LoadedKernel``.

    If C is fp8, it applies the epilogue before rounding. Operands of types that CuPy does not know are converted to
    fp32, integers to fp64, in which their sums are exact. Converting takes time and device memory.
    """

    name = "cuBLAS, by CuPy"

    def __init__(self, problem: GemmProblem) -> None:
        """Starts nothing yet."""
        self.problem = problem

    def __call__(self, operands: Operands) -> None:
        """Starts the product on the current stream.

        Raises:
            OutOfDeviceMemory: when the GPU has no memory for converted operands.
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
        # E8M0 scales have the size of fp8, and the same type in CuPy.
        return array_at(
            place, DType.FP8_E4M3 if self.problem.scales.is_e8m0 else DType.FP32, self.problem.batch, *shape
        )
