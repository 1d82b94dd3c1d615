"""Which family and config serve a problem.

A first, simple selector: of the configs that are feasible on the target, the one with the fewest predicted cycles. The
prediction is a ranking, no promise: it knows tiles, waves and the round rates below (those of an A100, NVIDIA A100
white paper; fp32 of its successors), which stand for every target. Measured history is to replace it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cache_engine.errors import InfeasibleConfig, InvalidProblem, UsageError
from cache_engine.kernels.family import Family, check_config
from cache_engine.kernels.simt import Simt
from cache_engine.kernels.tensor_core import TensorCore
from cache_engine.kernels.triton_matmul import TritonMatmul
from cache_engine.model.architecture import Architecture, architecture
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.occupancy import occupancy

FAMILIES: dict[str, Family] = {family.name: family for family in (TensorCore(), Simt(), TritonMatmul())}

# Per SM and clock.
_FLOPS = {DType.FP16: 2048, DType.BF16: 2048, DType.FP32: 256, DType.FP64: 128}
_L2_BYTES = 48
_SHARED_BYTES = 128
# Of what is not the bottleneck, this share shows all the same.
_NOT_HIDDEN = 0.25
# Clocks from asking for a tile to having it, shared by the stages in flight.
_LATENCY = 800


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A feasible config with what its prediction needs and m, n and k do not change."""

    config: KernelConfig
    blocks_per_sm: int
    busy_cycles: float  # of the SM, for one block and one step in k
    wait_cycles: float  # no step is shorter than this


def choose(
    problem: GemmProblem, family: str | None = None, config: KernelConfig | None = None, templates: str = ".cu"
) -> tuple[Family, KernelConfig]:
    """The family and config for a problem whose target is set.

    Args:
        family: use this one.
        config: use this one, after checking it.
        templates: of the families whose templates have this suffix, where ``family`` names none.

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
    by_dtype = [family for family in candidates if problem.dtype in family.dtypes]
    for family in by_dtype:
        if target.compute_capability >= family.min_capability:
            return family
    here = sorted({d for f in FAMILIES.values() if target.compute_capability >= f.min_capability for d in f.dtypes})
    if by_dtype:
        major, minor = by_dtype[0].min_capability
        raise InvalidProblem(
            f"{problem.dtype} needs the {by_dtype[0].name} family, which needs sm_{major}{minor} or newer; "
            f"{target.name} computes: {', '.join(here)}"
        )
    takes = "; ".join(f"{family.name}: {', '.join(family.dtypes)}" for family in FAMILIES.values())
    raise UsageError(f"family {candidates[0].name} does not compute {problem.dtype}; families take {takes}")


@lru_cache(maxsize=4096)
def _best_config(family: str, problem: GemmProblem) -> KernelConfig:
    target = architecture(problem.arch or "")
    candidates = _candidates(family, problem.dtype, target.name)
    m, n, k, batch, sms = problem.m, problem.n, problem.k, problem.batch, target.example_sms
    best, best_cycles = candidates[0].config, float("inf")
    for candidate in candidates:
        config = candidate.config
        tiles = -(-m // config.block_m) * -(-n // config.block_n) * batch
        resident = min(candidate.blocks_per_sm, -(-tiles // sms))
        waves = -(-tiles // (sms * resident))
        steps = -(-k // config.block_k) + config.stages
        cycles = waves * steps * max(resident * candidate.busy_cycles, candidate.wait_cycles)
        if cycles < best_cycles:
            best, best_cycles = config, cycles
    return best


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
    compute = 2 * config.block_m * config.block_n * config.block_k / _FLOPS[problem.dtype]
    from_l2 = (config.block_m + config.block_n) * config.block_k * itemsize / _L2_BYTES
    from_shared = family.shared_traffic_bytes(problem, config) / _SHARED_BYTES
    longest = max(compute, from_l2, from_shared)
    busy = longest + _NOT_HIDDEN * (compute + from_l2 + from_shared - longest)
    return _Candidate(config, max(1, resident.blocks_per_sm), busy, _LATENCY / config.stages)
