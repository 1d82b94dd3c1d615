"""The cost of a grouped launch: its products together on one chip, which is not the sum of single launches.

A grouped launch has products with the same n and k, but each with its own m. Such are the experts of a layer: each
token goes to some of them, so they get different numbers of rows.

On the core grid, one partition holds for the whole launch. Its ``g`` parts are sets of cores; products are dealt to
the sets, the longest first, each to the set that is free the soonest. A set computes its products without a stop in
between: their computing times and their traffic add up, and overlap as in one product. The launch takes as long
as its slowest set. With products of equal size, the result is that of a batch in the core-grid model, except for
rounding in the last bit.

On a GPU, the tiles of all products share waves, and their bytes add up: ``gpu.predict_grouped``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from cache_engine.errors import InvalidProblem
from cache_engine.evaluator import cost
from cache_engine.evaluator.chips import Gpu
from cache_engine.evaluator.gpu import Prediction, predict, predict_grouped
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.search import BlockSearch, evaluate, fastest, least_latency, least_times, partitions_of
from cache_engine.model.gemm import DType, GemmProblem, Mode
from cache_engine.settings.extras import lazy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = lazy("numpy", "evaluate", "the search")


@dataclass(frozen=True)
class GroupedProblem:
    """Several products C = A · B in one launch, with the same n and k.

    Attributes:
        groups: each number of rows with the number of products that have it, most rows first. Products without rows are
            left out.
    """

    groups: tuple[tuple[int, int], ...]
    n: int
    k: int
    dtype: str = "bf16"
    out_dtype: str = ""
    scales: str = ""

    @cached_property
    def parts(self) -> tuple[EvaluationProblem, ...]:
        """The launch as batches, one for the products of each number of rows."""
        return tuple(
            EvaluationProblem(rows, self.n, self.k, count, self.dtype, self.out_dtype, self.scales)
            for rows, count in self.groups
        )

    @property
    def m(self) -> int:
        """The number of rows of the product with the most rows."""
        return self.groups[0][0]

    @property
    def batch(self) -> int:
        """The number of products that have rows."""
        return sum(count for _, count in self.groups)

    @property
    def rows(self) -> int:
        """The number of rows of all products together."""
        return sum(rows * count for rows, count in self.groups)

    @property
    def flops(self) -> int:
        """The floating-point operations of all products; a multiply-add counts as two."""
        return sum(part.flops for part in self.parts)

    @property
    def moved_bytes(self) -> int:
        """The bytes of all A, B and C, each counted once."""
        return sum(part.moved_bytes for part in self.parts)


Work = EvaluationProblem | GroupedProblem


def grouped(
    rows: Iterable[int], n: int, k: int, dtype: str = "bf16", out_dtype: str = "", scales: str = ""
) -> Work | None:
    """A launch of products with these numbers of rows: a batch if all are equal; ``None`` if no product has rows."""
    groups = tuple(sorted(((one, count) for one, count in Counter(rows).items() if one), reverse=True))
    if len(groups) > 1:
        return GroupedProblem(groups, n, k, dtype, out_dtype, scales)
    return EvaluationProblem(groups[0][0], n, k, groups[0][1], dtype, out_dtype, scales) if groups else None


def work_of(problem: GemmProblem) -> Work:
    """The work of a kernel's launch, with equal groups: the rows of each group are known only on the device.

    Groups that share their rows (``grouped``) get equal shares, or one more; groups with rows of their own (``masked``)
    use all of them. Both types of fp8 are equally fast, and count as ``fp8``.
    """
    p = problem
    dtype = "fp8" if p.dtype in (DType.FP8_E4M3, DType.FP8_E5M2) else p.dtype.value
    each, more = divmod(p.m, p.batch) if p.mode is Mode.GROUPED else (p.m, 0)
    if each and more:
        groups = ((each + 1, more), (each, p.batch - more))
        return GroupedProblem(groups, p.n, p.k, dtype, p.output.value, p.scales.value)
    return EvaluationProblem(each or 1, p.n, p.k, more or p.batch, dtype, p.output.value, p.scales.value)


def zipf(experts: int, skew: float) -> list[float]:
    """The share of tokens for each expert: that of the r-th is proportional to 1 / r^skew. With skew 0, all are equal.

    Raises:
        InvalidProblem: when the skew is not a number from 0 to 10.
    """
    if not 0 <= skew <= 10:
        raise InvalidProblem(f"skew is {skew:g}; it must be a number from 0 to 10")
    return [(rank + 1) ** -skew for rank in range(experts)]


def routed(tokens: int, per_token: int, weights: Sequence[float]) -> list[int]:
    """The rows that each expert gets: in proportion to the weights, but each token goes to an expert at most once.

    Rows are whole numbers: the proportions are rounded down, and the rows that are then left go to the experts with the
    largest remainders, the first among equals.

    Raises:
        InvalidProblem: when fewer experts than ``per_token`` have a weight.
    """
    rows, left = [0] * len(weights), tokens * per_token
    if per_token <= len(weights) and min(weights) == max(weights) > 0:  # the usual case, without a search
        each, more = divmod(left, len(weights))
        return [each + 1] * more + [each] * (len(weights) - more)
    wanted = {expert for expert, weight in enumerate(weights) if weight > 0}
    if len(wanted) < per_token:
        raise InvalidProblem(f"a token goes to {per_token} experts, and only {len(wanted)} get any")
    while True:
        scale = left / math.fsum(weights[expert] for expert in wanted) if wanted else 0
        full = {expert for expert in wanted if weights[expert] * scale >= tokens}
        if not full:
            break
        for expert in full:
            rows[expert] = tokens
        left -= tokens * len(full)
        wanted -= full
    shares = {expert: weights[expert] * scale for expert in wanted}
    for expert, share in shares.items():
        rows[expert] = int(share)
    left -= sum(rows[expert] for expert in wanted)
    for expert in sorted(wanted, key=lambda expert: (rows[expert] - shares[expert], expert))[:left]:
        rows[expert] += 1
    return rows


def busiest(shares: Iterable[Sequence[int]]) -> Sequence[int]:
    """The rows of the experts on the chip with the most rows; among equals, on the chip with more used experts."""
    return max(shares, key=lambda rows: (sum(rows), sum(map(bool, rows))))


def evaluate_work(
    work: Work, hardware: Hardware, mode: cost.SearchMode | None = None, may_go_on: Callable[[], bool] = lambda: True
) -> cost.Evaluation:
    """The best result of the core-grid model for a launch; raises as ``search.evaluate``.

    For a grouped launch, the tile and loop order are those of its largest product.
    """
    mode = mode or cost.SearchMode()
    if isinstance(work, EvaluationProblem):
        return evaluate(work, hardware, mode, may_go_on)
    mode = mode.on(hardware, work.dtype)
    search = _GroupSearch(work, hardware, mode)
    if not mode.partition_search:
        return search.described(cost.fixed_partition(hardware.num_cores), 1)
    partitions, grid = partitions_of(hardware.num_cores)
    bounds = search.bounds(grid)
    what = f"the search for {work.batch} grouped products on {hardware.name}"
    first, looked_at = fastest(bounds, lambda index: search.slowest(partitions[index]).latency, may_go_on, what)
    return search.described(partitions[first], looked_at)


class _GroupSearch:
    """Evaluates partitions for one grouped launch."""

    def __init__(self, work: GroupedProblem, hardware: Hardware, mode: cost.SearchMode) -> None:
        self._work, self._hardware, self._mode = work, hardware, mode
        self._searches = [BlockSearch(part, hardware, mode) for part in work.parts]
        self._single = [EvaluationProblem(part.m, part.n, part.k, 1, part.dtype, part.out_dtype) for part in work.parts]

    def bounds(self, grid: NDArray[np.float64]) -> NDArray[np.float64]:
        """A lower bound of each partition's time in µs: of its longest product or, if longer, its sets' average."""
        compute = memory = np.zeros(grid.shape[1])
        longest = np.zeros(grid.shape[1])
        for one, part in zip(self._single, self._work.parts, strict=True):
            computing, moving = least_times(one, self._hardware, self._mode, grid)
            compute, memory = compute + part.batch * computing, memory + part.batch * moving
            longest = np.maximum(longest, least_latency(self._hardware, computing, moving))
        sets = grid[0]
        return np.maximum(longest, least_latency(self._hardware, compute / sets, memory / sets))

    def slowest(self, partition: cost.Partition) -> cost.Times:
        """The times of the slowest set of cores."""
        each = [self._times(index, partition) for index in range(len(self._single))]
        dealt = _dealt([took.latency for took in each], [part.batch for part in self._work.parts], partition.g)
        overlap = self._hardware.compute_dma_overlap
        sets = []
        for counts in dealt:
            compute = sum(count * took.compute for count, took in zip(counts, each, strict=True))
            memory = sum(count * took.memory for count, took in zip(counts, each, strict=True))
            sets.append(cost.Times(cost.overlapped(compute, memory, overlap), compute, memory))
        return max(sets)

    def _times(self, index: int, partition: cost.Partition) -> cost.Times:
        return cost.times(self._hardware, self._mode, self._single[index], partition, self._tiling(index, partition))

    def _tiling(self, index: int, partition: cost.Partition) -> cost.Tiling:
        return self._searches[index].tiling(cost.nominal_block(self._single[index], partition)[1])

    def described(self, partition: cost.Partition, looked_at: int) -> cost.Evaluation:
        """The result for a partition; sums are over all products and cores."""
        took, parts = self.slowest(partition), self._work.parts
        tilings = [self._tiling(index, partition) for index in range(len(parts))]
        found = [
            cost.describe(self._hardware, self._mode, part, partition, tiling, (0, 0))
            for part, tiling in zip(parts, tilings, strict=True)
        ]
        flops, peak = self._work.flops, self._hardware.peak_flops * self._hardware.rate_of(self._work.dtype)
        return cost.Evaluation(
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
    """The number of products of each kind for each set of cores; ``lengths`` has a product's time for each kind."""
    dealt = [[0] * len(counts) for _ in range(sets)]
    free = [(0.0, number) for number in range(sets)]
    heapify(free)
    for kind in sorted(range(len(counts)), key=lambda kind: -lengths[kind]):
        for _ in range(counts[kind]):
            busy, number = free[0]
            dealt[number][kind] += 1
            heapreplace(free, (busy + lengths[kind], number))
    return dealt
