"""What a grouped launch costs: its products together on one chip, not a sum of lone launches.

On the core grid one partition holds for the whole launch. Its ``g`` parts are sets of cores; products are dealt to
them, the longest first, each to the set that is free the soonest. A set streams through its products without a stop
between them: its computing and its traffic add up, and overlap as in one product. The launch takes as long as its
slowest set. With products of equal size that is the batch of the core-grid model, to the last bit but rounding.

On a GPU the tiles of all products share waves, and their bytes add up: ``gpu.predict_grouped``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from cache_engine.errors import SearchStopped
from cache_engine.evaluator.cost import (
    Evaluation,
    Partition,
    SearchMode,
    Tiling,
    Times,
    describe,
    fixed_partition,
    nominal_block,
    overlapped,
    times,
)
from cache_engine.evaluator.gpu import Prediction, predict, predict_grouped
from cache_engine.evaluator.gpus import Gpu
from cache_engine.evaluator.groups import GroupedProblem, Work
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.search import SLACK, BlockSearch, evaluate, least_latency, least_times, partitions_of
from cache_engine.settings.extras import lazy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = lazy("numpy", "evaluate", "the search")


def evaluate_work(
    work: Work, hardware: Hardware, mode: SearchMode | None = None, may_go_on: Callable[[], bool] = lambda: True
) -> Evaluation:
    """The best that the core-grid model finds for a launch; raises as ``search.evaluate``.

    Of a grouped launch the tile and loop order are those of its largest product.
    """
    mode = mode or SearchMode()
    if isinstance(work, EvaluationProblem):
        return evaluate(work, hardware, mode, may_go_on)
    mode = mode.on(hardware, work.dtype)
    search = _GroupSearch(work, hardware, mode)
    if not mode.partition_search:
        return search.described(fixed_partition(hardware.num_cores), 1)
    partitions, grid = partitions_of(hardware.num_cores)
    bounds = search.bounds(grid)
    least, first, looked_at = float("inf"), len(partitions), 0
    for index in np.argsort(bounds, kind="stable").tolist():
        if bounds[index] > least * SLACK:
            break
        if not may_go_on():
            raise SearchStopped(f"the search for {work.batch} grouped products on {hardware.name} was stopped")
        looked_at += 1
        latency = search.slowest(partitions[index]).latency
        if latency < least or (latency == least and index < first):
            least, first = latency, index
    return search.described(partitions[first], looked_at)


class _GroupSearch:
    """Partitions of one grouped launch."""

    def __init__(self, work: GroupedProblem, hardware: Hardware, mode: SearchMode) -> None:
        self._work, self._hardware, self._mode = work, hardware, mode
        self._searches = [BlockSearch(part, hardware, mode) for part in work.parts]
        self._single = [EvaluationProblem(part.m, part.n, part.k, 1, part.dtype, part.out_dtype) for part in work.parts]

    def bounds(self, grid: NDArray[np.float64]) -> NDArray[np.float64]:
        """For each partition, microseconds that it takes at least: its largest product, and its sets' average."""
        compute = memory = np.zeros(grid.shape[1])
        longest = np.zeros(grid.shape[1])
        for one, part in zip(self._single, self._work.parts, strict=True):
            computing, moving = least_times(one, self._hardware, self._mode, grid)
            compute, memory = compute + part.batch * computing, memory + part.batch * moving
            longest = np.maximum(longest, least_latency(self._hardware, computing, moving))
        sets = grid[0]
        return np.maximum(longest, least_latency(self._hardware, compute / sets, memory / sets))

    def slowest(self, partition: Partition) -> Times:
        """The slowest set of cores."""
        each = [self._times(index, partition) for index in range(len(self._single))]
        dealt = _dealt([took.latency for took in each], [part.batch for part in self._work.parts], partition.g)
        overlap = self._hardware.compute_dma_overlap
        sets = []
        for counts in dealt:
            compute = sum(count * took.compute for count, took in zip(counts, each, strict=True))
            memory = sum(count * took.memory for count, took in zip(counts, each, strict=True))
            sets.append(Times(overlapped(compute, memory, overlap), compute, memory))
        return max(sets)

    def _times(self, index: int, partition: Partition) -> Times:
        return times(self._hardware, self._mode, self._single[index], partition, self._tiling(index, partition))

    def _tiling(self, index: int, partition: Partition) -> Tiling:
        return self._searches[index].tiling(nominal_block(self._single[index], partition)[1])

    def described(self, partition: Partition, looked_at: int) -> Evaluation:
        """Everything about a partition; sums go over all products and cores."""
        took, parts = self.slowest(partition), self._work.parts
        tilings = [self._tiling(index, partition) for index in range(len(parts))]
        found = [
            describe(self._hardware, self._mode, part, partition, tiling, (0, 0))
            for part, tiling in zip(parts, tilings, strict=True)
        ]
        flops, peak = self._work.flops, self._hardware.peak_flops * self._hardware.rate_of(self._work.dtype)
        return Evaluation(
            latency_us=took.latency,
            compute_us=took.compute,
            memory_us=took.memory,
            flops=flops,
            traffic_bytes=sum(one.traffic_bytes for one in found),
            arch_utilization=took.compute / took.latency,
            effective_utilization=flops / (took.latency * 1e-6 * peak),
            alignment_efficiency=flops / sum(one.flops / one.alignment_efficiency for one in found),
            tile=tilings[0].tile,
            order=tilings[0].order,
            partition=partition,
            searched_partitions=looked_at,
            searched_tiles=sum(search.tiles for search in self._searches),
        )


def predict_work(work: Work, gpu: Gpu) -> Prediction:
    """The predicted latency of a launch on a GPU; raises as ``gpu.predict``."""
    if isinstance(work, EvaluationProblem):
        return predict(work, gpu)
    rows = [rows for rows, count in work.groups for _ in range(count)]
    return predict_grouped(rows, work.n, work.k, gpu, work.dtype, work.parts[0].out_dtype, work.scales)


def _dealt(lengths: Sequence[float], counts: Sequence[int], sets: int) -> list[list[int]]:
    """How many products of each kind each set gets."""
    dealt = [[0] * len(counts) for _ in range(sets)]
    free = [(0.0, number) for number in range(sets)]
    heapify(free)
    for kind in sorted(range(len(counts)), key=lambda kind: -lengths[kind]):
        for _ in range(counts[kind]):
            busy, number = free[0]
            dealt[number][kind] += 1
            heapreplace(free, (busy + lengths[kind], number))
    return dealt
