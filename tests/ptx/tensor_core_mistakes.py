"""Mistakes put into the families that launch one block for each tile: ``tensor_core``, ``scaled`` and ``simt``."""

from __future__ import annotations

from typing import Any

from cache_engine.kernels.select import FAMILIES
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.ptx.mistakes import in_ptx, in_templates
from tests.ptx.problems import Case

_SMALL = KernelConfig(16, 64, 16, 1, 2, 2)
_WIDE = KernelConfig(64, 128, 16, 2, 2, 2)


def _case(m: int, n: int, k: int, config: KernelConfig = _SMALL, family: str = "tensor_core", **asked: Any) -> Case:
    return Case(FAMILIES[family], GemmProblem(m, n, k, **{"arch": "sm_90", **asked}), config)


_PLAIN = _case(24, 72, 104, KernelConfig(16, 64, 16, 1, 2, 3), batch=2)
_ODD = _case(19, 67, 41, batch=2, dtype="fp16", layout="nn", epilogue="alpha+beta+bias")
_ODD_N = _case(19, 67, 48, dtype="fp16", layout="nn")
_FEW_COLUMNS = _case(19, 7, 33, dtype="fp16", layout="nn")
_ONE_COLUMN = _case(19, 1, 33, dtype="fp16", layout="nn")
_ODD_SLICES = _case(70, 131, 97, KernelConfig(128, 128, 32, 2, 2, 2))
_ODD_BYTES = _case(21, 67, 171, KernelConfig(16, 64, 64, 1, 2, 2), dtype="int8")
_TURNED_ODD_BYTES = _case(41, 83, 92, KernelConfig(64, 64, 64, 1, 2, 2), dtype="int8", layout="tn")
_TF32 = _case(24, 72, 40, KernelConfig(16, 64, 8, 1, 2, 2), dtype="tf32")
_TURNED = _case(72, 72, 24, KernelConfig(64, 128, 16, 1, 2, 2), dtype="tf32", layout="tn")
_TURNED_BYTES = _case(40, 80, 90, KernelConfig(64, 64, 64, 1, 2, 2), dtype="int8", layout="tn")
_SPLIT = _case(24, 72, 104, KernelConfig(16, 64, 16, 1, 2, 3, split_k=3), batch=2)
_AHEAD = _case(24, 72, 200, KernelConfig(16, 64, 64, 1, 2, 2))
_AHEAD_OF_FEW = _case(24, 72, 104, KernelConfig(16, 64, 32, 1, 2, 3, split_k=3))
_SIMT = _case(24, 40, 72, KernelConfig(16, 32, 32, 1, 1, 2), "simt", batch=2, dtype="fp32")
_EMPTY_SLICES = _case(
    24, 40, 96, KernelConfig(16, 32, 16, 1, 1, 2, split_k=5), "simt", dtype="fp32", specialisation="exact"
)
_SCALED = _case(
    24, 136, 256, KernelConfig(16, 64, 128, 1, 2, 2), "scaled", batch=2, dtype="fp8_e4m3", scales="1x128,128x128"
)
_SCALED_COLUMNS = _case(
    19, 70, 384, KernelConfig(16, 64, 128, 1, 2, 2, split_k=2), "scaled",
    batch=2, dtype="fp8_e4m3", out_dtype="fp32", scales="1x128,1x128,e8m0",
)  # fmt: skip
# Two boxes across and two down for each warp, eight sums of a lane in two runs of four, and a C that is read.
_BOXES = _case(40, 136, 56, _WIDE, dtype="fp16", epilogue="beta+bias")
_RELU = _case(24, 70, 41, epilogue="alpha+beta+bias+relu")
# Boxes of eight rows; C in fp32, so that rounding hides little of GELU.
_GELU = _case(40, 72, 40, KernelConfig(32, 64, 16, 1, 1, 2), out_dtype="fp32", epilogue="bias+gelu")
# Nine rows of tiles, so that the second band has one; three columns.
_BANDS = _case(136, 136, 24, specialisation="dynamic")
# Of targets that multiply fp8 as fp16.
_FP8 = _case(24, 72, 96, KernelConfig(16, 64, 64, 1, 2, 2), dtype="fp8_e4m3")
_E5M2 = _case(24, 72, 96, KernelConfig(16, 64, 64, 1, 2, 2), dtype="fp8_e5m2", arch="sm_100")
_FP8_RESULT = _case(24, 72, 56, dtype="fp16", out_dtype="fp8_e4m3", epilogue="alpha+bias+relu")
_SIMT_BIAS = _case(24, 44, 40, KernelConfig(32, 32, 32, 1, 1, 2), "simt", dtype="fp32", epilogue="beta+bias")
_FP64 = _case(9, 7, 24, KernelConfig(16, 32, 16, 1, 1, 2), "simt", dtype="fp64", arch="sm_80")
_EXACT = _case(72, 136, 104, _WIDE, batch=2, specialisation="exact")
_BUCKETED = _case(150, 72, 40, KernelConfig(16, 64, 64, 1, 2, 3), specialisation="bucketed")
_DYNAMIC = _case(72, 137, 100, _WIDE, specialisation="dynamic")

_C_READ = "epilogue.adds_c() && is_inside && (WHOLE_M || row + i < sizes.m)"
_STORED = "if (is_inside && (WHOLE_M || row + i < sizes.m)) {\n                        store"
IN_TEMPLATES = in_templates(
    # ---- Operands: to shared memory, and from there to products ----
    (_EMPTY_SLICES, "an empty slice is read", "SPLIT_K == 1 || slice.tiles() > 0", "true"),
    (_PLAIN, "one step too few", "step < slice.tiles();", "step < slice.tiles() - 1;"),
    (_PLAIN, "one step too many", "step < slice.tiles();", "step <= slice.tiles();"),
    (_SIMT, "one buffer of two", "step % 2 * A_BUFFER", "0 * A_BUFFER"),
    (_PLAIN, "an edge", "COLUMNS || columns_left > 0", "COLUMNS || columns_left >= 0"),
    (_PLAIN, "a row too many", "row < rows_left) && (WHOLE_COLUMNS || columns_left",
     "row <= rows_left) && (WHOLE_COLUMNS || columns_left"),
    (_PLAIN, "a tile further", "}\n        next += ORDER == ALONG_K ? BLOCK_K :",
     "}\n        next += ORDER == ALONG_K ? BLOCK_K + 8 :"),
    (_PLAIN, "another edge", "columns_left : rows_left) -= BLOCK_K;\n        is_first =",
     "rows_left : columns_left) -= BLOCK_K;\n        is_first ="),
    (_PLAIN, "a row again", "const int row = i * STRIDE;", "const int row = i * STRIDE / 2;"),
    (_TURNED, "columns of another part", "part / 2 * 32", "part / 2 * 16"),
    (_TURNED, "halves swapped", "OF_A ? half + depth * 2 : half * 2 + depth", "half * 2 + depth"),
    (_TURNED, "rows permuted as the first", "STRIDE % ROWS_AT_ONCE<ORDER> == 0", "true"),
    (_TURNED_BYTES, "rows of another part", "row + i * 16 + lane % 16", "row + lane % 16"),
    (_TURNED_BYTES, "columns of the first part", "column + j * 16 + across", "column + across"),
    (_TURNED_BYTES, "rows one over the other", "row % ROWS_PER_LINE * CHUNKS + column", "column"),
    (_TURNED_BYTES, "bytes of other rows", "low, high, 0x5410", "low, low, 0x5410"),
    (_TURNED_BYTES, "a row of bytes too many", "row + i < rows_left", "row + i <= rows_left"),
    (_ODD, "runs that are not shifted", "byte_in_word(element) * 0x1111", "0"),
    (_ODD, "a run of one word", "words[i][j + 1], choice", "words[i][j], choice"),
    (_ODD, "a column too many", "rows_left) && j < columns_left", "rows_left)"),
    (_ODD, "a row of elements too many", "(WHOLE_ROWS || i * STRIDE < rows_left)", "true"),
    (_ODD, "words of a row too many", "const bool has_rows = rows_left > (RUNS - 1) * STRIDE;",
     "const bool has_rows = true;"),
    (_ODD, "words beyond k", "return columns_left >= COVER;", "return columns_left > 0;"),
    (_ODD, "a row of words too many", "row < rows_left);", "row <= rows_left);"),
    (_ODD, "elements before the loop are forgotten", "{\n            copy_elements(tile);", "{"),
    (_ODD, "elements are forgotten", "{\n                copies.copy_elements(tile);", "{"),
    (_ODD, "a run that is permuted as the first", "(first ^ permuted)", "first"),
    (_ODD, "words of rows further on", "row / (4 / sizeof(IN_TYPE))", "row"),
    (_ODD, "words between", "element) & 3;", "element) & 1;"),
    (_ODD_N, "a word behind the last row", "(rows_left > ROWS &&", "(rows_left > 0 &&"),
    (_FEW_COLUMNS, "words of no column", "(has_column ? column : first_column)", "column"),
    (_ONE_COLUMN, "words over more than a row", " && columns >= COVER", ""),
    (_ODD_SLICES, "a tile further with each slice", "if (k + MMA_K == BLOCK_K) copies.advance();", "copies.advance();"),
    (_ODD_SLICES, "the runs of the first slice again", "copies.read(words, k / PART_K * HELD)",
     "copies.read(words, 0)"),
    (_ODD_SLICES, "runs in the place of others", "copies.write(words, k / PART_K * HELD, tile)",
     "copies.write(words, 0, tile)"),
    (_ODD_SLICES, "runs over a tile that is in use", "a_ring + free_buffer * A_STAGE, k",
     "a_ring + buffer * A_STAGE, k"),
    (_ODD_SLICES, "runs in the first buffer", "b_ring + free_buffer * B_STAGE, k", "b_ring, k"),
    (_ODD_BYTES, "a shift of whole pairs", "byte_in_word(element) * 0x1111", "(byte_in_word(element) & 2) * 0x1111"),
    (_ODD_BYTES, "the word behind the last", "return columns_left >= COVER;", "return columns_left >= RUN;"),
    (_TURNED_ODD_BYTES, "squares behind the last row", "rows_left >= 4 &&", ""),
    (_TURNED_ODD_BYTES, "squares not shifted", "chosen_bytes(low, high, choice_of(source))", "low"),
    (_TURNED_ODD_BYTES, "a word behind the last square", "(rows_left > 4 &&", "(rows_left > 0 &&"),
    (_TURNED_ODD_BYTES, "bytes behind the last row", "if (i >= rows_left) continue;", ""),
    (_TURNED_ODD_BYTES, "bytes behind the last", "j < 4 && j < columns_left", "j < 4"),
    (_TURNED_ODD_BYTES, "bytes one over the other", "<< j * 8", "<< 8"),
    (_PLAIN, "copies into a buffer that is in use", "free_buffer = FRAGMENTS_AHEAD ? next_buffer : buffer;", ""),
    (_AHEAD, "copies over what is read next", "STEPS_AHEAD, free_buffer", "STEPS_AHEAD, next_buffer"),
    (_AHEAD, "copies before all have read", "FRAGMENTS_AHEAD ? is_last : k == 0", "k == 0"),
    (_AHEAD, "a barrier too early", "} else if (is_last) {", "} else if (k + 2 * MMA_K == BLOCK_K) {"),
    (_AHEAD, "a barrier at the beginning of a step", "} else if (is_last) {", "} else if (k == 0) {"),
    (_AHEAD, "a barrier before the wait", "wait_copies<STEPS>();\n        sync_block();",
     "sync_block();\n        wait_copies<STEPS>();"),
    (_AHEAD, "the next tile too early", "is_last ? next_buffer : buffer", "next_buffer"),
    (_AHEAD, "fragments again", "is_last ? 0 : k + MMA_K", "is_last ? 0 : k"),
    (_AHEAD, "fragments left out", "is_last ? 0 : k + MMA_K", "is_last ? MMA_K : k + MMA_K"),
    (_AHEAD, "other fragments first", "read(fragments, 0, 0);", "read(fragments, 0, MMA_K);"),
    (_AHEAD_OF_FEW, "a tile behind the last", "step + 1 == slice.tiles())", "step > slice.tiles())"),
    (_AHEAD_OF_FEW, "a tile of a slice that has none", "if (slice.tiles() == 0) return;", ""),
    (_SCALED, "the same tile again", "is_last ? next_buffer : buffer", "buffer"),
    (_SCALED, "what is read ahead is not multiplied", "fragments = next;", ""),
    (_TF32, "what is multiplied is not rounded", "fragments.round();", ""),
    (_SCALED, "sums scaled again", "[4] = {};\n                multiply(",
     "[4];\n                memcpy(partial, sums, sizeof(sums)); multiply("),
    (_SCALED, "scales of B cut", "batch * scale_rows_of_b(sizes.n)", "batch * (sizes.n / 128)"),
    (_SCALED, "another half of B", "two_as_fp16(type, b1, upper)", "two_as_fp16(type, b1, 1 - upper)"),
    (_SCALED, "a half of A twice", "two_as_fp16(type, a[i], upper)", "two_as_fp16(type, a[i], 0)"),
    (_SCALED_COLUMNS, "E8M0 not in words", "(k / SCALE_K + WORD - 1) / WORD * WORD", "k / SCALE_K"),
    (_SCALED_COLUMNS, "scales of another slice", "slice.first + step * BLOCK_K;\n                const",
     "step * BLOCK_K; const"),
    (_BOXES, "boxes over tiles that others read", "sync_block();  // other", "// other"),
    (_BOXES, "a box is read before it is full", "lane);\n                sync_warp();", "lane);"),
    (_BOXES, "a box is filled before it is read", "                sync_warp();\n            }\n        }\n",
     "            }\n        }\n"),
    (_BOXES, "runs that are not permuted", "own ^ j * 8", "own + j * 8"),
    (_BOXES, "sums of another box", "(across * WARP_M + down)", "(across * WARP_N + down)"),
    (_BOXES, "a box's columns again", "+ across * BOX_COLUMNS + own_column", "+ own_column"),
    (_BOXES, "sums of the rows above", "* BOX_ROWS / 8, ACROSS", "* BOX_ROWS / 16, ACROSS"),
    (_BOXES, "C of another row", "source = own_c + static_cast<long long>(i)",
     "source = own_c + static_cast<long long>(0)"),
    (_BOXES, "C of a row too many", "i < sizes.m)) {\n                        const", "i <= sizes.m)) { const"),
    (_SPLIT, "boxes over what others have yet to read", "sync_block();  // other", "// other"),
    (_SPLIT, "a slice forgotten", "slice < SPLIT_K; ++slice", "slice < SPLIT_K - 1; ++slice"),
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
    (_BOXES, "the bias of the box's first columns", "load_bias<C_VECTOR>(column,",
     "load_bias<C_VECTOR>(column - own_column,"),
    (_BOXES, "the bias of the tile's first columns", "load_bias<C_VECTOR>(column,", "load_bias<C_VECTOR>(tile.column,"),
    (_BOXES, "the bias beyond the last column", "if (is_inside) bias =", "bias ="),
    (_RELU, "the bias by the row", "load_bias<C_VECTOR>(column,", "load_bias<C_VECTOR>(row,"),
    (_BOXES, "C is read beyond its last column", _C_READ, _C_READ.replace(" && is_inside", "")),
    (_BOXES, "C is read below its last row", _C_READ, "epilogue.adds_c() && is_inside"),
    (_BOXES, "C is stored beyond its last column", _STORED, _STORED.replace("is_inside && ", "")),
    (_BOXES, "C is stored below its last row", _STORED, "if (is_inside) {\n                        store"),
    (_BOXES, "C of the first rows is added", "before[i / ROWS], bias", "before[0], bias"),
    (_RELU, "alpha multiplies C too",
     "if constexpr (WITH_ALPHA) value *= epilogue.alpha;\n"
     "        if constexpr (WITH_BETA) value = multiply_add(epilogue.beta, widen(c.at[i]), value);",
     "value = (value + epilogue.beta * widen(c.at[i])) * epilogue.alpha;"),
    (_RELU, "beta multiplies the bias", "value += widen(bias.at[i]);", "value += epilogue.beta * widen(bias.at[i]);"),
    (_RELU, "the activation comes before the bias", "if constexpr (WITH_BIAS) value += widen(bias.at[i]);",
     "value = activated(value) + widen(bias.at[i]);"),
    (_RELU, "a sum below 0 stays", "value < 0 ? 0 : value", "value"),
    (_GELU, "another argument of the error function", "value * static_cast<T>(0.70710678118654752440)", "value"),
    (_GELU, "half is missing", "static_cast<T>(0.5) * value * (1 +", "value * (1 +"),
    (_SIMT_BIAS, "the bias of the first of four columns", "load_bias<VECTOR>(column, epilogue)",
     "load_bias<VECTOR>(column / 32 * 32, epilogue)"),
    (_SIMT_BIAS, "rows of lanes are stored one after another",
     "i / VECTOR * VECTOR * LANES_M + lane_m * VECTOR + i % VECTOR", "lane_m * THREAD_M + i"),
    (_SIMT_BIAS, "simt stores a row too many", "!WHOLE_M && row >= sizes.m", "!WHOLE_M && row > sizes.m"),
    # ---- fp8_epilogue.cuh ----
    (_FP8_RESULT, "a result of fp8 is not scaled", "activated(value) * epilogue.scale", "activated(value)"),
    (_FP8_RESULT, "the bias is scaled twice", "widen(bias.at[i + j])", "widen(bias.at[i + j]) * epilogue.scale"),
    (_FP8_RESULT, "the bias of the neighbour", "widen(bias.at[i + j])", "widen(bias.at[i])"),
    (_FP8_RESULT, "neighbours of fp8 are swapped", '"f"(high), "f"(low)', '"f"(low), "f"(high)'),
    (_FP8_RESULT, "a code is stored twice", "codes >> 8", "codes"),
    (_FP8_RESULT, "e4m3 stored as e5m2", 'FP8_CODES(e4m3, "e4m3x2")', 'FP8_CODES(e4m3, "e5m2x2")'),
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
    (_BANDS, "the last band is as high as the others", "rows_left < RASTER_ROWS ? rows_left : RASTER_ROWS",
     "RASTER_ROWS"),
    (_BANDS, "every band begins at the first row", "band * RASTER_ROWS + within", "within"),
    (_BANDS, "columns are counted in whole bands", "column = within / band_rows", "column = within / RASTER_ROWS"),
    # ---- Bits, and batches of scales ----
    (_SIMT_BIAS, "operands of fp32 with the bits of bf16", "DEVICE float widen(float value) { return value; }",
     "DEVICE float widen(float value) { return __uint_as_float(__float_as_uint(value) & 0xFFFF0000u); }"),
    (_FP64, "sums of fp64 with the bits of fp32", "return __fma_rn(a, b, c);", "return __fmaf_rn(a, b, c);"),
    (_FP8, "the last bit of fp8 is lost", '"r"(four)', '"r"(four & 0xFEFEFEFEu)'),
    (_SCALED, "every batch takes the first one's scales of A", "a_scales += batch * sizes.m *",
     "a_scales += 0 * sizes.m *"),
    (_SCALED, "every batch takes the first one's scales of B", "b_scales += batch * scale_rows_of_b(sizes.n)",
     "b_scales += 0 * scale_rows_of_b(sizes.n)"),
    # ---- fp8 multiplied as fp16 (primitives.cuh) ----
    (_FP8, "the lower pair twice", '"h"(pairs[upper])', '"h"(pairs[0])'),
    (_FP8, "the lower pairs alone", "upper < 2; ++upper", "upper < 1; ++upper"),
    (_FP8, "the other pair of A", "two_as_fp16(type, a[i], upper)", "two_as_fp16(type, a[i], 1 - upper)"),
    (_FP8, "bytes of A swapped in each pair", "two_as_fp16(type, a[i], upper)",
     "two_as_fp16(type, chosen_bytes(a[i], a[i], 0x2301), upper)"),
    (_FP8, "rows of A swapped", "two_as_fp16(type, a[i], upper)", "two_as_fp16(type, a[i ^ 1], upper)"),
    (_FP8, "the first half of B's k twice", "two_as_fp16(type, b1, upper)", "two_as_fp16(type, b0, upper)"),
    (_FP8, "the other pair of B's second half", "two_as_fp16(type, b1, upper)", "two_as_fp16(type, b1, 1 - upper)"),
    (_E5M2, "e5m2 read as e4m3", 'TWO_AS_FP16(e5m2, "e5m2x2")', 'TWO_AS_FP16(e5m2, "e4m3x2")'),
    # ---- What a launch was made for: sizes as constants, in buckets, and as arguments; slices of k ----
    (_PLAIN, "a wrong row of ldmatrix", "(row + lane % 16, k + lane / 16 * CHUNK",
     "(row + lane % 16, k + lane / 8 * CHUNK"),
    (_PLAIN, "columns beyond n are stored", "is_inside = WHOLE_N || column < sizes.n", "is_inside = true"),
    (_PLAIN, "a wrong stride of a batch", "batch * sizes.n * sizes.k", "batch * sizes.n * (sizes.k + 8)"),
    (_PLAIN, "rows that overrun shared memory", "row * COLUMNS + chunk * CHUNK", "row * (COLUMNS + 8) + chunk * CHUNK"),
    (_SIMT, "columns beyond the last are read", "(WHOLE_COLUMNS || column < columns)", "true"),
    (_SIMT, "every row is stored", "if (!WHOLE_M && row >= sizes.m) return;", ""),
    (_SPLIT, "counters stay", "if (thread_index() == 0) store_global<unsigned, 1>(counters + tile, {0u});", ""),
    (_SPLIT, "not the last stores", "!= SPLIT_K - 1) return false", "!= 1) return false"),
    (_SPLIT, "counted in before all have written", "        fence();\n        sync_block();\n", ""),
    (_SPLIT, "tiles of k left over", "(k_tiles + SPLIT_K - 1) / SPLIT_K", "k_tiles / SPLIT_K"),
    (_EXACT, "an edge taken for whole", "WHOLE_M = M % BLOCK_M == 0", "WHOLE_M = true"),
    (_EXACT, "an edge in k taken for whole", "WHOLE_K = K % BLOCK_K == 0", "WHOLE_K = true"),
    (_EXACT, "another m", "#define SIZE_M M", "#define SIZE_M (M + 1)"),
    (_BUCKETED, "bands taken for one", "M_MOST <= RASTER_ROWS * BLOCK_M", "M_MOST <= 99 * BLOCK_M"),
    (_BUCKETED, "rows taken for one", "M_MOST <= BLOCK_M)", "M_MOST <= 99 * BLOCK_M)"),
    (_DYNAMIC, "n for k", "#define SIZES {m, n, k}", "#define SIZES {m, k, n}"),
    (_DYNAMIC, "writes too wide", "#define C_VECTOR 1", "#define C_VECTOR 2"),
    (_DYNAMIC, "reads of A too wide", "#define A_VECTOR 4", "#define A_VECTOR 8"),
)  # fmt: skip

_COPY, _LOAD, _MMA, _FIVE = (
    r"(cp\.async\.c[ag]\.shared\.global) \[(%r\d+)\], \[(%rd\d+)\]",
    r"(ldmatrix\.\S+) ",
    r"(mma\.\S+) ",
    r"(%\w+)",
)
_FMA = r"fma\.rn\.f32\s+(%f\d+), (%f\d+), (%f\d+), (%f\d+);"
_FOUR = rf"\{{{_FIVE}, {_FIVE}, {_FIVE}, {_FIVE}\}}"
# The first register that ldmatrix writes after the wait in the loop, and the first that mma reads after that.
_READ_AHEAD = r"(?s)(wait_group 0;.*?ldmatrix\S+\s+\{)(%r\d+)(.*?mma\.\S+\s+\{[^}]*\},\s+\{)%r\d+"
IN_PTX = in_ptx(
    (_PLAIN, "copies are not waited for", r"cp\.async\.wait_group \d+;", "", None),
    (_PLAIN, "the wait leaves one group more", r"wait_group 1;", "wait_group 2;", None),
    (_PLAIN, "a barrier is missing", r"bar\.sync\s+0;", "", 0),
    (_PLAIN, "copies of a stage are not committed", r"cp\.async\.commit_group;", "", 1),
    (_AHEAD, "copies are not waited for", r"cp\.async\.wait_group \d+;", "", None),
    (_AHEAD, "the first copies are not waited for", r"cp\.async\.wait_group \d+;", "", 0),
    (_AHEAD, "the wait leaves one group more", r"wait_group 0;", "wait_group 1;", 0),
    (_AHEAD, "a barrier is missing before the loop", r"bar\.sync\s+0;", "", 0),
    (_AHEAD, "a barrier is missing in the loop", r"bar\.sync\s+0;", "", 1),
    (_AHEAD, "the first copies are not committed", r"cp\.async\.commit_group;", "", 0),
    (_AHEAD, "copies in the loop are not committed", r"cp\.async\.commit_group;", "", 1),
    (_AHEAD, "a register of the next step's is multiplied", _READ_AHEAD, r"\1\2\3\2", 0),
    (_PLAIN, "copies go to the wrong place", _COPY, r"\1 [\2+16], [\3]", 0),
    (_PLAIN, "copies come from the wrong place", _COPY, r"\1 [\2], [\3+16]", 0),
    (_PLAIN, "copies come from between", _COPY, r"\1 [\2], [\3+2]", 0),
    (_PLAIN, "copies go beyond the ring", _COPY, r"\1 [\2+16384], [\3]", 0),
    (_PLAIN, "what lies outside is not filled with zeroes", r"(\[%rd\d+\]), 16, %r\d+;", r"\1, 16, 16;", None),
    (_PLAIN, "ldmatrix turns what it must not", r"x4\.shared", "x4.trans.shared", 0),
    (_PLAIN, "ldmatrix reads another row", _LOAD + r"(.*)\[(%r\d+)\]", r"\1 \2[\3+32]", 0),
    (_PLAIN, "ldmatrix reads between", _LOAD + r"(.*)\[(%r\d+)\]", r"\1 \2[\3+8]", 0),
    (_PLAIN, "ldmatrix writes to swapped registers", _LOAD + _FOUR, r"\1 {\2, \4, \3, \5}", 0),
    (_PLAIN, "mma takes A's registers swapped", _MMA + rf"(\{{[^}}]*\}}), {_FOUR}", r"\1 \2, {\3, \5, \4, \6}", 0),
    (_PLAIN, "mma takes the halves of B swapped", _MMA + rf"(.*)\{{{_FIVE}, {_FIVE}\}}", r"\1 \2{\4, \3}", 0),
    (_PLAIN, "mma takes one half of B twice", _MMA + rf"(.*)\{{{_FIVE}, {_FIVE}\}}", r"\1 \2{\3, \3}", 1),
    (_PLAIN, "mma adds to swapped sums", _MMA + rf"(.*), {_FOUR};", r"\1 \2, {\4, \3, \5, \6};", 0),
    (_PLAIN, "mma multiplies another type", r"\.bf16\.bf16\.", ".f16.f16.", 0),
    (_PLAIN, "one mma is missing", _MMA + r"[^;]*;", "", 0),
    (_PLAIN, "sums do not begin at 0", r"0f00000000", "0f3F800000", 0),
    (_PLAIN, "a register is never set", r"mov\.f32\s+%f\d+, 0f00000000;", "", 0),
    (_PLAIN, "the wrong buffer of the ring", r"(setp\.eq\.s32\s+%p\d+, %r\d+), 2;", r"\1, 1;", 0),
    (_PLAIN, "a wrong stride of rows", r"(mul\.wide\.s32\s+%rd\d+, %r\d+), 104;", r"\1, 112;", 0),
    (_PLAIN, "a wrong stride of matrices", r"(mul\.wide\.u32\s+%rd\d+, %r\d+), 7488;", r"\1, 7480;", 0),
    (_PLAIN, "a row too many is read", r"setp\.lt\.s32", "setp.le.s32", 0),
    (_PLAIN, "a row too many is stored", r"setp\.ge\.s32", "setp.gt.s32", None),
    (_PLAIN, "columns too many are stored", r"(setp\.gt\.u32\s+%p\d+, %r\d+), 71;", r"\1, 73;", 0),
    (_PLAIN, "neighbours are stored swapped", r"(mov\.b32\s+%r\d+), \{(%rs\d+), (%rs\d+)\}", r"\1, {\3, \2}", 0),
    (_PLAIN, "pairs are stored swapped", rf"(st\.global\.v4\.b32 .*), {_FOUR}", r"\1, {\3, \2, \4, \5}", 0),
    (_PLAIN, "stored one piece further", r"(st\.global\.v4\.b32) \[(%rd\d+)\]", r"\1 [\2+16]", 0),
    (_PLAIN, "stored between", r"(st\.global\.v4\.b32) \[(%rd\d+)\]", r"\1 [\2+8]", 0),
    (_PLAIN, "a branch is taken the other way", r"@(%p\d+) bra", r"@!\1 bra", 0),
    (_PLAIN, "A for B", r"_param_0\]", "_param_1]", 0),
    (_PLAIN, "the tile for the matrix", r"%ctaid\.z", "%ctaid.x", 0),
    (_PLAIN, "C is cut off, not rounded", r"cvt\.rn\.bf16\.f32 (%rs\d+), (%f\d+);", r"mov.b32 {_, \1}, \2;", None),
    (_ODD, "bias of the next column", r"(ld\.param\.u64\s+(%rd\d+), \[\w+_param_6\];)", r"\1 add.s64 \2, \2, 2;", 0),
    (_ODD, "a run is stored further on", r"(st\.shared\.v2\.u32\s+)\[(%r\d+)\]", r"\1[\2+8]", 0),
    (_ODD, "words are taken the other way round", r"(prmt\.b32\s+%r\d+), (%r\d+), (%r\d+), (%r\d+);",
     r"\1, \3, \2, \4;", 0),
    (_ODD, "the word behind", r"(ld\.global\.(?:nc\.)?u32\s+%r\d+), \[(%rd\d+)\]", r"\1, [\2+4]", 0),
    (_ODD, "alpha for beta", r"_param_4\]", "_param_5]", None),
    (_ODD, "another rounding", r"cvt\.rn\.f16\.f32", "cvt.rn.bf16.f32", None),
    (_ODD, "ldmatrix does not turn what it must", r"x4\.trans\.shared", "x4.shared", 0),
    (_TF32, "not rounded to tf32", r"cvt\.rna\.tf32\.f32 (%r\d+), (%r\d+);", r"mov.b32 \1, \2;", None),
    (_TF32, "ties to even", r"cvt\.rna\.tf32", "cvt.rn.tf32", None),
    (_TURNED, "an element of the next row", r"(ld\.shared\.u32\s+%r\d+), \[(%r\d+)\]", r"\1, [\2+512]", 0),
    (_SPLIT, "no fence before the count", r"membar\.gl;", "", 0),
    (_SPLIT, "no fence after the count", r"membar\.gl;", "", 1),
    (_SPLIT, "no barrier before the count", r"(membar\.gl;\s*)bar\.sync\s+0;", r"\1", 0),
    (_SPLIT, "no barrier after the count", r"(st\.shared\.u32\s+\[[^;]*;\s*\S+:\s*)bar\.sync\s+0;", r"\1", 0),
    (_SPLIT, "counted twice", r"(atom\.\S+\s+%r\d+, \[%rd\d+\]), 1;", r"\1, 2;", 0),
    (_SPLIT, "counters are left behind",
     r"(@%p\d+ bra[^;]*;\s*shl[^;]*;\s*add[^;]*;\s*mov[^;]*;\s*)st\.global\.u32[^;]*;", r"\1", 0),
    (_SIMT, "a barrier is missing in the loop", r"bar\.sync\s+0;", "", 1),
    (_SIMT, "a barrier is missing before the loop", r"bar\.sync\s+0;", "", 0),
    (_SIMT, "shared memory is written in the wrong place", r"(st\.shared\S*\s+)\[(%r\d+)\]", r"\1[\2+4]", 0),
    (_SIMT, "shared memory is read in the wrong place", r"(ld\.shared\S*\s+.*)\[(%r\d+)\]", r"\1[\2+16]", 0),
    (_SIMT, "a product of the wrong elements", r"fma\.rn\.f32\s+(%f\d+), (%f\d+), (%f\d+),", r"fma.rn.f32 \1, \2, \2,",
     3),
    (_SCALED, "A's scale taken for B's", r"mul\.f32\s+(%f\d+), (%f\d+), (%f\d+);", r"mul.f32 \1, \2, \2;", 0),
    (_SCALED, "sums of a block without its scale", _FMA, r"add.f32 \1, \2, \4;", 0),
    (_SCALED, "sums of a block in place of all", _FMA, r"mul.f32 \1, \2, \3;", 0),
    (_SCALED, "the scale of another row", _FMA, r"fma.rn.f32 \1, \2, %f331, \4;", 0),
    (_SCALED, "scales of B for A", r"_param_4\]", "_param_5]", None),
    (_SCALED, "the scale of another block of k", r"ld\.global\.f32\s+(%f\d+), \[(%rd\d+)\]",
     r"ld.global.f32 \1, [\2+4]", 0),
    (_SCALED, "the scale of another block of B", r"ld\.global\.f32\s+(%f\d+), \[(%rd\d+)\]",
     r"ld.global.f32 \1, [\2+8]", 2),
    (_SCALED, "a scale read between", r"ld\.global\.f32\s+(%f\d+), \[(%rd\d+)\]", r"ld.global.f32 \1, [\2+2]", 0),
    (_SCALED, "the scale of a row too many", r"setp\.ge\.s32", "setp.gt.s32", 1),
    (_SCALED, "another type of fp8", r"\.e4m3x2", ".e5m2x2", 0),
    (_SCALED_COLUMNS, "the exponent one place off", r"(shl\.b32\s+%r\d+, %r\d+), 23;", r"\1, 24;", 0),
    (_SCALED_COLUMNS, "the scale of the column before", r"(ld\.global\.u8\s+%r\d+), \[(%rd\d+)\+4\]", r"\1, [\2]", 0),
    (_SIMT, "reads wider than rows are aligned", r"(ld\.global\.v4\S+\s+.*)\[(%rd\d+)\]", r"\1[\2+4]", 0),
)  # fmt: skip
