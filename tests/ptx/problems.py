"""Which kernels the machine executes, how they are launched, and what they must compute.

Operands have all bits of their type, and a range so small that every sum is exact in any order of additions. So C must
equal the exact result rounded once. Only GELU is compared with a tolerance.
"""

from __future__ import annotations

import itertools
import math
import zlib
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cache_engine.compilers.nvrtc import Nvrtc
from cache_engine.errors import InvalidProblem
from cache_engine.gpu.fp8 import E8M0_BIAS, scaled
from cache_engine.gpu.launch import ARRAY_TYPES, LoadedKernel, Operands, from_stored, to_stored
from cache_engine.kernels.family import Family, launch_of
from cache_engine.kernels.select import FAMILIES
from cache_engine.kernels.source import render
from cache_engine.model.gemm import FP8, OPT_LEVELS, Activation, DType, GemmProblem, Layout, Scales, Specialisation
from cache_engine.model.kernel import KernelConfig, ceil_div
from tests.device import numpy_gpu
from tests.ptx.machine import Kernel

Array = npt.NDArray[Any]
_ALPHA, _BETA = 0.75, -0.5
SCALE_RESULT = 0.3125  # of fp8: some results round, some are ties, some are beyond the largest value
# The largest number of each operand. The first has all bits of the type, so that a lost bit shows; with tf32 it has two
# more, which are rounded off. Both are small enough for fp32 to hold each sum.
_MOST = {
    DType.FP64: (2**20, 2**20), DType.FP32: (2**13 - 1, 1), DType.TF32: (2**13 - 1, 1), DType.FP16: (2**11 - 1, 1),
    DType.BF16: (2**8 - 1, 7), DType.FP8_E4M3: (15, 15), DType.FP8_E5M2: (7, 7), DType.INT8: (127, 127),
}  # fmt: skip
_LARGEST = {DType.FP8_E4M3: 448.0, DType.FP8_E5M2: 57344.0}
EPILOGUES = (
    "", "alpha", "beta", "bias", "relu", "gelu", "alpha+beta", "bias+relu", "beta+bias+gelu", "alpha+beta+bias",
    "alpha+beta+bias+relu",
)  # fmt: skip
# Of problems with scales: m and n of whole tiles and not, more than one block of n, slices of k.
SCALED_SHAPES = ((48, 80, 128, 1), (36, 135, 256, 2), (70, 129, 384, 1), (20, 40, 640, 1), (64, 128, 256, 1))
# m, n, k, batch. Rows of whole 16 bytes, of 4 elements, of 2, and odd ones; with a long k, for slices of it.
SHAPES = ((48, 80, 96, 1), (36, 76, 84, 1), (38, 70, 46, 2), (35, 67, 41, 2), (20, 40, 304, 1), (64, 128, 64, 1))


@dataclass(frozen=True)
class Case:
    """A kernel and a problem for it."""

    family: Family
    problem: GemmProblem
    config: KernelConfig

    def __str__(self) -> str:
        return f"{self.family.name} {self.problem!r} {self.config}"

    @property
    def arch(self) -> str:
        """The target."""
        return self.problem.arch or "sm_90"


def _configs(family: str, dtype: DType) -> tuple[KernelConfig, ...]:
    if family == "simt":
        return (
            KernelConfig(16, 32, 32, 1, 1, 2),
            KernelConfig(32, 64, 16, 2, 2, 2),
            KernelConfig(128, 64, 16, 4, 1, 2),
        )
    if family == "scaled":
        return (
            KernelConfig(16, 64, 128, 1, 2, 3),
            KernelConfig(64, 128, 128, 2, 2, 2),
            KernelConfig(128, 128, 128, 2, 4, 2),
            KernelConfig(32, 64, 128, 2, 2, 4),
        )
    size = dtype.itemsize
    return (
        KernelConfig(16, 64, 128 // size, 1, 2, 3),
        KernelConfig(64, 128, 64 // size, 2, 2, 2),
        KernelConfig(32, 64, 64 // size, 2, 2, 4),
        KernelConfig(128, 128, 64 // size, 2, 4, 3),
    )


def _targets(family: Family, dtype: DType, out: DType) -> tuple[str, ...]:
    least = max(family.min_capability(dtype), (8, 9) if out in FP8 else (7, 0))
    return tuple(f"sm_{name}" for at, name in _TARGETS if at >= least)


_TARGETS = (((7, 5), "75"), ((8, 0), "80"), ((8, 9), "89"), ((9, 0), "90a"), ((10, 0), "100a"), ((12, 0), "120a"))


def _made() -> list[Case]:
    """Every family, type, layout, alignment of rows and specialisation; and every epilogue; the rest takes its turn."""
    cases: list[Case] = []
    turn = itertools.count()
    kinds = [(family, dtype) for name in ("tensor_core", "simt") for family in [FAMILIES[name]]
             for dtype in family.flops_per_clock]  # fmt: skip
    shaped = [(*one, "") for one in itertools.product(kinds, Layout, SHAPES, Specialisation)]
    finished = [
        (kind, layout, SHAPES[number % 4], list(Specialisation)[number // 3 % 4], epilogue)
        for number, (kind, layout, epilogue) in enumerate(itertools.product(kinds, Layout, EPILOGUES))
        if kind[1] is not DType.INT8
    ]
    for (family, dtype), layout, (m, n, k, batch), specialisation, epilogue in [*shaped, *finished]:
        number = next(turn)
        outputs = [out for out in DType if is_output(dtype, out, epilogue)]
        out = outputs[number // 7 % len(outputs)]
        configs, targets = _configs(family.name, dtype), _targets(family, dtype, out)
        config = configs[number % len(configs)]
        slices = min((1, 1, 3, 4, 5)[number % 5], ceil_div(k, config.block_k))
        problem = GemmProblem(
            m, n, k, batch, dtype, out, layout, targets[number // 3 % len(targets)], epilogue, specialisation,
            OPT_LEVELS[-1],
        )  # fmt: skip
        cases.append(Case(family, problem, replace(config, split_k=slices)))
    return cases


def _scaled_cases() -> list[Case]:
    """Every block and type of scales, type of elements, shape and specialisation; and every epilogue."""
    family = FAMILIES["scaled"]
    kinds = list(itertools.product(filter(None, Scales), family.flops_per_clock))
    asked = [(*one, "") for one in itertools.product(kinds, SCALED_SHAPES, Specialisation)]
    asked += [(kinds[number % len(kinds)], SCALED_SHAPES[number % 3], list(Specialisation)[number % 4], epilogue)
              for number, epilogue in enumerate(EPILOGUES)]  # fmt: skip
    cases = []
    for number, ((scales, dtype), (m, n, k, batch), specialisation, epilogue) in enumerate(asked):
        outputs = [out for out in DType if is_output(dtype, out, epilogue)]
        out = outputs[number // 7 % len(outputs)]
        configs, targets = _configs(family.name, dtype), _targets(family, dtype, out)
        problem = GemmProblem(
            m, n, k, batch, dtype, out, Layout.NT, targets[number // 3 % len(targets)],
            epilogue, specialisation, OPT_LEVELS[-1], scales,
        )  # fmt: skip
        slices = min((1, 1, 3, 4, 5)[number % 5], k // 128)
        cases.append(Case(family, problem, replace(configs[number % len(configs)], split_k=slices)))
    return cases


def is_output(dtype: DType, out: DType, epilogue: str = "") -> bool:
    """Whether C may be so."""
    try:
        GemmProblem(1, 1, 1, dtype=dtype, out_dtype=out, epilogue="" if dtype is DType.INT8 else epilogue)
    except InvalidProblem:
        return False
    return True


def source_of(case: Case) -> str:
    """What the compiler gets."""
    return render(case.family.template, case.family.constants(case.problem, case.config))


@cache
def _compiler() -> Nvrtc:
    return Nvrtc()


@cache
def ptx_of(source: str, arch: str) -> str:
    """The PTX of a source, compiled once.

    Without ptxas, which would take as long again: for ``compute_90`` NVRTC stops where it would call it for ``sm_90``.
    ``test_the_store_keeps_what_is_executed_here`` compares.
    """
    return _compiler().compile(source, arch.replace("sm_", "compute_")).ptx.decode()


def kernel_of(case: Case) -> Kernel:
    """The kernel, ready to launch."""
    return Kernel(ptx_of(source_of(case), case.arch))


def what_is_wrong(case: Case, kernel: Kernel | None = None, *, blocks: int = 2, between_words: bool = False) -> str:
    """Launches a kernel twice with one workspace, with copies that land late and early, and compares each element of C.

    Args:
        kernel: in place of what is compiled.
        blocks: of a persistent kernel, how many for each slice and batch, so that a block has several tiles.
        between_words: whether A and B begin one element behind a multiple of 16 bytes.

    Returns:
        How many are wrong, in words; empty if all are right.

    Raises:
        Fault: what the machine has to say.
    """
    run = kernel or kernel_of(case)
    a, b = operands_of(case.problem)
    expected = expected_of(case.problem, a, b, to_even=case.family is FAMILIES["hopper"])
    loaded = loaded_as(case, run, blocks if case.family.is_persistent else None)
    for run.late in (True, False):
        computed = launched(case.problem, run, loaded, a, b, between_words=between_words)
        if difference := difference_of(case.problem, computed, expected):
            return difference
    return ""


def loaded_as(case: Case, kernel: Kernel, blocks: int | None = None) -> LoadedKernel:
    """The project's own launcher of a kernel, with at most so many blocks along x."""
    launch = launch_of(case.family, case.problem, case.config)
    if blocks is not None:
        launch = msgspec.structs.replace(launch, grid=(min(blocks, launch.grid[0]), *launch.grid[1:]))
    return LoadedKernel(b"", kernel.program.name, launch, case.problem, kernel)


def launched(
    problem: GemmProblem, kernel: Kernel, loaded: LoadedKernel, a: Array, b: Array, *, beta: float = _BETA,
    between_words: bool = False,
) -> Array:  # fmt: skip
    """C as stored: batch × m × n. Unless the kernel adds to C, all bits of it are set before and it may not be read.

    Args:
        a: batch × m × k, and
        b: batch × k × n: fp32 values, or of fp64.
    """
    stored_a, stored_b = (
        to_stored(np.ascontiguousarray(one.transpose(0, 2, 1) if transposed else one), problem.dtype)
        for one, transposed in ((a, problem.layout.a_transposed), (b, problem.layout.b_transposed))
    )
    if between_words:
        stored_a, stored_b = (_one_element_behind(one) for one in (stored_a, stored_b))
    before, bias = _further(problem)
    is_added = problem.epilogue.beta and beta != 0
    c = before if is_added else np.full_like(before.view(np.uint8), 0xFF).view(before.dtype)
    for one in (stored_a, stored_b, bias):
        one.flags.writeable = False
    stored_a, stored_b, c = (one.view(numpy_gpu.Array) for one in (stored_a, stored_b, c))
    kernel.unwritten = () if is_added else (c,)
    scales = scales_of(problem)
    for one in scales:
        one.flags.writeable = False
    given = Operands(stored_a, stored_b, c, _ALPHA, beta, bias if problem.epilogue.bias else None)
    given.a_scales, given.b_scales = scales or (None, None)
    given.scale_result = SCALE_RESULT
    loaded(given)
    return c


def _one_element_behind(stored: Array) -> Array:
    """The same elements, the first of them one element behind a multiple of 16 bytes."""
    memory = np.empty(stored.nbytes + 32, dtype=np.uint8)
    start = -memory.ctypes.data % 16 + stored.itemsize
    moved: Array = memory[start : start + stored.nbytes].view(stored.dtype).reshape(stored.shape)
    moved[...] = stored
    return moved


def scales_of(problem: GemmProblem) -> tuple[Array, ...]:
    """Those of A and of B as stored, batch × rows × columns; nothing for none. Powers of two, so sums stay exact."""
    if not problem.scales:
        return ()
    generator = np.random.default_rng(11)
    shapes = problem.scales.shapes(problem.m, problem.n, problem.k)
    powers = (generator.integers(-2, 2, (problem.batch, *shape), endpoint=True) for shape in shapes)
    if problem.scales.is_e8m0:
        return tuple((one + E8M0_BIAS).astype(np.uint8) for one in powers)
    return tuple(np.exp2(one).astype(np.float32) for one in powers)


def expected_of(problem: GemmProblem, a: Array, b: Array, *, to_even: bool = False) -> Array:
    """What C must be before it is rounded to its type, in fp64.

    Args:
        to_even: whether tf32 is rounded so where two are equally near; else away from zero.
    """
    if problem.scales:
        of_a, of_b = scales_of(problem)
        a = scaled(a, of_a)
        b = scaled(b.transpose(0, 2, 1), of_b, problem.scales.b_columns).transpose(0, 2, 1)
    with np.errstate(invalid="ignore"):
        sums = as_multiplied(a, problem.dtype, to_even) @ as_multiplied(b, problem.dtype, to_even)
    before, bias = (from_stored(one, problem.output, "float64") for one in _further(problem))
    epilogue = problem.epilogue
    sums = sums * (_ALPHA if epilogue.alpha else 1)
    exact: Array = sums + (_BETA * before if epilogue.beta else 0) + (bias if epilogue.bias else 0)
    return exact


def difference_of(problem: GemmProblem, computed: Array, expected: Array) -> str:
    """Compares C as stored with the exact results; empty if it is right."""
    activation = problem.epilogue.activation
    if activation is Activation.GELU:
        finished = expected * (1 + np.vectorize(math.erf)(expected / math.sqrt(2))) / 2
        values = from_stored(computed, problem.output, "float64")
        if problem.has_result_scale:
            finished = np.clip(finished * SCALE_RESULT, -_LARGEST[problem.output], _LARGEST[problem.output])
        rounding = {DType.BF16: 2**-8, DType.FP16: 2**-11, DType.FP8_E4M3: 2**-4, DType.FP8_E5M2: 2**-3}.get(
            problem.output, 0
        )
        error = 2**-46 if problem.output is DType.FP64 else 2**-20
        least = {DType.FP8_E4M3: 2**-10, DType.FP8_E5M2: 2**-17}.get(problem.output, 0)
        allowed = rounding * np.abs(finished) + error * np.abs(expected) + least
        wrong = np.argwhere(~(np.abs(values - finished) <= allowed))
    else:
        finished = np.maximum(expected, 0) if activation is Activation.RELU else expected
        finished = finished * SCALE_RESULT if problem.has_result_scale else finished
        exact = finished if problem.output is DType.FP64 else finished.astype(np.float32)
        right = to_stored(exact, problem.output)
        wrong = np.argwhere(
            from_stored(computed, problem.output, "float64") != from_stored(right, problem.output, "float64")
        )
    return f"{len(wrong)} of {computed.size} elements are wrong, the first at {wrong[0].tolist()}" if len(wrong) else ""


def operands_of(problem: GemmProblem) -> tuple[Array, Array]:
    """A and B as values whose sums of products are all exact."""
    p, seed = problem, zlib.crc32(repr(problem).encode())
    return operands(p.dtype, seed, (p.batch, p.m, p.k), (p.batch, p.k, p.n))


def operands(dtype: DType, seed: int, of_a: tuple[int, ...], of_b: tuple[int, ...]) -> tuple[Array, Array]:
    """A and B of these shapes, as fp32 values. In eighths: sums are small, so what is added to them is not lost."""
    generator = np.random.default_rng(seed)
    most = _MOST[dtype] if seed % 2 else _MOST[dtype][::-1]
    a, b = (generator.integers(-one, one, shape, endpoint=True) for one, shape in zip(most, (of_a, of_b), strict=True))
    unit = np.float32(1 if dtype is DType.INT8 else 1 / 8)
    return a.astype(np.float32) * unit, b.astype(np.float32) * unit


def as_multiplied(values: Array, dtype: DType, to_even: bool = False) -> Array:
    """What tensor cores multiply: of tf32 the nearest with eleven significant bits. The documents promise no less."""
    if dtype is not DType.TF32:
        return values.astype(np.float64)
    mantissa, exponent = np.frexp(np.abs(values.astype(np.float64)))
    nearest = np.rint(mantissa * 2**11) if to_even else np.floor(mantissa * 2**11 + 0.5)
    rounded: Array = np.copysign(np.ldexp(nearest, exponent - 11), values)
    return rounded


def _further(problem: GemmProblem) -> tuple[Array, Array]:
    """C as it is before, and the bias, as stored."""
    generator = np.random.default_rng(7)
    c = generator.integers(-50, 50, (problem.batch, problem.m, problem.n)).astype(np.float32)
    bias = generator.integers(-50, 50, problem.n).astype(np.float32)
    kind = ARRAY_TYPES[problem.output]
    return to_stored(c, problem.output).astype(kind), to_stored(bias, problem.output).astype(kind)


CASES = [*_made(), *_scaled_cases()]
