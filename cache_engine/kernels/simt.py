"""Kernels for the CUDA cores: fp32, fp64, int8 and, on targets without tensor cores for it, fp16."""

from __future__ import annotations

from collections.abc import Mapping

from cache_engine.kernels.family import Family, m_divisor, specialised_constants
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import KernelConfig, ceil_div
from cache_engine.model.key import Constants

LANES_M, LANES_N = 4, 8  # the arrangement of a warp's lanes over its part of C; fixed in the template
_STAGES = 2  # two shared buffers; fixed in the template

# (block_m, block_n, block_k, warps_m, warps_n)
_TILES = (
    (128, 128, 8, 4, 2),
    (128, 128, 16, 4, 2),
    (128, 64, 16, 4, 1),
    (64, 128, 16, 2, 2),
    (64, 64, 16, 2, 2),
    (64, 64, 8, 2, 1),
    (32, 128, 16, 1, 4),
    (32, 64, 16, 2, 2),
    (32, 32, 16, 2, 1),
    (16, 64, 16, 1, 2),
    (16, 32, 32, 1, 1),
)


class Simt(Family):
    """The ``simt`` family: kernels that multiply on CUDA cores."""

    name = "simt"
    template = "simt.cu"
    unit = "cuda"
    # NVIDIA A100 white paper; for fp32, that of its successors. The other types are widened first.
    flops_per_clock: Mapping[DType, int] = {
        DType.FP32: 256,
        DType.FP64: 128,
        DType.FP16: 256,
        DType.BF16: 256,
        DType.INT8: 128,
    }

    def min_capability(self, dtype: DType) -> tuple[int, int]:
        """The lowest compute capability on which the family computes the type; rounding to bf16 needs 8.0."""
        return (8, 0) if dtype is DType.BF16 else (7, 0)

    def configs(self, problem: GemmProblem) -> tuple[KernelConfig, ...]:
        """The configs to consider; some may break a limit of the target."""
        return _CONFIGS[problem.accumulate.itemsize]

    def shared_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """Dynamic shared memory in bytes: two buffers for A and B in the type of the accumulators, with padded rows."""
        vector = 16 // problem.accumulate.itemsize
        rows = config.block_m + vector + config.block_n + vector
        return rows * config.block_k * _STAGES * problem.accumulate.itemsize

    def shared_traffic_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The bytes read from shared memory for each step of block_k.

        Every lane reads its rows of A and columns of B 16 bytes at a time; a warp's read takes two passes of 128
        bytes.
        """
        thread_m, thread_n = _thread_tile(config)
        reads = (thread_m + thread_n) * problem.accumulate.itemsize // 16
        return config.warps_m * config.warps_n * reads * config.block_k * 256

    def registers_estimate(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The registers of a thread: its part of C, a column of A, a row of B, and its parts of the next tiles."""
        thread_m, thread_n = _thread_tile(config)
        carried = ceil_div((config.block_m + config.block_n) * config.block_k, config.threads)
        return (thread_m * thread_n + thread_m + thread_n + carried) * problem.accumulate.itemsize // 4

    def shape_fault(self, problem: GemmProblem, config: KernelConfig) -> str | None:
        """The reason why the template cannot have tiles of this config's size; ``None`` if it can.

        Each lane needs whole vectors of 16 bytes.
        """
        vector = 16 // problem.accumulate.itemsize
        if config.stages != _STAGES:
            return f"stages must be {_STAGES}"
        for letter, block, warps, lanes in (
            ("m", config.block_m, config.warps_m, LANES_M),
            ("n", config.block_n, config.warps_n, LANES_N),
        ):
            step = warps * lanes * vector
            if block % step:
                return f"block_{letter} must be a multiple of {step} (warps · lanes · elements in 16 bytes)"
        if config.block_k % vector:
            return f"block_k must be a multiple of {vector}"
        return None

    def m_divisor(self, problem: GemmProblem) -> int:
        """The number of elements that the widest read of A covers, if A is stored k × m; else 1."""
        return m_divisor(problem, 16 // problem.accumulate.itemsize)

    def constants(self, problem: GemmProblem, config: KernelConfig) -> Constants:
        """All constants that the template needs, by name."""
        vector = 16 // problem.accumulate.itemsize
        return specialised_constants(self, problem, config, widest=vector, widest_store=vector)


def _thread_tile(config: KernelConfig) -> tuple[int, int]:
    return config.block_m // config.warps_m // LANES_M, config.block_n // config.warps_n // LANES_N


# By the size of a sum. Deeper tiles of fp64 would need all registers that a thread can have.
_CONFIGS = {
    4: tuple(KernelConfig(*tile, stages=_STAGES) for tile in _TILES),
    8: tuple(KernelConfig(m, n, min(k, 16), warps_m, warps_n, _STAGES) for m, n, k, warps_m, warps_n in _TILES),
}
