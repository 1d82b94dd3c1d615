"""Selection: feasible always, sensible mostly, and clear about why not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.errors import InfeasibleConfig, InvalidProblem, UsageError
from cache_engine.kernels.family import check_config, launch_of
from cache_engine.kernels.select import FAMILIES, choose
from cache_engine.model.architecture import ARCHITECTURES, architecture
from cache_engine.model.gemm import INPUT_DTYPES, MAX_DIMENSION, MAX_ELEMENTS, DType, GemmProblem, Layout
from cache_engine.model.kernel import KernelConfig

SIZES = st.integers(1, 4096) | st.sampled_from([1, 7168, 129_280, MAX_DIMENSION])
FIRST = {
    DType.FP16: (7, 5),
    DType.BF16: (8, 0),
    DType.TF32: (8, 0),
    DType.FP32: (7, 5),
    DType.FP64: (7, 5),
    DType.FP8_E4M3: (8, 9),
    DType.FP8_E5M2: (8, 9),
    DType.INT8: (7, 5),
}


@given(
    m=SIZES,
    n=SIZES,
    k=st.integers(1, 20_000),
    batch=st.sampled_from([1, 8, 256]),
    dtype=st.sampled_from(INPUT_DTYPES),
    layout=st.sampled_from(Layout),
    arch=st.sampled_from(sorted(ARCHITECTURES)),
)
def test_every_chosen_config_is_within_all_limits(
    m: int, n: int, k: int, batch: int, dtype: DType, layout: Layout, arch: str
) -> None:
    if batch * max(m * k, n * k, m * n) > MAX_ELEMENTS:
        return
    problem = GemmProblem(m, n, k, batch=batch, dtype=dtype, layout=layout, arch=arch)
    target = architecture(arch)
    if target.compute_capability < FIRST[dtype]:
        with pytest.raises(InvalidProblem, match=f"{dtype} needs the tensor_core family, which needs sm_8"):
            choose(problem)
        return
    family, config = choose(problem)
    check_config(family, problem, config, target)
    launch = launch_of(family, problem, config)
    assert launch.grid[0] < 2**31
    assert launch.grid[0] * config.block_m * config.block_n >= m * n
    assert choose(problem) == (family, config)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_a_large_problem_gets_larger_tiles_than_a_small_one(arch: str) -> None:
    _, small = choose(GemmProblem(16, 7168, 2048, arch=arch))
    _, large = choose(GemmProblem(8192, 7168, 2048, arch=arch))
    assert small.block_m == 16
    assert large.block_m * large.block_n >= 128 * 128


def test_every_config_a_family_offers_can_be_built_somewhere() -> None:
    """A config in the lists that no target and dtype can use would be a slip."""
    for family in FAMILIES.values():
        for config in {
            config
            for dtype in family.flops_per_clock
            for config in family.configs(GemmProblem(64, 64, 64, dtype=dtype))
        }:
            fitting = [
                target.name
                for target in ARCHITECTURES.values()
                for dtype in family.flops_per_clock
                if _feasible(family.name, GemmProblem(64, 64, 64, dtype=dtype), config, target.name)
            ]
            assert fitting, f"{family.name} {config}"


def _feasible(family: str, problem: GemmProblem, config: KernelConfig, arch: str) -> bool:
    try:
        check_config(FAMILIES[family], problem, config, architecture(arch))
    except InfeasibleConfig:
        return False
    return True


def _config(block_m: int, block_n: int, block_k: int, warps_m: int, warps_n: int, stages: int) -> KernelConfig:
    return KernelConfig(block_m, block_n, block_k, warps_m, warps_n, stages)


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (
            _config(256, 256, 64, 4, 2, 4),
            "bytes of shared memory per block, 29,696 more than the 232,448 that sm_90 has",
        ),
        (_config(1024, 256, 16, 8, 8, 2), "2,048 threads per block, 1,024 more than the 1,024"),
        (_config(256, 256, 16, 2, 2, 2), "registers per thread"),
        (_config(128, 128, 32, 3, 2, 2), "block_m must be a multiple of 16 · warps_m = 48"),
        (_config(96, 128, 32, 2, 2, 2), "block_m must be a power of two"),
        (_config(128, 128, 8, 2, 2, 2), "block_k must be a power of two of at least 16"),
        (_config(128, 128, 32, 2, 2, 1), "stages must be at least 2"),
    ],
)
def test_an_impossible_config_says_which_limit_it_breaks_and_by_how_much(config: KernelConfig, limit: str) -> None:
    with pytest.raises(InfeasibleConfig, match=re.escape(limit)):
        choose(GemmProblem(64, 64, 64, arch="sm_90"), config=config)


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (_config(128, 128, 8, 4, 2, 3), "stages must be 2"),
        (_config(24, 128, 8, 1, 2, 2), "block_m must be a multiple of 16"),
        (_config(128, 128, 6, 4, 2, 2), "block_k must be a multiple of 4"),
    ],
)
def test_an_impossible_simt_config_says_why(config: KernelConfig, limit: str) -> None:
    with pytest.raises(InfeasibleConfig, match=limit):
        choose(GemmProblem(64, 64, 64, dtype=DType.FP32, arch="sm_90"), config=config)


def test_an_unknown_family_is_refused_listing_those_there_are() -> None:
    with pytest.raises(UsageError, match="tensor_core, simt"):
        choose(GemmProblem(8, 8, 8, arch="sm_90"), family="wmma")


def test_a_family_that_does_not_compute_the_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="simt does not compute tf32"):
        choose(GemmProblem(8, 8, 8, dtype=DType.TF32, arch="sm_90"), family="simt")


def test_tensor_cores_on_turing_are_refused_saying_what_works() -> None:
    with pytest.raises(InvalidProblem, match="sm_75 computes: fp16, fp32, fp64, int8"):
        choose(GemmProblem(8, 8, 8, arch="sm_75"), family="tensor_core")
