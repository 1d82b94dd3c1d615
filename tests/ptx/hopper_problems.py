"""What the tests of the ``hopper`` family share."""

from __future__ import annotations

from dataclasses import replace

from cache_engine.kernels.select import FAMILIES
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.ptx.problems import Case

HOPPER = FAMILIES["hopper"]


def hopper(problem: GemmProblem, config: KernelConfig) -> Case:
    """A kernel of the family."""
    return Case(HOPPER, problem, config)


def deep(config: KernelConfig, dtype: DType) -> KernelConfig:
    """With a tile as deep as 128 bytes of the type."""
    return replace(config, block_k=128 // dtype.itemsize)
