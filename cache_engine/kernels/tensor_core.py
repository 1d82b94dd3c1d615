"""Tensor-core kernels: fp16 or bf16 inputs, fp32 sums; mma.sync with ldmatrix and multi-stage cp.async; sm_80 on."""

from __future__ import annotations

from cache_engine.kernels.family import kernel_name, specialised_constants
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import KernelConfig

_C_TYPES = {DType.FP16: "fp16", DType.BF16: "bf16", DType.FP32: "float"}

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
_DEPTHS = ((64, 3), (32, 4))  # (block_k, stages)


class TensorCore:
    """The ``tensor_core`` family."""

    name = "tensor_core"
    template = "tensor_core.cu"
    dtypes: tuple[DType, ...] = (DType.FP16, DType.BF16)
    min_capability = (8, 0)
    hidden_parameters: tuple[str, ...] = ()

    def configs(self, problem: GemmProblem) -> tuple[KernelConfig, ...]:
        """The configs worth considering, feasible or not."""
        return _CONFIGS

    def shared_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The ring of A and B tiles."""
        tiles = (config.block_m + config.block_n) * config.block_k
        return tiles * config.stages * problem.dtype.itemsize

    def shared_traffic_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """Every warp reads its rows of A and columns of B once (ldmatrix reads nothing twice)."""
        warp_edges = config.block_m // config.warps_m + config.block_n // config.warps_n
        return config.warps_m * config.warps_n * warp_edges * config.block_k * problem.dtype.itemsize

    def registers_estimate(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The warp's fp32 part of C, and one 16-deep slice of its A and B, spread over 32 lanes."""
        warp_m, warp_n = config.block_m // config.warps_m, config.block_n // config.warps_n
        return (warp_m * warp_n + (warp_m + warp_n) * 16 // 2) // 32

    def shape_fault(self, problem: GemmProblem, config: KernelConfig) -> str | None:
        """Tiles must divide into 16 x 16 parts per warp; rows of shared memory into power-of-two runs of 16 bytes."""
        if config.stages < 2:
            return "stages must be at least 2"
        for letter, block, warps in (("m", config.block_m, config.warps_m), ("n", config.block_n, config.warps_n)):
            if block % (16 * warps):
                return f"block_{letter} must be a multiple of 16 · warps_{letter} = {16 * warps}"
        for name in ("block_m", "block_n", "block_k"):
            size = getattr(config, name)
            if size < 16 or size & (size - 1):
                return f"{name} must be a power of two of at least 16"
        return None

    def constants(self, problem: GemmProblem, config: KernelConfig) -> dict[str, str | int]:
        """Everything the template needs, by name."""
        return {
            "KERNEL_NAME": kernel_name(self, problem, config),
            "IN_TYPE": _C_TYPES[problem.dtype],
            "OUT_TYPE": _C_TYPES[problem.output],
            **specialised_constants(problem, config),
        }


_CONFIGS = tuple(
    KernelConfig(block_m, block_n, block_k, warps_m, warps_n, stages)
    for block_m, block_n, warps_m, warps_n in _TILES
    for block_k, stages in _DEPTHS
)
