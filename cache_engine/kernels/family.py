"""What a kernel family is."""

from __future__ import annotations

from typing import Protocol

from cache_engine.errors import InfeasibleConfig
from cache_engine.model.architecture import Architecture
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import KernelConfig, Launch, ceil_div

# Rows of tiles that consecutive blocks walk down before moving one column on (templates/raster.cuh).
RASTER_ROWS = 8


class Family(Protocol):
    """A generator of kernels of one kind.

    ``constants`` is the heart: with the template it determines the source, so it is also what the key hashes.
    """

    name: str
    template: str
    dtypes: tuple[DType, ...]
    min_capability: tuple[int, int]
    hidden_parameters: tuple[str, ...]
    """Of the compiled kernel, after m: pointers that the compiler adds and the kernel does not use."""

    def configs(self, problem: GemmProblem) -> tuple[KernelConfig, ...]:
        """The configs worth considering, feasible or not."""
        ...

    def shared_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """Dynamic shared memory of one block."""
        ...

    def shared_traffic_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """Bytes that pass shared memory's port while one block goes block_k deep. For ranking."""
        ...

    def registers_estimate(self, problem: GemmProblem, config: KernelConfig) -> int:
        """Registers a thread needs at least: its part of C and of the tiles it holds. For ranking and refusal."""
        ...

    def shape_fault(self, problem: GemmProblem, config: KernelConfig) -> str | None:
        """Why the template cannot be built with these tiles; ``None`` when it can."""
        ...

    def constants(self, problem: GemmProblem, config: KernelConfig) -> dict[str, str | int]:
        """Everything the template needs, by name."""
        ...


def check_config(family: Family, problem: GemmProblem, config: KernelConfig, target: Architecture) -> None:
    """Checks a config against the template and the target.

    Raises:
        InfeasibleConfig: naming the first limit broken, and by how much.
    """
    fault = family.shape_fault(problem, config)
    if fault is not None:
        raise InfeasibleConfig(f"{family.name} cannot use {config}: {fault}")
    for what, needed, limit in (
        ("threads per block", config.threads, target.threads_per_block),
        ("bytes of shared memory per block", family.shared_bytes(problem, config), target.shared_bytes_per_block),
        ("registers per thread", family.registers_estimate(problem, config), target.registers_per_thread),
    ):
        if needed > limit:
            raise InfeasibleConfig(
                f"{family.name} {config} needs {needed:,} {what}, {needed - limit:,} more than the {limit:,} "
                f"that {target.name} has"
            )


def launch_of(family: Family, problem: GemmProblem, config: KernelConfig, shared_bytes: int | None = None) -> Launch:
    """How a kernel of this config is launched for this problem.

    Args:
        shared_bytes: dynamic shared memory that the compiled kernel is known to take; else what the family says.
    """
    tiles = ceil_div(problem.m, config.block_m) * ceil_div(problem.n, config.block_n)
    if shared_bytes is None:
        shared_bytes = family.shared_bytes(problem, config)
    return Launch((tiles, 1, problem.batch), config.threads, shared_bytes, family.hidden_parameters)


def kernel_name(family: Family, problem: GemmProblem, config: KernelConfig) -> str:
    """The function's name in the compiled code, as profilers show it."""
    types = problem.dtype if problem.dtype == problem.output else f"{problem.dtype}_{problem.output}"
    return f"gemm_{family.name}_{types}_{problem.layout}_n{problem.n}_k{problem.k}_{config}"


def vector_elements(extent: int, itemsize: int) -> int:
    """How many elements one 16-byte access may cover when rows are ``extent`` elements long: a divisor of it."""
    elements = 16 // itemsize
    while extent % elements:
        elements //= 2
    return elements


def specialised_constants(problem: GemmProblem, config: KernelConfig) -> dict[str, str | int]:
    """The constants every CUDA family shares: the tiles, and what of the problem is fixed at compile time.

    n and k are fixed. m is an argument, and enters only as the width of reads along it, where A is stored k × m. The
    batch is an argument too (it is the grid's z).
    """
    itemsize = problem.dtype.itemsize
    return {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "WARPS_M": config.warps_m,
        "WARPS_N": config.warps_n,
        "STAGES": config.stages,
        "RASTER_ROWS": RASTER_ROWS,
        "N": problem.n,
        "K": problem.k,
        "A_TRANSPOSED": int(problem.layout.a_transposed),
        "B_TRANSPOSED": int(problem.layout.b_transposed),
        "A_VECTOR": vector_elements(problem.m if problem.layout.a_transposed else problem.k, itemsize),
        "B_VECTOR": vector_elements(problem.k if problem.layout.b_transposed else problem.n, itemsize),
    }
