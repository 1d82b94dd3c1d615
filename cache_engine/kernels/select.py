"""Which family and config serve a problem, as far as is known without measuring.

A simple cost model: of the configs that are feasible on the target, the one with the fewest predicted cycles. The
prediction is a ranking, no promise: it knows tiles, waves, slices of k, and round rates (each family's own, and those
below, of an A100: NVIDIA A100 white paper), which stand for every target. Where there are measurements they come before
it: see ``selection`` and ``history``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from operator import itemgetter

from cache_engine.errors import InfeasibleConfig, InvalidProblem, UsageError
from cache_engine.kernels.family import Family, check_config
from cache_engine.kernels.simt import Simt
from cache_engine.kernels.tensor_core import TensorCore
from cache_engine.kernels.triton_matmul import TritonMatmul
from cache_engine.model.architecture import Architecture, architecture
from cache_engine.model.gemm import NO_EPILOGUE, DType, GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.occupancy import occupancy

FAMILIES: dict[str, Family] = {family.name: family for family in (TensorCore(), Simt(), TritonMatmul())}

# Per SM and clock.
_L2_BYTES = 48
_SHARED_BYTES = 128
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
    """A feasible config, with the parts of its prediction that do not depend on m, n and k."""

    config: KernelConfig
    blocks_per_sm: int
    busy_cycles: float  # of the SM, for one block and one step in k
    wait_cycles: float  # no step is shorter than this
    step_cycles: float  # the longer of the two
    slice_cycles: float  # to write or to read one slice's sums


def choose(
    problem: GemmProblem, family: str | None = None, config: KernelConfig | None = None, templates: str = ".cu"
) -> tuple[Family, KernelConfig]:
    """The family and config for a problem whose target is set.

    Args:
        family: the name of the family. ``None``: the first that computes these dtypes on this target.
        config: the config, which is checked. ``None``: the one with the fewest predicted cycles.
        templates: without ``family``, only families whose templates have this suffix are considered: ``.cu`` for CUDA
            compilers, ``.py`` for Triton.

    Raises:
        InvalidProblem: when no family computes these dtypes on this target.
        UsageError: when ``family`` is unknown or does not.
        InfeasibleConfig: when ``config`` breaks a limit.
    """
    chosen = _family_for(problem, family, templates)
    if config is not None:
        check_config(chosen, problem, config, architecture(problem.arch or ""))
        return chosen, config
    return chosen, _best_config(chosen.name, problem)


def _family_for(problem: GemmProblem, name: str | None, templates: str) -> Family:
    target = architecture(problem.arch or "")
    if name is not None and name not in FAMILIES:
        raise UsageError(f"unknown family {name!r}; use one of: {', '.join(FAMILIES)}")
    offered = [family for family in FAMILIES.values() if family.template.endswith(templates)]
    candidates = offered if name is None else [FAMILIES[name]]
    if problem.epilogue != NO_EPILOGUE and not any(family.takes_epilogue for family in candidates):
        raise UsageError(f"family {candidates[0].name} takes no epilogue; leave it to another family")
    by_dtype = [family for family in candidates if problem.dtype in family.flops_per_clock]
    for family in by_dtype:
        if target.compute_capability >= family.min_capability(problem.dtype):
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
    takes = "; ".join(f"{family.name}: {', '.join(family.flops_per_clock)}" for family in FAMILIES.values())
    raise UsageError(f"family {candidates[0].name} does not compute {problem.dtype}; families take {takes}")


@lru_cache(maxsize=4096)
def _best_config(family: str, problem: GemmProblem) -> KernelConfig:
    _, config, split_k = min(_predicted(family, problem), key=_CYCLES)
    return config if split_k == 1 else replace(config, split_k=split_k)


def ranking(problem: GemmProblem, family: str) -> list[tuple[float, KernelConfig]]:
    """Every feasible config of a family with its predicted cycles, the fewest first; raises what ``choose`` raises."""
    chosen = _family_for(problem, family, "")
    return [
        (cycles, config if split_k == 1 else replace(config, split_k=split_k))
        for cycles, config, split_k in sorted(_predicted(chosen.name, problem), key=_CYCLES)
    ]


def _predicted(family: str, problem: GemmProblem) -> list[tuple[float, KernelConfig, int]]:
    """Predicted cycles of every candidate, without split-k, and with the split of k that it would use."""
    target = architecture(problem.arch or "")
    most_slices = _MOST_SLICES if FAMILIES[family].takes_epilogue else 1
    candidates = _candidates(family, problem.dtype, target.name)
    (m, n, k, batch), sms = problem.planned_sizes, target.example_sms
    return [
        (cycles, candidate.config, split)
        for candidate in candidates
        for cycles, split in _cycles(
            candidate,
            -(-m // candidate.config.block_m) * -(-n // candidate.config.block_n) * batch,
            k,
            sms,
            most_slices,
        )
    ]


def _cycles(candidate: _Candidate, tiles: int, k: int, sms: int, most_slices: int) -> list[tuple[float, int]]:
    """Predicted cycles of a candidate for so many tiles of C, with the number of slices of k that they are for."""
    config = candidate.config
    steps = -(-k // config.block_k)
    if tiles <= sms:
        cycles = (steps + config.stages) * candidate.step_cycles
    else:
        resident = min(candidate.blocks_per_sm, -(-tiles // sms))
        waves = -(-tiles // (sms * resident))
        cycles = waves * (steps + config.stages) * max(resident * candidate.busy_cycles, candidate.wait_cycles)
    if 2 * tiles > sms:
        return [(cycles, 1)]
    # Tiles that leave SMs idle: as many slices as fill them once, each of a few steps at least.
    split = min(sms // tiles, steps // _STEPS_PER_SLICE, most_slices)
    if split < 2:
        return [(cycles, 1)]
    steps_each = -(-steps // split)
    split = -(-steps // steps_each)  # none of them empty
    sliced = (steps_each + config.stages) * candidate.step_cycles
    return [(cycles, 1), (sliced + _HANDING_OVER + (1 + split) * candidate.slice_cycles, split)]


def turning_points(
    problem: GemmProblem, last: int, family: str | None = None, templates: str = ".cu"
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
    return _turning_points(_family_for(problem, family, templates).name, problem, last)


@lru_cache(maxsize=2048)
def _turning_points(family: str, problem: GemmProblem, last: int) -> tuple[int, ...]:
    target = architecture(problem.arch or "")
    most_slices = _MOST_SLICES if FAMILIES[family].takes_epilogue else 1
    candidates = _candidates(family, problem.dtype, target.name)
    step = gcd(*(candidate.config.block_m for candidate in candidates))
    # By how many stretches have the same rows of tiles: the candidates and their positions, which decide a draw.
    by_height: dict[int, list[tuple[int, _Candidate, int]]] = {}
    for position, candidate in enumerate(candidates):
        columns = -(-problem.n // candidate.config.block_n) * problem.batch
        by_height.setdefault(candidate.config.block_m // step, []).append((position, candidate, columns))
    cheapest = [(0.0, position, 1) for position in range(len(candidates))]
    points: list[int] = []
    chosen = None
    first = (problem.m - 1) // step
    for stretch in range(first, (last - 1) // step + 1):
        for height, members in by_height.items():
            if stretch % height and stretch != first:
                continue
            for position, candidate, columns in members:
                tiles = (stretch // height + 1) * columns
                cycles, split = min(_cycles(candidate, tiles, problem.k, target.example_sms, most_slices), key=_CYCLES)
                cheapest[position] = (cycles, position, split)
        best = min(cheapest)[1:]
        if best != chosen:
            points.append(max(problem.m, stretch * step + 1))
            chosen = best
    return tuple(points)


@lru_cache(maxsize=256)
def _candidates(family_name: str, dtype: DType, target_name: str) -> tuple[_Candidate, ...]:
    family, target = FAMILIES[family_name], architecture(target_name)
    problem = GemmProblem(1, 1, 1, dtype=dtype, arch=target_name)  # limits do not depend on sizes
    candidates = []
    for config in family.configs(problem):
        try:
            check_config(family, problem, config, target)
        except InfeasibleConfig:
            continue
        candidates.append(_candidate(family, problem, config, target))
    return tuple(candidates)


def _candidate(family: Family, problem: GemmProblem, config: KernelConfig, target: Architecture) -> _Candidate:
    itemsize = problem.dtype.itemsize
    resident = occupancy(
        target,
        threads=config.threads,
        registers=family.registers_estimate(problem, config),
        shared_bytes=family.shared_bytes(problem, config),
    )
    compute = 2 * config.block_m * config.block_n * config.block_k / family.flops_per_clock[problem.dtype]
    from_l2 = (config.block_m + config.block_n) * config.block_k * itemsize / _L2_BYTES
    from_shared = family.shared_traffic_bytes(problem, config) / _SHARED_BYTES
    longest = max(compute, from_l2, from_shared)
    busy = longest + _NOT_HIDDEN * (compute + from_l2 + from_shared - longest)
    slice_cycles = config.block_m * config.block_n * problem.accumulate.itemsize / _L2_BYTES
    wait = _LATENCY / config.stages
    return _Candidate(config, max(1, resident.blocks_per_sm), busy, wait, max(busy, wait), slice_cycles)
