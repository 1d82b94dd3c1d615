"""Problems: what is accepted, and how what is not is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cache_engine.errors import InvalidProblem
from cache_engine.model.gemm import (
    MAX_BATCH,
    MAX_DIMENSION,
    Activation,
    DType,
    Epilogue,
    GemmProblem,
    Layout,
    Mode,
    Scales,
    Specialisation,
    bucket_of,
)


@pytest.mark.parametrize("field", ["m", "n", "k", "batch"])
@pytest.mark.parametrize("value", [0, -1, 10**9, 10**30, 1.0, "8", True, None])
def test_a_size_out_of_range_is_refused_naming_field_and_range(field: str, value: Any) -> None:
    sizes: dict[str, Any] = {"m": 8, "n": 8, "k": 8, "batch": 1, field: value}
    with pytest.raises(InvalidProblem, match=rf"^{field} is .* from 1 to [\d,]+$"):
        GemmProblem(**sizes)


def test_the_largest_sizes_are_accepted() -> None:
    assert GemmProblem(MAX_DIMENSION, 1, 1).m == MAX_DIMENSION
    assert GemmProblem(1, 1, 1, batch=MAX_BATCH).batch == MAX_BATCH


def test_operands_no_gpu_could_hold_are_refused() -> None:
    with pytest.raises(InvalidProblem, match="larger than any GPU"):
        GemmProblem(MAX_DIMENSION, MAX_DIMENSION, 1)


def test_sums_of_int32_are_no_input() -> None:
    with pytest.raises(InvalidProblem, match="unknown dtype 'int32'"):
        GemmProblem(8, 8, 8, dtype=DType.INT32)
    assert GemmProblem(8, 8, 8, dtype=DType.INT8).output is DType.INT32


def test_an_epilogue_is_read_in_any_order_and_written_in_one() -> None:
    problem = GemmProblem(8, 8, 8, epilogue="gelu + bias+alpha")
    assert problem.epilogue == Epilogue(alpha=True, bias=True, activation=Activation.GELU)
    assert str(problem.epilogue) == "alpha+bias+gelu"
    assert Epilogue.parse(str(problem.epilogue)) == problem.epilogue
    assert str(Epilogue()) == ""
    assert Epilogue.parse("") == Epilogue()


@pytest.mark.parametrize("text", ["bias+bias", "relu+gelu", "tanh", "alpha,beta", "+", "none", "ALPHA"])
def test_an_epilogue_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidProblem, match="epilogue"):
        GemmProblem(8, 8, 8, epilogue=text)


def test_none_is_no_epilogue() -> None:
    assert GemmProblem(1, 1, 1, epilogue=None) == GemmProblem(1, 1, 1)


def test_int8_takes_no_epilogue() -> None:
    with pytest.raises(InvalidProblem, match="int8 problems take no epilogue, and bias was asked for"):
        GemmProblem(8, 8, 8, dtype=DType.INT8, epilogue=Epilogue(bias=True))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scales": "1x64"}, r"unknown scales '1x64'; use one of: 1x128,128x128 \| 1x128,1x128 \| "),
        ({"dtype": "bf16"}, "scales are for fp8_e4m3 and fp8_e5m2, and the dtype is bf16"),
        ({"k": 200}, "k is 200, .* a multiple of 128, .* zeroes to k = 256"),
        ({"layout": "nn"}, "the layout is nn, and with scales it must be nt"),
    ],
)
def test_scales_that_do_not_fit_the_problem_are_refused(change: dict[str, Any], said: str) -> None:
    asked: dict[str, Any] = {"n": 8, "k": 256, "dtype": "fp8_e4m3", "scales": "1x128,128x128"}
    assert GemmProblem(8, **asked).scales is Scales.BLOCKS
    with pytest.raises(InvalidProblem, match=said):
        GemmProblem(8, **asked | change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mode": "ragged"}, "unknown mode 'ragged'; use one of: grouped, masked, or leave it out"),
        ({"layout": "tn"}, "the layout is tn, and with mode grouped the rows of A must lie one after the other"),
        ({"specialisation": "exact"}, "counted on the device, so m cannot be a constant; use the specialisation nk"),
    ],
)
def test_a_mode_that_does_not_fit_the_problem_is_refused(change: dict[str, Any], said: str) -> None:
    asked: dict[str, Any] = {"n": 8, "k": 64, "batch": 4, "mode": "grouped"}
    assert GemmProblem(8, **asked).mode is Mode.GROUPED
    with pytest.raises(InvalidProblem, match=said):
        GemmProblem(8, **asked | change)


def test_groups_share_their_rows_or_have_their_own() -> None:
    grouped, masked = (GemmProblem(100, 64, 32, 8, mode=mode) for mode in ("grouped", "masked"))
    assert (grouped.flops, masked.flops) == (2 * 100 * 64 * 32, 8 * 2 * 100 * 64 * 32)
    assert grouped.moved_bytes == 2 * (100 * 32 + 8 * 64 * 32 + 100 * 64)
    assert masked.moved_bytes == 2 * 8 * (100 * 32 + 64 * 32 + 100 * 64)
    assert (grouped.planned_products, masked.planned_products) == ((13, 64, 32, 8), (100, 64, 32, 8))
    assert GemmProblem(2**24, 2**10, 2**14, 2**16 - 1, mode="grouped").batch == 2**16 - 1, "A is there once"


def test_scales_are_counted_where_they_lie() -> None:
    """E8M0 in whole words of four; rows of B that are begun count as whole blocks."""
    assert Scales.BLOCKS.shapes(5, 129, 640) == ((5, 5), (2, 5))
    assert Scales.ROWS_E8M0.shapes(5, 129, 640) == ((5, 8), (129, 8))
    scaled, plain = (
        GemmProblem(5, 129, 640, 2, "fp8_e4m3", scales=scales).moved_bytes for scales in (Scales.BLOCKS, Scales.NONE)
    )
    assert scaled - plain == 2 * 4 * (5 * 5 + 2 * 5)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("dtype", "fp5", "fp16, bf16, tf32, fp32, fp64, fp8_e4m3, fp8_e5m2, int8$"),
        ("layout", "xn", "nn, nt, tn, tt"),
        ("specialisation", "mn", "nk, exact, bucketed, dynamic"),
        ("out_dtype", "int3", "fp16"),
        ("arch", "sm_91", "sm_90a"),
    ],
)
def test_an_unknown_name_is_refused_listing_those_there_are(field: str, value: str, named: str) -> None:
    arguments: dict[str, Any] = {field: value}
    with pytest.raises(InvalidProblem, match=named) as caught:
        GemmProblem(8, 8, 8, **arguments)
    assert value in str(caught.value)


def test_an_output_type_that_loses_the_accumulator_is_refused() -> None:
    with pytest.raises(InvalidProblem, match="cannot be made from fp64"):
        GemmProblem(8, 8, 8, dtype=DType.FP64, out_dtype=DType.BF16)


def test_results_of_fp8_take_a_scale_and_no_beta() -> None:
    assert GemmProblem(8, 8, 8, out_dtype="fp8_e5m2", epilogue="alpha+bias+gelu").has_result_scale
    assert not GemmProblem(8, 8, 8, dtype="fp8_e4m3").has_result_scale
    with pytest.raises(InvalidProblem, match="a C of fp8_e4m3 was scaled when it was stored and cannot be added"):
        GemmProblem(8, 8, 8, dtype="fp8_e4m3", out_dtype="fp8_e4m3", epilogue="beta")


def test_plain_strings_become_members() -> None:
    problem = GemmProblem(8, 8, 8, dtype="fp16", layout="tn")
    assert problem.dtype is DType.FP16
    assert problem.output is DType.FP16
    assert problem.layout is Layout.TN
    assert problem == GemmProblem(8, 8, 8, dtype=DType.FP16, layout=Layout.TN)


def test_layout_letters_are_those_of_a_then_b() -> None:
    assert (Layout.NT.a_transposed, Layout.NT.b_transposed) == (False, True)
    assert (Layout.TN.a_transposed, Layout.TN.b_transposed) == (True, False)


@pytest.mark.parametrize("level", [-1, 4, True, "3", 2.5, None])
def test_a_level_of_optimisation_that_is_none_is_refused(level: Any) -> None:
    with pytest.raises(InvalidProblem, match=r"opt level is .* must be one of: 0, 1, 2, 3"):
        GemmProblem(8, 8, 8, opt_level=level)


@pytest.mark.parametrize(("m", "bucket"), [(1, 1), (2, 2), (3, 4), (64, 64), (65, 128), (MAX_DIMENSION, MAX_DIMENSION)])
def test_a_bucket_ends_at_the_next_power_of_two(m: int, bucket: int) -> None:
    assert bucket_of(m) == bucket
    assert GemmProblem(m, 8, 16, batch=2, specialisation=Specialisation.BUCKETED).planned_sizes == (bucket, 8, 16, 2)


def test_work_is_counted_over_the_whole_batch() -> None:
    problem = GemmProblem(2, 3, 5, batch=7, dtype=DType.BF16, out_dtype=DType.FP32)
    assert problem.flops == 2 * 2 * 3 * 5 * 7
    assert problem.moved_bytes == 7 * ((2 * 5 + 3 * 5) * 2 + 2 * 3 * 4)


def test_a_problem_for_another_target_is_the_same_in_all_else() -> None:
    """No value but the target is a default, so one that is lost shows."""
    problem = GemmProblem(
        5, 256, 384, 7, "fp8_e4m3", "fp16", "nt", "sm_90", "bias", "bucketed", 1, "1x128,1x128", "masked"
    )
    moved = problem.on("sm_100")
    assert moved == replace(problem, arch="sm_100")
    assert moved.on("sm_90") == problem
    assert problem.on("sm_90") is problem
    with pytest.raises(InvalidProblem, match="unknown architecture"):
        problem.on("sm_1")


@pytest.mark.parametrize(
    ("epilogue", "times"), [("", 0), ("gelu", 2), ("alpha+bias+relu", 2), ("beta", 4), ("alpha+beta+bias", 4)]
)
def test_fusion_saves_reading_and_writing_c_again_and_with_beta_a_copy(epilogue: str, times: int) -> None:
    problem = GemmProblem(16, 32, 64, batch=3, dtype=DType.FP16, out_dtype=DType.FP32, epilogue=epilogue)
    assert problem.fusion_saves_bytes == times * 3 * 16 * 32 * 4
