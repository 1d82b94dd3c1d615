"""Kernels in Triton for fp16, bf16 and tf32, with fp32 accumulators, for sm_80 and newer.

Triton chooses the instructions (mma.sync, wgmma or tcgen05) and arranges warps and stages itself. From a config it uses
the tile, the number of warps and the number of stages.
"""

from __future__ import annotations

from collections.abc import Mapping

from cache_engine.kernels.family import RASTER_ROWS, Family, kernel_name, m_divisor, size_constants, vector_elements
from cache_engine.model.gemm import DType, GemmProblem, Specialisation
from cache_engine.model.kernel import KernelConfig
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


class TritonMatmul(Family):
    """The ``triton`` family. It is used only if the caller names it."""

    name = "triton"
    template = "triton_matmul.py"
    unit = "tensor"
    # NVIDIA A100 white paper.
    flops_per_clock: Mapping[DType, int] = {DType.FP16: 2048, DType.BF16: 2048, DType.TF32: 1024}
    takes_epilogue = False
    splits_k = False
    hidden_parameters = ("global_scratch", "profile_scratch")

    def min_capability(self, dtype: DType) -> tuple[int, int]:
        """The lowest compute capability on which the family computes the type."""
        return (8, 0)

    def problem_fault(self, problem: GemmProblem) -> str | None:
        """The reason why the family cannot compute a C of fp8 (its template takes no scale of C); else ``None``."""
        return (
            f"it makes no {problem.output}, which needs the scale of the result" if problem.has_result_scale else None
        )

    def configs(self, problem: GemmProblem) -> tuple[KernelConfig, ...]:
        """The configs to consider; some may break a limit of the target."""
        return _CONFIGS[problem.dtype.itemsize]

    def shared_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The largest dynamic shared memory that Triton was seen to use: all stages of A and B, or C in their place.

        For mma.sync (8.x and 12.x) Triton uses one stage less, and stores C in two halves.
        """
        ring = (config.block_m + config.block_n) * config.block_k * config.stages * problem.dtype.itemsize
        c_tile = config.block_m * config.block_n * problem.output.itemsize
        halved = problem.arch is not None and problem.target.major in (8, 12)
        return max(ring, c_tile // 2 if halved else c_tile)

    def shared_traffic_bytes(self, problem: GemmProblem, config: KernelConfig) -> int:
        """An estimate of the bytes read from shared memory in a step of block_k, as if warps were in two columns."""
        edges = config.block_m // (config.warps_m // 2) + config.block_n // 2
        return config.warps_m * edges * config.block_k * problem.dtype.itemsize

    def registers_estimate(self, problem: GemmProblem, config: KernelConfig) -> int:
        """The registers of a thread for its part of C; also on sm_100, where threads read C from tensor memory."""
        return config.block_m * config.block_n // config.threads

    def shape_fault(self, problem: GemmProblem, config: KernelConfig) -> str | None:
        """The reason why Triton cannot have tiles of this config's size; ``None`` if it can.

        Each size must be a power of two, at least 16.
        """
        if config.warps_n != 1 or config.warps_m not in (4, 8):
            return "Triton places the warps itself: warps_m must be 4 or 8, and warps_n 1"
        for name in ("block_m", "block_n", "block_k"):
            size = getattr(config, name)
            if size < 16 or size & (size - 1):
                return f"{name} must be a power of two of at least 16"
        return None

    def m_divisor(self, problem: GemmProblem) -> int:
        """The largest number of elements that one read of A covers, if A is stored k × m; else 1."""
        return m_divisor(problem, 16 // problem.dtype.itemsize)

    def constants(self, problem: GemmProblem, config: KernelConfig) -> Constants:
        """All constants that the template needs, by name."""
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
    """For each size that is an argument, a divisor of it on which the kernel relies; 1 if no rows have that length."""
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
