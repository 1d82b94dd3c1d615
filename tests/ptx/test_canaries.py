"""What the canaries are worth: right kernels pass, and the mistakes put into a family are refused.

``make test`` takes a sample that changes daily, ``make soak`` all, and counts what is refused by a wrong result alone:
hardware may let pass what the machine forbids.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from cache_engine.gpu import canary as running
from cache_engine.gpu.canary import run_canary
from cache_engine.kernels.canaries import Canary, canaries
from cache_engine.kernels.family import check_config
from cache_engine.kernels.select import FAMILIES, TO_PROVE
from cache_engine.model.gemm import DType
from tests.device import numpy_gpu
from tests.faults.counting import report
from tests.helpers import of_today
from tests.ptx import hopper_mistakes
from tests.ptx.canaries import SEED, mistake_of, refused_by, right
from tests.ptx.mistakes import Mistake
from tests.ptx.test_mistakes import MISTAKES

HOPPER = canaries("hopper", "sm_90a")
LEAST_SEEN = 0.95


@pytest.fixture(autouse=True)
def _two_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with late copies and one with early ones; the machine has no others."""
    monkeypatch.setattr(running, "REPEATS", 2)


def test_right_kernels_pass() -> None:
    others = [one for name in ("tensor_core", "scaled", "simt", "grouped") for one in canaries(name, "sm_90")]
    assert _refused([*of_today(HOPPER, 2), *of_today(others, 4)]) == {}


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"triton"}))
def test_every_right_kernel_passes(name: str) -> None:
    assert _refused(canaries(name, "sm_90a")) == {}


def _refused(chosen: Sequence[Canary]) -> dict[str, str]:
    """Those that a right kernel does not pass, and why."""
    found = {str(canary): mistake_of(canary, right(canary)) for canary in chosen}
    report({"trials": len(chosen)})
    return {canary: why for canary, why in found.items() if why}


def test_a_sample_of_the_mistakes_is_refused() -> None:
    for mistake in of_today(hopper_mistakes.MISTAKES, 4):
        print(mistake)
        assert _first_refusal(mistake)


@pytest.mark.soak
@pytest.mark.parametrize("family", sorted({mistake.case.family.name for mistake in MISTAKES}))
def test_nearly_all_mistakes_are_refused(family: str) -> None:
    of_family = [mistake for mistake in MISTAKES if mistake.case.family.name == family]
    found = [(mistake, _first_refusal(mistake)) for mistake in of_family]
    seen = [why for _, why in found if why]
    report({"trials": len(found), "seen": len(seen), "by_result": sum(not why.startswith("Fault") for why in seen)})
    print(family, len(found), [str(mistake) for mistake, why in found if not why])
    assert len(seen) >= LEAST_SEEN * len(found)


def _first_refusal(mistake: Mistake) -> str | None:
    """What the first canary that sees a mistake finds; those most like the mistake's own kernel are tried first."""
    p, config = mistake.case.problem, mistake.case.config

    def likeness(canary: Canary) -> tuple[bool, ...]:
        q = canary.problem
        alike = (canary.config == config, q.scales == p.scales, q.dtype == p.dtype, q.layout == p.layout)
        return (canary.config.cluster == config.cluster, *alike)

    for canary in sorted(canaries(mistake.case.family.name, mistake.case.arch), key=likeness, reverse=True):
        if why := refused_by(mistake, canary):
            return why
    return None


def test_the_canaries_are_at_the_edges_of_what_the_family_takes() -> None:
    assert list(TO_PROVE) == ["hopper"]
    for canary in HOPPER:
        check_config(canary.family, canary.problem, canary.config, canary.problem.target)
        assert canary.family.problem_fault(canary.problem) is None
        assert canary.launch.grid[0] <= 2
    problems = [canary.problem for canary in HOPPER]
    assert {problem.dtype for problem in problems} == set(FAMILIES["hopper"].flops_per_clock)
    assert {problem.layout.value for problem in problems} == {"nt", "nn"}
    assert len({problem.scales for problem in problems}) == 5
    assert len({problem.specialisation for problem in problems}) == 4
    tiles = {(one.block_m, one.block_n, one.warps_m, one.warps_n) for one in (canary.config for canary in HOPPER)}
    offered = FAMILIES["hopper"].configs(problems[0])
    assert {(one.block_m, one.block_n, one.warps_m, one.warps_n) for one in offered} == tiles
    assert {canary.config.cluster for canary in HOPPER} == {1, 2}
    assert {canary.config.split_k for canary in HOPPER} == {1, 3, 4}


def test_one_wrong_bit_and_rows_of_no_group_are_seen() -> None:
    """Of each family, by NumPy: any bit of C, whatever its type; and what was written where no group has rows."""
    generator = random.Random(34)
    for name in ("hopper", "tensor_core", "scaled", "simt", "grouped"):
        for canary in canaries(name, "sm_90a"):
            is_gelu = "gelu" in str(canary.problem.epilogue)
            compute = numpy_gpu.kernel(canary.problem, canary.launch.parameters)
            spoiled = [False]

            def run(grid, block, arguments, shared_mem, compute=compute, spoiled=spoiled, is_gelu=is_gelu):  # type: ignore[no-untyped-def]
                compute(grid, block, arguments, shared_mem)
                if spoiled[0]:
                    c = arguments[2].view(np.uint8).reshape(-1)
                    c[generator.randrange(0, len(c), 8) // 8 * 8 + 7 if is_gelu else generator.randrange(len(c))] ^= 64

            def load(run=run, canary=canary):  # type: ignore[no-untyped-def]
                from cache_engine.gpu.launch import LoadedKernel

                return LoadedKernel(b"", "k", canary.launch, canary.problem, run, has_workspace=False)

            assert not run_canary(load, canary.launch, canary.problem, SEED)[0], canary
            spoiled[0] = True
            assert "of C are wrong" in run_canary(load, canary.launch, canary.problem, SEED)[0], canary
    assert DType.INT8 in {canary.problem.dtype for canary in canaries("grouped", "sm_90a")}
