"""Which family and config serve a problem, as far as is known without measuring.

A simple cost model: of the configs that are feasible on the target, the one with the fewest predicted cycles. The
prediction is a ranking, no promise: it knows tiles, waves, slices of k, and the target's ``rates``. Of configs that are
within ``STEADY`` of the fewest, it takes the one that an A100's rates would choose: these stood for every target
once, and a kernel that is in a store is worth more than a difference too small to be certain. Where there are
measurements they come before it: see ``selection`` and ``history``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from operator import itemgetter

from cache_engine.errors import InfeasibleConfig, InvalidProblem, UsageError
from cache_engine.kernels.agreement import Factors
from cache_engine.kernels.family import Family, check_config, threads_of
from cache_engine.kernels.grouped import Grouped
from cache_engine.kernels.hopper import Hopper
from cache_engine.kernels.rates import L2_BYTES, SHARED_BYTES, rates_of
from cache_engine.kernels.scaled import Scaled
from cache_engine.kernels.simt import Simt
from cache_engine.kernels.tensor_core import TensorCore
from cache_engine.kernels.triton_matmul import TritonMatmul
from cache_engine.model.architecture import Architecture, architecture
from cache_engine.model.gemm import NO_EPILOGUE, SCALE_BLOCK, DType, GemmProblem, Mode, Scales
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.occupancy import occupancy

_ALL: tuple[Family, ...] = (TensorCore(), Scaled(), Simt(), TritonMatmul(), Hopper(), Grouped())
FAMILIES = {family.name: family for family in _ALL}

STEADY = 0.05
"""By which share more predicted cycles do not count."""

# Of what is not the bottleneck, this share shows all the same.
_NOT_HIDDEN = 0.25
# Clocks from asking for a tile to having it, shared by the stages in flight.
_LATENCY = 800
# Split-k: no slice is shorter; no tile has more slices; and what counting in and waiting for the last costs, in clocks.
_STEPS_PER_SLICE = 4
_MOST_SLICES = 16
_HANDING_OVER = 4 * _LATENCY

_CYCLES = itemgetter(0)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A feasible config, with the parts of its prediction that do not depend on m, n and k.

    Attributes:
        by_a100: the same with an A100's rates.
    """

    config: KernelConfig
    block_m: int
    block_n: int
    block_k: int
    stages: int
    blocks_per_sm: int
    busy_cycles: float  # of the SM, for one block and one step in k
    wait_cycles: float  # no step is shorter than this
    step_cycles: float  # the longer of the two
    slice_cycles: float  # to write or to read one slice's sums
    by_a100: _Candidate | None


def choose(
    problem: GemmProblem,
    family: str | None = None,
    config: KernelConfig | None = None,
    templates: str = ".cu",
    factors: Factors = (),
) -> tuple[Family, KernelConfig]:
    """The family and config for a problem whose target is set.

    Args:
        family: the name of the family. ``None``: the first that computes these dtypes on this target.
        config: the config, which is checked. ``None``: the one with the fewest predicted cycles.
        templates: without ``family``, only families whose templates have this suffix are considered: ``.cu`` for CUDA
            compilers, ``.py`` for Triton.
        factors: what timings correct in the predictions.

    Raises:
        InvalidProblem: when no family computes these dtypes on this target.
        UsageError: when ``family`` is unknown or does not.
        InfeasibleConfig: when ``config`` breaks a limit.
    """
    chosen = _family_for(problem, family, templates)
    if config is not None:
        check_config(chosen, problem, config, architecture(problem.arch or ""))
        return chosen, config
    return chosen, _best_config(chosen.name, problem, factors)


def _family_for(problem: GemmProblem, name: str | None, templates: str) -> Family:
    target = architecture(problem.arch or "")
    if name is not None and name not in FAMILIES:
        raise UsageError(f"unknown family {name!r}; use one of: {', '.join(FAMILIES)}")
    of_kind = [family for family in FAMILIES.values() if family.takes(problem)]
    offered = [family for family in of_kind if family.template.endswith(templates)]
    candidates = offered if name is None else [FAMILIES[name]]
    if not candidates or not candidates[0].takes(problem):
        what = f"operands {'with' if problem.scales else 'without'} scales"
        if problem.mode or name == Grouped.name:
            what += f" in mode {problem.mode}" if problem.mode else " without a mode"
        refusal = f"family {name} does not take {what}" if name else f"no family of this compiler takes {what}"
        raise UsageError(f"{refusal}; use one of: {', '.join(family.name for family in of_kind)}")
    if problem.epilogue != NO_EPILOGUE and not any(family.takes_epilogue for family in candidates):
        raise UsageError(f"family {candidates[0].name} takes no epilogue; leave it to another family")
    by_dtype = [family for family in candidates if problem.dtype in family.flops_per_clock]
    if name is not None and by_dtype and (fault := by_dtype[0].problem_fault(problem)):
        raise UsageError(f"family {name} cannot compute this problem: {fault}; or leave it to another family")
    for family in by_dtype:
        if target.compute_capability >= family.min_capability(problem.dtype) and not family.problem_fault(problem):
            return family
    here = sorted(
        {
            dtype
            for family in FAMILIES.values()
            for dtype in family.flops_per_clock
            if target.compute_capability >= family.min_capability(dtype)
        }
    )
    if by_dtype:
        major, minor = by_dtype[0].min_capability(problem.dtype)
        raise InvalidProblem(
            f"{problem.dtype} needs the {by_dtype[0].name} family, which needs sm_{major}{minor} or newer; "
            f"{target.name} computes: {', '.join(here)}"
        )
    takes = "; ".join(f"{family.name}: {', '.join(family.flops_per_clock)}" for family in of_kind)
    raise UsageError(f"family {candidates[0].name} does not compute {problem.dtype}; families take {takes}")


@lru_cache(maxsize=4096)
def _best_config(family: str, problem: GemmProblem, factors: Factors) -> KernelConfig:
    return _steadiest(_predicted(family, problem, factors), problem)


def ranking(problem: GemmProblem, family: str, factors: Factors = ()) -> list[tuple[float, KernelConfig]]:
    """Every feasible config of a family with its predicted cycles, the fewest first; raises what ``choose`` raises.

    Of those within ``STEADY`` of the fewest, the first is the one that ``choose`` takes.
    """
    chosen = _family_for(problem, family, "")
    predicted = _predicted(chosen.name, problem, factors)
    first = _steadiest(predicted, problem)
    ranked = [(cycles, _split(config.config, slices)) for cycles, config, slices in sorted(predicted, key=_CYCLES)]
    return sorted(ranked, key=lambda one: one[1] != first)


def predicted_cycles(problem: GemmProblem, family: str, config: KernelConfig) -> float:
    """The cycles that the cost model predicts for a config; what moves through memory included.

    Memory is not in ``ranking``: every config moves the same, so it changes no order.

    Raises:
        InvalidProblem: when the target is unknown, or the family does not compute the problem's type.
        InfeasibleConfig: when the config breaks a limit.
    """
    target = architecture(problem.arch or "")
    if problem.dtype not in FAMILIES[family].flops_per_clock:
        raise InvalidProblem(f"family {family} does not compute {problem.dtype}")
    check_config(FAMILIES[family], problem, config, target)
    candidate = _candidate(FAMILIES[family], problem, config, target)
    (m, n, k, batch), rates = problem.planned_products, rates_of(target)
    tiles = -(-m // config.block_m) * -(-n // config.block_n) * batch
    if config.split_k == 1:
        cycles = _unsplit(candidate, tiles, -(-k // config.block_k), target.example_sms)
    else:
        # Slices share the SMs as tiles do.
        rounds = -(-tiles * config.split_k // target.example_sms)
        cycles = rounds * _sliced(candidate, -(-k // config.block_k // config.split_k), config.split_k)
    moved = batch * ((m * k + k * n) * problem.dtype.itemsize + m * n * problem.output.itemsize)
    memory = moved / rates.dram_bytes_per_clock
    return max(cycles, memory) + _NOT_HIDDEN * min(cycles, memory)


_Predicted = tuple[float, _Candidate, int]
"""Cycles of a candidate with so many slices of k."""


def _predicted(family: str, problem: GemmProblem, factors: Factors) -> list[_Predicted]:
    """Predicted cycles of every candidate, without split-k, and with the split of k that it would use."""
    target = architecture(problem.arch or "")
    most_slices = _MOST_SLICES if FAMILIES[family].splits_k else 1
    candidates = _candidates(family, problem.dtype, problem.scales, target.name, factors)
    (m, n, k, batch), sms = problem.planned_products, target.example_sms
    predicted: list[_Predicted] = []
    for candidate in candidates:
        tiles = -(-m // candidate.block_m) * -(-n // candidate.block_n) * batch
        if 2 * tiles > sms:  # nothing to split
            predicted.append((_unsplit(candidate, tiles, -(-k // candidate.block_k), sms), candidate, 1))
        else:
            predicted += _cycles(candidate, tiles, k, sms, most_slices)
    return predicted


def _steadiest(predicted: list[_Predicted], problem: GemmProblem) -> KernelConfig:
    """Of the configs within ``STEADY`` of the fewest cycles, the one with the fewest by an A100's rates."""
    least = min(predicted, key=_CYCLES)
    most = least[0] * (1 + STEADY)
    near = [one for one in predicted if one[0] <= most]
    if len(near) > 1:
        m, n, k, batch = problem.planned_products
        sms = architecture(problem.arch or "").example_sms

        def by_a100(one: _Predicted) -> float:
            tiles = -(-m // one[1].block_m) * -(-n // one[1].block_n) * batch
            return _by_a100(one[1], tiles, k, sms, one[2])

        near.sort(key=by_a100)
    _, candidate, split = near[0]
    return _split(candidate.config, split)


def _by_a100(candidate: _Candidate, tiles: int, k: int, sms: int, split: int) -> float:
    """Predicted cycles with so many slices of k, by an A100's rates."""
    by_a100, steps = candidate.by_a100 or candidate, -(-k // candidate.block_k)
    if split == 1:
        return _unsplit(by_a100, tiles, steps, sms)
    return _sliced(by_a100, -(-steps // split), split)


def _split(config: KernelConfig, slices: int) -> KernelConfig:
    return config if slices == 1 else replace(config, split_k=slices)


def _cycles(candidate: _Candidate, tiles: int, k: int, sms: int, most_slices: int) -> list[_Predicted]:
    """Predicted cycles of a candidate for so many tiles of C, with the number of slices of k that they are for."""
    steps = -(-k // candidate.block_k)
    cycles = _unsplit(candidate, tiles, steps, sms)
    if 2 * tiles > sms:
        return [(cycles, candidate, 1)]
    # Tiles that leave SMs idle: as many slices as fill them once, each of a few steps at least.
    split = min(sms // tiles, steps // _STEPS_PER_SLICE, most_slices)
    if split < 2:
        return [(cycles, candidate, 1)]
    steps_each = -(-steps // split)
    split = -(-steps // steps_each)  # none of them empty
    return [(cycles, candidate, 1), (_sliced(candidate, steps_each, split), candidate, split)]


def _unsplit(candidate: _Candidate, tiles: int, steps: int, sms: int) -> float:
    """Cycles for so many tiles of C, each of so many steps along k."""
    steps += candidate.stages
    if tiles <= sms:
        return steps * candidate.step_cycles
    # Comparing is faster here than calling min and max, and this is most of the time of choosing.
    resident, share = candidate.blocks_per_sm, -(-tiles // sms)
    if share < resident:  # noqa: PLR1730
        resident = share
    busy, wait = resident * candidate.busy_cycles, candidate.wait_cycles
    return -(-tiles // (sms * resident)) * steps * (busy if busy > wait else wait)  # noqa: FURB136


def _sliced(candidate: _Candidate, steps: int, split: int) -> float:
    """Cycles for tiles in so many slices of so many steps, all of them at once."""
    made = (steps + candidate.stages) * candidate.step_cycles
    return made + _HANDING_OVER + (1 + split) * candidate.slice_cycles


def turning_points(
    problem: GemmProblem, last: int, family: str | None = None, templates: str = ".cu", factors: Factors = ()
) -> tuple[int, ...]:
    """The problem's own m, and each m up to ``last`` for which the cost model chooses another config than for m - 1.

    It is for specialisations under which a config is chosen for m itself.

    Exact, without trying each m. Of m, the prediction of a candidate depends on its rows of tiles alone,
    ceil(m / block_m): tiles, waves and slices follow from these (``_cycles``). Let ``step`` be a number that divides
    block_m. Then ceil(m / block_m) is one number for all m from j * step + 1 to (j + 1) * step. With a step that
    divides the block_m of every candidate, all predictions are the same over such a stretch, and so is their minimum.
    So one look at each stretch is enough, and at a candidate only where its own rows change.

    Raises:
        InvalidProblem, UsageError: as ``choose``.
    """
    chosen = _family_for(problem, family, templates).name
    if problem.mode is not Mode.GROUPED:
        return _turning_points(chosen, problem, last, factors)
    # The choice depends on how many rows a group has on average.
    each, groups = replace(problem, m=-(-problem.m // problem.batch), mode=Mode.MASKED), problem.batch
    points = _turning_points(chosen, each, -(-last // groups), factors)
    return tuple(max(problem.m, (point - 1) * groups + 1) for point in points)


@lru_cache(maxsize=2048)
def _turning_points(family: str, problem: GemmProblem, last: int, factors: Factors) -> tuple[int, ...]:
    target = architecture(problem.arch or "")
    most_slices = _MOST_SLICES if FAMILIES[family].splits_k else 1
    candidates = _candidates(family, problem.dtype, problem.scales, target.name, factors)
    step = gcd(*(candidate.config.block_m for candidate in candidates))
    # By how many stretches have the same rows of tiles: the candidates and their positions, which decide a draw.
    by_height: dict[int, list[tuple[int, _Candidate, int]]] = {}
    for position, candidate in enumerate(candidates):
        columns = -(-problem.n // candidate.config.block_n) * problem.batch
        by_height.setdefault(candidate.config.block_m // step, []).append((position, candidate, columns))
    predicted: list[list[_Predicted]] = [[]] * len(candidates)
    tiles_of = [0] * len(candidates)
    points: list[int] = []
    chosen, sms = None, target.example_sms
    first = (problem.m - 1) // step
    for stretch in range(first, (last - 1) // step + 1):
        for height, members in by_height.items():
            if stretch % height and stretch != first:
                continue
            for position, candidate, columns in members:
                tiles_of[position] = tiles = (stretch // height + 1) * columns
                predicted[position] = _cycles(candidate, tiles, problem.k, sms, most_slices)
        most = min(cycles for each in predicted for cycles, *_ in each) * (1 + STEADY)
        best = min(
            (_by_a100(candidates[position], tiles_of[position], problem.k, sms, split), position, split)
            for position, each in enumerate(predicted)
            for cycles, _, split in each
            if cycles <= most
        )[1:]
        if best != chosen:
            points.append(max(problem.m, stretch * step + 1))
            chosen = best
    return tuple(points)


@lru_cache(maxsize=256)
def _candidates(
    family_name: str, dtype: DType, scales: Scales, target_name: str, factors: Factors
) -> tuple[_Candidate, ...]:
    family, target = FAMILIES[family_name], architecture(target_name)
    # Limits do not depend on sizes, and not on the mode.
    problem = GemmProblem(1, 1, SCALE_BLOCK, dtype=dtype, scales=scales, arch=target_name)
    by_tile = {tile: factor for named, tile, factor in factors if named == family_name}
    candidates = []
    for config in family.configs(problem):
        try:
            check_config(family, problem, config, target)
        except InfeasibleConfig:
            continue
        factor = by_tile.get((config.block_m, config.block_n), 1.0)
        candidates.append(_candidate(family, problem, config, target, factor))
    return tuple(candidates)


def _candidate(
    family: Family, problem: GemmProblem, config: KernelConfig, target: Architecture, factor: float = 1.0
) -> _Candidate:
    resident = occupancy(
        target,
        threads=threads_of(family, config),
        registers=family.registers_estimate(problem, config),
        shared_bytes=family.shared_bytes(problem, config),
    )
    slice_cycles = config.block_m * config.block_n * problem.accumulate.itemsize / L2_BYTES
    latency = _LATENCY / config.stages

    def at(flops_per_clock: float, factor: float, by_a100: _Candidate | None = None) -> _Candidate:
        busy, wait = (factor * cycles for cycles in (_busy_cycles(family, problem, config, flops_per_clock), latency))
        blocks = max(1, resident.blocks_per_sm)
        sizes = (config.block_m, config.block_n, config.block_k, config.stages)
        return _Candidate(config, *sizes, blocks, busy, wait, max(busy, wait), factor * slice_cycles, by_a100)

    rate = rates_of(target).operations(family.unit, problem.dtype)
    return at(rate, factor, at(family.flops_per_clock[problem.dtype], 1.0))


def _busy_cycles(family: Family, problem: GemmProblem, config: KernelConfig, flops_per_clock: float) -> float:
    """Of the SM, for one block and one step in k."""
    itemsize = problem.dtype.itemsize
    compute = 2 * config.block_m * config.block_n * config.block_k / flops_per_clock
    from_l2 = (config.block_m + config.block_n) * config.block_k * itemsize / L2_BYTES
    from_shared = family.shared_traffic_bytes(problem, config) / SHARED_BYTES
    longest = max(compute, from_l2, from_shared)
    return longest + _NOT_HIDDEN * (compute + from_l2 + from_shared - longest)
