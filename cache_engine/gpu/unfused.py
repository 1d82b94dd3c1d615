"""An epilogue in separate steps after a product that has none: to find out where a difference comes from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cache_engine.gpu.launch import ARRAY_TYPES, CHUNK_ELEMENTS, Operands, Startable, from_stored, to_stored
from cache_engine.gpu.memory_pool import shared_pool
from cache_engine.gpu.reference import finish
from cache_engine.model.gemm import DType, Epilogue


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
