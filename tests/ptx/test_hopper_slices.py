"""Kernels of the ``hopper`` family that split k: every kind of tile, with slices that are empty, and mistakes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import pytest

from cache_engine.kernels.family import check_config, launch_of
from cache_engine.kernels.select import choose
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import OPT_LEVELS, DType, GemmProblem, Layout, Scales, Specialisation
from cache_engine.model.kernel import KernelConfig
from tests.faults.counting import report
from tests.ptx.hopper_problems import HOPPER, deep, hopper
from tests.ptx.mistakes import assert_seen, kernels, rows, spoilt
from tests.ptx.problems import EPILOGUES, Case, check, of_today

_CONFIGS = (
    KernelConfig(64, 64, 64, 4, 1, 3),
    KernelConfig(64, 128, 64, 4, 1, 2),
    KernelConfig(128, 64, 64, 8, 1, 2),
    KernelConfig(64, 256, 64, 4, 2, 2),
    KernelConfig(128, 128, 64, 8, 1, 2),
    KernelConfig(256, 128, 64, 8, 1, 2),
)
_KINDS = (
    (DType.BF16, Layout.NT, Scales.NONE),
    (DType.FP16, Layout.NN, Scales.NONE),
    (DType.TF32, Layout.NT, Scales.NONE),
    (DType.FP8_E4M3, Layout.NT, Scales.BLOCKS),
    (DType.FP8_E5M2, Layout.NT, Scales.NONE),
    (DType.FP8_E4M3, Layout.NT, Scales.BLOCKS_E8M0),
)
# m, n, steps along k, batch. Of five steps four slices have two, two, one and none.
_SHAPES = ((40, 136, 5, 1), (150, 136, 7, 2), (16, 264, 16, 1))
_SLICES = (4, 2, 3, 5)


def _cases() -> list[Case]:
    asked = [(*one, "") for one in itertools.product(_KINDS, _SHAPES, Specialisation)]
    asked += [(_KINDS[number % len(_KINDS)], _SHAPES[number % 3], list(Specialisation)[number % 4], epilogue)
              for number, epilogue in enumerate(EPILOGUES)]  # fmt: skip
    cases = []
    for number, ((dtype, layout, scales), (m, n, steps, batch), specialisation, epilogue) in enumerate(asked):
        k = steps * 128 // dtype.itemsize - (0 if scales else 16)
        problem = GemmProblem(
            m, n, k, batch, dtype, None, layout, "sm_90a", epilogue, specialisation, OPT_LEVELS[-1], scales
        )
        config = deep(_CONFIGS[number * 5 // 4 % len(_CONFIGS)], dtype)
        cases.append(hopper(problem, replace(config, split_k=_SLICES[(number + number // 4) % len(_SLICES)])))
    return cases


CASES = _cases()


@pytest.mark.parametrize("part", range(2))
def test_kernels_multiply(part: int) -> None:
    """A sample of the cases, another one each day."""
    case = of_today(CASES, 2)[part]
    print(case)
    check(case)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(6))
def test_every_kind_of_kernel_multiplies(part: int) -> None:
    for case in CASES[part::6]:
        print(case)
        check(case)
    report({"trials": len(CASES[part::6])})


def test_the_cases_can_be_built() -> None:
    for case in CASES:
        check_config(HOPPER, case.problem, case.config, architecture("sm_90a"))
    assert {replace(case.config, block_k=64, split_k=1) for case in CASES} == set(_CONFIGS)
    assert {(case.problem.specialisation, case.config.split_k) for case in CASES} >= set(
        itertools.product((Specialisation.DYNAMIC, Specialisation.NK), _SLICES[:2])
    )


# ---- Mistakes ----

# Ten tiles, whose 80 warps have counters of more than one 256 bytes; a slice is empty.
_PLAIN = hopper(GemmProblem(150, 300, 320, arch="sm_90a"), KernelConfig(128, 64, 64, 8, 1, 2, 4))
_BATCH = hopper(GemmProblem(40, 200, 320, 2, arch="sm_90a"), KernelConfig(64, 64, 64, 4, 1, 2, 3))
_SCALED = hopper(
    GemmProblem(40, 136, 640, dtype="fp8_e4m3", scales="1x128,128x128", arch="sm_90a"),
    KernelConfig(64, 128, 128, 4, 1, 2, 3),
)
_COPIES = "for (int k = slice.first; k < slice.end; k += BLOCK_K) {\n            barrier"
_ADDS = "        clear(sums);\n#pragma unroll 1\n        for (int slice = 0;"
_LEAVES = "if (!is_last) return false;"
_MEETS = "        is_last = any_lane(is_last);\n        sync_warp();\n"
_MISTAKES = [
    (_PLAIN, "no fence before the count", "        fence();\n        sync_warp();", "        sync_warp();"),
    (_PLAIN, "lanes have not met before the count", "        fence();\n        sync_warp();", "        fence();"),
    (_PLAIN, "lanes have not met after the count", _MEETS, _MEETS.replace("        sync_warp();\n", "")),
    (_PLAIN, "no fence after the count", f"{_LEAVES}\n        fence();", _LEAVES),
    (_PLAIN, "one lane knows that it is the last", "is_last = any_lane(is_last);", ""),
    (_PLAIN, "warps of a tile count together", "tile * WARPS + thread_index() / 32", "tile * WARPS"),
    (_PLAIN, "every lane counts", "thread_index() % 32 == 0;\n        bool is_last", "true;\n        bool is_last"),
    (_PLAIN, "the one before the last stores", "== SPLIT_K - 1;", "== SPLIT_K - 2;"),
    (_PLAIN, "every block stores", _LEAVES, ""),
    (_PLAIN, "no block stores", _LEAVES, "return false;"),
    (_PLAIN, "the counter stays", "if (counts) store_global<unsigned, 1>(counter, {0u});", ""),
    (_PLAIN, "a slice is forgotten, and one that is empty", _ADDS, _ADDS.replace("slice = 0", "slice = 2")),
    (_PLAIN, "its own slice is added twice", _ADDS, _ADDS.replace("clear(sums);", "")),
    (_PLAIN, "slices lie over each other", "static_cast<long long>(slice_index()) * (COUNT", "0ll * (COUNT"),
    (_PLAIN, "tiles lie over each other", "slices += tile * SPLIT_K * (COUNT", "slices += tile * (COUNT"),
    (_PLAIN, "sums begin among the counters", "(tiles * WARPS + ALIGNED - 1)", "(tiles + ALIGNED - 1)"),
    (_PLAIN, "sums of an empty slice are what was in the registers", "if constexpr (SPLIT_K > 1) clear(sums);", ""),
    (_PLAIN, "an empty slice gives a buffer back", "arrives && (SPLIT_K == 1 || slice.first < slice.end)", "arrives"),
    (_PLAIN, "all of k is copied", _COPIES,
     _COPIES.replace("slice.first", "0").replace("slice.end", "sizes.k")),
    (_PLAIN, "every slice is the first", _COPIES,
     _COPIES.replace("slice.first", "0").replace("slice.end", "slice.end - slice.first")),
    (_BATCH, "products of a batch share counters", "(batch_index()) * tile_count(sizes) + index", "(0) + index"),
    (_BATCH, "a block has one tile", "* tile_count(sizes) + index", "* tile_count(sizes) + block_index()"),
    (_SCALED, "scales of the first slice", "step.read_a(scales.a, scales.row, k,",
     "step.read_a(scales.a, scales.row, k - slice.first,"),
]  # fmt: skip
_DAILY = ("no fence before the count", "lanes have not met after the count", "an empty slice gives a buffer back")


@pytest.mark.parametrize(("case", "right", "wrong"), rows(_MISTAKES, _DAILY))
def test_every_mistake_is_seen(case: Case, right: str, wrong: str) -> None:
    assert_seen(spoilt(case, right, wrong), partial(check, case))


@pytest.mark.soak
@pytest.mark.parametrize("case", kernels(_MISTAKES), ids=str)
def test_the_kernels_are_right_before(case: Case) -> None:
    check(case)


# ---- What is chosen ----


def test_few_tiles_are_split_and_the_slices_fill_the_gpu_once() -> None:
    problem = GemmProblem(16, 2112, 7168, arch="sm_90a")
    family, config = choose(problem, "hopper")
    assert (config.block_m, config.block_n, config.split_k) == (64, 64, 4)
    launch = launch_of(family, problem, config)
    assert launch.grid == (33, 4, 1)
    # A counter for each of four warps of each tile, in whole 256 bytes; then the sums.
    assert launch.workspace_bytes == 768 + 33 * 4 * 64 * 64 * 4
    many = launch_of(family, replace(problem, m=4096), config)
    assert many.grid == (132 // 4, 4, 1)
