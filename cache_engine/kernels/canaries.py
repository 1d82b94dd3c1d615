"""Canaries: test kernels with problems, by which a family is proved correct on a GPU before it serves there.

They are small problems with the difficult cases: numbers of rows that do not fill a tile, incomplete tiles of every
operand, every type and layout that the family takes, split k, scales, clusters, and so few buffers that even a small
problem uses each several times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

import msgspec

from cache_engine.errors import GemmCacheError
from cache_engine.kernels.family import Family, launch_of
from cache_engine.kernels.select import FAMILIES, choose
from cache_engine.model.gemm import DType, GemmProblem, Layout, Mode, Scales, Specialisation
from cache_engine.model.kernel import KernelConfig, Launch, ceil_div

_BLOCKS = 2  # of a persistent kernel, so that a block computes several tiles one after the other


@dataclass(frozen=True, slots=True)
class Canary:
    """A kernel that must compute a problem correctly: its family, the problem with its target, and the config."""

    family: Family
    problem: GemmProblem
    config: KernelConfig
    cubin: bytes = b""
    """The compiled kernel, if a caller asked for this problem; then the canary uses the grid of real launches."""

    def __str__(self) -> str:
        p = self.problem
        words = [f"{p.batch} × " if p.batch > 1 else "", f"{p.m}x{p.n}x{p.k} {p.dtype} {p.layout} to {p.output}"]
        words += [f", {part}" for part in (str(p.epilogue), p.scales.value, p.specialisation.value) if part]
        return f"{self.family.name} {''.join(words)}, {self.config}"

    @property
    def launch(self) -> Launch:
        """The launch parameters; a persistent kernel gets few blocks, so that each computes several tiles."""
        launch = launch_of(self.family, self.problem, self.config)
        if self.cubin or not self.family.is_persistent:
            return launch
        return msgspec.structs.replace(launch, grid=(min(_BLOCKS, launch.grid[0]), *launch.grid[1:]))


def canaries(family: str, arch: str) -> list[Canary]:
    """The canaries of a family for a target, those that find most mistakes first."""
    made = _HOPPER if family == "hopper" else (*_plain(FAMILIES[family], arch), *_PLAIN.get(family, ()))
    asked = [Canary(FAMILIES[family], problem.on(arch), config) for problem, config in made]
    return [one for one in asked if _is_possible(one)]


def _is_possible(canary: Canary) -> bool:
    """Whether the target supports the types of the problem, and the config fits within its limits."""
    with suppress(GemmCacheError):
        choose(canary.problem, canary.family.name, canary.config)
        return True
    return False


# Of the hopper family. The order is that in which they see the mistakes of ``tests/ptx``.
_HOPPER = (
    (GemmProblem(150, 136, 200), KernelConfig(128, 64, 64, 8, 1, 2)),
    (GemmProblem(150, 300, 320), KernelConfig(128, 64, 64, 8, 1, 2, 4)),
    (GemmProblem(300, 136, 384, 2, "fp8_e4m3", scales="1x128,128x128"), KernelConfig(256, 128, 128, 8, 1, 2)),
    (GemmProblem(70, 264, 384, dtype="fp8_e4m3", scales="1x128,1x128,e8m0"), KernelConfig(64, 256, 128, 4, 2, 2)),
    (GemmProblem(300, 136, 264), KernelConfig(128, 128, 64, 8, 1, 2, cluster=2)),
    (GemmProblem(130, 264, 136, layout="nn"), KernelConfig(64, 256, 64, 4, 2, 2)),
    (GemmProblem(70, 328, 72, 2, epilogue="beta+bias"), KernelConfig(128, 256, 64, 8, 1, 2)),
    (GemmProblem(150, 134, 72), KernelConfig(128, 128, 64, 8, 1, 2)),
    (GemmProblem(70, 136, 208, dtype="fp8_e4m3"), KernelConfig(128, 64, 128, 8, 1, 2)),
    (GemmProblem(70, 136, 72, dtype="tf32"), KernelConfig(128, 64, 32, 8, 1, 2)),
    (GemmProblem(70, 136, 200), KernelConfig(64, 128, 64, 4, 1, 2)),
    (GemmProblem(40, 200, 320, 2), KernelConfig(64, 64, 64, 4, 1, 2, 3)),
    (GemmProblem(40, 136, 640, dtype="fp8_e4m3", scales="1x128,128x128"), KernelConfig(64, 128, 128, 4, 1, 2, 3)),
    (GemmProblem(130, 264, 136, layout="nn"), KernelConfig(64, 256, 64, 4, 2, 2, cluster=2)),
    (
        GemmProblem(192, 136, 384, dtype="fp8_e4m3", scales="1x128,128x128", specialisation="exact"),
        KernelConfig(64, 128, 128, 4, 1, 2, cluster=2),
    ),
    (GemmProblem(150, 136, 320), KernelConfig(64, 128, 64, 4, 1, 2, 4, 2)),
    # The rings that serve, and what is left: types, epilogues, specialisations, a single row.
    (GemmProblem(300, 264, 584, dtype="fp16", layout="nn", out_dtype="fp32", epilogue="alpha+bias+relu"),
     KernelConfig(128, 256, 64, 8, 1, 4)),
    (GemmProblem(1, 72, 840, dtype="fp16", specialisation="bucketed"), KernelConfig(64, 64, 64, 4, 1, 12)),
    (GemmProblem(70, 272, 1200, dtype="fp8_e5m2", out_dtype="fp8_e4m3", specialisation="dynamic"),
     KernelConfig(64, 256, 128, 4, 1, 5)),
    (GemmProblem(33, 264, 512, dtype="fp8_e5m2", scales="1x128,1x128", out_dtype="fp32"),
     KernelConfig(64, 128, 128, 4, 2, 8)),
    (GemmProblem(70, 135, 256, dtype="fp8_e4m3", scales="1x128,128x128,e8m0", epilogue="gelu"),
     KernelConfig(128, 128, 128, 8, 1, 6)),
)  # fmt: skip

# Of other families: rows of whole 16 bytes, of 4 elements, of 2, and odd ones; a k for slices.
_SHAPES = ((48, 80, 96, 1), (36, 76, 84, 1), (35, 67, 41, 2), (38, 70, 46, 2), (20, 40, 304, 1))
_SCALED_SHAPES = ((48, 80, 128, 1), (36, 135, 256, 2), (70, 129, 384, 1))
_EPILOGUES = ("", "alpha+beta+bias+relu", "bias", "beta")


# Further ones: larger tiles, several rows and columns of tiles for a warp, tails of words, and each way to store C.
_PLAIN = {
    "tensor_core": (
        (GemmProblem(72, 72, 24, dtype="tf32", layout="tn"), KernelConfig(64, 128, 16, 1, 2, 2)),
        (GemmProblem(24, 72, 40, dtype="tf32"), KernelConfig(16, 64, 8, 1, 2, 2)),
        (GemmProblem(40, 80, 90, dtype="int8", layout="tn"), KernelConfig(64, 64, 64, 1, 2, 2)),
        (GemmProblem(41, 83, 92, dtype="int8", layout="tn"), KernelConfig(64, 64, 64, 1, 2, 2)),
        (GemmProblem(19, 67, 41, 2, "fp16", layout="nn", epilogue="alpha+beta+bias"),
         KernelConfig(16, 64, 16, 1, 2, 2)),
        (GemmProblem(19, 67, 48, dtype="fp16", layout="nn"), KernelConfig(16, 64, 16, 1, 2, 2)),
        (GemmProblem(19, 7, 33, dtype="fp16", layout="nn"), KernelConfig(16, 64, 16, 1, 2, 2)),
        (GemmProblem(19, 1, 33, dtype="fp16", layout="nn"), KernelConfig(16, 64, 16, 1, 2, 2)),
        (GemmProblem(70, 131, 97), KernelConfig(128, 128, 32, 2, 2, 2)),
        (GemmProblem(24, 72, 104), KernelConfig(16, 64, 32, 1, 2, 3, 3)),
        (GemmProblem(24, 72, 104, 2), KernelConfig(16, 64, 16, 1, 2, 3, 3)),
        (GemmProblem(24, 72, 104, 2), KernelConfig(16, 64, 16, 1, 2, 3)),
        (GemmProblem(24, 72, 200), KernelConfig(16, 64, 64, 1, 2, 2)),
        (GemmProblem(40, 136, 56, dtype="fp16", epilogue="beta+bias"), KernelConfig(64, 128, 16, 2, 2, 2)),
        (GemmProblem(40, 72, 40, out_dtype="fp32", epilogue="bias+gelu"), KernelConfig(32, 64, 16, 1, 1, 2)),
        (GemmProblem(24, 72, 56, 1, "fp16", "fp8_e4m3", epilogue="alpha+bias+relu"), KernelConfig(16, 64, 16, 1, 2, 2)),
        (GemmProblem(136, 136, 24, specialisation="dynamic"), KernelConfig(16, 64, 16, 1, 2, 2)),
        (GemmProblem(150, 72, 40, specialisation="bucketed"), KernelConfig(16, 64, 64, 1, 2, 3)),
    ),
    "simt": (
        (GemmProblem(24, 40, 96, dtype="fp32", specialisation="exact"), KernelConfig(16, 32, 16, 1, 1, 2, 5)),
        (GemmProblem(24, 44, 40, dtype="fp32", epilogue="beta+bias"), KernelConfig(32, 32, 32, 1, 1, 2)),
    ),
    "scaled": (
        (GemmProblem(24, 136, 256, 2, "fp8_e4m3", scales="1x128,128x128"), KernelConfig(16, 64, 128, 1, 2, 2)),
    ),
}  # fmt: skip


def _plain(family: Family, arch: str) -> Iterator[tuple[GemmProblem, KernelConfig]]:
    """A problem for each type, layout, kind of scales and mode, with the possible config of the smallest tile.

    Sizes, epilogues, specialisations and numbers of slices alternate between the problems.
    """
    for number, (dtype, layout, scales, mode) in enumerate(product(family.flops_per_clock, Layout, Scales, Mode)):
        turn = number // 7 + number
        m, n, k, batch = (_SCALED_SHAPES if scales else _SHAPES)[turn % (3 if scales else 5)]
        with suppress(GemmCacheError):  # there is no such problem, or not for this target
            problem = GemmProblem(
                m, n, k, 3 if mode else batch, dtype, None, layout, arch,
                "" if dtype is DType.INT8 or not family.takes_epilogue else _EPILOGUES[turn % 4],
                list(Specialisation)[turn % 4], scales=scales, mode=mode,
            )  # fmt: skip
            if not family.takes(problem) or family.problem_fault(problem):
                continue
            possible = [one for one in family.configs(problem) if _is_possible(Canary(family, problem, one))]
            if possible:
                config = min(possible, key=lambda one: (one.block_m * one.block_n, one.stages))
                slices = min(1 + turn % 3, ceil_div(k, config.block_k)) if family.splits_k and not mode else 1
                yield problem, replace(config, split_k=slices)
