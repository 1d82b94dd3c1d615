"""Kernels of the ``hopper`` family: what the store has of them, which configs there are, which are chosen and refused.

``test_kernels.py`` executes them.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.compilers.nvrtc import Nvrtc
from cache_engine.errors import InfeasibleConfig, UsageError
from cache_engine.kernels.family import check_config, launch_of
from cache_engine.kernels.select import FAMILIES, choose, ranking
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import OPT_LEVELS, DType, GemmProblem, Scales, Specialisation
from cache_engine.model.kernel import KernelConfig
from tests.faults.counting import report
from tests.ptx.hopper_problems import (
    BLOCK_SCALES,
    CLUSTERED,
    CONFIGS,
    HOPPER,
    KINDS,
    PLAIN,
    SCALED,
    SLICED,
    SLICES,
    deep,
    hopper,
)
from tests.ptx.problems import EPILOGUES, ptx_of, source_of, what_is_wrong

PAIR = KernelConfig(128, 128, 64, 8, 1, 2, cluster=2)


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
@pytest.mark.parametrize("config", HOPPER.configs(GemmProblem(1, 1, 1)), ids=str)
def test_every_config_of_hopper_multiplies(config: KernelConfig) -> None:
    for dtype, layout in KINDS:
        problem = GemmProblem(config.block_m + 8, config.block_n + 24, 720, 1, dtype, layout=layout, arch="sm_90a")
        assert not what_is_wrong(hopper(problem, deep(config, dtype)))
    report({"trials": len(KINDS)})


@pytest.mark.soak
@pytest.mark.parametrize("scales", BLOCK_SCALES)
def test_every_config_with_scales_multiplies(scales: Scales) -> None:
    tried = 0
    for dtype, config in itertools.product((DType.FP8_E4M3, DType.FP8_E5M2), HOPPER.configs(_scaled(scales))):
        if HOPPER.shape_fault(_scaled(scales), config) is None:
            m, n = config.block_m + 8, config.block_n + 23
            problem = GemmProblem(m, n, 768, dtype=dtype, scales=scales, arch="sm_90a")
            assert not what_is_wrong(hopper(problem, config))
            tried += 1
    report({"trials": tried})


def test_the_cases_are_what_the_family_offers() -> None:
    for case in (*PLAIN, *SCALED, *SLICED, *CLUSTERED):
        assert HOPPER.problem_fault(case.problem) is None
    assert {case.problem.dtype for case in PLAIN} == set(HOPPER.flops_per_clock)
    for dtype in HOPPER.flops_per_clock:
        offered = HOPPER.configs(GemmProblem(1, 1, 1, dtype=dtype))
        assert {replace(one, stages=2) for one in offered} == {replace(deep(one, dtype), stages=2) for one in CONFIGS}
        assert {case.config for case in PLAIN if case.problem.dtype is dtype} == {deep(one, dtype) for one in CONFIGS}
    for cases, cluster in ((SLICED, 1), (CLUSTERED, 2)):
        assert {replace(case.config, block_k=64, split_k=1, cluster=1) for case in cases} == set(CONFIGS)
        assert {case.config.cluster for case in cases} == {cluster}
    assert {(case.problem.specialisation, case.config.split_k) for case in SLICED} == set(
        itertools.product(Specialisation, SLICES)
    )


def test_the_cases_with_scales_are_what_the_family_offers() -> None:
    problems = [case.problem for case in SCALED]
    assert len({(one.scales, one.dtype, one.k, one.specialisation) for one in problems}) == 4 * 2 * 4 * 4
    assert len({problem.epilogue for problem in problems}) == len(EPILOGUES)
    for scales in BLOCK_SCALES:
        configs = [case.config for case in SCALED if case.problem.scales is scales]
        tiles = {(c.block_m, c.block_n, c.warps_m, c.warps_n) for c in configs}
        offered = [one for one in HOPPER.configs(_scaled(scales)) if not HOPPER.shape_fault(_scaled(scales), one)]
        assert tiles == {(c.block_m, c.block_n, c.warps_m, c.warps_n) for c in offered}
        assert choose(_scaled(scales), "hopper")[1] in offered


def _scaled(scales: Scales) -> GemmProblem:
    return GemmProblem(4096, 4096, 4096, dtype="fp8_e4m3", scales=scales, arch="sm_90a")


# ---- What is refused, and what is chosen ----


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


@pytest.mark.parametrize(
    ("scales", "config", "what"),
    [
        ("1x128,128x128", KernelConfig(128, 256, 128, 8, 1, 4), "block_n must be at most 128 · warps_n"),
        ("1x128,1x128", KernelConfig(256, 128, 128, 8, 1, 4), "would hold 224 sums, products and scales; the most is"),
    ],
)
def test_a_tile_whose_registers_are_too_few_is_refused(scales: Scales, config: KernelConfig, what: str) -> None:
    with pytest.raises(InfeasibleConfig, match=what):
        choose(_scaled(Scales(scales)), "hopper", config)


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


def test_it_serves_first_for_scales_too() -> None:
    problem = _scaled(Scales.BLOCKS)
    family, config = choose(problem)
    assert (family.name, config.block_m * config.block_n) == ("hopper", 128 * 256)
    parameters = launch_of(family, problem, config).parameters
    assert (parameters[:3], parameters[-2:]) == (("a_scales", "b_scales", "alpha"), ("b_map", "c_map"))


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


def test_no_config_is_chosen_with_a_cluster() -> None:
    for problem in (GemmProblem(4096, 4096, 4096, arch="sm_90a"), GemmProblem(16, 2112, 7168, arch="sm_90a")):
        assert {config.cluster for _, config in ranking(problem, "hopper")} == {1}
        assert choose(problem, "hopper")[1].cluster == 1


def test_without_a_cluster_the_kernel_knows_of_none() -> None:
    problem, config = GemmProblem(300, 136, 264, arch="sm_90a"), replace(PAIR, cluster=1)
    assert "CLUSTER" not in HOPPER.constants(problem, config)
    assert "#define CLUSTER 2\n" in source_of(hopper(problem, PAIR))
    assert str(config) == "128x128x64_w8x1_s2"
    assert str(replace(config, split_k=4, cluster=2)) == "128x128x64_w8x1_s2_k4_c2"


def test_grids_are_whole_clusters() -> None:
    grids = [launch_of(HOPPER, GemmProblem(m, 136, 264, b, arch="sm_90a"), PAIR).grid
             for m, b in ((300, 1), (40, 3), (9000, 1), (9000, 7))]  # fmt: skip
    assert grids == [(8, 1, 1), (4, 1, 3), (132, 1, 1), (36, 1, 7)]
    split = launch_of(HOPPER, GemmProblem(300, 136, 2640, arch="sm_90a"), replace(PAIR, split_k=3))
    assert split.workspace_bytes == 256 + 8 * 3 * 128 * 128 * 4
