"""Speeds of each target in computing and moving data. They serve to rank configs, not to claim a kernel's speed.

Unless stated otherwise, a rate is for one SM and one clock, of the GPU that ``model.architecture`` names as the
target's example. Sources are NVIDIA's, by compute capability:

- 7.0: Volta white paper, V100 data sheet (SXM2); 8-bit integers by ``dp4a``. 7.5: Turing white paper, T4 data sheet.
  8.0: A100 white paper and data sheet (80 GB SXM). 8.6: GA102 white paper, A10 data sheet. 8.7: Jetson AGX Orin
  technical brief. 8.9: Ada white paper, L40S data sheet. 9.0: H100 white paper and data sheet (SXM). 10.0: HGX B200
  data sheet. 12.0: RTX Blackwell white paper, RTX 5090.
- Clocks are those at which the data sheet's peak holds. Rates of CUDA cores: CUDA C++ Programming Guide, "Throughput
  of Native Arithmetic Instructions".
- ``mma.sync`` reaches 62.9 % of what ``wgmma`` does on H100: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper
  GPU Architecture", arXiv 2402.13499, section 6.2. No such figure is public for 10.x and 11.0: there the absolute rate
  of an H100 is used.
- 8.8 has the rates of 8.6; 10.3, 10.7 and 11.0 those of 10.0; and 12.1 those of 12.0, except where ``_RATES`` differs.
- fp8 has no ``mma.sync`` from 9.0 to 11.0 (PTX ISA, "mma"; ptxas compiles it to HMMA): kernels convert to fp16.
- Each of an SM's four schedulers issues one warp instruction per clock: CUDA C++ Programming Guide, "Multiprocessor
  Level".

Most targets have no published bandwidth of L2, so an A100's is used for all. ``calibrated`` has the shares of these
rates that real kernels reach, from the first fit of the evaluator's GPU model to measurements.
"""

from __future__ import annotations

import msgspec

from cache_engine.model.architecture import Architecture
from cache_engine.model.gemm import DType

L2_BYTES = 48
"""The bytes from L2 that an SM gets in one clock: an A100, with 108 SMs, has 5,120 bytes a clock (its white paper)."""
SHARED_BYTES = 128
SCHEDULERS = 4


class Rates(msgspec.Struct, frozen=True):
    """The rates of a target; a multiply-add counts as two operations. Operations are for one SM in one clock.

    Attributes:
        clock_mhz: the clock of the SMs.
        dram_gb_s: the memory bandwidth of the whole GPU, in 10⁹ bytes per second.
        tensor: operations on 16-bit floats by tensor cores, with fp32 accumulators, without sparsity, with the target's
            fastest instruction.
        mma: operations on 16-bit floats by tensor cores with ``mma.sync``.
        tensor_int8: operations on 8-bit integers, with the fastest instruction.
        fp32, fp64: operations by CUDA cores.
        reached: the share of ``tensor`` that large tiles reach; 1 if it was not measured.
        dram_reached: the share of ``dram_gb_s`` that kernels reach; 1 if it was not measured.
        has_fp8_mma: whether ``mma.sync`` multiplies fp8.
    """

    clock_mhz: int
    dram_gb_s: float
    tensor: int
    mma: int
    tensor_int8: int
    fp32: int
    fp64: int
    reached: float = 1.0
    dram_reached: float = 1.0
    has_fp8_mma: bool = True

    def converts(self, unit: str, dtype: DType) -> bool:
        """Whether kernels that multiply on ``unit`` (as for ``operations``) convert a type to fp16 first."""
        return unit == "mma" and dtype in (DType.FP8_E4M3, DType.FP8_E5M2) and not self.has_fp8_mma

    @property
    def dram_bytes_per_clock(self) -> float:
        """The bytes that the whole GPU's memory moves in one clock of the SMs."""
        return self.dram_gb_s * self.dram_reached * 1e3 / self.clock_mhz

    def operations(self, unit: str, dtype: DType) -> float:
        """The operations on a type in one clock of one SM, by the unit ``"mma"``, ``"tensor"`` or ``"cuda"``."""
        if unit == "cuda":
            # Types narrower than fp32 are widened; multiplying integers takes twice as long on all targets but 12.x.
            return self.fp64 if dtype is DType.FP64 else 128 if dtype is DType.INT8 else self.fp32
        share = self.mma / self.tensor if unit == "mma" else 1.0
        if dtype is DType.INT8:
            return self.tensor_int8 * share * self.reached
        by_size = {DType.TF32: 0.5, DType.FP8_E4M3: 2.0, DType.FP8_E5M2: 2.0}
        return self.tensor * by_size.get(dtype, 1.0) * share * self.reached


# ``reached`` and ``dram_reached`` are from the first edition of the evaluator's GPU model (docs/decisions/0014). They
# stay when that model is fitted again: a changed choice of configs would make kernels of every store a miss.
A100 = Rates(1410, 2039, 2048, 2048, 4096, 128, 64, 0.92438, 0.79343)
_H100_MMA = 2576  # 62.9 % of 4,096
_HOPPER = Rates(1830, 3352, 4096, _H100_MMA, 8192, 256, 128, 0.87191, 0.85876, has_fp8_mma=False)
_AMPERE = Rates(1695, 600, 1024, 1024, 2048, 256, 4)
_BLACKWELL = Rates(1855, 8000, 8192, _H100_MMA, 16_384, 256, 128, 0.75652, 0.81695, has_fp8_mma=False)
_GEFORCE = Rates(2407, 1792, 512, 512, 2048, 256, 4)

_RATES = {
    (7, 0): Rates(1530, 900, 1024, 1024, 512, 128, 64),
    (7, 5): Rates(1590, 320, 1024, 1024, 2048, 128, 4),
    (8, 0): A100,
    (8, 6): _AMPERE,
    (8, 7): Rates(1300, 204.8, 2048, 2048, 4096, 256, 4),
    (8, 8): _AMPERE,
    (8, 9): Rates(2520, 864, 1024, 1024, 2048, 256, 4),
    (9, 0): _HOPPER,
    (10, 0): _BLACKWELL,
    (10, 3): msgspec.structs.replace(_BLACKWELL, fp64=4),
    (10, 7): msgspec.structs.replace(_BLACKWELL, fp64=4),
    (11, 0): msgspec.structs.replace(_BLACKWELL, clock_mhz=1575, dram_gb_s=273, fp64=4, reached=1.0, dram_reached=1.0),
    (12, 0): _GEFORCE,
    (12, 1): msgspec.structs.replace(_GEFORCE, dram_gb_s=273),
}


def rates_of(target: Architecture) -> Rates:
    """The rates of a target."""
    return _RATES[target.compute_capability]
