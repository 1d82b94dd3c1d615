"""The best partition, tile and loop order of the core-grid model: exactly the optimum, ties included, in milliseconds.

Nothing is sampled, and only candidates that cannot come first are left out. Three properties make the search fast:

- A tile that is at most as large as an earlier tile in every dimension is never the first with the least traffic. So
  the search need not find and drop such tiles: the result is the same with them.
- With order mnk traffic does not depend on the tile's k, so for each m the best n is the largest that fits. With nkm,
  traffic does not depend on the tile's m; with mkn, not on its n. The smallest is then best, as it leaves most room for
  k. Each order takes one pass over one dimension. Which n fits next to which m depends only on the chip and is cached.
- Each partition has a lower bound: its exact computing time, with the traffic that SRAM of that size needs at least.
  Partitions are looked at from the lowest bound on, until none can beat the best.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cache_engine.errors import InvalidHardware, SearchStopped
from cache_engine.evaluator import cost
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.problem import EvaluationProblem, check_unscaled
from cache_engine.settings.extras import lazy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = lazy("numpy", "evaluate", "the search")


SLACK = 1 + 1e-9
"""The factor by which a partition's lower bound must exceed the best latency so far for the partition to be skipped. It
is above 1 because bounds are computed with rounding errors.
"""

_MOST_TILES = 2**22
_EXACT = 2**62


def evaluate(
    problem: EvaluationProblem,
    hardware: Hardware,
    mode: cost.SearchMode | None = None,
    may_go_on: Callable[[], bool] = lambda: True,
) -> cost.Evaluation:
    """The best result of the core-grid model for a problem on an accelerator.

    Args:
        may_go_on: called before each partition; the search stops when it returns false. The time of one partition grows
            with the number of tile sizes that fit the chip.

    Raises:
        InvalidHardware: when its cubes are so small, or its SRAM so large, that tiles are too many to search.
        InvalidProblem: when operands have scales.
        SearchStopped: when ``may_go_on`` returns false.
    """
    mode = (mode or cost.SearchMode()).on(hardware, problem.dtype)
    search = BlockSearch(problem, hardware, mode)
    if not mode.partition_search:
        chosen = cost.fixed_partition(hardware.num_cores)
        tiling = search.tiling(cost.nominal_block(problem, chosen)[1])
        return cost.describe(hardware, mode, problem, chosen, tiling, (1, search.tiles))
    partitions, grid = partitions_of(hardware.num_cores)
    bounds = least_latency(hardware, *least_times(problem, hardware, mode, grid))

    def tiled(index: int) -> cost.Tiling:
        return search.tiling(cost.nominal_block(problem, partitions[index])[1])  # which remembers it

    first, looked_at = fastest(
        bounds,
        lambda index: cost.times(hardware, mode, problem, partitions[index], tiled(index)).latency,
        may_go_on,
        f"the search for {problem.m} × {problem.n} × {problem.k} on {hardware.name}",
    )
    return cost.describe(hardware, mode, problem, partitions[first], tiled(first), (looked_at, search.tiles))


def fastest(
    bounds: NDArray[np.float64], latency_of: Callable[[int], float], may_go_on: Callable[[], bool], what: str
) -> tuple[int, int]:
    """The partition with the least latency (the first among equals), and the number of partitions that were evaluated.

    Args:
        bounds: a lower bound of each partition's latency; partitions above the least latency are not evaluated.
        latency_of: evaluates a partition, by its number.
        may_go_on: as for ``evaluate``.
        what: the name of the search, for the error if it is stopped.

    Raises:
        SearchStopped: when ``may_go_on`` returns false.
    """
    least, first, looked_at = float("inf"), len(bounds), 0
    for index in np.argsort(bounds, kind="stable").tolist():
        if bounds[index] > least * SLACK:
            break
        if not may_go_on():
            raise SearchStopped(f"{what} was stopped after {looked_at:,} of {len(bounds):,} partitions")
        looked_at += 1
        latency = latency_of(index)
        if latency < least or (latency == least and index < first):
            least, first = latency, index
    return first, looked_at


@lru_cache(maxsize=32)
def partitions_of(cores: int) -> tuple[list[cost.Partition], NDArray[np.float64]]:
    """All partitions of a number of cores, sorted by p_g, p_m, p_n; and the same as an array, a row for each p."""
    divisors = [number for number in range(1, cores + 1) if cores % number == 0]
    partitions = [
        cost.Partition(g, m, n, cores // (g * m * n))
        for g in divisors
        for m in divisors
        if cores // g % m == 0
        for n in divisors
        if cores // g // m % n == 0
    ]
    return partitions, np.array(partitions, dtype=np.float64).T


def least_times(
    problem: EvaluationProblem, hardware: Hardware, mode: cost.SearchMode, grid: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each partition, its computing time, and a lower bound of its time for moving data, in microseconds."""
    sizes = (problem.batch, problem.m, problem.n, problem.k)
    g, m, n, k = (np.ceil(size / parts) for size, parts in zip(sizes, grid, strict=True))
    cubes = g * np.ceil(m / hardware.cube_m) * np.ceil(k / hardware.cube_k) * np.ceil(n / hardware.cube_n)
    compute = cubes / (hardware.freq_ghz * mode.compute_rate) / 1e3
    a, b = m * k * problem.in_bytes, k * n * problem.in_bytes
    operands = a + b
    if mode.tile_search and len(_fits(hardware, problem.in_bytes, problem.out_bytes).m):
        sram = hardware.usable_sram
        # A tile of C fits: with mnk, loads of A times loads of B are at least C's bytes over the SRAM's.
        by_c = 2 * np.sqrt(a * b * (m * n * problem.out_bytes / sram))
        # A tile of A or B fits: with the other orders, what is loaded again for each of s steps along k is at least
        # a · b / (sram · s), next to partial sums of the s - 1 further steps. This is least for:
        partial = cost.PARTIAL_BYTES * m * n
        steps = np.maximum(np.sqrt(a * b / (sram * partial)), 1)
        by_a_or_b = np.minimum(a, b) + a * b / (sram * steps) + partial * (steps - 1)
        operands = np.maximum(operands, np.minimum(by_c, by_a_or_b))
    moved = g * (operands + m * n * problem.out_bytes)
    memory = 1e6 * moved / (hardware.dram_bandwidth / hardware.num_cores)
    return compute, memory


def least_latency(hardware: Hardware, compute: NDArray[np.float64], memory: NDArray[np.float64]) -> NDArray[np.float64]:
    """The latency in microseconds, from the times of computing and of moving data, which overlap in part."""
    latency: NDArray[np.float64] = np.maximum(compute, memory)
    return latency + (1 - hardware.compute_dma_overlap) * np.minimum(compute, memory)


class BlockSearch:
    """Finds, once for each block of one problem, the tiling that moves the fewest bytes; a block is one core's part."""

    def __init__(self, problem: EvaluationProblem, hardware: Hardware, mode: cost.SearchMode) -> None:
        check_unscaled(problem)
        self._hardware = hardware
        self._tile_search = mode.tile_search
        self._in_bytes, self._out_bytes = problem.in_bytes, problem.out_bytes
        cubes = (hardware.cube_m, hardware.cube_n, hardware.cube_k)
        m, n, k = (
            cost.align_up(size, cube) for size, cube in zip((problem.m, problem.n, problem.k), cubes, strict=True)
        )
        # Where 64 bits might not hold the traffic, NumPy counts in Python's whole numbers.
        self._dtype: Any = np.int64 if 64 * m * n * k < _EXACT else object
        self._found: dict[cost.Block, cost.Tiling] = {}
        self.tiles = 0

    def tiling(self, block: cost.Block) -> cost.Tiling:
        """The block's tiling that moves the fewest bytes; the first among equals."""
        found = self._found.get(block)
        if found is None:
            found = self._found[block] = self._find(block) if self._tile_search else self._untiled(block)
        return found

    def _untiled(self, block: cost.Block) -> cost.Tiling:
        self.tiles += 1
        return cost.tiling_of(block, cost.cube_tile(self._hardware, block), self._in_bytes, self._out_bytes)

    def _find(self, block: cost.Block) -> cost.Tiling:
        hardware, sizes = self._hardware, (self._in_bytes, self._out_bytes)
        fits = _fits(hardware, *sizes)
        if not len(fits.n_beside_m):
            return self._untiled(block)
        m_tiles = min(cost.ceil_div(block.m, hardware.cube_m), len(fits.n_beside_m))
        n_limit = cost.align_up(block.n, hardware.cube_n)
        largest_m = m_tiles * hardware.cube_m
        if largest_m >= block.m and fits.n_beside_m[m_tiles - 1] >= n_limit:
            # All of C fits at once: every operand is moved once, by the first tile of all.
            self.tiles += 1
            return cost.tiling_of(block, self._tile(block, largest_m, n_limit), *sizes)
        found = [self._mnk(block, fits, m_tiles, n_limit)]
        a_b_c = (block.m + block.n) * block.k * sizes[0] + block.m * block.n * sizes[1]
        steps = cost.ceil_div(block.k, cost.tile_k(block.k, int(fits.k_beside_m[0]), hardware.cube_k))
        if a_b_c + cost.PARTIAL_BYTES * block.m * block.n * (steps - 1) <= found[0].traffic:
            found += [self._nkm(block, fits, n_limit), self._mkn(block, fits, m_tiles)]
        least = min(tiling.traffic for tiling in found)
        # At equal traffic: the larger m, the larger n, then the order as listed, which max keeps.
        return max((tiling for tiling in found if tiling.traffic == least), key=lambda tiling: tiling.tile[:2])

    def _mnk(self, block: cost.Block, fits: _Fits, m_tiles: int, n_limit: int) -> cost.Tiling:
        n_tiles = np.minimum(fits.n_beside_m[:m_tiles], n_limit).astype(self._dtype, copy=False)
        loads_a = -(-block.n // n_tiles)
        loads_b = -(-block.m // fits.m[:m_tiles].astype(self._dtype, copy=False))
        costs = block.m * block.k * self._in_bytes * loads_a + block.k * block.n * self._in_bytes * loads_b
        chosen = _last_least(costs)
        self.tiles += m_tiles
        return self._tiling(block, self._tile(block, int(fits.m[chosen]), int(n_tiles[chosen])), "mnk")

    def _nkm(self, block: cost.Block, fits: _Fits, n_limit: int) -> cost.Tiling:
        count = min(n_limit // self._hardware.cube_n, len(fits.n))
        n_tiles = fits.n[:count].astype(self._dtype, copy=False)
        steps = self._steps(block, fits.k_beside_n[:count])
        loads_a = -(-block.n // n_tiles)
        costs = block.m * block.k * self._in_bytes * loads_a + cost.PARTIAL_BYTES * block.m * block.n * (steps - 1)
        self.tiles += count
        # Each n of least traffic with the largest m that costs no further step along k.
        tiles = [
            (
                self._largest(
                    block,
                    int(steps[index]),
                    fits.m,
                    cost.align_up(block.m, self._hardware.cube_m),
                    n=int(fits.n[index]),
                ),
                int(fits.n[index]),
            )
            for index in np.flatnonzero(costs == costs.min())
        ]
        return self._tiling(block, self._tile(block, *max(tiles)), "nkm")

    def _mkn(self, block: cost.Block, fits: _Fits, m_tiles: int) -> cost.Tiling:
        steps = self._steps(block, fits.k_beside_m[:m_tiles])
        loads_b = -(-block.m // fits.m[:m_tiles].astype(self._dtype, copy=False))
        costs = block.k * block.n * self._in_bytes * loads_b + cost.PARTIAL_BYTES * block.m * block.n * (steps - 1)
        chosen = _last_least(costs)
        self.tiles += m_tiles
        m = int(fits.m[chosen])
        n = self._largest(block, int(steps[chosen]), fits.n, cost.align_up(block.n, self._hardware.cube_n), m=m)
        return self._tiling(block, self._tile(block, m, n), "mkn")

    def _steps(self, block: cost.Block, fitting: NDArray[np.int64]) -> Any:
        """The number of steps along k, for each tile length along k in ``fitting``."""
        size, cube = np.minimum(fitting, block.k), self._hardware.cube_k
        size = np.where(size >= cube, size - size % cube, size).astype(self._dtype, copy=False)
        return -(-block.k // size)

    def _largest(
        self, block: cost.Block, steps: int, sizes: NDArray[np.int64], limit: int, *, m: int = 0, n: int = 0
    ) -> int:
        """The largest tile size along m or n with at most ``steps`` tiles along k.

        The tile's size in the other dimension is ``m`` or ``n``. Larger tiles need more steps, so the size is found by
        bisection.
        """
        cube = int(sizes[0])
        low, high = 1, min(limit // cube, len(sizes))
        while low < high:
            middle = (low + high + 1) // 2
            size = middle * cube
            fitting = cost.fitting_k(self._hardware, m or size, n or size, self._in_bytes, self._out_bytes)
            enough = (
                fitting >= 1 and cost.ceil_div(block.k, cost.tile_k(block.k, fitting, self._hardware.cube_k)) <= steps
            )
            low, high = (middle, high) if enough else (low, middle - 1)
        return low * cube

    def _tile(self, block: cost.Block, m: int, n: int) -> cost.Tile:
        fitting = cost.fitting_k(self._hardware, m, n, self._in_bytes, self._out_bytes)
        return cost.Tile(m, n, cost.tile_k(block.k, fitting, self._hardware.cube_k))

    def _tiling(self, block: cost.Block, tile: cost.Tile, order: str) -> cost.Tiling:
        return cost.Tiling(tile, order, cost.traffic(block, tile, order, self._in_bytes, self._out_bytes))


class _Fits:
    """The tile sizes that fit into a chip's SRAM, for any problem.

    Attributes:
        m, n: the tile sizes of one dimension that fit with the smallest size of the other, ascending.
        n_beside_m: for each m, the largest n that fits.
        k_beside_m, k_beside_n: the length along k that fits, for each m with the smallest n, and for each n with the
            smallest m.
    """

    def __init__(self, hardware: Hardware, in_bytes: int, out_bytes: int) -> None:
        def k_fitting(m: Any, n: Any) -> Any:
            rows = -(-m // hardware.lane_num) * hardware.lane_num
            columns = -(-n // hardware.lane_num) * hardware.lane_num
            row_bytes = -(-n * out_bytes // hardware.align_bytes) * hardware.align_bytes
            return (hardware.usable_sram - rows * row_bytes) // ((rows + columns) * in_bytes)

        most_m, most_n = most_tiles(hardware, in_bytes, out_bytes)
        if max(most_m, most_n) > _MOST_TILES:
            raise InvalidHardware(
                f"sram_bytes {hardware.sram_bytes:,} holds more than {_MOST_TILES:,} sizes of tile; "
                "give larger cube_m and cube_n, or less SRAM"
            )
        m = hardware.cube_m * np.arange(1, most_m + 1, dtype=np.int64)
        n = hardware.cube_n * np.arange(1, most_n + 1, dtype=np.int64)
        self.k_beside_m = k_fitting(m, np.int64(hardware.cube_n))
        self.k_beside_n = k_fitting(np.int64(hardware.cube_m), n)
        self.m, self.k_beside_m = m[self.k_beside_m >= 1], self.k_beside_m[self.k_beside_m >= 1]
        self.n, self.k_beside_n = n[self.k_beside_n >= 1], self.k_beside_n[self.k_beside_n >= 1]
        low, high = np.ones_like(self.m), np.full_like(self.m, len(self.n))
        while (low < high).any():
            middle = (low + high + 1) // 2
            enough = k_fitting(self.m, middle * hardware.cube_n) >= 1
            low, high = np.where(enough, middle, low), np.where(enough, high, np.maximum(middle - 1, low))
        self.n_beside_m = low * hardware.cube_n


def most_tiles(hardware: Hardware, in_bytes: int = 1, out_bytes: int = 1) -> tuple[int, int]:
    """The most tile sizes that fit the chip along m, and along n; the time and memory of a search grow with them."""
    # A tile of C with one row and column of A and B takes at least this much for each row.
    row_bytes = cost.align_up(hardware.cube_n * out_bytes, hardware.align_bytes) + in_bytes
    column_bytes = cost.align_up(hardware.cube_m, hardware.lane_num) * out_bytes + in_bytes
    most_m = hardware.usable_sram // row_bytes // hardware.cube_m
    return most_m, hardware.usable_sram // column_bytes // hardware.cube_n


@lru_cache(maxsize=16)  # of 40 bytes for each size of tile
def _fits(hardware: Hardware, in_bytes: int, out_bytes: int) -> _Fits:
    return _Fits(hardware, in_bytes, out_bytes)


def _last_least(costs: Any) -> int:
    """The last index of the lowest cost; as tile sizes ascend, it is that of the largest tile."""
    return len(costs) - 1 - int(costs[::-1].argmin())
