"""Kernels of the ``hopper`` family whose blocks share tiles of B: every kind, odd numbers of tiles, mistakes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from cache_engine.errors import InfeasibleConfig
from cache_engine.kernels.family import check_config, launch_of
from cache_engine.kernels.select import FAMILIES, choose, ranking
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import OPT_LEVELS, DType, GemmProblem, Layout, Scales, Specialisation
from cache_engine.model.kernel import KernelConfig
from tests.faults.counting import report
from tests.ptx.hopper_problems import HOPPER, deep, hopper
from tests.ptx.mistakes import assert_seen, kernels, rows, spoilt
from tests.ptx.problems import EPILOGUES, Case, check, of_today, source_of

_CONFIGS = tuple(
    KernelConfig(*tiles, cluster=2)
    for tiles in (
        (64, 128, 64, 4, 1, 2),
        (128, 128, 64, 8, 1, 2),
        (64, 256, 64, 4, 2, 2),
        (128, 64, 64, 8, 1, 3),
        (256, 128, 64, 8, 1, 2),
        (128, 256, 64, 8, 1, 2),
    )
)
_KINDS = (
    (DType.BF16, Layout.NT, Scales.NONE),
    (DType.FP16, Layout.NN, Scales.NONE),
    (DType.TF32, Layout.NT, Scales.NONE),
    (DType.FP8_E4M3, Layout.NT, Scales.BLOCKS),
    (DType.FP8_E5M2, Layout.NT, Scales.NONE),
    (DType.BF16, Layout.NN, Scales.NONE),
    (DType.FP8_E4M3, Layout.NT, Scales.BLOCKS_E8M0),
)
# m, n, steps along k, batch, slices of k. One row of tiles, two, three, or more; some of them whole.
_SHAPES = ((40, 136, 3, 1, 1), (150, 264, 5, 2, 1), (300, 72, 4, 1, 2), (256, 256, 2, 1, 1), (128, 136, 5, 1, 4))


def _cases() -> list[Case]:
    asked = [(*one, "") for one in itertools.product(_KINDS, _SHAPES, Specialisation)]
    asked += [(_KINDS[number % len(_KINDS)], _SHAPES[number % 5], list(Specialisation)[number % 4], epilogue)
              for number, epilogue in enumerate(EPILOGUES)]  # fmt: skip
    cases = []
    for number, ((dtype, layout, scales), (m, n, steps, batch, slices), specialisation, epilogue) in enumerate(asked):
        k = steps * 128 // dtype.itemsize - (0 if scales else 16)
        problem = GemmProblem(
            m, n, k, batch, dtype, None, layout, "sm_90a", epilogue, specialisation, OPT_LEVELS[-1], scales
        )
        every = (deep(config, dtype) for config in _CONFIGS)
        offered = [config for config in every if HOPPER.shape_fault(problem, config) is None]
        cases.append(hopper(problem, replace(offered[number * 5 // 4 % len(offered)], split_k=slices)))
    return cases


CASES = _cases()


def test_a_kernel_multiplies() -> None:
    """One of the cases, another one each day."""
    (case,) = of_today(CASES, 1)
    print(case)
    check(case)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(6))
def test_every_kind_of_kernel_multiplies(part: int) -> None:
    """In one cluster and in two."""
    for number, case in enumerate(CASES[part::6]):
        print(case)
        check(case, blocks=2 + number % 2 * 2)
    report({"trials": len(CASES[part::6])})


def test_the_cases_can_be_built() -> None:
    for case in CASES:
        check_config(HOPPER, case.problem, case.config, architecture("sm_90a"))
    assert {replace(case.config, block_k=64, split_k=1) for case in CASES} == set(_CONFIGS)


# ---- Mistakes ----

# Three rows of tiles, so that a fourth is beyond m; two columns. Then B in panels, scales of whole tiles, and slices.
_PLAIN = hopper(GemmProblem(300, 136, 264, arch="sm_90a"), KernelConfig(128, 128, 64, 8, 1, 2, cluster=2))
_TURNED = hopper(GemmProblem(130, 264, 136, arch="sm_90a", layout="nn"), KernelConfig(64, 256, 64, 4, 2, 2, cluster=2))
_SCALED = hopper(
    GemmProblem(192, 136, 384, dtype="fp8_e4m3", scales="1x128,128x128", arch="sm_90a", specialisation="exact"),
    KernelConfig(64, 128, 128, 4, 1, 2, cluster=2),
)
_SLICED = hopper(GemmProblem(150, 136, 320, arch="sm_90a"), KernelConfig(64, 128, 64, 4, 1, 2, 4, 2))
_READY = "        if constexpr (CLUSTER > 1) fence_barriers();\n    }\n    sync_all();"
_END = "    if constexpr (CLUSTER > 1) sync_cluster();\n}"
_PART = "copy_box_to_all(target + part * (B_BYTES / CLUSTER), map, k, column + part * (BLOCK_N / CLUSTER),"
_ROWS = "(sizes.m + BLOCK_M * CLUSTER - 1) / (BLOCK_M * CLUSTER) * CLUSTER;"
_MISTAKES = [
    (_PLAIN, "no barrier of the cluster before the first copy", _READY, _READY.replace("sync_all", "sync_block")),
    (_PLAIN, "no fence for other blocks", _READY, _READY.replace("if constexpr (CLUSTER > 1) fence_barriers();", "")),
    (_PLAIN, "no proxy fence", f"        fence_async();\n{_READY}", _READY),
    (_PLAIN, "nothing is released at the barrier", "cluster.arrive.release;", "cluster.arrive.relaxed;"),
    (_PLAIN, "a block ends before the other", _END, "}"),
    (_PLAIN, "the blocks' own barrier at the end", _END, "    sync_block();\n}"),
    (_PLAIN, "the warps that multiply end at once", _END,
     "    if (thread_index() >= GROUPS * GROUP) sync_cluster();\n}"),
    (_PLAIN, "the mask names one block", "(1 << CLUSTER) - 1;", "1;"),
    (_PLAIN, "the mask names the other block alone", "const unsigned short all_blocks = (1 << CLUSTER) - 1;",
     "const unsigned short all_blocks = 2 >> block_rank();"),
    (_PLAIN, "the mask names a block that is not there", "(1 << CLUSTER) - 1;", "(2 << CLUSTER) - 1;"),
    (_PLAIN, "the warps of one block are waited for", "barrier_init(place.empty(), WARPS * CLUSTER);",
     "barrier_init(place.empty(), WARPS);"),
    (_PLAIN, "buffers are given back to the own block alone", "barrier_arrive_in(thread_index() % 32, empty);",
     "barrier_arrive_in(block_rank(), empty);"),
    (_PLAIN, "buffers are given back to the first block", "barrier_arrive_in(thread_index() % 32, empty);",
     "barrier_arrive_in(0, empty);"),
    (_PLAIN, "buffers are given back to the other block alone", "barrier_arrive_in(thread_index() % 32, empty);",
     "barrier_arrive_in(block_rank() ^ 1, empty);"),
    (_PLAIN, "a block and its own warps hand over alone", "        barrier_arrive_in(thread_index() % 32, empty);\n",
     "        if (thread_index() % 32 == 0) for (int i = 0; i < CLUSTER; ++i) barrier_arrive(empty);\n"),
    (_PLAIN, "one lane gives back", "thread_index() % 32 < CLUSTER;", "thread_index() % 32 < 1;"),
    (_PLAIN, "half of B is expected", "barrier_arrive_expecting(place.full(), STAGE_BYTES);",
     "barrier_arrive_expecting(place.full(), A_BYTES + B_BYTES / CLUSTER);"),
    (_PLAIN, "the other's half is expected twice", "barrier_arrive_expecting(place.full(), STAGE_BYTES);",
     "barrier_arrive_expecting(place.full(), STAGE_BYTES + B_BYTES / CLUSTER);"),
    (_PLAIN, "both copy the first part", "const unsigned part = block_rank();", "const unsigned part = 0;"),
    (_PLAIN, "parts change places", _PART, _PART.replace("target + part", "target + (part ^ 1)")),
    (_PLAIN, "both copy the same columns", _PART, _PART.replace("column + part", "column + 0")),
    (_PLAIN, "nothing waits for room", "barrier_wait(place.empty(), place.parity ^ 1);", ""),
    (_PLAIN, "the wrong phase of room", "barrier_wait(place.empty(), place.parity ^ 1);",
     "barrier_wait(place.empty(), place.parity);"),
    (_PLAIN, "nothing waits for tiles", "barrier_wait(place.full(), place.parity);\n        mul", "mul"),
    (_PLAIN, "room is made before products have ended", "products_wait<1>();", ""),
    (_PLAIN, "A is copied to both", "copy_box(place.tiles(), a_map", "copy_box_to_all(place.tiles(), a_map"),
    (_PLAIN, "rows of tiles are not whole pairs", _ROWS, "(sizes.m + BLOCK_M - 1) / BLOCK_M;"),
    (_PLAIN, "a row of tiles too few", _ROWS, "sizes.m / (BLOCK_M * CLUSTER) * CLUSTER;"),
    (_PLAIN, "a tile beyond m is stored over the first", "if (is_beyond || !sum", "if (!sum"),
    (_TURNED, "panels are copied by both", "i * CLUSTER + block_rank();", "i * CLUSTER;"),
    (_TURNED, "a panel is of other columns", "map, column + panel * LINE,", "map, column + i * LINE,"),
    (_SCALED, "scales are read beyond m", "if (is_beyond) tile.row = 0;", ""),
    (_SCALED, "nothing waits for tiles with scales", "barrier_wait(place.full(), place.parity);\n#pragma", "\n#pragma"),
    (_SLICED, "an empty slice gives a buffer back", "arrives && (SPLIT_K == 1 || slice.first < slice.end)", "arrives"),
]  # fmt: skip
_DAILY = (
    "no barrier of the cluster before the first copy",
    "the warps of one block are waited for",
    "a block ends before the other",
)


@pytest.mark.parametrize(("case", "right", "wrong"), rows(_MISTAKES, _DAILY))
def test_every_mistake_is_seen(case: Case, right: str, wrong: str) -> None:
    assert_seen(spoilt(case, right, wrong), partial(check, case))


@pytest.mark.soak
@pytest.mark.parametrize("case", kernels(_MISTAKES), ids=str)
def test_the_kernels_are_right_before(case: Case) -> None:
    check(case)


# ---- What is asked for, and refused ----


def test_no_config_is_chosen_with_a_cluster() -> None:
    for problem in (GemmProblem(4096, 4096, 4096, arch="sm_90a"), GemmProblem(16, 2112, 7168, arch="sm_90a")):
        assert {config.cluster for _, config in ranking(problem, "hopper")} == {1}
        assert choose(problem, "hopper")[1].cluster == 1


def test_without_a_cluster_the_kernel_knows_of_none() -> None:
    problem, config = GemmProblem(300, 136, 264, arch="sm_90a"), KernelConfig(128, 128, 64, 8, 1, 2)
    assert "CLUSTER" not in HOPPER.constants(problem, config)
    assert str(config) == "128x128x64_w8x1_s2"
    assert str(replace(config, split_k=4, cluster=2)) == "128x128x64_w8x1_s2_k4_c2"


def test_grids_are_whole_clusters() -> None:
    config = KernelConfig(128, 128, 64, 8, 1, 2, cluster=2)
    grids = [launch_of(HOPPER, GemmProblem(m, 136, 264, b, arch="sm_90a"), c).grid
             for m, b, c in ((300, 1, config), (40, 3, config), (9000, 1, config), (9000, 7, config))]  # fmt: skip
    assert grids == [(8, 1, 1), (4, 1, 3), (132, 1, 1), (36, 1, 7)]
    split = launch_of(HOPPER, GemmProblem(300, 136, 2640, arch="sm_90a"), replace(config, split_k=3))
    assert split.workspace_bytes == 256 + 8 * 3 * 128 * 128 * 4


@pytest.mark.parametrize(
    ("family", "config", "layout", "what"),
    [
        ("tensor_core", KernelConfig(128, 128, 32, 2, 4, 3, cluster=2), "nt", "share no tiles, so cluster must be 1"),
        ("hopper", KernelConfig(128, 128, 64, 8, 1, 2, cluster=3), "nt", "cluster must be 1 or 2"),
        ("hopper", KernelConfig(128, 64, 64, 8, 1, 2, cluster=2), "nn", "block_n must be at least 128"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(family: str, config: KernelConfig, layout: Any, what: str) -> None:
    with pytest.raises(InfeasibleConfig, match=what):
        check_config(
            FAMILIES[family], GemmProblem(300, 136, 264, layout=layout, arch="sm_90a"), config, architecture("sm_90a")
        )


def test_the_source_says_that_blocks_are_a_cluster() -> None:
    assert "#define CLUSTER 2\n" in source_of(_PLAIN)
