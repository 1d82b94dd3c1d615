"""The interface of a kernel family, and functions that all families use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from cache_engine.errors import InfeasibleConfig
from cache_engine.kernels.source import fp8_constants
from cache_engine.model.architecture import Architecture, occupancy
from cache_engine.model.gemm import (
    FP8,
    NO_EPILOGUE,
    Activation,
    DType,
    Epilogue,
    GemmProblem,
    Layout,
    Mode,
    Scales,
    Specialisation,
    accumulator,
    bucket_of,
)
from cache_engine.model.kernel import Box, KernelConfig, Launch, ceil_div
from cache_engine.model.key import Constants, encoded

# Rows of tiles that consecutive blocks walk down before moving one column on (templates/raster.cuh).
RASTER_ROWS = 8

# With more slices, the last block of a tile would take longer to add them up than all blocks took to compute them.
MAX_SPLIT_K = 64

OPERANDS = ("alpha", "beta", "bias", "workspace")
"""The parameters of CUDA kernels after the sizes."""
FP8_OPERANDS = ("alpha", "scale_result", "bias", "workspace")
"""The parameters of CUDA kernels after the sizes, if C is fp8."""
SCALE_OPERANDS = ("a_scales", "b_scales")
"""Further parameters, before ``OPERANDS``, of kernels for operands with scales and of kernels for groups."""
GROUP_OPERANDS = ("counts", "groups")
"""Further parameters of kernels for groups, before all others."""

Pairs = tuple[tuple[str, str | int], ...]
"""Constants by name."""

_C_TYPES = {
    DType.FP16: "fp16",
    DType.BF16: "bf16",
    DType.TF32: "tf32",
    DType.FP32: "float",
    DType.FP64: "double",
    DType.FP8_E4M3: "e4m3",
    DType.FP8_E5M2: "e5m2",
    DType.INT8: "int8",
    DType.INT32: "int",
}
_MOST_STORED = 8  # a row of a box has lanes for this many elements each (templates/boxes.cuh)
# The fewest tiles of a persistent block, if a batch has enough: while a tile is stored, the next one is being loaded.
_TILES_EACH = 4
_ACTIVATIONS = {Activation.NONE: 0, Activation.RELU: 1, Activation.GELU: 2}  # templates/epilogue.cuh


class Family(ABC):
    """The base of all families: a generator of kernels of one kind. A subclass states how its kernels differ.

    The method ``constants`` is the most important: the constants and the template determine the source, so the key
    hashes both.
    """

    name: str
    template: str
    unit: str
    """The unit of an SM that multiplies: ``"mma"``, ``"tensor"`` or ``"cuda"``, as in ``rates.Rates.operations``."""
    # Floating-point (or integer) operations of one SM of an A100 in one clock, by the type of A and B. Its keys are the
    # types that the family computes. Used to rank configs.
    flops_per_clock: Mapping[DType, int]
    takes_epilogue = True
    """Whether its kernels can apply an ``Epilogue``."""
    splits_k = True
    clusters = False
    """Whether blocks can share tiles of B. Such a config is chosen only if timings on a GPU say that it is faster."""
    copying_threads = 0
    """The number of threads of a block that only copy tiles for the others and do not multiply."""
    is_persistent = False
    """Whether a block stays on its SM and computes several tiles of C, one after the other."""
    hidden_parameters: tuple[str, ...] = ()
    """The last parameters of the compiled kernel: pointers that the compiler adds and the kernel does not use."""

    def takes(self, problem: GemmProblem) -> bool:
        """Whether the family computes the problem's kind of scales and groups; by default, it takes neither."""
        return not problem.scales and not problem.mode

    @abstractmethod
    def min_capability(self, dtype: DType) -> tuple[int, int]:
        """The lowest compute capability on which the family computes the type."""

    def problem_fault(self, problem: GemmProblem) -> str | None:
        """The reason why no config can compute the problem, although the family has its type; ``None`` if one can."""
        return None

    @abstractmethod
    def configs(self, problem: GemmProblem) -> tuple[KernelConfig, ...]:
        """The configs to consider for a problem; some may break a limit of the target."""

    @abstractmethod
    def shared_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The dynamic shared memory of one block, in bytes."""

    @abstractmethod
    def shared_traffic_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The bytes that a block reads from shared memory for each step of block_k. Used to rank configs."""

    @abstractmethod
    def registers_estimate(self, problem: GemmProblem, config: KernelConfig) -> int:
        """A lower bound of the registers of a thread: those for its part of C and its parts of the tiles of A and B.

        Used to rank and to refuse configs.
        """

    @abstractmethod
    def shape_fault(self, problem: GemmProblem, config: KernelConfig) -> str | None:
        """The reason why the template cannot be compiled with these tiles; ``None`` if it can."""

    def boxes(self, problem: GemmProblem, config: KernelConfig) -> tuple[Box, ...]:
        """The parts of operands that the copy engine (TMA) copies at once; empty if threads copy tiles themselves."""
        return ()

    def m_divisor(self, problem: GemmProblem) -> int:
        """A power of two d: if m is an argument of the kernel, ``constants`` depends on m only through gcd(m, d).

        By default 1, for a family in which rows of A are k long.
        """
        return 1

    @abstractmethod
    def constants(self, problem: GemmProblem, config: KernelConfig) -> Constants:
        """All constants that the template needs, by name."""


def check_config(family: Family, problem: GemmProblem, config: KernelConfig, target: Architecture) -> None:
    """Checks a config against the template and the target.

    Raises:
        InfeasibleConfig: when a limit is broken; the text names the first one, and by how much it is broken.
    """
    fault = family.shape_fault(problem, config) or _split_fault(family, problem, config)
    if config.cluster > 1 and not family.clusters:
        fault = "its blocks share no tiles, so cluster must be 1"
    if fault is not None:
        raise InfeasibleConfig(f"{family.name} cannot use {config}: {fault}")
    for what, needed, limit in (
        ("threads per block", threads_of(family, config), target.threads_per_block),
        ("bytes of shared memory per block", family.shared_bytes(problem, config), target.shared_bytes_per_block),
        ("registers per thread", family.registers_estimate(problem, config), target.registers_per_thread),
    ):
        if needed > limit:
            raise InfeasibleConfig(
                f"{family.name} {config} needs {needed:,} {what}, {needed - limit:,} more than the {limit:,} "
                f"that {target.name} has"
            )


def launch_of(family: Family, problem: GemmProblem, config: KernelConfig, shared_bytes: int | None = None) -> Launch:
    """The launch parameters of a kernel with this config for this problem.

    Args:
        shared_bytes: the dynamic shared memory of the compiled kernel, if known; otherwise the family computes it.
    """
    tiles, batch = _tile_rows(problem, config) * ceil_div(problem.n, config.block_n), problem.batch
    if problem.mode:  # blocks find the groups themselves
        tiles, batch = tiles * problem.row_matrices, 1
    workspace = 0
    if config.split_k > 1:
        # A counter for each tile, and then each slice's sums (templates/split_k.cuh). Where some threads only copy,
        # each warp that multiplies counts for itself (templates/hopper.cu).
        counters = config.warps_m * config.warps_n if family.copying_threads else 1
        sums = config.split_k * config.block_m * config.block_n * problem.accumulate.itemsize
        workspace = ceil_div(tiles * batch * counters, 64) * 256 + tiles * batch * sums
    if shared_bytes is None:
        shared_bytes = family.shared_bytes(problem, config)
    if family.is_persistent:
        tiles = min(tiles, _blocks_each(tiles, batch, _resident(family, problem, config, shared_bytes), config))
    grid = (tiles, config.split_k, batch)
    sizes = ("n", "k") if problem.specialisation is Specialisation.DYNAMIC else ()
    operands = (FP8_OPERANDS if problem.has_result_scale else OPERANDS) if family.takes_epilogue else ()
    operands = (*SCALE_OPERANDS, *operands) if problem.scales or problem.mode else operands
    operands = (*GROUP_OPERANDS, *operands) if problem.mode else operands
    boxes = family.boxes(problem, config)
    parameters = (*sizes, *operands, *(box.parameter for box in boxes), *family.hidden_parameters)
    return Launch(grid, threads_of(family, config), shared_bytes, parameters, workspace, boxes)


def _blocks_each(tiles: int, batch: int, resident: int, config: KernelConfig) -> int:
    """The number of persistent blocks for each product of a batch.

    The blocks of all products fill the GPU, and each block gets a few tiles. Blocks that run at the same time should
    share rows of A and columns of B, so many blocks work on few products. For 256 products with one block each, an H200
    reached half of cuBLAS's speed.
    """
    held = max(1, resident // (config.split_k * config.cluster))
    wanted = max(held // batch, ceil_div(tiles, _TILES_EACH * config.cluster))
    return min(held, wanted) * config.cluster


def _tile_rows(problem: GemmProblem, config: KernelConfig) -> int:
    """The number of rows of tiles in each C, rounded up to whole clusters; for ``grouped``, an upper bound."""
    if problem.mode is not Mode.GROUPED:
        return ceil_div(problem.m, config.block_m * config.cluster) * config.cluster
    filled = min(problem.m, problem.batch)
    return filled + (problem.m - filled) // config.block_m


def _resident(family: Family, problem: GemmProblem, config: KernelConfig, shared_bytes: int) -> int:
    """An estimate, without compiling, of the number of blocks that the target's example GPU holds at once."""
    target, threads = problem.target, threads_of(family, config)
    registers = family.registers_estimate(problem, config)
    held = occupancy(target, threads=threads, registers=registers, shared_bytes=shared_bytes).blocks_per_sm
    return target.example_sms * max(1, held)


def threads_of(family: Family, config: KernelConfig) -> int:
    """The threads of one block."""
    return config.threads + family.copying_threads


def _split_fault(family: Family, problem: GemmProblem, config: KernelConfig) -> str | None:
    if config.split_k == 1:
        return None
    if not family.splits_k:
        return "it does not split k"
    if config.split_k > MAX_SPLIT_K:
        return f"split_k must be at most {MAX_SPLIT_K}"
    if problem.specialisation is Specialisation.DYNAMIC:
        return None  # a slice may be empty, and one kernel serves every k
    steps = ceil_div(problem.k, config.block_k)
    return None if config.split_k <= steps else f"k = {problem.k:,} has {steps} tiles of {config.block_k} to split"


def kernel_name(family: Family, problem: GemmProblem, config: KernelConfig, assumed: str = "") -> str:
    """The name of the kernel's function, as profilers show it.

    Args:
        assumed: a short text with the widths of the kernel's reads and writes; a dynamic kernel serves only sizes for
            which these widths are possible.
    """
    p = problem
    types = _types_in_name(p.dtype, p.output, p.scales, p.mode)
    return f"gemm_{family.name}_{types}_{p.layout}_{_sizes_in_name(p, assumed)}_{_end_of_name(p.epilogue, config)}"


def _sizes_in_name(problem: GemmProblem, assumed: str) -> str:
    sizes, specialisation = f"n{problem.n}_k{problem.k}", problem.specialisation
    if specialisation is Specialisation.NK:
        return sizes
    if specialisation is Specialisation.EXACT:
        return f"m{problem.m}_{sizes}"
    if specialisation is Specialisation.BUCKETED:
        return f"bucket{bucket_of(problem.m)}_{sizes}"
    return f"dynamic_{assumed}"


@lru_cache(maxsize=1024)
def _types_in_name(dtype: DType, output: DType, scales: Scales, mode: Mode) -> str:
    types = str(dtype) if dtype is output else f"{dtype}_{output}"
    if scales:
        types += f"_{scales.replace(',', '_')}"
    return f"masked_{types}" if mode is Mode.MASKED else types


@lru_cache(maxsize=1024)
def _end_of_name(epilogue: Epilogue, config: KernelConfig) -> str:
    return f"{epilogue}_{config}".replace("+", "_") if epilogue != NO_EPILOGUE else str(config)


def size_constants(problem: GemmProblem) -> dict[str, int]:
    """The constants of the kernel for its sizes, by name, and an upper bound of m.

    Sizes that are arguments are left out.
    """
    fixed = {"N": problem.n, "K": problem.k}
    if problem.specialisation is Specialisation.NK:
        return fixed
    if problem.specialisation is Specialisation.DYNAMIC:
        return {}
    if problem.specialisation is Specialisation.EXACT:
        return {"M": problem.m, **fixed}
    return {"M_MOST": bucket_of(problem.m), **fixed}


def vector_elements(extent: int, most: int) -> int:
    """The elements that one access to a row of ``extent`` elements covers: a divisor of it, at most ``most``."""
    elements = most
    while extent % elements:
        elements //= 2
    return elements


def widest_store(problem: GemmProblem) -> int:
    """The number of elements of C, at most ``_MOST_STORED``, that one access of up to 16 bytes can cover."""
    return vector_elements(problem.n, min(16 // problem.output.itemsize, _MOST_STORED))


def m_divisor(problem: GemmProblem, widest: int) -> int:
    """``Family.m_divisor`` for a template that reads at most ``widest`` elements at once; 1 if A is stored m × k."""
    return widest if problem.layout.a_transposed else 1


@lru_cache(maxsize=16)
def scale_constants(scales: Scales) -> Pairs:
    """The constants that the templates need for a problem's scales, by name."""
    return (
        ("SCALED", int(bool(scales))),
        ("B_SCALE_COLUMNS", scales.b_columns),
        ("SCALE_TYPE", "unsigned char" if scales.is_e8m0 else "float"),
    )


def specialised_constants(
    family: Family, problem: GemmProblem, config: KernelConfig, *, widest: int, widest_store: int, more: Pairs = ()
) -> Constants:
    """All constants that a CUDA template needs, by name: the tiles, and the parts of the problem fixed at compile time.

    The specialisation decides which sizes are fixed. A size that is an argument affects only the width of reads and
    writes along it. The batch is always an argument (the grid's z).

    Args:
        widest: the largest number of elements of A or B that the template reads at once.
        widest_store: the number of elements of C that the template writes at once if the rows allow it; otherwise it
            writes them one by one.
        more: further constants of this family.
    """
    p, layout = problem, problem.layout
    a_vector = vector_elements(p.m if layout.a_transposed else p.k, widest)
    b_vector = vector_elements(p.k if layout.b_transposed else p.n, widest)
    c_vector = widest_store if p.n % widest_store == 0 else 1
    sizes = size_constants(p)
    same = _same_constants(
        family.name, p.dtype, p.output, layout, p.epilogue, p.scales, p.mode, config, a_vector, b_vector, c_vector,
        tuple(sizes), more,
    )  # fmt: skip
    constants = Constants(same.constants)
    constants["KERNEL_NAME"] = name = f"{same.name}_{_sizes_in_name(p, same.assumed)}_{same.end_of_name}"
    constants.update(sizes)
    of_sizes = "".join([encoded(label, str(size)) for label, size in sizes.items()])
    constants.encoded = f"{encoded('KERNEL_NAME', name)}{same.before}{of_sizes}{same.behind}"
    return constants


class _Same(msgspec.Struct, frozen=True):
    """The constants that kernels which differ only in sizes have in common.

    Attributes:
        before, behind: the encoded constants that come before and after the sizes in the key.
    """

    name: str
    assumed: str
    end_of_name: str
    constants: dict[str, str | int]
    before: str
    behind: str


@lru_cache(maxsize=4096)
def _same_constants(
    family: str, dtype: DType, output: DType, layout: Layout, epilogue: Epilogue, scales: Scales, mode: Mode,
    config: KernelConfig, a_vector: int, b_vector: int, c_vector: int, sizes: tuple[str, ...], more: Pairs,
) -> _Same:  # fmt: skip
    before: dict[str, str | int] = {
        "IN_TYPE": _C_TYPES[dtype],
        "SUM_TYPE": _C_TYPES[accumulator(dtype)],
        "OUT_TYPE": _C_TYPES[output],
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "WARPS_M": config.warps_m,
        "WARPS_N": config.warps_n,
        "STAGES": config.stages,
        "SPLIT_K": config.split_k,
        "RASTER_ROWS": RASTER_ROWS,
    }
    behind: dict[str, str | int] = {
        "A_TRANSPOSED": int(layout.a_transposed),
        "B_TRANSPOSED": int(layout.b_transposed),
        "A_VECTOR": a_vector,
        "B_VECTOR": b_vector,
        "C_VECTOR": c_vector,
        "WITH_ALPHA": int(epilogue.alpha),
        "WITH_BETA": int(epilogue.beta),
        "WITH_BIAS": int(epilogue.bias),
        "ACTIVATION": _ACTIVATIONS[epilogue.activation],
        **(fp8_constants() if output in FP8 else {}),
        **dict(more),
    }
    return _Same(
        f"gemm_{family}_{_types_in_name(dtype, output, scales, mode)}_{layout}",
        f"a{a_vector}_b{b_vector}_c{c_vector}",
        _end_of_name(epilogue, config),
        {"KERNEL_NAME": "", **before, **dict.fromkeys(sizes, 0), **behind},
        Constants.of(before).encoded,
        Constants.of(behind).encoded,
    )
