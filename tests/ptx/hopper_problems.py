"""Kernels of the ``hopper`` family on the machine: plain ones, with block scales, with slices of k, and in clusters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from cache_engine.kernels.select import FAMILIES
from cache_engine.model.gemm import OPT_LEVELS, DType, GemmProblem, Layout, Scales, Specialisation
from cache_engine.model.kernel import KernelConfig
from tests.ptx.problems import EPILOGUES, Case, is_output

HOPPER = FAMILIES["hopper"]
ALONG_K = (DType.FP8_E4M3, DType.FP8_E5M2, DType.TF32)
KINDS = [
    *((dtype, layout) for dtype in (DType.BF16, DType.FP16) for layout in (Layout.NT, Layout.NN)),
    *((dtype, Layout.NT) for dtype in ALONG_K),
]
BLOCK_SCALES = [scales for scales in Scales if scales]
# The tiles that the family offers, with rings so short that a small problem goes around them.
CONFIGS = tuple(
    KernelConfig(*tiles)
    for tiles in (
        (128, 64, 64, 8, 1, 2), (64, 128, 64, 4, 2, 3), (128, 128, 64, 8, 1, 2), (256, 128, 64, 8, 1, 2),
        (128, 256, 64, 8, 1, 2), (64, 256, 64, 4, 2, 2), (64, 256, 64, 4, 1, 2), (64, 128, 64, 4, 1, 2),
        (64, 64, 64, 4, 1, 3),
    )
)  # fmt: skip
# Of five steps along k four slices have two, two, one and none.
SLICES = (4, 2, 3, 5)
_FURTHER_KINDS = (
    (DType.BF16, Layout.NT, Scales.NONE),
    (DType.FP16, Layout.NN, Scales.NONE),
    (DType.TF32, Layout.NT, Scales.NONE),
    (DType.FP8_E4M3, Layout.NT, Scales.BLOCKS),
    (DType.FP8_E5M2, Layout.NT, Scales.NONE),
    (DType.FP8_E4M3, Layout.NT, Scales.BLOCKS_E8M0),
)


def hopper(problem: GemmProblem, config: KernelConfig) -> Case:
    """A kernel of the family."""
    return Case(HOPPER, problem, config)


def deep(config: KernelConfig, dtype: DType) -> KernelConfig:
    """With a tile as deep as 128 bytes of the type."""
    return replace(config, block_k=128 // dtype.itemsize)


def _plain() -> list[Case]:
    # m, n, k, batch: several tiles each way, none of them whole; k shorter than a tile, and longer than any ring.
    shapes = ((150, 136, 200, 1), (40, 264, 24, 2), (300, 72, 456, 1), (128, 256, 128, 1))
    cases = []
    kinds = itertools.product(KINDS, shapes, Specialisation, EPILOGUES)
    for number, ((dtype, layout), (m, n, k, batch), specialisation, epilogue) in enumerate(kinds):
        outputs = [one for one in (dtype, DType.FP32, DType.BF16, DType.FP16) if is_output(dtype, one, epilogue)]
        output = outputs[number % len(outputs)]
        depth = k * 2 // dtype.itemsize // 16 * 16  # as many bytes for each type, and rows of whole 16 bytes
        rest = (0, 0, 1, 2, 4)[number // 3 % 5] if layout is Layout.NT else 0  # rows of C are whole 16 bytes, or less
        problem = GemmProblem(
            m, n + rest, depth or k, batch, dtype, output, layout, "sm_90a", epilogue, specialisation, OPT_LEVELS[-1]
        )
        offered = [one for one in (deep(each, dtype) for each in CONFIGS) if HOPPER.shape_fault(problem, one) is None]
        cases.append(hopper(problem, offered[number * 7 // 4 % len(offered)]))
    return cases


def _made(
    kinds: Sequence[tuple[DType, Layout, Scales]],
    shapes: Sequence[tuple[int, int, int, int]],
    slices: Sequence[int] = (1,),
    cluster: int = 1,
) -> list[Case]:
    """Every kind, shape (m, n, steps along k, batch) and specialisation; every epilogue; the rest takes its turn."""
    asked = [(*one, "") for one in itertools.product(kinds, shapes, Specialisation)]
    asked += [(kinds[number % len(kinds)], shapes[number % len(shapes)], list(Specialisation)[number % 4], epilogue)
              for number, epilogue in enumerate(EPILOGUES)]  # fmt: skip
    cases = []
    for number, ((dtype, layout, scales), (m, n, steps, batch), specialisation, epilogue) in enumerate(asked):
        k = steps * 128 // dtype.itemsize - (0 if scales else 16)
        outputs = [one for one in DType if is_output(dtype, one, epilogue)]
        problem = GemmProblem(
            m, n, k, batch, dtype, outputs[number // 7 % len(outputs)], layout, "sm_90a", epilogue, specialisation,
            OPT_LEVELS[-1], scales,
        )  # fmt: skip
        every = (replace(deep(config, dtype), cluster=cluster) for config in CONFIGS)
        offered = [config for config in every if HOPPER.shape_fault(problem, config) is None]
        config = offered[number * 5 // 4 % len(offered)]
        cases.append(hopper(problem, replace(config, split_k=slices[number // 4 % len(slices)])))
    return cases


PLAIN = _plain()
# Whole tiles and not, an odd n, one block of k, more than a word of four E8M0.
SCALED = _made(
    [(dtype, Layout.NT, scales) for scales in BLOCK_SCALES for dtype in (DType.FP8_E4M3, DType.FP8_E5M2)],
    ((150, 135, 3, 1), (40, 264, 1, 2), (300, 200, 5, 1), (128, 256, 2, 1)),
)
SLICED = _made(_FURTHER_KINDS, ((40, 136, 5, 1), (150, 136, 7, 2), (16, 264, 16, 1)), SLICES)
# One row of tiles, two, three, or more; some of them whole.
CLUSTERED = _made(
    (*_FURTHER_KINDS, (DType.BF16, Layout.NN, Scales.NONE)),
    ((40, 136, 3, 1), (150, 264, 5, 2), (300, 72, 4, 1), (256, 256, 2, 1), (128, 136, 5, 1)),
    (1, 1, 2, 1, 4),
    cluster=2,
)
