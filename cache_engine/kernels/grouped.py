"""Tensor-core kernels for groups of rows with a B each, counted on the device: for mixtures of experts; sm_80 on."""

from __future__ import annotations

from collections.abc import Mapping

from cache_engine.kernels.family import Constants, scale_constants, specialised_constants, widest_store
from cache_engine.kernels.scaled import Scaled
from cache_engine.kernels.tensor_core import TensorCore
from cache_engine.model.gemm import DType, GemmProblem, Mode
from cache_engine.model.kernel import Box, KernelConfig

# A tile is computed as these families do it.
_PLAIN, _SCALED = TensorCore(), Scaled()


class Grouped:
    """The ``grouped`` family."""

    name = "grouped"
    template = "grouped.cu"
    unit = "mma"
    flops_per_clock: Mapping[DType, int] = _PLAIN.flops_per_clock
    takes_epilogue = True
    splits_k = False
    clusters = False
    copying_threads = 0
    is_persistent = True
    hidden_parameters: tuple[str, ...] = ()

    def takes(self, problem: GemmProblem) -> bool:
        """Groups, with scales or without."""
        return bool(problem.mode)

    def min_capability(self, dtype: DType) -> tuple[int, int]:
        """The first compute capability on which it computes the type."""
        return _PLAIN.min_capability(dtype)

    def problem_fault(self, problem: GemmProblem) -> None:
        """It computes every problem of its types."""

    def configs(self, problem: GemmProblem) -> tuple[KernelConfig, ...]:
        """The configs worth considering, feasible or not."""
        return _of_tiles(problem).configs(problem)

    def shared_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The ring of A and B tiles."""
        return _of_tiles(problem).shared_bytes(problem, config)

    def shared_traffic_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """Bytes that warps read from shared memory: each reads its rows of A and columns of B once."""
        return _of_tiles(problem).shared_traffic_bytes(problem, config)

    def registers_estimate(self, problem: GemmProblem, config: KernelConfig) -> int:
        """Those of a tile."""
        return _of_tiles(problem).registers_estimate(problem, config)

    def shape_fault(self, problem: GemmProblem, config: KernelConfig) -> str | None:
        """As of the family that computes a tile so."""
        return _of_tiles(problem).shape_fault(problem, config)

    def boxes(self, problem: GemmProblem, config: KernelConfig) -> tuple[Box, ...]:
        """None: threads copy tiles themselves, without TMA."""
        return ()

    def m_divisor(self, problem: GemmProblem) -> int:
        """1: rows of A are k long."""
        return 1

    def constants(self, problem: GemmProblem, config: KernelConfig) -> Constants:
        """Everything the template needs, by name."""
        widest = 16 // problem.dtype.itemsize
        return {
            **specialised_constants(self, problem, config, widest=widest, widest_store=widest_store(problem)),
            **scale_constants(problem),
            "MASKED": int(problem.mode is Mode.MASKED),
        }


def _of_tiles(problem: GemmProblem) -> TensorCore | Scaled:
    return _SCALED if problem.scales else _PLAIN
