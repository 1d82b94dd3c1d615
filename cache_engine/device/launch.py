"""Running compiled kernels, through CuPy. Needs a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cache_engine.device.probe import require_gpu
from cache_engine.errors import UsageError
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import Launch

# What NumPy and CuPy know elements as; they have no bf16, so its bits travel as whole numbers.
_ARRAY_TYPES = {DType.FP16: "float16", DType.BF16: "uint16", DType.FP32: "float32", DType.FP64: "float64"}


@dataclass(frozen=True, slots=True)
class Operands:
    """Device arrays as the kernel takes them: A, B and C as stored."""

    a: Any
    b: Any
    c: Any


class LoadedKernel:
    """A kernel in a GPU's memory."""

    def __init__(self, cubin: bytes, name: str, launch: Launch) -> None:
        """Loads compiled code.

        Raises:
            GpuRequired: when there is no GPU.
            UsageError: when the code is for another target.
        """
        device = require_gpu("launching a kernel")
        from cupy.cuda import driver, function

        module = function.Module()
        try:
            module.load(cubin)
        except driver.CUDADriverError as error:
            raise UsageError(f"{name} does not run on {device.name} ({device.arch}): {error}") from error
        self._function = module.get_function(name)
        self._launch = launch
        driver.funcSetAttribute(
            self._function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared_bytes
        )

    def __call__(self, operands: Operands, m: int) -> None:
        """Starts C = A · B on the current stream."""
        import numpy

        nothing = (numpy.uint64(0),) * len(self._launch.hidden_parameters)
        arguments = (operands.a, operands.b, operands.c, numpy.int32(m), *nothing)
        block = (self._launch.threads, 1, 1)
        self._function(self._launch.grid, block, arguments, shared_mem=self._launch.shared_bytes)


def random_operands(problem: GemmProblem, seed: int = 0) -> Operands:
    """Standard normal A and B, and a C in which every element is NaN."""
    import cupy

    generator = cupy.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Any:
        values = generator.standard_normal((problem.batch, rows, columns), dtype=cupy.float32)
        return to_stored(values, problem.dtype)

    a = matrix(problem.k, problem.m) if problem.layout.a_transposed else matrix(problem.m, problem.k)
    b = matrix(problem.n, problem.k) if problem.layout.b_transposed else matrix(problem.k, problem.n)
    c_bytes = cupy.full(problem.batch * problem.m * problem.n * problem.output.itemsize, 0xFF, dtype=cupy.uint8)
    c = c_bytes.view(_ARRAY_TYPES[problem.output]).reshape(problem.batch, problem.m, problem.n)
    return Operands(a, b, c)


def to_stored(values: Any, dtype: DType) -> Any:
    """Device float32 values as elements of ``dtype``; bf16 rounds to the nearest, ties to even."""
    import cupy

    if dtype is not DType.BF16:
        return values.astype(_ARRAY_TYPES[dtype])
    bits = values.view(cupy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(cupy.uint16)


def from_stored(stored: Any, dtype: DType, precision: str) -> Any:
    """Device elements of ``dtype`` as ``float32`` or ``float64`` values."""
    import cupy

    if dtype is DType.BF16:
        stored = (stored.astype(cupy.uint32) << 16).view(cupy.float32)
    return stored.astype(precision)
