"""What the machine is worth: each of these mistakes, put into a right kernel, is seen.

Most are put into the PTX, behind the compiler, where a template's text shows nothing.
"""

from __future__ import annotations

from functools import partial

import pytest

from cache_engine.kernels.select import FAMILIES
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.ptx.mistakes import assert_seen, edited, spoilt
from tests.ptx.problems import Case, check, ptx_of, source_of

_SMALL = KernelConfig(16, 64, 16, 1, 2, 3)
RIGHT = {
    "tensor_core": Case(FAMILIES["tensor_core"], GemmProblem(24, 72, 104, 2, arch="sm_90"), _SMALL),
    "odd": Case(
        FAMILIES["tensor_core"],
        GemmProblem(19, 67, 41, 2, dtype="fp16", arch="sm_90", layout="nn", epilogue="alpha+beta+bias"),
        KernelConfig(16, 64, 16, 1, 2, 2),
    ),
    "odd n": Case(
        FAMILIES["tensor_core"],
        GemmProblem(19, 67, 48, dtype="fp16", arch="sm_90", layout="nn"),
        KernelConfig(16, 64, 16, 1, 2, 2),
    ),
    "odd, few columns": Case(
        FAMILIES["tensor_core"],
        GemmProblem(19, 7, 33, dtype="fp16", arch="sm_90", layout="nn"),
        KernelConfig(16, 64, 16, 1, 2, 2),
    ),
    "odd, one column": Case(
        FAMILIES["tensor_core"],
        GemmProblem(19, 1, 33, dtype="fp16", arch="sm_90", layout="nn"),
        KernelConfig(16, 64, 16, 1, 2, 2),
    ),
    "odd slices": Case(
        FAMILIES["tensor_core"], GemmProblem(70, 131, 97, arch="sm_90"), KernelConfig(128, 128, 32, 2, 2, 2)
    ),
    "odd bytes": Case(
        FAMILIES["tensor_core"], GemmProblem(21, 67, 171, dtype="int8", arch="sm_90"), KernelConfig(16, 64, 64, 1, 2, 2)
    ),
    "turned odd bytes": Case(
        FAMILIES["tensor_core"],
        GemmProblem(41, 83, 92, dtype="int8", arch="sm_90", layout="tn"),
        KernelConfig(64, 64, 64, 1, 2, 2),
    ),
    "boxes": Case(
        FAMILIES["tensor_core"],
        GemmProblem(40, 136, 56, dtype="fp16", arch="sm_90", epilogue="beta+bias"),
        KernelConfig(64, 128, 16, 2, 2, 2),
    ),
    "tf32": Case(
        FAMILIES["tensor_core"], GemmProblem(24, 72, 40, dtype="tf32", arch="sm_90"), KernelConfig(16, 64, 8, 1, 2, 2)
    ),
    "turned": Case(
        FAMILIES["tensor_core"],
        GemmProblem(72, 72, 24, dtype="tf32", arch="sm_90", layout="tn"),
        KernelConfig(64, 128, 16, 1, 2, 2),
    ),
    "turned bytes": Case(
        FAMILIES["tensor_core"],
        GemmProblem(40, 80, 90, dtype="int8", arch="sm_90", layout="tn"),
        KernelConfig(64, 64, 64, 1, 2, 2),
    ),
    "split": Case(
        FAMILIES["tensor_core"], GemmProblem(24, 72, 104, 2, arch="sm_90"), KernelConfig(16, 64, 16, 1, 2, 3, split_k=3)
    ),
    "ahead": Case(FAMILIES["tensor_core"], GemmProblem(24, 72, 200, arch="sm_90"), KernelConfig(16, 64, 64, 1, 2, 2)),
    "ahead of few": Case(
        FAMILIES["tensor_core"], GemmProblem(24, 72, 104, arch="sm_90"), KernelConfig(16, 64, 32, 1, 2, 3, split_k=3)
    ),
    "simt": Case(
        FAMILIES["simt"], GemmProblem(24, 40, 72, 2, dtype="fp32", arch="sm_90"), KernelConfig(16, 32, 32, 1, 1, 2)
    ),
    "empty slices": Case(
        FAMILIES["simt"],
        GemmProblem(24, 40, 96, dtype="fp32", arch="sm_90", specialisation="exact"),
        KernelConfig(16, 32, 16, 1, 1, 2, split_k=5),
    ),
}
SCALED = GemmProblem(24, 136, 256, 2, dtype="fp8_e4m3", arch="sm_90", scales="1x128,128x128")
RIGHT["scaled"] = Case(FAMILIES["scaled"], SCALED, KernelConfig(16, 64, 128, 1, 2, 2))
RIGHT["scaled columns"] = Case(
    FAMILIES["scaled"],
    GemmProblem(19, 70, 384, 2, "fp8_e4m3", "fp32", arch="sm_90", scales="1x128,1x128,e8m0"),
    KernelConfig(16, 64, 128, 1, 2, 2, split_k=2),
)
_COPY, _LOAD, _MMA, _FIVE = (
    r"(cp\.async\.c[ag]\.shared\.global) \[(%r\d+)\], \[(%rd\d+)\]",
    r"(ldmatrix\.\S+) ",
    r"(mma\.\S+) ",
    r"(%\w+)",
)
_FMA = r"fma\.rn\.f32\s+(%f\d+), (%f\d+), (%f\d+), (%f\d+);"
_FOUR = rf"\{{{_FIVE}, {_FIVE}, {_FIVE}, {_FIVE}\}}"
# The first register that ldmatrix writes after the wait in the loop, and the first that mma reads after that.
_AHEAD = r"(?s)(wait_group 0;.*?ldmatrix\S+\s+\{)(%r\d+)(.*?mma\.\S+\s+\{[^}]*\},\s+\{)%r\d+"
# Kernel, what is wrong, what is looked for in the PTX, what takes its place, and which of the places (None: all).
MISTAKES = [
    ("tensor_core", "copies are not waited for", r"cp\.async\.wait_group \d+;", "", None),
    ("tensor_core", "the wait leaves one group more", r"wait_group 1;", "wait_group 2;", None),
    ("tensor_core", "a barrier is missing", r"bar\.sync\s+0;", "", 0),
    ("tensor_core", "copies of a stage are not committed", r"cp\.async\.commit_group;", "", 1),
    ("ahead", "copies are not waited for", r"cp\.async\.wait_group \d+;", "", None),
    ("ahead", "the first copies are not waited for", r"cp\.async\.wait_group \d+;", "", 0),
    ("ahead", "the wait leaves one group more", r"wait_group 0;", "wait_group 1;", 0),
    ("ahead", "a barrier is missing before the loop", r"bar\.sync\s+0;", "", 0),
    ("ahead", "a barrier is missing in the loop", r"bar\.sync\s+0;", "", 1),
    ("ahead", "the first copies are not committed", r"cp\.async\.commit_group;", "", 0),
    ("ahead", "copies in the loop are not committed", r"cp\.async\.commit_group;", "", 1),
    ("ahead", "a register of the next step's is multiplied", _AHEAD, r"\1\2\3\2", 0),
    ("tensor_core", "copies go to the wrong place", _COPY, r"\1 [\2+16], [\3]", 0),
    ("tensor_core", "copies come from the wrong place", _COPY, r"\1 [\2], [\3+16]", 0),
    ("tensor_core", "copies come from between", _COPY, r"\1 [\2], [\3+2]", 0),
    ("tensor_core", "copies go beyond the ring", _COPY, r"\1 [\2+16384], [\3]", 0),
    ("tensor_core", "what lies outside is not filled with zeroes", r"(\[%rd\d+\]), 16, %r\d+;", r"\1, 16, 16;", None),
    ("tensor_core", "ldmatrix turns what it must not", r"x4\.shared", "x4.trans.shared", 0),
    ("tensor_core", "ldmatrix reads another row", _LOAD + r"(.*)\[(%r\d+)\]", r"\1 \2[\3+32]", 0),
    ("tensor_core", "ldmatrix reads between", _LOAD + r"(.*)\[(%r\d+)\]", r"\1 \2[\3+8]", 0),
    ("tensor_core", "ldmatrix writes to swapped registers", _LOAD + _FOUR, r"\1 {\2, \4, \3, \5}", 0),
    (
        "tensor_core",
        "mma takes A's registers swapped",
        _MMA + rf"(\{{[^}}]*\}}), {_FOUR}",
        r"\1 \2, {\3, \5, \4, \6}",
        0,
    ),
    ("tensor_core", "mma takes the halves of B swapped", _MMA + rf"(.*)\{{{_FIVE}, {_FIVE}\}}", r"\1 \2{\4, \3}", 0),
    ("tensor_core", "mma takes one half of B twice", _MMA + rf"(.*)\{{{_FIVE}, {_FIVE}\}}", r"\1 \2{\3, \3}", 1),
    ("tensor_core", "mma adds to swapped sums", _MMA + rf"(.*), {_FOUR};", r"\1 \2, {\4, \3, \5, \6};", 0),
    ("tensor_core", "mma multiplies another type", r"\.bf16\.bf16\.", ".f16.f16.", 0),
    ("tensor_core", "one mma is missing", _MMA + r"[^;]*;", "", 0),
    ("tensor_core", "sums do not begin at 0", r"0f00000000", "0f3F800000", 0),
    ("tensor_core", "a register is never set", r"mov\.f32\s+%f\d+, 0f00000000;", "", 0),
    ("tensor_core", "the wrong buffer of the ring", r"(setp\.eq\.s32\s+%p\d+, %r\d+), 2;", r"\1, 1;", 0),
    ("tensor_core", "a wrong stride of rows", r"(mul\.wide\.s32\s+%rd\d+, %r\d+), 104;", r"\1, 112;", 0),
    ("tensor_core", "a wrong stride of matrices", r"(mul\.wide\.u32\s+%rd\d+, %r\d+), 7488;", r"\1, 7480;", 0),
    ("tensor_core", "a row too many is read", r"setp\.lt\.s32", "setp.le.s32", 0),
    ("tensor_core", "a row too many is stored", r"setp\.ge\.s32", "setp.gt.s32", None),
    ("tensor_core", "columns too many are stored", r"(setp\.gt\.u32\s+%p\d+, %r\d+), 71;", r"\1, 73;", 0),
    ("tensor_core", "neighbours are stored swapped", r"(mov\.b32\s+%r\d+), \{(%rs\d+), (%rs\d+)\}", r"\1, {\3, \2}", 0),
    ("tensor_core", "pairs are stored swapped", rf"(st\.global\.v4\.b32 .*), {_FOUR}", r"\1, {\3, \2, \4, \5}", 0),
    ("tensor_core", "stored one piece further", r"(st\.global\.v4\.b32) \[(%rd\d+)\]", r"\1 [\2+16]", 0),
    ("tensor_core", "stored between", r"(st\.global\.v4\.b32) \[(%rd\d+)\]", r"\1 [\2+8]", 0),
    ("tensor_core", "a branch is taken the other way", r"@(%p\d+) bra", r"@!\1 bra", 0),
    ("tensor_core", "A for B", r"_param_0\]", "_param_1]", 0),
    ("tensor_core", "the tile for the matrix", r"%ctaid\.z", "%ctaid.x", 0),
    (
        "tensor_core",
        "C is cut off, not rounded",
        r"cvt\.rn\.bf16\.f32 (%rs\d+), (%f\d+);",
        r"mov.b32 {_, \1}, \2;",
        None,
    ),
    ("odd", "bias of the next column", r"(ld\.param\.u64\s+(%rd\d+), \[\w+_param_6\];)", r"\1 add.s64 \2, \2, 2;", 0),
    ("odd", "a run is stored further on", r"(st\.shared\.v2\.u32\s+)\[(%r\d+)\]", r"\1[\2+8]", 0),
    (
        "odd",
        "words are taken the other way round",
        r"(prmt\.b32\s+%r\d+), (%r\d+), (%r\d+), (%r\d+);",
        r"\1, \3, \2, \4;",
        0,
    ),
    ("odd", "the word behind", r"(ld\.global\.(?:nc\.)?u32\s+%r\d+), \[(%rd\d+)\]", r"\1, [\2+4]", 0),
    ("odd", "alpha for beta", r"_param_4\]", "_param_5]", None),
    ("odd", "another rounding", r"cvt\.rn\.f16\.f32", "cvt.rn.bf16.f32", None),
    ("odd", "ldmatrix does not turn what it must", r"x4\.trans\.shared", "x4.shared", 0),
    ("tf32", "not rounded to tf32", r"cvt\.rna\.tf32\.f32 (%r\d+), (%r\d+);", r"mov.b32 \1, \2;", None),
    ("tf32", "ties to even", r"cvt\.rna\.tf32", "cvt.rn.tf32", None),
    ("turned", "an element of the next row", r"(ld\.shared\.u32\s+%r\d+), \[(%r\d+)\]", r"\1, [\2+512]", 0),
    ("split", "no fence before the count", r"membar\.gl;", "", 0),
    ("split", "no fence after the count", r"membar\.gl;", "", 1),
    ("split", "no barrier before the count", r"(membar\.gl;\s*)bar\.sync\s+0;", r"\1", 0),
    ("split", "no barrier after the count", r"(st\.shared\.u32\s+\[[^;]*;\s*\S+:\s*)bar\.sync\s+0;", r"\1", 0),
    ("split", "counted twice", r"(atom\.\S+\s+%r\d+, \[%rd\d+\]), 1;", r"\1, 2;", 0),
    (
        "split",
        "counters are left behind",
        r"(@%p\d+ bra[^;]*;\s*shl[^;]*;\s*add[^;]*;\s*mov[^;]*;\s*)st\.global\.u32[^;]*;",
        r"\1",
        0,
    ),
    ("simt", "a barrier is missing in the loop", r"bar\.sync\s+0;", "", 1),
    ("simt", "a barrier is missing before the loop", r"bar\.sync\s+0;", "", 0),
    ("simt", "shared memory is written in the wrong place", r"(st\.shared\S*\s+)\[(%r\d+)\]", r"\1[\2+4]", 0),
    ("simt", "shared memory is read in the wrong place", r"(ld\.shared\S*\s+.*)\[(%r\d+)\]", r"\1[\2+16]", 0),
    (
        "simt",
        "a product of the wrong elements",
        r"fma\.rn\.f32\s+(%f\d+), (%f\d+), (%f\d+),",
        r"fma.rn.f32 \1, \2, \2,",
        3,
    ),
    ("scaled", "A's scale taken for B's", r"mul\.f32\s+(%f\d+), (%f\d+), (%f\d+);", r"mul.f32 \1, \2, \2;", 0),
    ("scaled", "sums of a block without its scale", _FMA, r"add.f32 \1, \2, \4;", 0),
    ("scaled", "sums of a block in place of all", _FMA, r"mul.f32 \1, \2, \3;", 0),
    ("scaled", "the scale of another row", _FMA, r"fma.rn.f32 \1, \2, %f331, \4;", 0),
    ("scaled", "scales of B for A", r"_param_4\]", "_param_5]", None),
    (
        "scaled",
        "the scale of another block of k",
        r"ld\.global\.f32\s+(%f\d+), \[(%rd\d+)\]",
        r"ld.global.f32 \1, [\2+4]",
        0,
    ),
    (
        "scaled",
        "the scale of another block of B",
        r"ld\.global\.f32\s+(%f\d+), \[(%rd\d+)\]",
        r"ld.global.f32 \1, [\2+8]",
        2,
    ),
    ("scaled", "a scale read between", r"ld\.global\.f32\s+(%f\d+), \[(%rd\d+)\]", r"ld.global.f32 \1, [\2+2]", 0),
    ("scaled", "the scale of a row too many", r"setp\.ge\.s32", "setp.gt.s32", 1),
    ("scaled", "another type of fp8", r"\.e4m3x2", ".e5m2x2", 0),
    ("scaled columns", "the exponent one place off", r"(shl\.b32\s+%r\d+, %r\d+), 23;", r"\1, 24;", 0),
    ("scaled columns", "the scale of the column before", r"(ld\.global\.u8\s+%r\d+), \[(%rd\d+)\+4\]", r"\1, [\2]", 0),
    ("simt", "reads wider than rows are aligned", r"(ld\.global\.v4\S+\s+.*)\[(%rd\d+)\]", r"\1[\2+4]", 0),
]


def _ptx(name: str) -> str:
    return ptx_of(source_of(RIGHT[name]), RIGHT[name].arch)


@pytest.mark.parametrize("name", RIGHT)
def test_the_kernels_are_right_before(name: str) -> None:
    check(RIGHT[name])


@pytest.mark.parametrize(
    ("name", "pattern", "replacement", "which"),
    [pytest.param(name, *edit, id=f"{name}: {what}") for name, what, *edit in MISTAKES],
)
def test_a_mistake_in_the_ptx_is_seen(name: str, pattern: str, replacement: str, which: int | None) -> None:
    assert_seen(edited(_ptx(name), pattern, replacement, which), partial(check, RIGHT[name]))


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        pytest.param("empty slices", "SPLIT_K == 1 || slice.tiles() > 0", "true", id="an empty slice is read"),
        pytest.param("tensor_core", "step < slice.tiles();", "step < slice.tiles() - 1;", id="one step too few"),
        pytest.param("tensor_core", "step < slice.tiles();", "step <= slice.tiles();", id="one step too many"),
        pytest.param("simt", "step % 2 * A_BUFFER", "0 * A_BUFFER", id="one buffer of two"),
        pytest.param("tensor_core", "COLUMNS || columns_left > 0", "COLUMNS || columns_left >= 0", id="an edge"),
        pytest.param("tensor_core", "row < rows_left) && (WHOLE_COLUMNS || columns_left", "row <= rows_left) && "
                     "(WHOLE_COLUMNS || columns_left", id="a row too many"),
        pytest.param("tensor_core", "}\n        next += ORDER == ALONG_K ? BLOCK_K :",
                     "}\n        next += ORDER == ALONG_K ? BLOCK_K + 8 :", id="a tile further"),
        pytest.param("tensor_core", "columns_left : rows_left) -= BLOCK_K;\n        is_first =",
                     "rows_left : columns_left) -= BLOCK_K;\n        is_first =", id="another edge"),
        pytest.param("tensor_core", "const int row = i * STRIDE;", "const int row = i * STRIDE / 2;", id="a row again"),
        pytest.param("turned", "part / 2 * 32", "part / 2 * 16", id="columns of another part"),
        pytest.param("turned", "OF_A ? half + depth * 2 : half * 2 + depth", "half * 2 + depth", id="halves swapped"),
        pytest.param("turned", "STRIDE % ROWS_AT_ONCE<ORDER> == 0", "true", id="rows permuted as the first"),
        pytest.param("turned bytes", "row + i * 16 + lane % 16", "row + lane % 16", id="rows of another part"),
        pytest.param("turned bytes", "column + j * 16 + across", "column + across", id="columns of the first part"),
        pytest.param("turned bytes", "row % ROWS_PER_LINE * CHUNKS + column", "column", id="rows one over the other"),
        pytest.param("turned bytes", "low, high, 0x5410", "low, low, 0x5410", id="bytes of other rows"),
        pytest.param("turned bytes", "row + i < rows_left", "row + i <= rows_left", id="a row of bytes too many"),
        pytest.param("odd", "byte_in_word(element) * 0x1111", "0", id="runs that are not shifted"),
        pytest.param("odd", "words[i][j + 1], choice", "words[i][j], choice", id="a run of one word"),
        pytest.param("odd", "rows_left) && j < columns_left", "rows_left)", id="a column too many"),
        pytest.param("odd", "(WHOLE_ROWS || i * STRIDE < rows_left)", "true", id="a row of elements too many"),
        pytest.param("odd", "const bool has_rows = rows_left > (RUNS - 1) * STRIDE;", "const bool has_rows = true;",
                     id="words of a row too many"),
        pytest.param("odd", "return columns_left >= COVER;", "return columns_left > 0;", id="words beyond k"),
        pytest.param("odd", "row < rows_left);", "row <= rows_left);", id="a row of words too many"),
        pytest.param("odd", "{\n            copy_elements(tile);", "{", id="elements before the loop are forgotten"),
        pytest.param("odd", "{\n                copies.copy_elements(tile);", "{", id="elements are forgotten"),
        pytest.param("odd", "(first ^ permuted)", "first", id="a run that is permuted as the first"),
        pytest.param("odd", "row / (4 / sizeof(IN_TYPE))", "row", id="words of rows further on"),
        pytest.param("odd", "element) & 3;", "element) & 1;", id="words between"),
        pytest.param("odd n", "(rows_left > ROWS &&", "(rows_left > 0 &&", id="a word behind the last row"),
        pytest.param("odd, few columns", "(has_column ? column : first_column)", "column", id="words of no column"),
        pytest.param("odd, one column", " && columns >= COVER", "", id="words over more than a row"),
        pytest.param("odd slices", "if (k + MMA_K == BLOCK_K) copies.advance();", "copies.advance();",
                     id="a tile further with each slice"),
        pytest.param("odd slices", "copies.read(words, k / PART_K * HELD)", "copies.read(words, 0)",
                     id="the runs of the first slice again"),
        pytest.param("odd slices", "copies.write(words, k / PART_K * HELD, tile)", "copies.write(words, 0, tile)",
                     id="runs in the place of others"),
        pytest.param("odd slices", "a_ring + free_buffer * A_STAGE, k", "a_ring + buffer * A_STAGE, k",
                     id="runs over a tile that is in use"),
        pytest.param("odd slices", "b_ring + free_buffer * B_STAGE, k", "b_ring, k", id="runs in the first buffer"),
        pytest.param("odd bytes", "byte_in_word(element) * 0x1111", "(byte_in_word(element) & 2) * 0x1111",
                     id="a shift of whole pairs"),
        pytest.param("odd bytes", "return columns_left >= COVER;", "return columns_left >= RUN;",
                     id="the word behind the last"),
        pytest.param("turned odd bytes", "rows_left >= 4 &&", "", id="squares behind the last row"),
        pytest.param("turned odd bytes", "chosen_bytes(low, high, choice_of(source))", "low", id="squares not shifted"),
        pytest.param("turned odd bytes", "(rows_left > 4 &&", "(rows_left > 0 &&", id="a word behind the last square"),
        pytest.param("turned odd bytes", "if (i >= rows_left) continue;", "", id="bytes behind the last row"),
        pytest.param("turned odd bytes", "j < 4 && j < columns_left", "j < 4", id="bytes behind the last"),
        pytest.param("turned odd bytes", "<< j * 8", "<< 8", id="bytes one over the other"),
        pytest.param("tensor_core", "free_buffer = FRAGMENTS_AHEAD ? next_buffer : buffer;", "",
                     id="copies into a buffer that is in use"),
        pytest.param("ahead", "STEPS_AHEAD, free_buffer", "STEPS_AHEAD, next_buffer",
                     id="copies over what is read next"),
        pytest.param("ahead", "FRAGMENTS_AHEAD ? is_last : k == 0", "k == 0", id="copies before all have read"),
        pytest.param("ahead", "} else if (is_last) {", "} else if (k + 2 * MMA_K == BLOCK_K) {",
                     id="a barrier too early"),
        pytest.param("ahead", "} else if (is_last) {", "} else if (k == 0) {",
                     id="a barrier at the beginning of a step"),
        pytest.param("ahead", "wait_copies<STEPS>();\n        sync_block();", "sync_block();\n        "
                     "wait_copies<STEPS>();", id="a barrier before the wait"),
        pytest.param("ahead", "is_last ? next_buffer : buffer", "next_buffer", id="the next tile too early"),
        pytest.param("ahead", "is_last ? 0 : k + MMA_K", "is_last ? 0 : k", id="fragments again"),
        pytest.param("ahead", "is_last ? 0 : k + MMA_K", "is_last ? MMA_K : k + MMA_K", id="fragments left out"),
        pytest.param("ahead", "read(fragments, 0, 0);", "read(fragments, 0, MMA_K);", id="other fragments first"),
        pytest.param("ahead of few", "step + 1 == slice.tiles())", "step > slice.tiles())",
                     id="a tile behind the last"),
        pytest.param("ahead of few", "if (slice.tiles() == 0) return;", "", id="a tile of a slice that has none"),
        pytest.param("scaled", "is_last ? next_buffer : buffer", "buffer", id="the same tile again"),
        pytest.param("scaled", "fragments = next;", "", id="what is read ahead is not multiplied"),
        pytest.param("tf32", "fragments.round();", "", id="what is multiplied is not rounded"),
        pytest.param("scaled", "[4] = {};\n                multiply(", "[4];\n                memcpy(partial, sums, "
                     "sizeof(sums)); multiply(", id="sums scaled again"),
        pytest.param("scaled", "batch * scale_rows_of_b(sizes.n)", "batch * (sizes.n / 128)", id="scales of B cut"),
        pytest.param("scaled", "two_as_fp16(type, b1, upper)", "two_as_fp16(type, b1, 1 - upper)",
                     id="another half of B"),
        pytest.param("scaled", "two_as_fp16(type, a[i], upper)", "two_as_fp16(type, a[i], 0)", id="a half of A twice"),
        pytest.param("scaled columns", "(k / SCALE_K + WORD - 1) / WORD * WORD", "k / SCALE_K", id="E8M0 not in words"),
        pytest.param("scaled columns", "slice.first + step * BLOCK_K;\n                const", "step * BLOCK_K; const",
                     id="scales of another slice"),
        pytest.param("boxes", "sync_block();  // other", "// other", id="boxes over tiles that others read"),
        pytest.param("boxes", "lane);\n                sync_warp();", "lane);", id="a box is read before it is full"),
        pytest.param("boxes", "                sync_warp();\n            }\n        }\n", "            }\n        }\n",
                     id="a box is filled before it is read"),
        pytest.param("boxes", "own ^ j * 8", "own + j * 8", id="runs that are not permuted"),
        pytest.param("boxes", "(across * WARP_M + down)", "(across * WARP_N + down)", id="sums of another box"),
        pytest.param("boxes", "+ across * BOX_COLUMNS + own_column", "+ own_column", id="a box's columns again"),
        pytest.param("boxes", "* BOX_ROWS / 8, ACROSS", "* BOX_ROWS / 16, ACROSS", id="sums of the rows above"),
        pytest.param("boxes", "source = own_c + static_cast<long long>(i)", "source = own_c + "
                     "static_cast<long long>(0)", id="C of another row"),
        pytest.param("boxes", "i < sizes.m)) {\n                        const", "i <= sizes.m)) { const",
                     id="C of a row too many"),
        pytest.param("split", "sync_block();  // other", "// other", id="boxes over what others have yet to read"),
        pytest.param("split", "slice < SPLIT_K; ++slice", "slice < SPLIT_K - 1; ++slice", id="a slice forgotten"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_template_is_seen(name: str, right: str, wrong: str) -> None:
    assert_seen(spoilt(RIGHT[name], right, wrong), partial(check, RIGHT[name]))


def test_a_row_that_makes_no_mistake_fails() -> None:
    """Its text is not in the template, or there twice; or the kernel is still right."""
    for text in ("no such text", "int"):
        with pytest.raises(AssertionError, match="no longer holds"):
            spoilt(RIGHT["simt"], text, "")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        assert_seen(_ptx("simt"), partial(check, RIGHT["simt"]))
