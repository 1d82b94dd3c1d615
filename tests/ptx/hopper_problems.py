"""Kernels of the ``hopper`` family as the tests launch them: on two blocks, so that a block computes several tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cache_engine.device.launch import LoadedKernel
from cache_engine.kernels.family import launch_of
from cache_engine.kernels.select import FAMILIES
from cache_engine.kernels.source import render
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.ptx.faults import Fault
from tests.ptx.machine import Kernel
from tests.ptx.problems import assert_right, expected_of, launched, operands_of, ptx_of

HOPPER = FAMILIES["hopper"]

Mistake = tuple[tuple[GemmProblem, KernelConfig], str, str, str]
"""A kernel, what is spoilt in words, the text of its template and what stands there instead."""


def deep(config: KernelConfig, dtype: DType) -> KernelConfig:
    """With a tile as deep as 128 bytes of the type."""
    return replace(config, block_k=128 // dtype.itemsize)


def source_of(problem: GemmProblem, config: KernelConfig) -> str:
    """What the compiler gets."""
    return render(HOPPER.template, HOPPER.constants(problem, config))


def check(problem: GemmProblem, config: KernelConfig, ptx: str | None = None, *, blocks: int = 2) -> None:
    """On so many blocks for each slice and each of the batch, with one workspace; copies late, then early.

    Args:
        ptx: in place of what is made of the source.

    Raises:
        AssertionError: when an element of C is wrong.
        Fault: what the machine has to say.
    """
    kernel = Kernel(ptx or ptx_of(source_of(problem, config), "sm_90a"))
    launch = launch_of(HOPPER, problem, config)
    launch = replace(launch, grid=(min(blocks, launch.grid[0]), *launch.grid[1:]))
    a, b = operands_of(problem)
    expected = expected_of(problem, a, b, to_even=True)
    loaded = LoadedKernel(b"", kernel.program.name, launch, problem, kernel)
    for kernel.late in (True, False):
        assert_right(problem, launched(problem, kernel, loaded, a, b), expected, a, b)


def assert_seen(mistakes: Sequence[Mistake], what: str) -> None:
    """Fails unless the machine sees the mistake of this name."""
    ((case, _, right, wrong),) = [one for one in mistakes if one[1] == what]
    source = source_of(*case)
    assert source.count(right) == 1, "the template no longer holds what is to be spoilt"
    if "REGISTERS" in right:  # the compiler would refuse it
        source = source.replace("static_assert(GROUP *", "static_assert(true || GROUP *")
    with pytest.raises((Fault, AssertionError)):
        check(*case, ptx_of(source.replace(right, wrong), "sm_90a"))
