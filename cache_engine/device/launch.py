"""Running compiled kernels, through CuPy. Needs a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cache_engine.device.fp8 import FP8, fp8_in_order, fp8_values
from cache_engine.device.probe import require_gpu
from cache_engine.errors import UsageError
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import Launch

# What NumPy and CuPy know elements as; they have no bf16 and no fp8, whose bits travel as whole numbers.
_ARRAY_TYPES = {
    DType.FP16: "float16",
    DType.BF16: "uint16",
    DType.TF32: "float32",
    DType.FP32: "float32",
    DType.FP64: "float64",
    DType.FP8_E4M3: "uint8",
    DType.FP8_E5M2: "uint8",
    DType.INT8: "int8",
    DType.INT32: "int32",
}


@dataclass(frozen=True, slots=True)
class Operands:
    """Device arrays as the kernel takes them: A, B and C as stored, and what the problem's epilogue takes.

    ``alpha`` and ``beta`` are factors, ``bias`` has n elements of C's type; what the epilogue does not name
    may be left as it is.
    """

    a: Any
    b: Any
    c: Any
    alpha: float = 1.0
    beta: float = 0.0
    bias: Any = None


class LoadedKernel:
    """A kernel in a GPU's memory."""

    def __init__(self, cubin: bytes, name: str, launch: Launch, problem: GemmProblem) -> None:
        """Loads compiled code, and sets the memory aside that its blocks exchange sums in.

        Raises:
            GpuRequired: when there is no GPU.
            UsageError: when the code is for another target.
        """
        device = require_gpu("launching a kernel")
        import cupy
        import numpy
        from cupy.cuda import driver, function

        module = function.Module()
        try:
            module.load(cubin)
        except driver.CUDADriverError as error:
            raise UsageError(f"{name} does not run on {device.name} ({device.arch}): {error}") from error
        self._function = module.get_function(name)
        self._launch = launch
        self._workspace = cupy.zeros(launch.workspace_bytes, dtype=cupy.uint8) if launch.workspace_bytes else None
        self._m, self._n, self._k = (numpy.int32(size) for size in (problem.m, problem.n, problem.k))
        self._factor = numpy.dtype(_ARRAY_TYPES[problem.accumulate]).type
        driver.funcSetAttribute(
            self._function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared_bytes
        )

    def __call__(self, operands: Operands) -> None:
        """Starts it on the current stream. Launches of one ``LoadedKernel`` must not overlap on the device."""
        import numpy

        given = {
            "n": self._n,
            "k": self._k,
            "alpha": self._factor(operands.alpha),
            "beta": self._factor(operands.beta),
            "bias": operands.bias,
            "workspace": self._workspace,
        }
        further = [given.get(name) for name in self._launch.parameters]
        null = numpy.uint64(0)
        further = [null if value is None else value for value in further]
        arguments = (operands.a, operands.b, operands.c, self._m, *further)
        block = (self._launch.threads, 1, 1)
        self._function(self._launch.grid, block, arguments, shared_mem=self._launch.shared_bytes)


def random_operands(problem: GemmProblem, seed: int = 0) -> Operands:
    """Standard normal A and B (of int8, 32 times that), and a C whose every bit is set: NaN, where its type has it.

    With an epilogue, factors and a bias for it, and a C to be added to.
    """
    import cupy

    generator = cupy.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        values = generator.standard_normal(shape, dtype=cupy.float32)
        return cupy.clip(cupy.rint(32 * values), -127, 127) if problem.dtype is DType.INT8 else values

    def matrix(rows: int, columns: int) -> Any:
        return to_stored(normal(problem.batch, rows, columns), problem.dtype)

    a = matrix(problem.k, problem.m) if problem.layout.a_transposed else matrix(problem.m, problem.k)
    b = matrix(problem.n, problem.k) if problem.layout.b_transposed else matrix(problem.k, problem.n)
    c_bytes = cupy.full(problem.batch * problem.m * problem.n * problem.output.itemsize, 0xFF, dtype=cupy.uint8)
    c = c_bytes.view(_ARRAY_TYPES[problem.output]).reshape(problem.batch, problem.m, problem.n)
    epilogue = problem.epilogue
    return Operands(
        a,
        b,
        to_stored(normal(problem.batch, problem.m, problem.n), problem.output) if epilogue.beta else c,
        alpha=0.75 if epilogue.alpha else 1.0,
        beta=-0.5 if epilogue.beta else 0.0,
        bias=to_stored(normal(problem.n), problem.output) if epilogue.bias else None,
    )


def to_stored(values: Any, dtype: DType) -> Any:
    """Device float32 values as elements of ``dtype``, rounded to the nearest; ties, in bf16, to even."""
    import cupy

    if dtype in FP8:
        codes, values_of = (cupy.asarray(table) for table in fp8_in_order(dtype))
        between = (values_of[1:] + values_of[:-1]) / 2
        return codes[cupy.searchsorted(between, values)]
    if dtype is not DType.BF16:
        return values.astype(_ARRAY_TYPES[dtype])
    bits = values.view(cupy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(cupy.uint16)


def from_stored(stored: Any, dtype: DType, precision: str) -> Any:
    """Device elements of ``dtype`` as ``float32`` or ``float64`` values."""
    import cupy

    if dtype in FP8:
        stored = cupy.asarray(fp8_values(dtype))[stored]
    elif dtype is DType.BF16:
        stored = (stored.astype(cupy.uint32) << 16).view(cupy.float32)
    return stored.astype(precision)
