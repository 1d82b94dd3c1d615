"""Tensor-core kernels for fp8 with a scale for each block of 128 along k; sm_89 on."""

from __future__ import annotations

from collections.abc import Mapping

from cache_engine.kernels.family import Constants, scale_constants, specialised_constants, widest_store
from cache_engine.kernels.tensor_core import TensorCore
from cache_engine.model.gemm import SCALE_BLOCK, DType, GemmProblem
from cache_engine.model.kernel import Box, KernelConfig

# (block_m, block_n, warps_m, warps_n, stages): warp tiles of at most 64 x 32, as sums are held twice.
_TILES = (
    (128, 128, 2, 4, 3),
    (128, 64, 2, 2, 3),
    (64, 128, 1, 4, 3),
    (64, 64, 2, 2, 4),
    (64, 32, 2, 1, 4),
    (32, 128, 1, 4, 4),
    (32, 64, 1, 2, 4),
    (16, 128, 1, 4, 4),
    (16, 64, 1, 2, 4),
    (16, 32, 1, 1, 4),
)
# Where each column of B has a scale, lanes hold one for each of theirs: warp tiles of at most 32 x 32, as registers are
# spilled with larger ones; and with four stages of 16 x 128.
_TILES_OF_COLUMNS = ((128, 64, 4, 2, 3), (64, 128, 2, 4, 3), *_TILES[3:7], (16, 128, 1, 4, 3), *_TILES[8:])
# By the columns of B that share a scale.
_CONFIGS = {
    columns: tuple(
        KernelConfig(block_m, block_n, SCALE_BLOCK, warps_m, warps_n, stages)
        for block_m, block_n, warps_m, warps_n, stages in tiles
    )
    for columns, tiles in ((1, _TILES_OF_COLUMNS), (SCALE_BLOCK, _TILES))
}
_TILES_OF_WARPS = TensorCore()  # whose tiles of A and B these kernels read in the same way


class Scaled:
    """The ``scaled`` family."""

    name = "scaled"
    template = "scaled.cu"
    unit = "mma"
    # As of tensor_core: they rank configs of one type alone.
    flops_per_clock: Mapping[DType, int] = {DType.FP8_E4M3: 4096, DType.FP8_E5M2: 4096}
    takes_epilogue = True
    splits_k = True
    clusters = False
    copying_threads = 0
    is_persistent = False
    hidden_parameters: tuple[str, ...] = ()

    def takes(self, problem: GemmProblem) -> bool:
        """Operands with scales, in no groups."""
        return bool(problem.scales) and not problem.mode

    def min_capability(self, dtype: DType) -> tuple[int, int]:
        """The first compute capability on which it computes the type."""
        return _TILES_OF_WARPS.min_capability(dtype)

    def problem_fault(self, problem: GemmProblem) -> None:
        """It computes every problem of its types."""

    def configs(self, problem: GemmProblem) -> tuple[KernelConfig, ...]:
        """The configs worth considering, feasible or not."""
        return _CONFIGS[problem.scales.b_columns]

    def shared_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The ring of A and B tiles; scales are read where they lie."""
        return _TILES_OF_WARPS.shared_bytes(problem, config)

    def shared_traffic_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """Every warp reads its rows of A and columns of B once."""
        return _TILES_OF_WARPS.shared_traffic_bytes(problem, config)

    def registers_estimate(self, problem: GemmProblem, config: KernelConfig) -> int:
        """Of ``tensor_core``, and the sums of one block of k next to those of all."""
        sums = config.block_m * config.block_n // config.threads
        return _TILES_OF_WARPS.registers_estimate(problem, config) + sums

    def shape_fault(self, problem: GemmProblem, config: KernelConfig) -> str | None:
        """A step in k is a block of scales; the rest as of ``tensor_core``."""
        if config.block_k != SCALE_BLOCK:
            return f"block_k must be {SCALE_BLOCK}, the length of a block of scales"
        if config.block_n > SCALE_BLOCK * config.warps_n:
            return f"block_n must be at most {SCALE_BLOCK} · warps_n, so that the columns of a warp share scales"
        return _TILES_OF_WARPS.shape_fault(problem, config)

    def boxes(self, problem: GemmProblem, config: KernelConfig) -> tuple[Box, ...]:
        """Its threads copy tiles themselves."""
        return ()

    def m_divisor(self, problem: GemmProblem) -> int:
        """1: rows of A are k long."""
        return 1

    def constants(self, problem: GemmProblem, config: KernelConfig) -> Constants:
        """Everything the template needs, by name."""
        return {
            **specialised_constants(self, problem, config, widest=16, widest_store=widest_store(problem)),
            **scale_constants(problem),
        }
