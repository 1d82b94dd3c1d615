"""Selection: feasible always, sensible mostly, and clear about why not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.errors import GemmCacheError, InfeasibleConfig, InvalidProblem, UsageError
from cache_engine.kernels import prediction
from cache_engine.kernels.agreement import Factors
from cache_engine.kernels.family import Family, check_config, launch_of
from cache_engine.kernels.prediction import STEADY, candidates_of, cycles_of
from cache_engine.kernels.rates import rates_of
from cache_engine.kernels.select import FAMILIES, choose, predicted_cycles, ranking, turning_points
from cache_engine.model.architecture import ARCHITECTURES, architecture
from cache_engine.model.gemm import INPUT_DTYPES, MAX_DIMENSION, MAX_ELEMENTS, DType, GemmProblem, Layout, Mode, Scales
from cache_engine.model.kernel import KernelConfig

SIZES = st.integers(1, 4096) | st.sampled_from([1, 7168, 129_280, MAX_DIMENSION])
FIRST = {
    DType.FP16: (7, 0),
    DType.BF16: (8, 0),
    DType.TF32: (8, 0),
    DType.FP32: (7, 0),
    DType.FP64: (7, 0),
    DType.FP8_E4M3: (8, 9),
    DType.FP8_E5M2: (8, 9),
    DType.INT8: (7, 0),
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
    tiles = -(-m // config.block_m) * -(-n // config.block_n)
    assert launch.grid[0] == tiles or (family.is_persistent and 0 < launch.grid[0] < tiles)
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
    with pytest.raises(UsageError, match="tensor_core, scaled, simt"):
        choose(GemmProblem(8, 8, 8, arch="sm_90"), family="wmma")


def test_a_family_that_does_not_compute_the_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="simt does not compute tf32"):
        choose(GemmProblem(8, 8, 8, dtype=DType.TF32, arch="sm_90"), family="simt")


def test_tensor_cores_on_turing_are_refused_saying_what_works() -> None:
    with pytest.raises(InvalidProblem, match="sm_75 computes: fp16, fp32, fp64, int8"):
        choose(GemmProblem(8, 8, 8, arch="sm_75"), family="tensor_core")


def _choices(arch: str, dtype: DType) -> list[KernelConfig]:
    return [
        choose(GemmProblem(m, n, k, dtype=dtype, arch=arch), "tensor_core")[1]
        for m in (1, 16, 64, 256, 1024, 4096)
        for n, k in ((4096, 4096), (6144, 4096), (28_672, 4096), (4096, 14_336), (576, 7168))
    ]


def test_targets_of_one_capability_choose_the_same_and_others_by_their_own_rates() -> None:
    """A GeForce multiplies a quarter as fast in a clock as an A100, and loads no slower."""
    assert _choices("sm_90", DType.BF16) == _choices("sm_90a", DType.BF16)
    assert _choices("sm_120", DType.BF16) != _choices("sm_90", DType.BF16)


@given(
    m=st.integers(1, 8192),
    n=st.sampled_from([64, 576, 4096, 28_672]),
    k=st.sampled_from([64, 4096, 14_336]),
    arch=st.sampled_from(["sm_80", "sm_89", "sm_90", "sm_120"]),
    dtype=st.sampled_from([DType.BF16, DType.FP32, DType.TF32]),
)
def test_the_choice_is_within_the_share_that_does_not_count_and_an_a100s_among_these(
    m: int, n: int, k: int, arch: str, dtype: DType
) -> None:
    problem = GemmProblem(m, n, k, dtype=dtype, arch=arch)
    family, config = choose(problem)
    ranked = ranking(problem, family.name)
    least = min(cycles for cycles, _ in ranked)
    cycles = {one: cycles for cycles, one in ranked}
    assert cycles[config] <= least * (1 + STEADY)
    with pytest.MonkeyPatch.context() as patch:  # of an A100's rates everywhere
        patch.setattr(prediction, "rates_of", lambda _: _OfA100(family))
        prediction.candidates_of.cache_clear()
        by_a100 = {one: cycles for cycles, one in ranking(problem, family.name)}
    prediction.candidates_of.cache_clear()
    near = [one for one in cycles if cycles[one] <= least * (1 + STEADY)]
    assert by_a100[config] == min(by_a100[one] for one in near)


class _OfA100:
    def __init__(self, family: Family) -> None:
        self._family = family

    def operations(self, _unit: str, dtype: DType) -> float:
        return self._family.flops_per_clock[dtype]


def test_the_prediction_of_a_config_is_that_of_the_ranking_or_of_memory() -> None:
    for m, arch in ((1, "sm_80"), (300, "sm_90"), (8192, "sm_120")):
        problem = GemmProblem(m, 4096, 4096, arch=arch)
        rates = rates_of(architecture(arch))
        memory = 2 * (m * 4096 * 2 + 4096 * 4096) / rates.dram_bytes_per_clock
        for cycles, config in ranking(problem, "tensor_core"):
            longer, shorter = max(cycles, memory), min(cycles, memory)
            assert predicted_cycles(problem, "tensor_core", config) == pytest.approx(longer + 0.25 * shorter, rel=0.02)


@given(m=SIZES, n=SIZES, k=SIZES, family=st.sampled_from(["tensor_core", "simt", "triton"]))
def test_predictions_for_all_candidates_are_those_for_each(m: int, n: int, k: int, family: str) -> None:
    """For all, the arithmetic is written out: a call for each would take half as long again."""
    among = candidates_of(FAMILIES[family], DType.FP16, Scales.NONE, architecture("sm_90"), ())
    for cycles, candidate, tiles, split in among.predicted(m, n, k, 1):
        assert cycles == cycles_of(candidate, tiles, k, among.sms, split)
        assert tiles == -(-m // candidate.block_m) * -(-n // candidate.block_n)
        assert split == 1 or (split * tiles <= among.sms and split <= among.most_slices)


@given(
    m=SIZES,
    n=SIZES,
    k=SIZES,
    batch=st.sampled_from([1, 8, 200]),
    family=st.sampled_from(["tensor_core", "simt", "triton", "grouped"]),
    arch=st.sampled_from(["sm_80", "sm_90", "sm_120"]),
    factors=st.sampled_from([(), (("tensor_core", (256, 128), 1.3), ("simt", (64, 64), 0.7))]),
)
def test_what_is_left_out_is_not_near_the_fewest_cycles(
    m: int, n: int, k: int, batch: int, family: str, arch: str, factors: Factors
) -> None:
    among = candidates_of(FAMILIES[family], DType.FP16, Scales.NONE, architecture(arch), factors)
    every, some = among.predicted(m, n, k, batch), among.predicted(m, n, k, batch, STEADY)
    most = min(cycles for cycles, *_ in every) * (1 + STEADY)
    assert [one for one in every if one in some] == some
    assert [one for one in some if one[0] <= most] == [one for one in every if one[0] <= most]


def test_of_a_large_problem_most_is_left_out() -> None:
    among = candidates_of(FAMILIES["tensor_core"], DType.FP16, Scales.NONE, architecture("sm_90"), ())
    every, some = among.predicted(4096, 7168, 2048, 1), among.predicted(4096, 7168, 2048, 1, STEADY)
    assert len(every) == len(among.members) > 2 * len(some)


@given(m=st.integers(1, 20_000), n=st.integers(1, 20_000), k=st.integers(1, 20_000))
def test_problems_with_as_many_started_steps_get_the_config_that_is_best_for_each(m: int, n: int, k: int) -> None:
    """A config is chosen once for all of them."""
    problem = GemmProblem(m, n, k, arch="sm_90")
    step_m, step_n, step_k = candidates_of(
        FAMILIES["tensor_core"], DType.BF16, Scales.NONE, architecture("sm_90"), ()
    ).steps
    last = replace(problem, m=m + -m % step_m, n=n + -n % step_n, k=k + -k % step_k)
    first = replace(problem, m=last.m - step_m + 1, n=last.n - step_n + 1, k=last.k - step_k + 1)
    chosen = {choose(one)[1] for one in (problem, last, first)}
    assert chosen == {ranking(one, "tensor_core")[0][1] for one in (problem, last, first)}
    assert len(chosen) == 1


def test_no_prediction_is_made_of_what_cannot_be() -> None:
    config = _config(128, 128, 32, 2, 2, 4)
    with pytest.raises(InvalidProblem, match="tensor_core does not compute fp32"):
        predicted_cycles(GemmProblem(8, 8, 8, dtype=DType.FP32, arch="sm_90"), "tensor_core", config)
    with pytest.raises(InfeasibleConfig, match="stages must be at least 2"):
        predicted_cycles(GemmProblem(8, 8, 8, arch="sm_90"), "tensor_core", _config(128, 128, 32, 2, 2, 1))
    with pytest.raises(InvalidProblem, match="unknown architecture"):
        predicted_cycles(GemmProblem(8, 8, 8), "tensor_core", config)


def test_what_timings_correct_moves_the_choice() -> None:
    problem = GemmProblem(4096, 4096, 4096, arch="sm_90")
    _, config = choose(problem)
    slow = (("tensor_core", (config.block_m, config.block_n), 2.0),)
    _, other = choose(problem, factors=slow)
    assert (other.block_m, other.block_n) != (config.block_m, config.block_n)
    assert choose(problem)[1] == config
    assert choose(problem, factors=(("simt", (config.block_m, config.block_n), 2.0),))[1] == config
    corrected = {one: cycles for cycles, one in ranking(problem, "tensor_core", slow)}
    assert corrected[config] == pytest.approx(
        2 * {one: cycles for cycles, one in ranking(problem, "tensor_core")}[config]
    )


@pytest.mark.parametrize(
    ("arch", "family", "templates", "said"),
    [
        ("sm_80", None, ".cu", "fp8_e4m3 is rounded to by sm_89 and newer, and this is for sm_80"),
        ("sm_90", "triton", ".cu", "family triton cannot compute this problem: it makes no fp8_e4m3"),
        ("sm_90", None, ".py", "family triton cannot compute this problem: it makes no fp8_e4m3"),
    ],
)
def test_who_cannot_make_results_of_fp8_says_so(arch: str, family: str | None, templates: str, said: str) -> None:
    problem = GemmProblem(8, 64, 128, out_dtype="fp8_e4m3", arch=arch)
    with pytest.raises(GemmCacheError, match=said):
        choose(problem, family, templates=templates)


@pytest.mark.parametrize("scales", Scales)
@pytest.mark.parametrize("m", [1, 64, 4096])
def test_hopper_makes_results_of_fp8_with_whole_lines_for_each_warp(m: int, scales: Scales) -> None:
    problem = GemmProblem(m, 576, 2048, dtype="fp8_e4m3", out_dtype="fp8_e4m3", arch="sm_90a", scales=scales)
    family, config = choose(problem)
    assert family.name == "hopper"
    assert config.block_n // config.warps_n >= 128
    with pytest.raises(InfeasibleConfig, match="whole lines of a C of fp8"):
        choose(problem, "hopper", KernelConfig(64, 64, 128, 4, 1, 4))


@pytest.mark.parametrize(
    ("asked", "family", "templates", "said"),
    [
        ({"scales": "1x128,128x128"}, "tensor_core", ".cu",
         "family tensor_core does not take operands with scales; .*: scaled, hopper$"),
        ({}, "scaled", ".cu",
         "scaled does not take operands without scales; .*: tensor_core, simt, triton, hopper$"),
        ({"scales": "1x128,128x128"}, None, ".py", "no family of this compiler takes operands with scales"),
        ({"mode": "grouped"}, "tensor_core", ".cu",
         "does not take operands without scales in mode grouped; .*: grouped$"),
        ({}, "grouped", ".cu", "family grouped does not take operands without scales without a mode; .*: tensor_core"),
        ({"mode": "masked"}, None, ".py", "no family of this compiler takes operands without scales in mode masked"),
    ],
)  # fmt: skip
def test_a_family_takes_scales_or_groups_or_takes_none(
    asked: dict[str, Any], family: str | None, templates: str, said: str
) -> None:
    problem = GemmProblem(8, 64, 128, 4 if "mode" in asked else 1, "fp8_e4m3", arch="sm_90", **asked)
    assert choose(problem)[0].name == ("grouped" if "mode" in asked else "scaled" if asked else "tensor_core")
    with pytest.raises(UsageError, match=said):
        choose(problem, family, templates=templates)


@given(
    m=st.integers(1, 3000), last=st.integers(1, 3000), groups=st.sampled_from([1, 3, 64]),
    mode=st.sampled_from(["grouped", "masked"]), scales=st.sampled_from(["", "1x128,128x128"]),
)  # fmt: skip
def test_the_choice_for_groups_turns_where_it_is_said_to(
    m: int, last: int, groups: int, mode: Any, scales: Any
) -> None:
    """It is that for the rows that a group has on average, as a batch of so many products."""
    dtype: Any = "fp8_e4m3" if scales else "bf16"
    problem = GemmProblem(min(m, last), 4096, 7168, groups, dtype, arch="sm_90", mode=mode, scales=scales)
    points = turning_points(problem, max(m, last))
    assert points[0] == problem.m
    assert list(points) == sorted(set(points))
    for size in {*points[1:], max(m, last)}:
        before = points[[one < size for one in points].count(True) - 1]
        chosen = [choose(replace(problem, m=one))[1] for one in (before, max(before, size - 1))]
        assert chosen[0] == chosen[1]
    if mode == "grouped":
        each = replace(problem, m=-(-problem.m // groups), mode=Mode.MASKED)
        assert choose(problem)[1] == choose(each)[1]


def test_a_launch_for_groups_has_a_block_for_each_tile_or_as_many_as_a_gpu_holds() -> None:
    config = _config(16, 64, 32, 1, 2, 3)
    few = GemmProblem(37, 128, 64, 5, arch="sm_90", mode="grouped")
    family, _ = choose(few)
    assert launch_of(family, few, config).grid == ((5 + 32 // 16) * 2, 1, 1)
    assert launch_of(family, replace(few, mode=Mode.MASKED), config).grid == (5 * 3 * 2, 1, 1)
    many = launch_of(family, replace(few, m=2**20), config)
    assert many.grid[0] % 132 == 0
    assert many.grid[0] < 132 * 33
    assert many.parameters[:4] == ("counts", "groups", "a_scales", "b_scales")


def test_scales_need_fp8_of_the_target_and_steps_of_one_block() -> None:
    problem = GemmProblem(8, 64, 256, dtype="fp8_e4m3", scales="1x128,128x128", arch="sm_90")
    with pytest.raises(InvalidProblem, match="needs the scaled family, which needs sm_89 or newer"):
        choose(problem.on("sm_80"))
    for config, said in (
        (_config(16, 64, 64, 1, 2, 3), "block_k must be 128, the length of a block of scales"),
        (_config(16, 256, 128, 1, 1, 2), "block_n must be at most 128 · warps_n"),
    ):
        with pytest.raises(InfeasibleConfig, match=said):
            choose(problem, config=config)


@pytest.mark.parametrize(
    ("problem", "family"),
    [
        (GemmProblem(64, 4096, 4096, arch="sm_90a"), "hopper"),
        (GemmProblem(64, 4096, 4096, arch="sm_90a", layout="nn", epilogue="bias+gelu"), "hopper"),
        (GemmProblem(64, 512, 512, dtype="fp8_e4m3", scales="1x128,128x128", arch="sm_90a"), "hopper"),
        (GemmProblem(64, 4096, 4096, arch="sm_90"), "tensor_core"),
        (GemmProblem(64, 4096, 4097, arch="sm_90a"), "tensor_core"),
        (GemmProblem(64, 4096, 4096, arch="sm_90a", layout="tn"), "tensor_core"),
        (GemmProblem(64, 4096, 4096, dtype="fp8_e4m3", arch="sm_90a", layout="nn"), "tensor_core"),
        (GemmProblem(64, 4096, 4096, arch="sm_90a", opt_level=0), "tensor_core"),
        (GemmProblem(64, 4096, 4096, dtype="fp64", arch="sm_90a"), "simt"),
        (GemmProblem(64, 4096, 4096, arch="sm_90a", mode="masked"), "grouped"),
    ],
    ids=str,
)
def test_hopper_serves_what_it_computes_and_others_the_rest(problem: GemmProblem, family: str) -> None:
    assert choose(problem)[0].name == family


def test_a_config_is_used_by_the_family_that_can() -> None:
    problem = GemmProblem(64, 4096, 4096, arch="sm_90a")
    of_hopper, of_tensor_core = (choose(problem, name)[1] for name in ("hopper", "tensor_core"))
    assert [choose(problem, config=one)[0].name for one in (of_hopper, of_tensor_core)] == ["hopper", "tensor_core"]
    with pytest.raises(InfeasibleConfig, match="tensor_core cannot use"):
        choose(problem, config=replace(of_hopper, block_m=48))
    with pytest.raises(InfeasibleConfig, match="hopper cannot use"):
        choose(problem, "hopper", of_tensor_core)


@pytest.mark.parametrize(
    ("size", "blocks"),
    [
        ((4096, 4096, 4096, 1), 132),
        ((128, 256, 4096, 1), 1),
        ((4096, 7168, 2048, 2), 132),
        ((4096, 7168, 2048, 256), 132),
        ((256, 7168, 2048, 256), 14),
        ((4096, 512, 128, 128), 16),
        ((1024, 1024, 1024, 8), 16),  # 17 would be four too many for one wave
    ],
    ids=str,
)
def test_products_of_a_batch_get_persistent_blocks_that_share_operands(
    size: tuple[int, int, int, int], blocks: int
) -> None:
    """The first product's blocks come first: few products are under way at one time."""
    problem = GemmProblem(*size, arch="sm_90a")
    config = KernelConfig(128, 256, 64, 8, 1, 4)
    assert launch_of(FAMILIES["hopper"], problem, config).grid == (blocks, 1, size[3])
