"""Kernels for Hopper only (sm_90a): the copy engine (TMA) copies tiles, and warp groups multiply them (wgmma)."""

from __future__ import annotations

from collections.abc import Mapping

from cache_engine.kernels.family import Family, scale_constants, specialised_constants, widest_store
from cache_engine.model.gemm import SCALE_BLOCK, DType, GemmProblem
from cache_engine.model.kernel import Box, KernelConfig
from cache_engine.model.key import Constants

TARGET = "sm_90a"
MMA_M = 64
"""The rows of C that one wgmma computes. This and the next nine values are fixed in the template."""
_MMA_N = (64, 128, 256)
_TURNED_BYTES = 2
_LINE_BYTES = 128
GROUP_WARPS = 4
_WARPS = ((8, 1), (4, 2), (4, 1))  # two warp groups, by rows or by columns; or one
_MOST_SUMS = 128  # that one thread holds
_MOST_SCALED = 200  # with scales: sums, products of one wgmma, and scales
_STORED_ROWS = 16
_STORING_BOXES = 2  # boxes of a warp, each of so many lines
_REGISTERS = 64 * 1024  # of an SM, all for one block; a thread's share is a multiple of eight, at most 255
_BOX_EDGE = 256
_MOST_CLUSTER = 2
_VECTOR_BYTES = 16


class Hopper(Family):
    """The ``hopper`` family. On its target it is chosen first, if the copy engine can read the operands."""

    name = "hopper"
    template = "hopper.cu"
    unit = "tensor"
    # NVIDIA A100 white paper, as for ``tensor_core``.
    flops_per_clock: Mapping[DType, int] = {
        DType.FP16: 2048,
        DType.BF16: 2048,
        DType.TF32: 1024,
        DType.FP8_E4M3: 4096,
        DType.FP8_E5M2: 4096,
    }
    clusters = True
    copying_threads = 128
    is_persistent = True

    def takes(self, problem: GemmProblem) -> bool:
        """Whether the problem has no groups; it may have scales."""
        return not problem.mode

    def min_capability(self, dtype: DType) -> tuple[int, int]:
        """The lowest compute capability on which the family computes the type."""
        return (9, 0)

    def problem_fault(self, problem: GemmProblem) -> str | None:
        """The reason why the family cannot compute the problem: target, optimisation level, layout or length of rows.

        ``None`` if it can.
        """
        if problem.arch != TARGET:
            return f"it needs the target {TARGET}, and this is for {problem.arch}"
        if problem.opt_level == 0:
            return "at optimisation level 0 ptxas runs its wgmma instructions one by one; use level 1, 2 or 3"
        if problem.layout.a_transposed:
            return f"A must be stored along k, and the layout is {problem.layout}; use nt{_or_nn(problem.dtype)}"
        if not problem.layout.b_transposed and not _or_nn(problem.dtype):
            return f"B of {problem.dtype} must be stored along k, and the layout is {problem.layout}; use nt"
        step = _VECTOR_BYTES // problem.dtype.itemsize
        for name, size in (("k", problem.k), ("n", 0 if problem.layout.b_transposed else problem.n)):
            if size % step:
                return f"{name} must be a multiple of {step}, so that rows are whole 16 bytes, and is {size:,}"
        return None

    def configs(self, problem: GemmProblem) -> tuple[KernelConfig, ...]:
        """The configs to consider; some may break a limit of the target."""
        return _CONFIGS[problem.dtype.itemsize]

    def shared_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """Dynamic shared memory in bytes: buffers of A and B tiles, two barriers for each, and boxes of C."""
        ring = config.stages * ((config.block_m + config.block_n) * _LINE_BYTES + 2 * 8)
        return ring + config.warps_m * config.warps_n * _STORING_BOXES * _STORED_ROWS * _LINE_BYTES

    def shared_traffic_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The bytes read from shared memory for a step of block_k: every wgmma reads its rows of A and columns of B."""
        rows, columns = config.block_m // MMA_M, config.block_n // config.warps_n
        return rows * config.warps_n * (MMA_M + columns) * _LINE_BYTES

    def registers_estimate(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The average number of registers of a thread: the threads of one block share all registers of an SM."""
        return min(_REGISTERS // (config.threads + self.copying_threads) // 8 * 8, 255)

    def shape_fault(self, problem: GemmProblem, config: KernelConfig) -> str | None:
        """The reason why the template cannot have tiles of this size; ``None`` if it can.

        The sizes must fit warp groups, the sizes of wgmma, lines of 128 bytes, and the copy engine.
        """
        if (config.warps_m, config.warps_n) not in _WARPS:
            return "one or two warp groups multiply: warps_m and warps_n must be 8 and 1, 4 and 2, or 4 and 1"
        if config.stages < 2:
            return "stages must be at least 2"
        if config.block_k * problem.dtype.itemsize != _LINE_BYTES:
            return f"block_k must be {_LINE_BYTES // problem.dtype.itemsize}: {_LINE_BYTES} bytes of {problem.dtype}"
        rows = MMA_M * config.warps_m // GROUP_WARPS
        if config.block_m % rows or config.block_m > _BOX_EDGE:
            return f"block_m must be a multiple of {rows}, at most {_BOX_EDGE}"
        columns = config.block_n // config.warps_n
        if problem.has_result_scale and columns < _LINE_BYTES:
            return f"block_n must be at least {_LINE_BYTES} · warps_n, so that a warp has whole lines of a C of fp8"
        if config.block_n % config.warps_n or columns not in _MMA_N or config.block_n > _BOX_EDGE:
            widths = ", ".join(str(one * config.warps_n) for one in _MMA_N if one * config.warps_n <= _BOX_EDGE)
            return f"block_n must be one of {widths}"
        sums = config.block_m // rows * columns // 2
        if sums > _MOST_SUMS:
            return f"a thread would hold {sums} sums; the most is {_MOST_SUMS}"
        return _cluster_fault(problem, config) or (_scaled_fault(problem, sums, columns) if problem.scales else None)

    def boxes(self, problem: GemmProblem, config: KernelConfig) -> tuple[Box, ...]:
        """The parts that TMA copies at once: a tile of A, a block's share of a tile of B, a warp's part of C."""
        line, part = _LINE_BYTES // problem.dtype.itemsize, config.block_n // config.cluster
        a, b = Box("a", line, config.block_m), Box("b", line, part if problem.layout.b_transposed else line)
        if not _is_boxed(problem):
            return a, b
        return a, b, Box("c", _LINE_BYTES // problem.output.itemsize, _STORED_ROWS)

    def constants(self, problem: GemmProblem, config: KernelConfig) -> Constants:
        """All constants that the template needs, by name."""
        widest, store = _VECTOR_BYTES // problem.dtype.itemsize, widest_store(problem)
        cluster = (("CLUSTER", config.cluster),) if config.cluster > 1 else ()
        more = (*scale_constants(problem.scales), ("C_BOXED", int(_is_boxed(problem))), *cluster)
        return specialised_constants(self, problem, config, widest=widest, widest_store=store, more=more)


def _is_boxed(problem: GemmProblem) -> bool:
    """Whether the copy engine can store C: the length of its rows must be a multiple of 16 bytes."""
    return problem.n * problem.output.itemsize % _VECTOR_BYTES == 0


def _cluster_fault(problem: GemmProblem, config: KernelConfig) -> str | None:
    """The reason why ``config.cluster`` blocks cannot share tiles of B; ``None`` if they can."""
    if config.cluster > _MOST_CLUSTER:
        return f"cluster must be 1 or {_MOST_CLUSTER}"
    panel = 1 if problem.layout.b_transposed else _LINE_BYTES // problem.dtype.itemsize
    if config.block_n % (panel * config.cluster):
        return (
            f"block_n must be at least {panel * config.cluster}: each block of a cluster copies whole panels of {panel}"
        )
    return None


def _scaled_fault(problem: GemmProblem, sums: int, columns: int) -> str | None:
    """The reason why a kernel with scales cannot have these tiles; ``None`` if it can.

    Args:
        sums: the number of accumulators that a thread holds.
        columns: the number of columns of C that a warp group computes.
    """
    if columns > SCALE_BLOCK:
        return f"block_n must be at most {SCALE_BLOCK} · warps_n, so that the columns of a warp group share scales"
    scales = columns // 4 if problem.scales.b_columns == 1 else 1
    held = sums + columns // 2 + scales
    if held > _MOST_SCALED:
        return f"a thread would hold {held} sums, products and scales; the most is {_MOST_SCALED}"
    return None


def _or_nn(dtype: DType) -> str:
    """A text with further layouts that wgmma can read: it can transpose only matrices of 16-bit elements."""
    return " or nn" if dtype.itemsize == _TURNED_BYTES else ""


# By the size of an element: (block_m, block_n, warps_m, warps_n, stages). The buffers of A and B take about 200 KB of
# the 227 KB that a block may have, those of C take 32. A single warp group is for few rows, where a second one would
# have none.
_CONFIGS = {
    itemsize: tuple(
        KernelConfig(block_m, block_n, _LINE_BYTES // itemsize, warps_m, warps_n, stages)
        for block_m, block_n, warps_m, warps_n, stages in (
            (128, 256, 8, 1, 4),
            (256, 128, 8, 1, 4),
            (128, 128, 8, 1, 6),
            (128, 64, 8, 1, 8),
            (64, 256, 4, 2, 4),
            (64, 128, 4, 2, 8),
            (64, 256, 4, 1, 5),
            (64, 128, 4, 1, 8),
            (64, 64, 4, 1, 12),
        )
    )
    for itemsize in (1, 2, 4)
}
