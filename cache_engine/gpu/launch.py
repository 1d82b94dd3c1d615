"""Loads and starts compiled kernels, through CuPy. Needs a GPU."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

from cache_engine.errors import UsageError
from cache_engine.gpu.fp8 import E8M0_BIAS, fp8_codes, fp8_values
from cache_engine.gpu.memory_pool import shared_pool
from cache_engine.gpu.probe import require_gpu
from cache_engine.model.gemm import FP8, DType, GemmProblem, Mode
from cache_engine.model.kernel import Box, Launch

# The types in which NumPy and CuPy hold elements. bf16 and fp8 need a further package, so their bits are held as
# integers.
ARRAY_TYPES = {
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
# Elements that are made or compared at a time, so that the values in higher precision need little memory.
CHUNK_ELEMENTS = 2**26
_MAPS = 64  # cached maps of addresses at which operands were


@dataclass(slots=True)
class Operands:
    """The operands of a kernel: A, B and C as stored, and the values of the epilogue. Not frozen, for speed.

    Arrays are CuPy's, or addresses as ``numpy.uint64``. ``alpha`` and ``beta`` are factors; ``bias`` has n elements of
    C's type. Values that the epilogue does not use may keep their default. ``scale_result`` is for a C of fp8. The
    scales are set if the problem has scales. For groups, ``counts`` has the rows of each group as int32, and ``bias``
    has n elements for each group.
    """

    a: Any
    b: Any
    c: Any
    alpha: float = 1.0
    beta: float = 0.0
    bias: Any = None
    a_scales: Any = None
    b_scales: Any = None
    counts: Any = None
    scale_result: float = 1.0
    workspace: Any = None


_GIVEN = ("a", "b", "c", "bias", "a_scales", "b_scales", "counts")


def cupy_version() -> str:
    """The version of the CuPy that launches kernels."""
    import cupy

    return str(cupy.__version__)


def load_function(cubin: bytes, name: str, shared_bytes: int) -> Any:
    """Loads compiled code into the current device's memory; returns its kernel as CuPy's ``Function``.

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
        where = f"{device.name} ({device.arch}, driver for CUDA {device.driver})"
        raise UsageError(f"{name} does not run on {where}: {error}") from error
    loaded = module.get_function(name)
    driver.funcSetAttribute(loaded.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
    return loaded


class Startable(Protocol):
    """A kernel that can be launched: the name of its function, its problem, and a call that starts it."""

    name: str
    problem: GemmProblem

    def __call__(self, operands: Operands) -> None:
        """Starts the kernel on the current stream."""
        ...


class LoadedKernel:
    """A kernel loaded on a GPU, with its workspace: device memory through which its blocks exchange accumulators."""

    def __init__(
        self, cubin: bytes, name: str, launch: Launch, problem: GemmProblem, function: Any | None = None, *,
        has_workspace: bool = True,
    ) -> None:  # fmt: skip
        """Loads compiled code, unless ``function`` was already loaded from it.

        Args:
            has_workspace: whether to allocate a workspace here; else the operands of each launch have one, filled with
                zeroes. The kernel leaves it filled with zeroes, ready for the next launch.

        Raises:
            GpuRequired: when there is no GPU.
            UsageError: when the code is for another target.
            OutOfDeviceMemory: when the GPU has no memory for the workspace.
        """
        require_gpu("launching a kernel")
        import cupy
        import numpy

        self._function = load_function(cubin, name, launch.shared_bytes) if function is None else function
        self._grid, self._block, self._shared_bytes = launch.grid, launch.block, launch.shared_bytes
        self.name, self.problem = name, problem
        workspace = None
        self.workspace_bytes = launch.workspace_bytes
        if launch.workspace_bytes and has_workspace:
            with shared_pool().serving():
                workspace = cupy.zeros(launch.workspace_bytes, dtype=cupy.uint8)
        factor = numpy.dtype(ARRAY_TYPES[problem.accumulate]).type
        fixed: dict[str, Any] = {
            "alpha": factor(1),
            "beta": factor(0),
            "scale_result": factor(1),
            "m": numpy.int32(problem.m),
            "n": numpy.int32(problem.n),
            "k": numpy.int32(problem.k),
            "groups": numpy.int32(problem.batch),
            "workspace": numpy.uint64(0) if workspace is None else workspace,
        }
        # The parts that are the same in each launch are prepared once: a launch costs the host only microseconds.
        self._arguments = [fixed.get(argument, numpy.uint64(0)) for argument in launch.arguments]
        places = list(enumerate(launch.arguments))
        given = _GIVEN if has_workspace else (*_GIVEN, "workspace")
        self._given = [(place, attrgetter(name)) for place, name in places if name in given]
        named = ["scale_result", *(name for name in ("alpha", "beta") if getattr(problem.epilogue, name))]
        self._factors = [(place, attrgetter(name)) for place, name in places if name in named]
        self._boxes = [(launch.arguments.index(box.parameter), box) for box in launch.boxes]
        self._factor = factor
        self._maps: dict[tuple[str, int], Any] = {}

    def __call__(self, operands: Operands) -> None:
        """Starts the kernel on the current stream. Launches of one ``LoadedKernel`` must not overlap on the device."""
        arguments = self._arguments.copy()
        for place, given in self._given:
            value = given(operands)
            if value is not None:
                arguments[place] = value
        for place, given in self._factors:
            arguments[place] = self._factor(given(operands))
        for place, box in self._boxes:
            arguments[place] = self._map(box, getattr(operands, box.operand))
        self._function(self._grid, self._block, tuple(arguments), shared_mem=self._shared_bytes)

    def _map(self, box: Box, operand: Any) -> Any:
        """The tensor map of an operand; the maps for its last addresses are cached."""
        from cache_engine.gpu import tensor_map  # only few kernels need it

        address = tensor_map.address_of(operand)
        key = (box.operand, address)
        if key not in self._maps:
            if len(self._maps) >= _MAPS:
                self._maps.clear()
            self._maps[key] = tensor_map.encode(tensor_map.map_of(self.problem, box, address))
        return self._maps[key]


# Of exact operands, the largest number of eighths in A and in everything else. All types hold them, fp8 too. A sum of a
# few hundred products then has at most 14 bits, as many as the tensor cores of the H100 keep for fp8.
_MOST_A, _MOST_OTHER = 7, 3
_MOST_WIDE = {DType.FP32: 2**11 - 1, DType.FP64: 2**20}  # of A, so that a type with fewer bits shows


def random_operands(problem: GemmProblem, seed: int | None = None, *, exact: bool = False) -> Operands:
    """Random operands: A and B are standard normal (for int8, times 32), and all bits of C are set: NaN for floats.

    Scales are powers of two from 1/4 to 4. For an epilogue there are factors, a bias, and a C to be added to. Of the
    groups, the first has about half of the rows, and every fifth has none.

    Args:
        seed: a number that gives the same operands again; by default they differ each time.
        exact: whether A, B, C and the bias are small multiples of 1/8 (for int8, integers), so that sums are exact in
            any order.

    Raises:
        OutOfDeviceMemory: when the operands do not fit on the GPU.
    """
    import cupy

    generator = cupy.random.default_rng(secrets.randbits(32) if seed is None else seed)

    def filled(dtype: DType, *shape: int, most: int = _MOST_OTHER) -> Any:
        array = cupy.empty(shape, dtype=ARRAY_TYPES[dtype])
        flat = array.reshape(-1)
        for start in range(0, flat.size, CHUNK_ELEMENTS):
            part = flat[start : start + CHUNK_ELEMENTS]
            values = generator.standard_normal(part.size, dtype=cupy.float32)
            if problem.dtype is DType.INT8:
                values = cupy.clip(cupy.rint(32 * values), -127, 127)
            elif exact:
                values = cupy.clip(cupy.rint(most * values), -most, most) / 8
            part[...] = to_stored(values, dtype)
        return array

    def some_scales(matrices: int, shape: tuple[int, int]) -> Any:
        powers = cupy.clip(cupy.rint(generator.standard_normal((matrices, *shape), dtype=cupy.float32)), -2, 2)
        return (powers + E8M0_BIAS).astype(cupy.uint8) if problem.scales.is_e8m0 else 2**powers

    most_a = _MOST_WIDE.get(problem.dtype, _MOST_A)
    batch, m, n, k = problem.batch, problem.m, problem.n, problem.k
    of_rows, epilogue = problem.row_matrices, problem.epilogue
    matrices, shapes = (of_rows, batch), problem.scales.shapes(m, n, k) if problem.scales else ()
    a_scales, b_scales = map(some_scales, matrices, shapes) if shapes else (None, None)
    return Operands(
        a=filled(problem.dtype, of_rows, *((k, m) if problem.layout.a_transposed else (m, k)), most=most_a),
        b=filled(problem.dtype, batch, *((n, k) if problem.layout.b_transposed else (k, n))),
        c=filled(problem.output, of_rows, m, n) if epilogue.beta else poisoned(problem),
        alpha=0.75 if epilogue.alpha else 1.0,
        beta=-0.5 if epilogue.beta else 0.0,
        bias=filled(problem.output, *((batch,) if problem.mode else ()), n) if epilogue.bias else None,
        a_scales=a_scales,
        b_scales=b_scales,
        counts=_some_counts(problem, generator) if problem.mode else None,
        scale_result=0.0625 if problem.has_result_scale else 1.0,
    )


def _some_counts(problem: GemmProblem, generator: Any) -> Any:
    """Random row counts of groups: uneven, some 0, with a sum of at most m if the groups share m rows."""
    import cupy
    import numpy

    shares = cupy.asnumpy(abs(generator.standard_normal(problem.batch, dtype=cupy.float32)))
    shares[::5] = 0
    shares[0] = shares.sum() or 1.0
    whole = shares.sum() if problem.mode is Mode.GROUPED else shares.max()
    return cupy.asarray((shares * (problem.m / whole)).astype(numpy.int32))


def poisoned(problem: GemmProblem) -> Any:
    """A C with all bits set: an element that a kernel does not write then shows as NaN, or as -1 for an integer."""
    import cupy

    size = problem.row_matrices * problem.m * problem.n
    c = cupy.full(size * problem.output.itemsize, 0xFF, dtype=cupy.uint8)
    return c.view(ARRAY_TYPES[problem.output]).reshape(problem.row_matrices, problem.m, problem.n)


def to_stored(values: Any, dtype: DType) -> Any:
    """Device float32 values as elements of ``dtype``, rounded to the nearest; ties in bf16 and fp8 go to even."""
    import cupy

    if dtype in FP8:
        return fp8_codes(values, dtype, cupy)
    if dtype is not DType.BF16:
        return values.astype(ARRAY_TYPES[dtype])
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
