"""Tensor-core kernels: mma.sync with ldmatrix and multi-stage cp.async, for inputs of 8, 16 and 32 bits; sm_80 on.

Three families use it: for plain operands, for fp8 with scales, and for rows in groups.
"""

from __future__ import annotations

from collections.abc import Mapping

from cache_engine.kernels.family import Family, m_divisor, scale_constants, specialised_constants, widest_store
from cache_engine.model.gemm import SCALE_BLOCK, DType, GemmProblem, Mode
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import Constants

# (block_m, block_n, warps_m, warps_n): warp tiles of 16 x 32 to 64 x 64.
_TILES = (
    (256, 128, 4, 2),
    (128, 256, 2, 4),
    (128, 128, 2, 2),
    (128, 128, 2, 4),
    (128, 64, 2, 2),
    (64, 128, 2, 2),
    (64, 64, 2, 2),
    (64, 256, 1, 4),
    (32, 128, 1, 4),
    (32, 64, 1, 2),
    (16, 128, 1, 4),
    (16, 64, 1, 2),
)
MMA_M, MMA_N, MMA_K_BYTES = 16, 8, 32
"""The size of one mma instruction: its tile of C in elements, and its depth in bytes of k. Fixed in the template."""
_DEPTHS = ((128, 3), (64, 4))  # (bytes in k, stages)
_BOX_ROWS, _BOX_COLUMNS = 16, 32  # the largest part that a warp stores at a time (templates/boxes.cuh)


class TensorCore(Family):
    """The ``tensor_core`` family: for operands without scales and groups."""

    name = "tensor_core"
    template = "tensor_core.cu"
    unit = "mma"
    # NVIDIA A100 white paper; fp8 as int8. They only rank configs of one type.
    flops_per_clock: Mapping[DType, int] = {
        DType.FP16: 2048,
        DType.BF16: 2048,
        DType.TF32: 1024,
        DType.FP8_E4M3: 4096,
        DType.FP8_E5M2: 4096,
        DType.INT8: 4096,
    }

    def min_capability(self, dtype: DType) -> tuple[int, int]:
        """The lowest compute capability on which the family computes the type."""
        return (8, 9) if dtype in (DType.FP8_E4M3, DType.FP8_E5M2) else (8, 0)

    def configs(self, problem: GemmProblem) -> tuple[KernelConfig, ...]:
        """The configs to consider; some may break a limit of the target."""
        return _CONFIGS[problem.dtype.itemsize]

    def shared_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """Dynamic shared memory in bytes: the buffers of A and B tiles, or if larger, a box of C for each warp.

        The boxes use the memory of the buffers after the last step. They are larger if there are many small warps.
        """
        tiles = (config.block_m + config.block_n) * config.block_k
        columns = config.warps_n * min(config.block_n // config.warps_n, _BOX_COLUMNS)
        boxes = config.warps_m * _BOX_ROWS * columns * problem.accumulate.itemsize
        return max(tiles * config.stages * problem.dtype.itemsize, boxes)

    def shared_traffic_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The bytes read from shared memory for a step of block_k: a warp reads its rows of A and columns of B once."""
        warp_edges = config.block_m // config.warps_m + config.block_n // config.warps_n
        return config.warps_m * config.warps_n * warp_edges * config.block_k * problem.dtype.itemsize

    def registers_estimate(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The registers of a thread: 1/32 of those for the warp's part of C, and for 32 bytes of k of its A and B."""
        warp_m, warp_n = config.block_m // config.warps_m, config.block_n // config.warps_n
        return (warp_m * warp_n + (warp_m + warp_n) * 32 // 4) // 32

    def shape_fault(self, problem: GemmProblem, config: KernelConfig) -> str | None:
        """The reason why the template cannot have tiles of this config's size; ``None`` if it can.

        A tile must divide into parts of 16 x 16 for each warp, and a row in shared memory must be a power of two times
        16 bytes.
        """
        if config.stages < 2:
            return "stages must be at least 2"
        for letter, block, warps in (("m", config.block_m, config.warps_m), ("n", config.block_n, config.warps_n)):
            if block % (16 * warps):
                return f"block_{letter} must be a multiple of 16 · warps_{letter} = {16 * warps}"
        for name in ("block_m", "block_n", "block_k"):
            size = getattr(config, name)
            least = max(16, 32 // problem.dtype.itemsize if name == "block_k" else 0)
            if size < least or size & (size - 1):
                return f"{name} must be a power of two of at least {least} for {problem.dtype}"
        return None

    def m_divisor(self, problem: GemmProblem) -> int:
        """The largest number of elements that one read of A covers, if A is stored k × m; else 1."""
        return m_divisor(problem, 16 // problem.dtype.itemsize)

    def constants(self, problem: GemmProblem, config: KernelConfig) -> Constants:
        """All constants that the template needs, by name."""
        widest, store = 16 // problem.dtype.itemsize, widest_store(problem)
        return specialised_constants(self, problem, config, widest=widest, widest_store=store)


# By the size of an element. 64 x 256 with 128 bytes of k is left out: its four warps have so much to copy that
# registers spill with some layouts, and an SM has room for only one such block.
_CONFIGS = {
    itemsize: tuple(
        KernelConfig(block_m, block_n, depth // itemsize, warps_m, warps_n, stages)
        for block_m, block_n, warps_m, warps_n in _TILES
        for depth, stages in _DEPTHS
        if (block_m, block_n, depth) != (64, 256, 128)
    )
    for itemsize in (1, 2, 4)
}


# ---- fp8 with scales ----

# (block_m, block_n, warps_m, warps_n, stages): warp tiles of at most 64 x 32, as sums are held twice.
_SCALED_TILES = (
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
# If each column of B has a scale, each lane holds the scales of its columns. So warp tiles are at most 32 x 32, since
# registers spill with larger ones; and with four stages of 16 x 128.
_SCALED_TILES_OF_COLUMNS = (
    (128, 64, 4, 2, 3),
    (64, 128, 2, 4, 3),
    *_SCALED_TILES[3:7],
    (16, 128, 1, 4, 3),
    *_SCALED_TILES[8:],
)
# By the number of columns of B that share a scale.
_SCALED_CONFIGS = {
    columns: tuple(
        KernelConfig(block_m, block_n, SCALE_BLOCK, warps_m, warps_n, stages)
        for block_m, block_n, warps_m, warps_n, stages in tiles
    )
    for columns, tiles in ((1, _SCALED_TILES_OF_COLUMNS), (SCALE_BLOCK, _SCALED_TILES))
}
_PLAIN = TensorCore()  # the other two families read tiles of A and B in the same way


class Scaled(TensorCore):
    """The ``scaled`` family: fp8 with a scale for each block of 128 along k; sm_89 and newer.

    Scales are read from global memory, so the shared memory is that of ``TensorCore``.
    """

    name = "scaled"
    template = "scaled.cu"
    flops_per_clock: Mapping[DType, int] = {t: _PLAIN.flops_per_clock[t] for t in (DType.FP8_E4M3, DType.FP8_E5M2)}

    def takes(self, problem: GemmProblem) -> bool:
        """Whether the problem has scales and no groups."""
        return bool(problem.scales) and not problem.mode

    def configs(self, problem: GemmProblem) -> tuple[KernelConfig, ...]:
        """The configs to consider; some may break a limit of the target."""
        return _SCALED_CONFIGS[problem.scales.b_columns]

    def registers_estimate(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The registers of a thread: as for ``TensorCore``, and accumulators for one block of scales along k."""
        sums = config.block_m * config.block_n // config.threads
        return super().registers_estimate(problem, config) + sums

    def shape_fault(self, problem: GemmProblem, config: KernelConfig) -> str | None:
        """The reason why the template cannot have tiles of this config's size; ``None`` if it can.

        block_k must be 128, as the block of scales; a warp's columns must share scales; the other rules are those of
        ``TensorCore``.
        """
        if config.block_k != SCALE_BLOCK:
            return f"block_k must be {SCALE_BLOCK}, the length of a block of scales"
        if config.block_n > SCALE_BLOCK * config.warps_n:
            return f"block_n must be at most {SCALE_BLOCK} · warps_n, so that the columns of a warp share scales"
        return super().shape_fault(problem, config)

    def constants(self, problem: GemmProblem, config: KernelConfig) -> Constants:
        """All constants that the template needs, by name."""
        more = scale_constants(problem.scales)
        return specialised_constants(self, problem, config, widest=16, widest_store=widest_store(problem), more=more)


# ---- Groups ----

_SCALED = Scaled()


class Grouped(TensorCore):
    """The ``grouped`` family, for mixtures of experts: groups of rows, each with its own B, counted on the GPU."""

    name = "grouped"
    template = "grouped.cu"
    splits_k = False
    is_persistent = True

    def takes(self, problem: GemmProblem) -> bool:
        """Whether the problem has groups; it may have scales."""
        return bool(problem.mode)

    def configs(self, problem: GemmProblem) -> tuple[KernelConfig, ...]:
        """The configs to consider; some may break a limit of the target."""
        return _of_tiles(problem).configs(problem)

    def registers_estimate(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The registers of a thread: as for ``Scaled`` if the problem has scales, else as for ``TensorCore``."""
        return _of_tiles(problem).registers_estimate(problem, config)

    def shape_fault(self, problem: GemmProblem, config: KernelConfig) -> str | None:
        """The reason why the template cannot have tiles of this config's size; ``None`` if it can.

        The rules are those of ``Scaled`` if the problem has scales, else those of ``TensorCore``.
        """
        return _of_tiles(problem).shape_fault(problem, config)

    def constants(self, problem: GemmProblem, config: KernelConfig) -> Constants:
        """All constants that the template needs, by name."""
        widest, store = 16 // problem.dtype.itemsize, widest_store(problem)
        more = (*scale_constants(problem.scales), ("MASKED", int(problem.mode is Mode.MASKED)))
        return specialised_constants(self, problem, config, widest=widest, widest_store=store, more=more)


def _of_tiles(problem: GemmProblem) -> TensorCore:
    return _SCALED if problem.scales else _PLAIN
