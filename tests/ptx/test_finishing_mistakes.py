"""Mistakes on the way from sums to C: slices of k, boxes, the epilogue, the order of tiles; and in bits of operands."""

from __future__ import annotations

from functools import partial

import pytest

from cache_engine.kernels.select import FAMILIES
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.ptx.mistakes import assert_seen, kernels, rows, spoilt
from tests.ptx.problems import Case, check


def _case(problem: GemmProblem, config: KernelConfig, family: str = "tensor_core") -> Case:
    return Case(FAMILIES[family], problem, config)


# Two boxes across and two down for each warp, eight sums of a lane in two runs of four, and a C that is read.
_BOXES = _case(
    GemmProblem(40, 136, 56, dtype="fp16", arch="sm_90", epilogue="beta+bias"), KernelConfig(64, 128, 16, 2, 2, 2)
)
_RELU = _case(GemmProblem(24, 70, 41, arch="sm_90", epilogue="alpha+beta+bias+relu"), KernelConfig(16, 64, 16, 1, 2, 2))
# Boxes of eight rows; C in fp32, so that rounding hides little of GELU.
_GELU = _case(
    GemmProblem(40, 72, 40, out_dtype="fp32", arch="sm_90", epilogue="bias+gelu"), KernelConfig(32, 64, 16, 1, 1, 2)
)
_SPLIT = _case(GemmProblem(24, 72, 104, 2, arch="sm_90"), KernelConfig(16, 64, 16, 1, 2, 3, split_k=3))
# Nine rows of tiles, so that the second band has one; three columns.
_BANDS = _case(GemmProblem(136, 136, 24, arch="sm_90", specialisation="dynamic"), KernelConfig(16, 64, 16, 1, 2, 2))
# Of targets that multiply fp8 as fp16.
_BYTES = _case(GemmProblem(24, 72, 96, dtype="fp8_e4m3", arch="sm_90"), KernelConfig(16, 64, 64, 1, 2, 2))
_E5M2 = _case(GemmProblem(24, 72, 96, dtype="fp8_e5m2", arch="sm_100"), KernelConfig(16, 64, 64, 1, 2, 2))
_SIMT = _case(
    GemmProblem(24, 44, 40, dtype="fp32", arch="sm_90", epilogue="beta+bias"), KernelConfig(32, 32, 32, 1, 1, 2), "simt"
)
_FP64 = _case(GemmProblem(9, 7, 24, dtype="fp64", arch="sm_80"), KernelConfig(16, 32, 16, 1, 1, 2), "simt")
_SCALED = _case(
    GemmProblem(24, 136, 256, 2, dtype="fp8_e4m3", arch="sm_90", scales="1x128,128x128"),
    KernelConfig(16, 64, 128, 1, 2, 2),
    "scaled",
)
_FP8 = _case(
    GemmProblem(24, 72, 56, dtype="fp16", out_dtype="fp8_e4m3", arch="sm_90", epilogue="alpha+bias+relu"),
    KernelConfig(16, 64, 16, 1, 2, 2),
)
_C_READ = "epilogue.adds_c() && is_inside && (WHOLE_M || row + i < sizes.m)"
_STORED = "if (is_inside && (WHOLE_M || row + i < sizes.m)) {\n                        store"
_MISTAKES = [
    # ---- boxes.cuh, and where tile_product.cuh uses it ----
    (_BOXES, "warps fill one box", "thread_index() / 32 * BOX;", "0;"),
    (_BOXES, "boxes of warps overlap", "thread_index() / 32 * BOX;", "thread_index() / 32 * (BOX / 2);"),
    (_BOXES, "sums of the columns before", "* BOX_COLUMNS / 8;", "* BOX_COLUMNS / 16;"),
    (_BOXES, "the upper half of a part for the lower", "(DOWN + i) % 2 * 2]", "0]"),
    (_BOXES, "neighbours in a box are swapped", "{pair[0], pair[1]}", "{pair[1], pair[0]}"),
    (_BOXES, "the lower half lies over the upper", "+ i * 8 * BOX_COLUMNS", "+ i * 4 * BOX_COLUMNS"),
    (_BOXES, "a run is taken twice", "(place ^ i)", "place"),
    (_BOXES, "a run is put where the first is", "taken[i + j] = part.at[j]", "taken[j] = part.at[j]"),
    (_BOXES, "rows of a box are taken again", "read_box(own, box, own_row, i, own_column)",
     "read_box(own, box, own_row, 0, own_column)"),
    (_BOXES, "lanes take another's columns", "read_box(own, box, own_row, i, own_column)",
     "read_box(own, box, own_row, i, own_column ^ C_VECTOR)"),
    (_BOXES, "a run is taken as if not permuted", "(place ^ i)", "(place + i)"),
    (_BOXES, "rows further on are taken again", "further / 4 * 4 *", "further / 8 * 4 *"),
    (_RELU, "rows are taken as if permuted alike", "further % 4", "0"),
    (_BOXES, "a box goes over rows of the one above", "own_c += static_cast<long long>(BOX_ROWS)",
     "own_c += static_cast<long long>(ROWS)"),
    (_BOXES, "rows of all boxes are counted from the first", "row += BOX_ROWS;", ""),
    (_GELU, "a box is as high as without GELU", "(across * WARP_M + down) / BOX_ROWS", "(across * WARP_M + down) / 16"),
    # ---- epilogue.cuh, and what is read for it ----
    (_BOXES, "the bias of the box's first columns",
     "load_bias<C_VECTOR>(column,", "load_bias<C_VECTOR>(column - own_column,"),
    (_BOXES, "the bias of the tile's first columns", "load_bias<C_VECTOR>(column,", "load_bias<C_VECTOR>(tile.column,"),
    (_BOXES, "the bias beyond the last column", "if (is_inside) bias =", "bias ="),
    (_RELU, "the bias by the row", "load_bias<C_VECTOR>(column,", "load_bias<C_VECTOR>(row,"),
    (_BOXES, "C is read beyond its last column", _C_READ, _C_READ.replace(" && is_inside", "")),
    (_BOXES, "C is read below its last row", _C_READ, "epilogue.adds_c() && is_inside"),
    (_BOXES, "C is stored beyond its last column", _STORED, _STORED.replace("is_inside && ", "")),
    (_BOXES, "C is stored below its last row", _STORED, "if (is_inside) {\n                        store"),
    (_BOXES, "C of the first rows is added", "before[i / ROWS], bias", "before[0], bias"),
    (_RELU, "alpha multiplies C too", "if constexpr (WITH_ALPHA) value *= epilogue.alpha;\n"
     "        if constexpr (WITH_BETA) value = multiply_add(epilogue.beta, widen(c.at[i]), value);",
     "value = (value + epilogue.beta * widen(c.at[i])) * epilogue.alpha;"),
    (_RELU, "beta multiplies the bias", "value += widen(bias.at[i]);", "value += epilogue.beta * widen(bias.at[i]);"),
    (_RELU, "the activation comes before the bias", "if constexpr (WITH_BIAS) value += widen(bias.at[i]);",
     "value = activated(value) + widen(bias.at[i]);"),
    (_RELU, "a sum below 0 stays", "value < 0 ? 0 : value", "value"),
    (_GELU, "another argument of the error function", "value * static_cast<T>(0.70710678118654752440)", "value"),
    (_GELU, "half is missing", "static_cast<T>(0.5) * value * (1 +", "value * (1 +"),
    (_SIMT, "the bias of the first of four columns", "load_bias<VECTOR>(column, epilogue)",
     "load_bias<VECTOR>(column / 32 * 32, epilogue)"),
    (_SIMT, "rows of lanes are stored one after another",
     "i / VECTOR * VECTOR * LANES_M + lane_m * VECTOR + i % VECTOR",
     "lane_m * THREAD_M + i"),
    (_SIMT, "simt stores a row too many", "!WHOLE_M && row >= sizes.m", "!WHOLE_M && row > sizes.m"),
    # ---- fp8_epilogue.cuh ----
    (_FP8, "a result of fp8 is not scaled", "activated(value) * epilogue.scale", "activated(value)"),
    (_FP8, "the bias is scaled twice", "widen(bias.at[i + j])", "widen(bias.at[i + j]) * epilogue.scale"),
    (_FP8, "the bias of the neighbour", "widen(bias.at[i + j])", "widen(bias.at[i])"),
    (_FP8, "neighbours of fp8 are swapped", '"f"(high), "f"(low)', '"f"(low), "f"(high)'),
    (_FP8, "a code is stored twice", "codes >> 8", "codes"),
    (_FP8, "e4m3 stored as e5m2", 'FP8_CODES(e4m3, "e4m3x2")', 'FP8_CODES(e4m3, "e5m2x2")'),
    # ---- split_k.cuh and raster.cuh ----
    (_SPLIT, "slices lie over each other", "static_cast<long long>(slice_index()) * COUNT", "0ll * COUNT"),
    (_SPLIT, "tiles lie over each other", "slices += tile * SPLIT_K * COUNT", "slices += tile * COUNT"),
    (_SPLIT, "products of a batch share counters", "(batch_index()) * block_count() + block_index()",
     "(0) * block_count() + block_index()"),
    (_SPLIT, "sums begin among the counters", "(tiles + ALIGNED - 1) / ALIGNED * ALIGNED", "tiles / 2"),
    (_SPLIT, "its own slice is added twice", "sums[i] = 0;", ""),
    (_SPLIT, "the one before the last stores", ".at[0] != SPLIT_K - 1", ".at[0] != SPLIT_K - 2"),
    (_SPLIT, "the last slice ends one step before", "const long long end = first + tiles * BLOCK_K;",
     "const long long end = first + (tiles - 1) * BLOCK_K;"),
    (_BANDS, "the last band is as high as the others",
     "rows_left < RASTER_ROWS ? rows_left : RASTER_ROWS", "RASTER_ROWS"),
    (_BANDS, "every band begins at the first row", "band * RASTER_ROWS + within", "within"),
    (_BANDS, "columns are counted in whole bands", "column = within / band_rows", "column = within / RASTER_ROWS"),
    # ---- Bits, and batches of scales ----
    (_SIMT, "operands of fp32 with the bits of bf16", "DEVICE float widen(float value) { return value; }",
     "DEVICE float widen(float value) { return __uint_as_float(__float_as_uint(value) & 0xFFFF0000u); }"),
    (_FP64, "sums of fp64 with the bits of fp32", "return __fma_rn(a, b, c);", "return __fmaf_rn(a, b, c);"),
    (_BYTES, "the last bit of fp8 is lost", '"r"(four)', '"r"(four & 0xFEFEFEFEu)'),
    (_SCALED, "every batch takes the first one's scales of A", "a_scales += batch * sizes.m *",
     "a_scales += 0 * sizes.m *"),
    (_SCALED, "every batch takes the first one's scales of B", "b_scales += batch * scale_rows_of_b(sizes.n)",
     "b_scales += 0 * scale_rows_of_b(sizes.n)"),
    # ---- fp8 multiplied as fp16 (primitives.cuh) ----
    (_BYTES, "the lower pair twice", '"h"(pairs[upper])', '"h"(pairs[0])'),
    (_BYTES, "the lower pairs alone", "upper < 2; ++upper", "upper < 1; ++upper"),
    (_BYTES, "the other pair of A", "two_as_fp16(type, a[i], upper)", "two_as_fp16(type, a[i], 1 - upper)"),
    (_BYTES, "bytes of A swapped in each pair", "two_as_fp16(type, a[i], upper)",
     "two_as_fp16(type, chosen_bytes(a[i], a[i], 0x2301), upper)"),
    (_BYTES, "rows of A swapped", "two_as_fp16(type, a[i], upper)", "two_as_fp16(type, a[i ^ 1], upper)"),
    (_BYTES, "the first half of B's k twice", "two_as_fp16(type, b1, upper)", "two_as_fp16(type, b0, upper)"),
    (_BYTES, "the other pair of B's second half", "two_as_fp16(type, b1, upper)", "two_as_fp16(type, b1, 1 - upper)"),
    (_E5M2, "e5m2 read as e4m3", 'TWO_AS_FP16(e5m2, "e5m2x2")', 'TWO_AS_FP16(e5m2, "e4m3x2")'),
]  # fmt: skip
_DAILY = (
    "boxes of warps overlap",
    "the upper half of a part for the lower",
    "C is read beyond its last column",
    "the bias of the box's first columns",
    "bytes of A swapped in each pair",
    "a result of fp8 is not scaled",
    "the last band is as high as the others",
)


@pytest.mark.parametrize(("case", "right", "wrong"), rows(_MISTAKES, _DAILY))
def test_every_mistake_is_seen(case: Case, right: str, wrong: str) -> None:
    assert_seen(spoilt(case, right, wrong), partial(check, case))


@pytest.mark.soak
@pytest.mark.parametrize("case", kernels(_MISTAKES), ids=str)
def test_the_kernels_are_right_before(case: Case) -> None:
    check(case)
