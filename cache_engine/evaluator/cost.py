"""The core-grid cost model, version 1: the cost of one partition with one tile and loop order.

The chip's cores stand in a grid of partition.g × m × n × k. Each dimension is cut into blocks of ceil(dim / p); the
last block has the remainder. A core holds one tile of A, B and C at a time in its SRAM and streams the rest from DRAM.
The loop order says which tile stays in SRAM: with ``mnk`` a tile of C is finished before the next is begun, with
``nkm`` a tile of B stays and with ``mkn`` a tile of A, while partial sums of C, in fp32, go out to DRAM and back once
for each further step along k. Computing and moving data overlap in part.

The latency of a partition is that of its slowest core, which is the first core: its block has the full size in every
dimension, and the times of computing and of moving data grow with every dimension. All cores use the tile and the loop
order of the first core's block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from cache_engine.errors import UsageError
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.problem import EvaluationProblem

EVALUATOR = "core-grid"
MODEL_VERSION = "1.0.1"
"""A new major version gives other results for the same question. A new minor version gives results worth computing
again. A new patch version gives the same results, except for rounding and the choice among equals, which rounding
decides.
"""

ORDERS = ("mnk", "nkm", "mkn")
"""Loop orders, in order of preference at equal traffic."""

PARTIAL_BYTES = 8
"""Bytes that a partial sum in fp32 moves: it is written and read again."""


class Tile(NamedTuple):
    """The data that a core holds at a time: m × k of A, k × n of B, m × n of C."""

    m: int
    n: int
    k: int


class Partition(NamedTuple):
    """The number of parts into which each dimension is cut; their product is the number of cores."""

    g: int
    m: int
    n: int
    k: int


class Block(NamedTuple):
    """A core's part of one product: its sizes along m, n and k."""

    m: int
    n: int
    k: int


class Tiling(NamedTuple):
    """A core's tile and loop order for its block, and the bytes that the core then moves for one product."""

    tile: Tile
    order: str
    traffic: int


@dataclass(frozen=True, slots=True)
class SearchMode:
    """The choices that a search makes, and the optional costs that it counts. Every field is part of a result's key.

    Args:
        tile_search: whether to search for the best tile; without it, a tile is one cube.
        partition_search: whether to search for the best partition; without it, the partition is a square grid over m
            and n if the number of cores is a square, else only m is cut.
        reduce_partial_sums: whether to count the DRAM traffic of adding up the partial sums of cores that share k: each
            further part's sums, in fp32, are written and read once, spread evenly over these cores.
        compute_rate: the speed of the matrix unit for this dtype, as a multiple of its clock's rate.

    Raises:
        UsageError: when the rate is not a number above 0.
    """

    tile_search: bool = True
    partition_search: bool = True
    reduce_partial_sums: bool = False
    compute_rate: float = 1.0

    def __post_init__(self) -> None:
        rate = self.compute_rate
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 1e-6 <= rate <= 1e6:
            raise UsageError(f"compute_rate is {rate!r}; it must be a number from 0.000001 to 1,000,000")
        object.__setattr__(self, "compute_rate", float(rate))

    def on(self, hardware: Hardware, dtype: str) -> SearchMode:
        """The same mode, with the chip's own rate of a type in ``compute_rate``. Use it for computing, not for keys."""
        rate = hardware.rate_of(dtype)
        return self if rate == 1 else replace(self, compute_rate=self.compute_rate * rate)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The model's result for a problem on an accelerator.

    Attributes:
        latency_us: the time of the whole problem, which is that of its slowest core.
        compute_us, memory_us: the slowest core's time for computing, and for moving data.
        flops: the floating-point operations of all cores.
        traffic_bytes: the bytes moved between DRAM and all cores.
        arch_utilization: the computing time as a share of the latency.
        effective_utilization: ``flops`` as a share of the operations that the chip could do at its peak in this time.
        alignment_efficiency: ``flops`` as a share of the operations with every core's block padded to whole cubes.
        tile, order, partition: the choice that gives this latency.
        searched_partitions, searched_tiles: the numbers of partitions and tiles tried.
    """

    latency_us: float
    compute_us: float
    memory_us: float
    flops: int
    traffic_bytes: int
    arch_utilization: float
    effective_utilization: float
    alignment_efficiency: float
    tile: Tile
    order: str
    partition: Partition
    searched_partitions: int = 0
    searched_tiles: int = 0


def ceil_div(number: int, divisor: int) -> int:
    """The quotient of two whole numbers, rounded up."""
    return -(-number // divisor)


def align_up(number: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is not below ``number``."""
    return -(-number // multiple) * multiple


def fitting_k(hardware: Hardware, tile_m: int, tile_n: int, in_bytes: int, out_bytes: int) -> int:
    """The largest k of A's and B's tiles that fits into SRAM next to a tile of C; below 1 if not even 1 fits."""
    rows = align_up(tile_m, hardware.lane_num)
    available = hardware.usable_sram - rows * align_up(tile_n * out_bytes, hardware.align_bytes)
    return available // ((rows + align_up(tile_n, hardware.lane_num)) * in_bytes)


def tile_k(k: int, fitting: int, cube_k: int) -> int:
    """A tile's size along k: the block's k if that fits, else as many whole cubes as fit, or a part of one cube."""
    size = min(k, fitting)
    return size - size % cube_k if size >= cube_k else size


def cube_tile(hardware: Hardware, block: Block) -> Tile:
    """A tile of one cube: used without tile search, and if no tile fits into SRAM."""
    return Tile(hardware.cube_m, hardware.cube_n, min(block.k, hardware.cube_k))


def traffic(block: Block, tile: Tile, order: str, in_bytes: int, out_bytes: int) -> int:
    """Bytes moved between DRAM and a core for one product of the core's block."""
    m, n, k = block
    a, b, c = m * k * in_bytes, k * n * in_bytes, m * n * out_bytes
    if order == "mnk":
        return a * ceil_div(n, tile.n) + b * ceil_div(m, tile.m) + c
    partial = PARTIAL_BYTES * m * n * (ceil_div(k, tile.k) - 1)
    if order == "nkm":
        return b + a * ceil_div(n, tile.n) + partial + c
    return a + b * ceil_div(m, tile.m) + partial + c


def tiling_of(block: Block, tile: Tile, in_bytes: int, out_bytes: int) -> Tiling:
    """The tile with the loop order that moves the fewest bytes; the first in ``ORDERS`` among equals."""
    costs = [traffic(block, tile, order, in_bytes, out_bytes) for order in ORDERS]
    least = min(costs)
    return Tiling(tile, ORDERS[costs.index(least)], least)


def fixed_partition(cores: int) -> Partition:
    """The partition that is used without partition search."""
    root = math.isqrt(cores)
    return Partition(1, root, root, 1) if root * root == cores else Partition(1, cores, 1, 1)


def nominal_block(problem: EvaluationProblem, partition: Partition) -> tuple[int, Block]:
    """The number of products that the first core computes, and its block of each product."""
    _, m, n, k = partition
    block = Block(ceil_div(problem.m, m), ceil_div(problem.n, n), ceil_div(problem.k, k))
    return ceil_div(problem.batch, partition.g), block


class Times(NamedTuple):
    """The times of the slowest core, in microseconds."""

    latency: float
    compute: float
    memory: float


def times(hardware: Hardware, mode: SearchMode, problem: EvaluationProblem, at: Partition, tiling: Tiling) -> Times:
    """The times of the slowest core, for a partition whose block has this tiling.

    The arithmetic is in the order that reproduces the published results to the last bit: among partitions of the same
    cost, rounding decides which one is found.
    """
    products, block = nominal_block(problem, at)
    cycles = (
        products
        * ceil_div(block.m, hardware.cube_m)
        * ceil_div(block.k, hardware.cube_k)
        * ceil_div(block.n, hardware.cube_n)
    )
    compute = cycles / (hardware.freq_ghz * mode.compute_rate) / 1e3
    moved: float = products * tiling.traffic
    if mode.reduce_partial_sums:
        parts = ceil_div(problem.k, block.k)
        moved += products * PARTIAL_BYTES * block.m * block.n * (parts - 1) / parts
    memory = 1e6 * moved / (hardware.dram_bandwidth / hardware.num_cores)
    return Times(overlapped(compute, memory, hardware.compute_dma_overlap), compute, memory)


def overlapped(compute: float, memory: float, overlap: float) -> float:
    """The time of computing and moving data, if the share ``overlap`` of the shorter time hides behind the longer."""
    return max(compute, memory) + (1 - overlap) * min(compute, memory)


def describe(
    hardware: Hardware,
    mode: SearchMode,
    problem: EvaluationProblem,
    partition: Partition,
    tiling: Tiling,
    searched: tuple[int, int],
) -> Evaluation:
    """The model's result for the chosen partition; its operations and bytes are sums over all cores."""
    took = times(hardware, mode, problem, partition, tiling)
    peak = hardware.peak_flops * hardware.rate_of(problem.dtype)
    _, block = nominal_block(problem, partition)
    return Evaluation(
        latency_us=took.latency,
        compute_us=took.compute,
        memory_us=took.memory,
        flops=problem.flops,
        traffic_bytes=_total_traffic(mode, problem, block, tiling),
        arch_utilization=took.compute / took.latency,
        effective_utilization=problem.flops / (took.latency * 1e-6 * peak),
        alignment_efficiency=problem.flops / _padded_flops(hardware, problem, block),
        tile=tiling.tile,
        order=tiling.order,
        partition=partition,
        searched_partitions=searched[0],
        searched_tiles=searched[1],
    )


def _parts(size: int, part: int) -> list[tuple[int, int]]:
    """A dimension cut into parts: each size of a part, with the number of such parts; empty parts are left out."""
    whole, rest = divmod(size, part)
    return [(length, count) for length, count in ((part, whole), (rest, 1)) if length and count]


def _total_traffic(mode: SearchMode, problem: EvaluationProblem, block: Block, tiling: Tiling) -> int:
    """Bytes moved between DRAM and all cores, for all products of the problem."""
    total = 0
    for m, m_count in _parts(problem.m, block.m):
        for n, n_count in _parts(problem.n, block.n):
            for k, k_count in _parts(problem.k, block.k):
                share = traffic(Block(m, n, k), tiling.tile, tiling.order, problem.in_bytes, problem.out_bytes)
                total += m_count * n_count * k_count * share
    if mode.reduce_partial_sums:
        total += PARTIAL_BYTES * problem.m * problem.n * (ceil_div(problem.k, block.k) - 1)
    return problem.batch * total


def _padded_flops(hardware: Hardware, problem: EvaluationProblem, block: Block) -> int:
    flops = 2 * problem.batch
    for size, part, cube in zip(
        (problem.m, problem.n, problem.k), block, (hardware.cube_m, hardware.cube_n, hardware.cube_k), strict=True
    ):
        flops *= sum(count * align_up(length, cube) for length, count in _parts(size, part))
    return flops
