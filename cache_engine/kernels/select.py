"""Chooses the family and config for a problem without measuring.

Of the configs that are feasible on the target, it takes the one with the fewest cycles in the cost model
(``prediction``). Among configs within ``STEADY`` of the fewest, it takes the one that an A100's rates would choose.
These rates were once used for every target, so stores have kernels with that choice, and a stored kernel is worth more
than a difference that is too small to be certain. Measurements, if there are any, replace the cost model: see
``selection`` and ``history``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING

from cache_engine.errors import GemmCacheError, InfeasibleConfig, InvalidProblem, UsageError
from cache_engine.kernels import prediction
from cache_engine.kernels.family import Family, check_config
from cache_engine.kernels.hopper import Hopper
from cache_engine.kernels.rates import rates_of
from cache_engine.kernels.simt import Simt
from cache_engine.kernels.tensor_core import Grouped, Scaled, TensorCore
from cache_engine.kernels.triton_matmul import TritonMatmul
from cache_engine.model.architecture import Architecture
from cache_engine.model.gemm import NO_EPILOGUE, SCALE_BLOCK, DType, GemmProblem, Mode, Scales
from cache_engine.model.kernel import KernelConfig

if TYPE_CHECKING:
    from cache_engine.kernels.agreement import Factors

_ALL: tuple[Family, ...] = (TensorCore(), Scaled(), Simt(), TritonMatmul(), Hopper(), Grouped())
FAMILIES = {family.name: family for family in _ALL}
_ROUNDS_TO_FP8 = (8, 9)  # the first compute capability that rounds to fp8
# The first family that computes a problem is used. Hopper computes fewer problems than the others, but faster.
_BY_PREFERENCE = sorted(_ALL, key=lambda family: family.name != Hopper.name)

TO_PROVE = frozenset({Hopper.name})
"""The families that serve on a GPU only after test kernels were correct there: they are for the newest GPUs."""


def plain_family(problem: GemmProblem, templates: str = ".cu") -> str | None:
    """The best family for a problem that needs no proof; ``None`` if no such family takes it. Raises as ``choose``."""
    able = _families_for(problem, problem.target, None, templates)
    return next((family.name for family in able if family.name not in TO_PROVE), None)


def choose(
    problem: GemmProblem,
    family: str | None = None,
    config: KernelConfig | None = None,
    templates: str = ".cu",
    factors: Factors = (),
) -> tuple[Family, KernelConfig]:
    """The family and config for a problem whose target is set.

    Args:
        family: the name of the family. ``None``: the first that computes the problem on this target, with ``config``.
        config: the config, which is checked. ``None``: the one with the fewest predicted cycles.
        templates: without ``family``, only families whose templates have this suffix are considered: ``.cu`` for CUDA
            compilers, ``.py`` for Triton.
        factors: corrections of the predictions, from timings.

    Raises:
        InvalidProblem: when no family computes these dtypes on this target.
        UsageError: when ``family`` is unknown or does not compute these dtypes.
        InfeasibleConfig: when ``config`` breaks a limit.
    """
    target = problem.target
    if config is not None:
        return _family_of_config(problem, target, family, templates, config), config
    chosen = _family_for(problem, target, family, templates)
    return chosen, _best_config(chosen, problem, target, factors)


def _family_for(problem: GemmProblem, target: Architecture, name: str | None, templates: str) -> Family:
    return _families_for(problem, target, name, templates)[0]


def _families_for(problem: GemmProblem, target: Architecture, name: str | None, templates: str) -> list[Family]:
    """The families that compute a problem, best first; raises an error if there is none."""
    p = problem
    if p.has_result_scale and target.compute_capability < _ROUNDS_TO_FP8:
        raise InvalidProblem(
            f"{p.output} is rounded to by sm_89 and newer, and this is for {p.arch}; use another out dtype"
        )
    suitable = _suitable(name, templates, p.dtype, p.scales, p.mode, target, p.epilogue != NO_EPILOGUE)
    able = [family for family in suitable if not family.problem_fault(problem)]
    if not able:
        raise _refusal(problem, target, name, templates)
    return able


def _family_of_config(
    problem: GemmProblem, target: Architecture, name: str | None, templates: str, config: KernelConfig
) -> Family:
    """Hopper if it can use the config, else the first other family; raises an error if that family cannot use it."""
    first, *others = _families_for(problem, target, name, templates)
    if first.name == Hopper.name and others:
        with suppress(InfeasibleConfig):
            check_config(first, problem, config, target)
            return first
        first = others[0]
    check_config(first, problem, config, target)
    return first


@lru_cache(maxsize=1024)
def _suitable(
    name: str | None, templates: str, dtype: DType, scales: Scales, mode: Mode, target: Architecture, finishes: bool
) -> tuple[Family, ...]:
    """The families that compute problems of this kind, best first.

    Args:
        finishes: whether the problem has an epilogue, which the family must then be able to apply.
    """
    problem = GemmProblem(1, 1, SCALE_BLOCK, dtype=dtype, scales=scales, mode=mode)
    return tuple(
        family
        for family in _BY_PREFERENCE
        if (family.template.endswith(templates) if name is None else family.name == name)
        and family.takes(problem)
        and (family.takes_epilogue or not finishes)
        and dtype in family.flops_per_clock
        and target.compute_capability >= family.min_capability(dtype)
    )


def _refusal(problem: GemmProblem, target: Architecture, name: str | None, templates: str) -> GemmCacheError:
    """The error that states why no family computes a problem."""
    if name is not None and name not in FAMILIES:
        return UsageError(f"unknown family {name!r}; use one of: {', '.join(FAMILIES)}")
    of_kind = [family for family in FAMILIES.values() if family.takes(problem)]
    offered = [family for family in of_kind if family.template.endswith(templates)]
    candidates = offered if name is None else [FAMILIES[name]]
    if not candidates or not candidates[0].takes(problem):
        what = f"operands {'with' if problem.scales else 'without'} scales"
        if problem.mode or name == Grouped.name:
            what += f" in mode {problem.mode}" if problem.mode else " without a mode"
        refusal = f"family {name} does not take {what}" if name else f"no family of this compiler takes {what}"
        return UsageError(f"{refusal}; use one of: {', '.join(family.name for family in of_kind)}")
    if problem.epilogue != NO_EPILOGUE and not any(family.takes_epilogue for family in candidates):
        return UsageError(f"family {candidates[0].name} takes no epilogue; leave it to another family")
    by_dtype = [family for family in candidates if problem.dtype in family.flops_per_clock]
    if by_dtype and (fault := by_dtype[0].problem_fault(problem)):
        return UsageError(
            f"family {by_dtype[0].name} cannot compute this problem: {fault}; or leave it to another family"
        )
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
        return InvalidProblem(
            f"{problem.dtype} needs the {by_dtype[0].name} family, which needs sm_{major}{minor} or newer; "
            f"{target.name} computes: {', '.join(here)}"
        )
    takes = "; ".join(f"{family.name}: {', '.join(family.flops_per_clock)}" for family in of_kind)
    return UsageError(f"family {candidates[0].name} does not compute {problem.dtype}; families take {takes}")


def _best_config(family: Family, problem: GemmProblem, target: Architecture, factors: Factors) -> KernelConfig:
    among = _candidates(family, problem, target, factors)
    (m, n, k, batch), (step_m, step_n, step_k) = problem.planned_products, among.steps
    return _steadiest(among, -(-m // step_m), -(-n // step_n), -(-k // step_k), batch)


@lru_cache(maxsize=4096)
def _steadiest(among: prediction.Candidates, rows: int, columns: int, depth: int, batch: int) -> KernelConfig:
    """The config for all problems whose m, n and k, divided by ``Candidates.steps``, round up to these numbers."""
    step_m, step_n, step_k = among.steps
    m, n, k = rows * step_m, columns * step_n, depth * step_k
    return among.steadiest(among.predicted(m, n, k, batch, prediction.STEADY), k)


def _candidates(
    family: Family, problem: GemmProblem, target: Architecture, factors: Factors, *, converted: bool = False
) -> prediction.Candidates:
    fp8_result = problem.output if problem.has_result_scale else None
    return prediction.candidates_of(family, problem.dtype, problem.scales, target, factors, fp8_result, converted)


def ranking(problem: GemmProblem, family: str, factors: Factors = ()) -> list[tuple[float, KernelConfig]]:
    """Every feasible config of a family with its predicted cycles, fewest first; raises the errors of ``choose``.

    The first one is an exception: it is the config that ``choose`` takes, which is within ``STEADY`` of the fewest.
    """
    target = problem.target
    chosen = _family_for(problem, target, family, "")
    among = _candidates(chosen, problem, target, factors)
    m, n, k, batch = problem.planned_products
    predicted = among.predicted(m, n, k, batch)
    first = among.steadiest(predicted, k)
    if rates_of(target).converts(chosen.unit, problem.dtype):
        among = _candidates(chosen, problem, target, factors, converted=True)
        predicted = among.predicted(m, n, k, batch)
    ranked = [
        (cycles, prediction.split_config(one.config, slices))
        for cycles, one, _, slices in sorted(predicted, key=prediction.CYCLES)
    ]
    return sorted(ranked, key=lambda one: one[1] != first)


def predicted_cycles(problem: GemmProblem, family: str, config: KernelConfig) -> float:
    """The cycles that the cost model predicts for a config, including memory traffic.

    ``ranking`` does not include memory traffic: it is the same for every config, so it does not change the order.

    Raises:
        InvalidProblem: when the target is unknown, or the family does not compute the problem's type.
        InfeasibleConfig: when the config breaks a limit.
    """
    target = problem.target
    if problem.dtype not in FAMILIES[family].flops_per_clock:
        raise InvalidProblem(f"family {family} does not compute {problem.dtype}")
    check_config(FAMILIES[family], problem, config, target)
    (m, n, k, batch), rates = problem.planned_products, rates_of(target)
    converted = rates.converts(FAMILIES[family].unit, problem.dtype)
    candidate = prediction.candidate_of(FAMILIES[family], problem, config, target, converted=converted)
    tiles = -(-m // config.block_m) * -(-n // config.block_n) * batch
    cycles = prediction.cycles_of(candidate, tiles, k, target.example_sms, config.split_k)
    if config.split_k > 1:  # slices share the SMs as tiles do
        cycles *= -(-tiles * config.split_k // target.example_sms)
    moved = batch * ((m * k + k * n) * problem.dtype.itemsize + m * n * problem.output.itemsize)
    memory = moved / rates.dram_bytes_per_clock
    return max(cycles, memory) + prediction.NOT_HIDDEN * min(cycles, memory)


def turning_points(
    problem: GemmProblem, last: int, family: str | None = None, templates: str = ".cu", factors: Factors = ()
) -> tuple[int, ...]:
    """The problem's own m, and each m up to ``last`` for which the cost model chooses another config than for m - 1.

    Use it for specialisations whose config is chosen for m itself.

    The result is exact, without trying each m. A candidate's prediction depends on m only through its rows of tiles,
    ceil(m / block_m): tiles, waves and slices follow from these (``Candidates.add``). In each range of m
    as long as the tallest tile, most candidates cannot be chosen, as in ``Candidates.predicted``. The predictions of
    the others, and so the choice, stay the same between multiples of the greatest common divisor of their block_m.

    Raises:
        InvalidProblem, UsageError: as ``choose``.
    """
    target = problem.target
    chosen = _family_for(problem, target, family, templates).name
    if problem.mode is not Mode.GROUPED:
        return _turning_points(chosen, problem, target, last, factors)
    # The choice depends on the average number of rows of a group.
    each, groups = replace(problem, m=-(-problem.m // problem.batch), mode=Mode.MASKED), problem.batch
    points = _turning_points(chosen, each, target, -(-last // groups), factors)
    return tuple(max(problem.m, (point - 1) * groups + 1) for point in points)


@lru_cache(maxsize=2048)
def _turning_points(
    family: str, problem: GemmProblem, target: Architecture, last: int, factors: Factors
) -> tuple[int, ...]:
    among = _candidates(FAMILIES[family], problem, target, factors)
    n, k, batch = problem.n, problem.k, problem.batch
    columns = {block_n: -(-n // block_n) * batch for _, block_n, *_ in among.by_tile}
    tallest = max(block_m for block_m, *_ in among.by_tile)
    points: list[int] = []
    chosen = None
    for begin in range((problem.m - 1) // tallest * tallest, last, tallest):
        # Up to there no choice has more cycles than ``most``: without slices, a prediction never falls as m grows.
        at_end = among.predicted(begin + tallest, n, k, batch, 0.0)
        most = min(cycles for cycles, *_, slices in at_end if slices == 1) * (1 + prediction.STEADY)
        work = max(begin + 1, problem.m) * n * k * batch / among.sms
        tiles = [tile for tile in among.by_tile if work * tile[-1] <= most]
        step = gcd(*(block_m for block_m, *_ in tiles))
        for m in range(max(begin, problem.m - 1) // step * step, min(begin + tallest, last), step):
            found: list[prediction.Predicted] = []
            for block_m, block_n, members, _ in tiles:
                among.add(found, members, -(-(m + step) // block_m) * columns[block_n], k)
            best = among.steadiest(found, k)
            if best != chosen:
                points.append(max(problem.m, m + 1))
                chosen = best
    return tuple(points)
