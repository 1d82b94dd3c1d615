"""Kernels of the ``hopper`` family compute C = A · B, instruction by instruction, and mistakes in them are seen."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.compilers.nvrtc import Nvrtc
from cache_engine.errors import UsageError
from cache_engine.kernels.family import check_config, launch_of
from cache_engine.kernels.select import choose
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import OPT_LEVELS, DType, GemmProblem, Layout, Specialisation
from cache_engine.model.kernel import KernelConfig
from tests.faults.counting import report
from tests.ptx.hopper_problems import HOPPER, deep, hopper
from tests.ptx.mistakes import assert_seen, kernels, rows, spoilt
from tests.ptx.problems import EPILOGUES, Case, check, is_output, of_today, ptx_of, source_of

_LAYOUTS = (Layout.NT, Layout.NN)
# The tiles that the family offers, with rings so short that a small problem goes around them.
_CONFIGS = (
    KernelConfig(128, 64, 64, 8, 1, 2),
    KernelConfig(64, 128, 64, 4, 2, 3),
    KernelConfig(128, 128, 64, 8, 1, 2),
    KernelConfig(256, 128, 64, 8, 1, 2),
    KernelConfig(128, 256, 64, 8, 1, 2),
    KernelConfig(64, 256, 64, 4, 2, 2),
    KernelConfig(64, 256, 64, 4, 1, 2),
    KernelConfig(64, 128, 64, 4, 1, 2),
    KernelConfig(64, 64, 64, 4, 1, 3),
)
# m, n, k, batch: several tiles each way, none of them whole; k shorter than a tile, and longer than any ring.
_SHAPES = ((150, 136, 200, 1), (40, 264, 24, 2), (300, 72, 456, 1), (128, 256, 128, 1))
_ALONG_K = (DType.FP8_E4M3, DType.FP8_E5M2, DType.TF32)
_KINDS = [(dtype, layout) for dtype in (DType.BF16, DType.FP16) for layout in _LAYOUTS]
_KINDS += [(dtype, Layout.NT) for dtype in _ALONG_K]


def _cases() -> list[Case]:
    cases = []
    kinds = itertools.product(_KINDS, _SHAPES, Specialisation, EPILOGUES)
    for number, ((dtype, layout), (m, n, k, batch), specialisation, epilogue) in enumerate(kinds):
        outputs = [one for one in (dtype, DType.FP32, DType.BF16, DType.FP16) if is_output(dtype, one)]
        output = outputs[number % len(outputs)]
        depth = k * 2 // dtype.itemsize // 16 * 16  # as many bytes for each type, and rows of whole 16 bytes
        rest = (0, 0, 1, 2, 4)[number // 3 % 5] if layout is Layout.NT else 0  # rows of C are whole 16 bytes, or less
        problem = GemmProblem(
            m, n + rest, depth or k, batch, dtype, output, layout, "sm_90a", epilogue, specialisation, OPT_LEVELS[-1]
        )
        cases.append(hopper(problem, deep(_CONFIGS[number * 7 // 4 % len(_CONFIGS)], dtype)))
    return cases


CASES = _cases()


@pytest.mark.parametrize("part", range(3))
def test_kernels_multiply(part: int) -> None:
    """A sample of the cases, another one each day; one of those that are along k alone."""
    case = of_today([one for one in CASES if (one.problem.dtype in _ALONG_K) is (part == 0)], 3)[part]
    print(case)
    check(case)


def test_the_store_keeps_what_is_executed_here(tmp_path: Path) -> None:
    problem = GemmProblem(40, 72, 96, arch="sm_90a")
    with open_cache(tmp_path / "store", durability="fast") as cache:
        kernel = cache.get_or_compile(problem, family="hopper", config=HOPPER.configs(problem)[0])
        stored, log = (cache.text(kernel.record, part) for part in ("ptx", "log"))
        assert not cache.admin.verify()
    # A sum in local memory would have every product wait for the one before, and ptxas says so.
    resources = kernel.record.resources
    assert "ptxas info" in log
    assert "wgmma.mma_async instructions are serialized" not in log
    assert (kernel.record.family, resources.spill_bytes, resources.stack_bytes) == ("hopper", 0, 0)
    assert (kernel.launch.threads, kernel.launch.grid) == (384, (1, 1, 1))
    assert stored == ptx_of(source_of(hopper(problem, kernel.record.config)), "sm_90a")


@pytest.mark.parametrize("level", OPT_LEVELS)
def test_products_overlap_at_each_level_that_is_taken(level: int) -> None:
    problem = GemmProblem(40, 72, 96, arch="sm_90a", opt_level=level)
    log = Nvrtc().at_level(level).compile(source_of(hopper(problem, HOPPER.configs(problem)[-1])), "sm_90a").log
    assert (b"wgmma.mma_async instructions are serialized" in log) == bool(HOPPER.problem_fault(problem))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(16))
def test_every_kind_of_hopper_kernel_multiplies(part: int) -> None:
    for case in CASES[part::16]:
        print(case)
        check(case)
    report({"trials": len(CASES[part::16])})


@pytest.mark.soak
@pytest.mark.parametrize("config", HOPPER.configs(GemmProblem(1, 1, 1)), ids=str)
def test_every_config_of_hopper_multiplies(config: KernelConfig) -> None:
    for dtype, layout in _KINDS:
        problem = GemmProblem(config.block_m + 8, config.block_n + 24, 720, 1, dtype, layout=layout, arch="sm_90a")
        check(hopper(problem, deep(config, dtype)))
    report({"trials": len(_KINDS)})


def test_the_cases_are_what_the_family_offers() -> None:
    for case in CASES:
        assert HOPPER.problem_fault(case.problem) is None
        check_config(HOPPER, case.problem, case.config, architecture("sm_90a"))
    assert {case.problem.dtype for case in CASES} == set(HOPPER.flops_per_clock)
    for dtype in HOPPER.flops_per_clock:
        offered = HOPPER.configs(GemmProblem(1, 1, 1, dtype=dtype))
        assert {replace(one, stages=2) for one in offered} == {replace(deep(one, dtype), stages=2) for one in _CONFIGS}
        assert {case.config for case in CASES if case.problem.dtype is dtype} == {deep(one, dtype) for one in _CONFIGS}


# ---- Mistakes ----

_RIGHT = hopper(GemmProblem(150, 136, 200, arch="sm_90a"), KernelConfig(128, 64, 64, 8, 1, 2))
_TURNED = hopper(GemmProblem(130, 264, 136, arch="sm_90a", layout="nn"), KernelConfig(64, 256, 64, 4, 2, 2))
_FP8 = hopper(GemmProblem(70, 136, 208, dtype="fp8_e4m3", arch="sm_90a"), KernelConfig(128, 64, 128, 8, 1, 2))
_ONE_GROUP = hopper(GemmProblem(70, 136, 200, arch="sm_90a"), KernelConfig(64, 128, 64, 4, 1, 2))
_TF32 = hopper(GemmProblem(70, 136, 72, dtype="tf32", arch="sm_90a"), KernelConfig(128, 64, 32, 8, 1, 2))
# Three boxes of C for each warp, one behind the other, and a C that is read; and one that lanes store.
_BETA = hopper(GemmProblem(70, 328, 72, 2, arch="sm_90a", epilogue="beta+bias"), KernelConfig(128, 256, 64, 8, 1, 2))
_UNBOXED = hopper(GemmProblem(150, 134, 72, arch="sm_90a"), KernelConfig(128, 128, 64, 8, 1, 2))
_MISTAKES = [
    (_RIGHT, "nothing waits for tiles", "barrier_wait(place.full(), place.parity);\n        mul", "mul"),
    (_RIGHT, "nothing waits for room", "barrier_wait(place.empty(), place.parity ^ 1);", ""),
    (_RIGHT, "the wrong phase of tiles", "barrier_wait(place.full(), place.parity);\n        mul",
     "barrier_wait(place.full(), place.parity ^ 1); mul"),
    (_RIGHT, "the wrong phase of room", "barrier_wait(place.empty(), place.parity ^ 1);",
     "barrier_wait(place.empty(), place.parity);"),
    (_RIGHT, "the parity never turns", "parity ^= 1;", ""),
    (_RIGHT, "the ring is one too long", "++buffer == STAGES", "++buffer == STAGES + 1"),
    (_RIGHT, "no proxy fence", "        fence_async();\n        if constexpr (CLUSTER > 1) fence_barriers();", ""),
    (_RIGHT, "no barrier after the barriers are made", "    }\n    sync_all();\n", "    }\n"),
    (_RIGHT, "too few bytes are expected", "barrier_arrive_expecting(place.full(), STAGE_BYTES);",
     "barrier_arrive_expecting(place.full(), STAGE_BYTES - 128);"),
    (_RIGHT, "tiles of A alone are expected", "barrier_arrive_expecting(place.full(), STAGE_BYTES);",
     "barrier_arrive_expecting(place.full(), A_BYTES);"),
    (_RIGHT, "fewer warps are waited for", "barrier_init(place.empty(), WARPS * CLUSTER);",
     "barrier_init(place.empty(), WARPS - 4);"),
    (_RIGHT, "one warp of a group is waited for", "if (k > slice.first && arrives) give_back(last);",
     "if (k > slice.first && arrives && thread_index() / 32 % 4 == 0) give_back(last);"),
    (_RIGHT, "room is made before products have ended", "products_wait<1>();", ""),
    (_RIGHT, "the buffer that is read now is given back", "if (k > slice.first && arrives) give_back(last);",
     "if (arrives) give_back(place.empty());"),
    (_RIGHT, "the last buffer is not given back",
     "if (arrives && (SPLIT_K == 1 || slice.first < slice.end)) give_back(last);", ""),
    (_RIGHT, "sums are stored before they are there", "    products_wait<0>();\n#pragma unroll\n    for",
     "    products_wait<1>();\n#pragma unroll\n    for"),
    (_RIGHT, "no fence before products", "    products_begin();\n", ""),
    (_RIGHT, "products are in no group", "    products_commit();\n", ""),
    (_RIGHT, "sums do not begin at 0", "adds || k > 0);", "true);"),
    (_RIGHT, "sums begin at 0 in every step", "adds || k > 0);", "k > 0);"),
    (_RIGHT, "groups of lines lie half as far apart", "EIGHT_LINES = 1024ull >> 4 << 32",
     "EIGHT_LINES = 512ull >> 4 << 32"),
    (_RIGHT, "the stride is where the panels' distance is", "EIGHT_LINES = 1024ull >> 4 << 32",
     "EIGHT_LINES = 1024ull >> 4 << 16"),
    (_RIGHT, "another swizzle", "SWIZZLE_128B = 1ull << 62", "SWIZZLE_128B = 2ull << 62"),
    (_RIGHT, "no swizzle", "SWIZZLE_128B = 1ull << 62", "SWIZZLE_128B = 0"),
    (_RIGHT, "k advances by half", "k * ALONG, 16)", "k * ALONG / 2, 16)"),
    (_RIGHT, "A for B", "copy_box(place.tiles(), a_map, k", "copy_box(place.tiles(), b_map, k"),
    (_RIGHT, "coordinates are swapped", "a_map, k, tile.row, batch", "a_map, tile.row, k, batch"),
    (_RIGHT, "the second group multiplies the rows of the first", "const unsigned a_offset = group_row * LINE_BYTES;",
     "const unsigned a_offset = 0;"),
    (_RIGHT, "rows of a box are filled in another order", "below = i % 4 / 2 * 8;", "below = i % 4 / 2;"),
    (_RIGHT, "columns of a box are filled in another order", "aside = i / 4 * 8 + i % 2,",
     "aside = (i / 4 ^ 1) * 8 + i % 2,"),
    (_RIGHT, "another part is finished", "[NUMBER % ACROSS * PART_SUMS + i]",
     "[(NUMBER % ACROSS ^ 1) * PART_SUMS + i]"),
    (_RIGHT, "both parts of a box are finished from one", "choose(chosen, sums, i * PARTS + part);",
     "choose(chosen, sums, i * PARTS);"),
    (_RIGHT, "both parts of a box are filled in one place", "fill_box(box, first, chosen", "fill_box(box, 0, chosen"),
    (_RIGHT, "chunks of a box are not permuted", " ^ row % 8 * 16);", ");"),
    (_RIGHT, "chunks of a box are permuted as of lines of 64 bytes", "^ row % 8 * 16", "^ row / 2 % 4 * 16"),
    (_RIGHT, "boxes lie where the barriers do", "BARRIERS = BOXES + 2 * WARPS * BOX_BYTES;", "BARRIERS = BOXES;"),
    (_RIGHT, "warps fill one box", "box = BOXES + warp * 2 * BOX_BYTES;", "box = BOXES;"),
    (_RIGHT, "boxes of warps overlap", "box = BOXES + warp * 2 * BOX_BYTES;", "box = BOXES + warp * BOX_BYTES;"),
    (_BETA, "a box is filled while it is being read", "if (is_storing) boxes_wait_read<1>();", ""),
    (_BETA, "too few boxes are waited for", "boxes_wait_read<1>();", "boxes_wait_read<2>();"),
    (_BETA, "another lane waits", "if (is_storing) boxes_wait_read<1>();", "if (lane == 9) boxes_wait_read<1>();"),
    (_BETA, "lanes do not know that a box was read", "        sync_warp();\n        }\n", "        }\n"),
    (_BETA, "there is one box alone", "box ^= BOX_BYTES;", ""),
    (_BETA, "boxes are in no group", "boxes_commit();\n            }", "}"),
    (_RIGHT, "no proxy fence before a box is stored", "            fence_async();\n            sync_warp();",
     "            sync_warp();"),
    (_RIGHT, "the lane that stores has a fence alone", "            fence_async();\n            sync_warp();",
     "            if (is_storing) fence_async();\n            sync_warp();"),
    (_RIGHT, "fences come when lanes have met", "            fence_async();\n            sync_warp();",
     "            sync_warp();\n            fence_async();"),
    (_RIGHT, "a box is stored before lanes have met", "            fence_async();\n            sync_warp();",
     "            fence_async();"),
    (_RIGHT, "every lane stores the box", "            if (is_storing) {", "            {"),
    (_RIGHT, "row and column of a box are swapped", "store_box(c_map, across, down,", "store_box(c_map, down, across,"),
    (_RIGHT, "a box is stored elsewhere", "store_box(c_map, across, down,", "store_box(c_map, across, down ^ 16,"),
    (_BETA, "a box is stored in the first of the batch", "down, batch_index(), ring() + box", "down, 0, ring() + box"),
    (_RIGHT, "the other box is stored", "batch_index(), ring() + box)", "batch_index(), ring() + (box ^ BOX_BYTES))"),
    (_RIGHT, "the kernel ends before boxes are stored", "if (C_BOXED && is_elected()) boxes_wait();", ""),
    (_RIGHT, "the kernel ends when boxes are read", "is_elected()) boxes_wait();",
     "is_elected()) boxes_wait_read<0>();"),
    (_RIGHT, "another lane waits at the end", "is_elected()) boxes_wait();", "lane == 9) boxes_wait();"),
    (_BETA, "C is read below its last row", "row + below < sizes.m)", "row + below <= sizes.m)"),
    (_BETA, "C is read in another column", "* sizes.n + column + aside);\n        }\n        store_shared",
     "* sizes.n + column);\n        }\n        store_shared"),
    (_BETA, "C is read in another row", "static_cast<long long>(row + below) * sizes.n",
     "static_cast<long long>(row) * sizes.n"),
    (_BETA, "the bias is read beyond its end", "if (is_inside) bias =", "bias ="),
    (_BETA, "the bias is another column's", "load_bias<PAIR>(column + aside, epilogue)",
     "load_bias<PAIR>(column + i % 8, epilogue)"),
    (_UNBOXED, "a row too many is stored", "row + down < sizes.m &&", "row + down <= sizes.m &&"),
    (_UNBOXED, "columns too many are stored", "column + aside < sizes.n) {", "column + aside <= sizes.n) {"),
    (_UNBOXED, "lanes read what others have yet to fill", "            sync_warp();\n            store_lines(",
     "            store_lines("),
    (_UNBOXED, "lanes fill what others still read", "box ^= BOX_BYTES;", ""),
    (_UNBOXED, "lanes read the row below", "place_in(box, down, aside)", "place_in(box, down ^ 1, aside)"),
    (_UNBOXED, "some elements are not stored", "i < BOX_ROWS * LANES;", "i < BOX_ROWS * LANES - 32;"),
    (_FP8, "k advances as of 16 bits", "ALONG = sizeof(IN_TYPE)", "ALONG = 2"),
    (_FP8, "products are as deep as of 16 bits", "MMA_K = 32 / sizeof(IN_TYPE)", "MMA_K = 16"),
    (_FP8, "the other type of 8 bits", '(e4m3, "k32.f32.e4m3.e4m3")', '(e4m3, "k32.f32.e5m2.e5m2")'),
    (_TF32, "a step of k too few", "k < BLOCK_K; k += MMA_K", "k < BLOCK_K - MMA_K; k += MMA_K"),
    (_RIGHT, "registers grow beyond what there is", "232;\nstatic_assert(GROUP *",
     "256;\nstatic_assert(true || GROUP *"),
    (_ONE_GROUP, "registers change hands that a group has already", "DIVIDES_REGISTERS = GROUPS > 1",
     "DIVIDES_REGISTERS = true"),
    (_ONE_GROUP, "warps that are not there are waited for", "barrier_init(place.empty(), WARPS * CLUSTER);",
     "barrier_init(place.empty(), 8);"),
    (_RIGHT, "a part of a warp starts products", "multiply_all(c, C_MAP,",
     "if (thread_index() % 32) multiply_all(c, C_MAP,"),
    (_RIGHT, "every lane starts copies", "&& is_elected()) copy_tiles", ") copy_tiles"),
    (_TURNED, "panels lie too near", "matrix_at(b + k * (B_TURNED ? ACROSS : ALONG), B_TURNED ? PANEL_BYTES : 16)",
     "matrix_at(b + k * (B_TURNED ? ACROSS : ALONG), 4096)"),
    (_TURNED, "k advances along the line", "(B_TURNED ? ACROSS : ALONG)", "ALONG"),
    (_TURNED, "B is not turned", "multiply_tiles<false, B_TURNED>", "multiply_tiles<false, false>"),
    (_TURNED, "panels are copied to one place", "target + i * PANEL_BYTES", "target"),
    (_TURNED, "a panel is not copied", "i < BLOCK_N / LINE; ++i", "i < BLOCK_N / LINE - 1; ++i"),
    (_TURNED, "the second group multiplies the columns of the first", "A_BYTES + group_column * LINE_BYTES", "A_BYTES"),
]  # fmt: skip
_DAILY = (
    "nothing waits for tiles",
    "the wrong phase of room",
    "no proxy fence",
    "groups of lines lie half as far apart",
    "no proxy fence before a box is stored",
    "too few boxes are waited for",
)


@pytest.mark.parametrize(("case", "right", "wrong"), rows(_MISTAKES, _DAILY))
def test_every_mistake_is_seen(case: Case, right: str, wrong: str) -> None:
    assert_seen(spoilt(case, right, wrong), partial(check, case))


@pytest.mark.soak
@pytest.mark.parametrize("case", kernels(_MISTAKES), ids=str)
def test_the_kernels_are_right_before(case: Case) -> None:
    check(case)


# ---- What is refused ----


@pytest.mark.parametrize(
    ("problem", "what"),
    [
        (GemmProblem(64, 64, 64, arch="sm_90"), "needs the target sm_90a, and this is for sm_90;"),
        (GemmProblem(64, 64, 64, arch="sm_100a"), "needs the target sm_90a"),
        (GemmProblem(64, 64, 64, arch="sm_80"), "needs the target sm_90a"),
        (
            GemmProblem(64, 64, 64, arch="sm_90a", opt_level=0),
            "at optimisation level 0 ptxas .* use level 1, 2 or 3;",
        ),
        (GemmProblem(64, 64, 64, layout="tn", arch="sm_90a"), "use nt or nn"),
        (
            GemmProblem(64, 64, 60, arch="sm_90a"),
            "k must be a multiple of 8, so that rows are whole 16 bytes, and is 60",
        ),
        (GemmProblem(64, 50257, 64, layout="nn", arch="sm_90a"), "n must be a multiple of 8"),
        (GemmProblem(64, 64, 64, dtype="int8", arch="sm_90a"), "family hopper does not compute int8"),
        (
            GemmProblem(64, 64, 64, dtype="fp8_e4m3", layout="nn", arch="sm_90a"),
            "B of fp8_e4m3 must be stored along k, and the layout is nn; use nt",
        ),
        (GemmProblem(64, 64, 64, dtype="tf32", layout="tt", arch="sm_90a"), "and the layout is tt; use nt;"),
        (GemmProblem(64, 64, 72, dtype="fp8_e5m2", arch="sm_90a"), "k must be a multiple of 16, so that"),
        (GemmProblem(64, 64, 66, dtype="tf32", arch="sm_90a"), "k must be a multiple of 4, so that"),
    ],
)
def test_a_problem_that_it_cannot_compute_is_refused(problem: GemmProblem, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        choose(problem, "hopper")
    assert choose(problem)[0].name == "tensor_core"


def test_it_serves_first_with_one_block_for_each_sm() -> None:
    problem = GemmProblem(4096, 4096, 4096, arch="sm_90a")
    family, config = choose(problem)
    assert (family.name, config.block_m * config.block_n) == ("hopper", 128 * 256)
    launch = launch_of(family, problem, config)
    assert (launch.grid, launch.threads, launch.parameters[-2:]) == ((132, 1, 1), 384, ("b_map", "c_map"))


@pytest.mark.parametrize("scales", ["", "1x128,128x128"])
@pytest.mark.parametrize("m", [1, 16, 64])
@pytest.mark.parametrize(("n", "k"), [(2112, 7168), (4096, 4096), (7168, 2048)])
def test_few_rows_get_one_warp_group(m: int, n: int, k: int, scales: Any) -> None:
    problem = GemmProblem(m, n, k, dtype="fp8_e4m3", arch="sm_90a", scales=scales)
    config = choose(problem, "hopper")[1]
    assert (config.block_m, config.warps_m, config.warps_n) == (64, 4, 1)
