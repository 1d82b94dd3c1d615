"""Every family of kernels is executed by a machine of the tests."""

from __future__ import annotations

from cache_engine.kernels.select import FAMILIES
from tests.ptx import grouped, problems, test_hopper_kernels

INTERPRETED = {"triton"}  # by Triton's own interpreter: tests/kernels/test_triton.py


def test_the_ptx_of_every_family_is_executed_or_it_is_interpreted() -> None:
    cases = [*problems.CASES, *(one.case for one in grouped.CASES), *test_hopper_kernels.CASES]
    executed = {case.family.name for case in cases}
    assert executed | INTERPRETED == FAMILIES.keys()
    assert all(FAMILIES[name].template.endswith(".cu") for name in executed)
