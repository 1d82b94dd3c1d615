"""A product by CuPy, which multiplies with cuBLAS: the last resort while a kernel is compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cache_engine.gpu.fp8 import scaled
from cache_engine.gpu.launch import ARRAY_TYPES, Operands, from_stored, to_stored
from cache_engine.gpu.memory_pool import shared_pool
from cache_engine.gpu.reference import finish
from cache_engine.gpu.unfused import array_at
from cache_engine.model.gemm import DType, GemmProblem

# What CuPy multiplies as it lies, sums in at least fp32, and returns in the same type.
_AS_IT_LIES = (DType.FP16, DType.FP32, DType.FP64)


class ByCupy:
    """C = A · B without an epilogue, but where C is of fp8. Called as a ``LoadedKernel``.

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
