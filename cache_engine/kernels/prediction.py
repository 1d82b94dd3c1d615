"""The cost model: predicts how many cycles each feasible config of a family takes, to rank configs.

It is not exact: it knows tiles, waves, slices of k, and the ``rates`` of the target. m, n and k enter only as the
number of tiles and of steps along k. If kernels convert fp8, ``predicted_cycles`` counts the conversions, and the
choice of a config does not: docs/decisions/0024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from math import gcd, inf
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

import msgspec

from cache_engine.errors import InfeasibleConfig
from cache_engine.kernels.family import Family, check_config, threads_of
from cache_engine.kernels.rates import L2_BYTES, SCHEDULERS, SHARED_BYTES, rates_of
from cache_engine.model.architecture import Architecture, occupancy
from cache_engine.model.gemm import SCALE_BLOCK, DType, GemmProblem, Scales
from cache_engine.model.kernel import KernelConfig

if TYPE_CHECKING:
    from cache_engine.kernels.agreement import Factors

STEADY = 0.05
"""Configs whose predicted cycles exceed the lowest by at most this share count as equally fast."""

NOT_HIDDEN = 0.25
"""The share of the shorter works that is not hidden behind the longest one (computing, L2, shared memory)."""
# Cycles from the request of a tile to its arrival, shared by the stages in flight.
_LATENCY = 800
# Split-k: the fewest steps of a slice, the most slices of a tile, and the cycles to report and wait for the last slice.
_STEPS_PER_SLICE = 4
_MOST_SLICES = 16
_HANDING_OVER = 4 * _LATENCY
_REGISTER_BYTES = 4 * 32  # bytes of a register of a whole warp
_ROUNDING = 1e-9  # a share, far above the rounding errors of a prediction

CYCLES = itemgetter(0)


class Candidate(msgspec.Struct, frozen=True):
    """A feasible config, with the parts of its prediction that do not depend on m, n and k. Cycles are of one SM.

    Attributes:
        blocks_per_sm: the number of blocks that an SM holds at once.
        busy_cycles: the cycles of work for one step along k of one block.
        wait_cycles: the fewest cycles of a step, because of memory latency.
        step_cycles: the larger of ``busy_cycles`` and ``wait_cycles``.
        full_cycles: the cycles of a step when the SM holds as many blocks as it can.
        slice_cycles: the cycles to write, or to read, the accumulators of one slice of k.
        by_a100: the same candidate with the rates of an A100; ``None`` in that one itself.
    """

    config: KernelConfig
    block_m: int
    block_n: int
    block_k: int
    stages: int
    blocks_per_sm: int
    busy_cycles: float
    wait_cycles: float
    step_cycles: float
    full_cycles: float
    slice_cycles: float
    by_a100: Candidate | None


Predicted = tuple[float, Candidate, int, int]
"""Predicted cycles, the candidate, the number of tiles of C, and the number of slices of k in each tile."""


class Candidates(msgspec.Struct, frozen=True, eq=False):
    """The feasible configs of a family for one type, kind of scales and target. Each combination has one object.

    Attributes:
        members: the feasible configs.
        by_tile: for each size of a tile, its rows and columns, the members with this tile in the order of ``members``,
            and the fewest cycles that any of them takes for one element of C and one of k.
        sms: the number of SMs of the target's example GPU.
        most_slices: the largest number of slices of k in a tile.
        steps: three numbers that divide every member's block_m, block_n and block_k. Values of m that round up to the
            same multiple of the first have the same predictions; the same holds for n and k.
    """

    members: tuple[Candidate, ...]
    by_tile: tuple[tuple[int, int, tuple[Candidate, ...], float], ...]
    sms: int
    most_slices: int
    steps: tuple[int, int, int]

    def predicted(self, m: int, n: int, k: int, batch: int, within: float = inf) -> list[Predicted]:
        """The predictions for every member: without split-k, and with the number of slices that it would use.

        Args:
            within: predictions that exceed the fewest cycles by more than this share may be left out. For a large
                problem most are left out without being computed.
        """
        found: list[Predicted] = []
        most, allowed, work = inf, 1 + within, m * n * k * batch / self.sms
        for block_m, block_n, members, least in self.by_tile:
            if work * least <= most:
                self.add(found, members, -(-m // block_m) * -(-n // block_n) * batch, k)
                last = found[-1][0] * allowed
                if last < most:  # noqa: PLR1730 (faster than calling min)
                    most = last
        return found

    def add(self, found: list[Predicted], members: Sequence[Candidate], tiles: int, k: int) -> None:
        """Appends to ``found`` the predictions of ``members`` for ``tiles`` tiles of C, with and without split-k.

        The arithmetic is that of ``cycles_of``, repeated here for speed: choosing for a new shape spends most of its
        time here.
        """
        sms = self.sms
        slices = sms // tiles
        if slices < 2:  # nothing to split
            share = -(-tiles // sms)
            for one in members:
                steps, resident = one.stages - (-k // one.block_k), one.blocks_per_sm
                if share > resident:
                    cycles = -(-share // resident) * steps * one.full_cycles
                else:
                    busy, wait = share * one.busy_cycles, one.wait_cycles
                    cycles = steps * (busy if busy > wait else wait)  # noqa: FURB136 (faster than calling max)
                found.append((cycles, one, tiles, 1))
            return
        # The tiles leave SMs idle: take as many slices as fill the SMs once, each of a few steps at least.
        most = min(slices, self.most_slices)
        for one in members:
            steps, stages, step_cycles = -(-k // one.block_k), one.stages, one.step_cycles
            found.append(((steps + stages) * step_cycles, one, tiles, 1))
            split = steps // _STEPS_PER_SLICE
            if split > most:  # noqa: PLR1730
                split = most
            if split > 1:
                each = -(-steps // split)
                split = -(-steps // each)  # none of them empty
                cycles = (each + stages) * step_cycles + _HANDING_OVER + (1 + split) * one.slice_cycles
                found.append((cycles, one, tiles, split))

    def steadiest(self, predicted: Sequence[Predicted], k: int) -> KernelConfig:
        """Of the configs within ``STEADY`` of the fewest cycles, the one that is fastest by an A100's rates."""
        most = min(predicted, key=CYCLES)[0] * (1 + STEADY)
        near = [one for one in predicted if one[0] <= most]
        if len(near) > 1:
            sms = self.sms
            by_a100 = [cycles_of(one.by_a100 or one, tiles, k, sms, split) for _, one, tiles, split in near]
            near = [near[by_a100.index(min(by_a100))]]
        _, candidate, _, split = near[0]
        return split_config(candidate.config, split)


def cycles_of(candidate: Candidate, tiles: int, k: int, sms: int, split: int) -> float:
    """The predicted cycles for ``tiles`` tiles of C, each divided into ``split`` slices of k that run together."""
    steps, stages = -(-k // candidate.block_k), candidate.stages
    if split > 1:
        made = (-(-steps // split) + stages) * candidate.step_cycles
        return made + _HANDING_OVER + (1 + split) * candidate.slice_cycles
    share, resident = -(-tiles // sms), candidate.blocks_per_sm
    if share > resident:
        return -(-share // resident) * (steps + stages) * candidate.full_cycles
    return (steps + stages) * max(share * candidate.busy_cycles, candidate.wait_cycles)


@lru_cache(maxsize=1024)
def split_config(config: KernelConfig, slices: int) -> KernelConfig:
    """The config with ``slices`` slices of k."""
    return config if slices == 1 else replace(config, split_k=slices)


@lru_cache(maxsize=256)
def candidates_of(
    family: Family,
    dtype: DType,
    scales: Scales,
    target: Architecture,
    factors: Factors,
    fp8_result: DType | None = None,
    converted: bool = False,
) -> Candidates:
    """The feasible configs of a family; pass all arguments by position, which makes the cache twice as fast.

    Args:
        factors: corrections of the predictions, from timings.
        fp8_result: the type of C if it is fp8; other types of C do not change a limit.
        converted: whether kernels convert elements to fp16 and multiply those.
    """
    # Limits depend neither on sizes nor on the mode.
    problem = GemmProblem(1, 1, SCALE_BLOCK, dtype=dtype, out_dtype=fp8_result, scales=scales, arch=target.name)
    corrected = {tile: factor for named, tile, factor in factors if named == family.name}
    found = []
    for config in family.configs(problem):
        try:
            check_config(family, problem, config, target)
        except InfeasibleConfig:
            continue
        factor = corrected.get((config.block_m, config.block_n), 1.0)
        found.append(candidate_of(family, problem, config, target, factor, converted=converted))
    by_tile = ((tile, tuple(same)) for tile, same in groupby(found, attrgetter("block_m", "block_n")))
    return Candidates(
        tuple(found),
        tuple((*tile, same, min(map(_least_cycles, same))) for tile, same in by_tile),
        target.example_sms,
        _MOST_SLICES if family.splits_k else 1,
        (
            gcd(*(one.block_m for one in found)),
            gcd(*(one.block_n for one in found)),
            gcd(*(one.block_k for one in found)),
        ),
    )


def _least_cycles(candidate: Candidate) -> float:
    """A lower bound of the predicted cycles for one element of C and k: without waits, partial tiles and idle SMs."""
    size = candidate.block_m * candidate.block_n * candidate.block_k
    return candidate.busy_cycles / size * (1 - _ROUNDING)


def candidate_of(
    family: Family, problem: GemmProblem, config: KernelConfig, target: Architecture, factor: float = 1.0, *,
    converted: bool = False,
) -> Candidate:  # fmt: skip
    """The candidate of a config: its prediction with the rates of the target, and with those of an A100.

    Args:
        factor: the correction of the prediction, from timings.
        converted: whether the kernel converts elements to fp16 and multiplies those.
    """
    resident = occupancy(
        target,
        threads=threads_of(family, config),
        registers=family.registers_estimate(problem, config),
        shared_bytes=family.shared_bytes(problem, config),
    )
    slice_cycles = config.block_m * config.block_n * problem.accumulate.itemsize / L2_BYTES
    rate = rates_of(target).operations(family.unit, DType.FP16 if converted else problem.dtype)
    busy = _busy_cycles(family, problem, config, rate, converted=converted)
    busy_a100 = _busy_cycles(family, problem, config, family.flops_per_clock[problem.dtype])

    def at(busy: float, factor: float, by_a100: Candidate | None = None) -> Candidate:
        busy, wait = factor * busy, factor * _LATENCY / config.stages
        blocks = max(1, resident.blocks_per_sm)
        sizes = (config.block_m, config.block_n, config.block_k, config.stages)
        step, full = max(busy, wait), max(blocks * busy, wait)
        return Candidate(config, *sizes, blocks, busy, wait, step, full, factor * slice_cycles, by_a100)

    return at(busy, factor, at(busy_a100, 1.0))


def _busy_cycles(
    family: Family, problem: GemmProblem, config: KernelConfig, flops_per_clock: float, *, converted: bool = False
) -> float:
    """The cycles of work of an SM for one step along k of one block."""
    itemsize = problem.dtype.itemsize
    compute = 2 * config.block_m * config.block_n * config.block_k / flops_per_clock
    from_l2 = (config.block_m + config.block_n) * config.block_k * itemsize / L2_BYTES
    read = family.shared_traffic_bytes(problem, config)
    from_shared = read / SHARED_BYTES
    # A warp converts each register that it reads into two, with one instruction for each of these.
    converting = 2 * read / _REGISTER_BYTES / SCHEDULERS if converted else 0.0
    longest = max(compute, from_l2, from_shared, converting)
    return longest + NOT_HIDDEN * (compute + from_l2 + from_shared + converting - longest)
