"""Kernels in Triton: fp16, bf16 and tf32; fp32 sums; sm_80 on.

Triton chooses the instructions (mma.sync, wgmma or tcgen05) and places warps and stages itself. Of a config it gets
the tile, how many warps and how many stages.
"""

from __future__ import annotations

from collections.abc import Mapping

from cache_engine.kernels.family import RASTER_ROWS, kernel_name, m_divisor, size_constants, vector_elements
from cache_engine.model.gemm import DType, GemmProblem, Specialisation
from cache_engine.model.kernel import Box, KernelConfig
from cache_engine.model.key import Constants

# (block_m, block_n, block_k of 16-bit elements, warps, stages); of 32-bit elements block_k is half of that.
_TILES = (
    (128, 256, 64, 8, 3),
    (256, 128, 64, 8, 3),
    (128, 256, 32, 8, 4),
    (128, 128, 64, 8, 3),
    (128, 128, 64, 4, 3),
    (128, 128, 32, 4, 4),
    (64, 256, 64, 4, 3),
    (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 64, 64, 4, 4),
    (32, 128, 64, 4, 4),
    (32, 64, 64, 4, 4),
    (16, 128, 64, 4, 4),
    (16, 64, 128, 4, 4),
)


class TritonMatmul:
    """The ``triton`` family. It serves only when it is asked for by name."""

    name = "triton"
    template = "triton_matmul.py"
    unit = "tensor"
    # NVIDIA A100 white paper.
    flops_per_clock: Mapping[DType, int] = {DType.FP16: 2048, DType.BF16: 2048, DType.TF32: 1024}
    takes_epilogue = False
    splits_k = False
    clusters = False
    copying_threads = 0
    is_persistent = False
    hidden_parameters: tuple[str, ...] = ("global_scratch", "profile_scratch")

    def takes(self, problem: GemmProblem) -> bool:
        """Operands without scales, in no groups."""
        return not problem.scales and not problem.mode

    def min_capability(self, dtype: DType) -> tuple[int, int]:
        """The first compute capability on which it computes the type."""
        return (8, 0)

    def problem_fault(self, problem: GemmProblem) -> str | None:
        """It computes every problem of its types, and takes no argument that a C of fp8 needs."""
        return (
            f"it makes no {problem.output}, which needs the scale of the result" if problem.has_result_scale else None
        )

    def configs(self, problem: GemmProblem) -> tuple[KernelConfig, ...]:
        """The configs worth considering, feasible or not."""
        return _CONFIGS[problem.dtype.itemsize]

    def shared_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The most that Triton was seen to take: all stages of A and B, then, in the same place, the tile of C.

        For mma.sync (8.x and 12.x) it takes one stage less, and lays C out in two halves.
        """
        ring = (config.block_m + config.block_n) * config.block_k * config.stages * problem.dtype.itemsize
        c_tile = config.block_m * config.block_n * problem.output.itemsize
        halved = problem.arch is not None and problem.target.major in (8, 12)
        return max(ring, c_tile // 2 if halved else c_tile)

    def shared_traffic_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """As if the warps stood two abreast, each reading its rows of A and columns of B once."""
        edges = config.block_m // (config.warps_m // 2) + config.block_n // 2
        return config.warps_m * edges * config.block_k * problem.dtype.itemsize

    def registers_estimate(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The thread's part of C. On sm_100 it passes through registers on its way from tensor memory."""
        return config.block_m * config.block_n // config.threads

    def shape_fault(self, problem: GemmProblem, config: KernelConfig) -> str | None:
        """Triton's tiles are powers of two; no dot product is less than 16 deep or wide here."""
        if config.warps_n != 1 or config.warps_m not in (4, 8):
            return "Triton places the warps itself: warps_m must be 4 or 8, and warps_n 1"
        for name in ("block_m", "block_n", "block_k"):
            size = getattr(config, name)
            if size < 16 or size & (size - 1):
                return f"{name} must be a power of two of at least 16"
        return None

    def boxes(self, problem: GemmProblem, config: KernelConfig) -> tuple[Box, ...]:
        """Its threads copy tiles themselves."""
        return ()

    def m_divisor(self, problem: GemmProblem) -> int:
        """The number of elements that a read of A's rows covers at most, where these are m long; else 1."""
        return m_divisor(problem, 16 // problem.dtype.itemsize)

    def constants(self, problem: GemmProblem, config: KernelConfig) -> Constants:
        """Everything the template needs, by name."""
        layout = problem.layout
        divisors = _divisors(problem)
        assumed = "_".join(f"{name[0].lower()}x{divisor}" for name, divisor in divisors.items())
        constants: dict[str, str | int] = {
            "KERNEL_NAME": kernel_name(self, problem, config, assumed),
            "IN_TYPE": "fp32" if problem.dtype is DType.TF32 else problem.dtype.value,
            "OUT_TYPE": problem.output.value,
            "INPUT_PRECISION": "tf32" if problem.dtype is DType.TF32 else "ieee",
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            "WARPS": config.warps_m,
            "STAGES": config.stages,
            "RASTER_ROWS": RASTER_ROWS,
            **size_constants(problem),
            "A_TRANSPOSED": int(layout.a_transposed),
            "B_TRANSPOSED": int(layout.b_transposed),
            **divisors,
            "HIDDEN_PARAMETERS": " ".join(self.hidden_parameters),
        }
        return Constants.of(constants)


def _divisors(problem: GemmProblem) -> dict[str, int]:
    """Of each size that is an argument: a number it is a multiple of, where rows are that long, else 1."""
    layout, widest = problem.layout, 16 // problem.dtype.itemsize
    divisors = {"M_DIVISOR": vector_elements(problem.m, widest) if layout.a_transposed else 1}
    if problem.specialisation is Specialisation.DYNAMIC:
        along_k = layout.b_transposed or not layout.a_transposed
        divisors["N_DIVISOR"] = vector_elements(problem.n, widest)  # rows of C are n long, always
        divisors["K_DIVISOR"] = vector_elements(problem.k, widest) if along_k else 1
    return divisors


_CONFIGS = {
    itemsize: tuple(
        KernelConfig(block_m, block_n, block_k * 2 // itemsize, warps_m=warps, warps_n=1, stages=stages)
        for block_m, block_n, block_k, warps, stages in _TILES
    )
    for itemsize in (2, 4)
}
