"""How fast a kernel is: words and figures. The measurements here are made up, to be put into tables."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import msgspec
import pytest

from app.presenters.columns import rows_of
from app.presenters.speed import TIMINGS, predictions, speed_figure, speed_rows, time_change, time_text
from cache_engine.evaluator.chips import GPUS
from cache_engine.insight.comparison import Pair
from cache_engine.model.artifact import RecordedProblem
from tests.pages.opening import a_record

SM_80 = msgspec.structs.replace(a_record(), arch="sm_80")


def invented(**changes: Any) -> dict[str, Any]:
    """An invented measurement."""
    return {
        "device": "an invented <b>GPU</b>",
        "m": SM_80.problem.m,
        "batch": 1,
        "median_us": 100.0,
        "p10_us": 90.0,
        "p90_us": 130.0,
        "tflops": 12.5,
        "reference_median_us": 80.0,
        "speed_ratio": 0.8,
        "verified": True,
        "measured_at": 1_700_000_000.0,
    } | changes


def test_measurements_name_their_reference_and_whether_the_result_was_right() -> None:
    first, second = rows_of([invented(), invented(verified=False, measured_at=0.0)], TIMINGS, UTC)
    assert first["Device"] == "an invented <b>GPU</b>"
    assert (first["Median, µs"], first["cuBLAS, µs"], first["vs cuBLAS"]) == (100.0, 80.0, 0.8)
    assert (first["Result"], second["Result"]) == ("verified", "WRONG RESULT")
    assert (str(first["Measured"]), second["Measured"]) == ("2023-11-14 22:13:20+00:00", None)


def test_measured_and_predicted_points_are_labelled() -> None:
    points, trouble = predictions(SM_80)
    assert trouble == ""
    figure = speed_figure(points, [invented(), invented(m=7, tflops=3.0)], SM_80.problem.m, 1)
    marks = {dots.name: dots for dots in figure.data if dots.mode == "markers"}
    assert set(marks) == {"A100, predicted", "measured"}
    assert list(marks["measured"].y) == [12.5]
    assert list(marks["measured"].hovertext) == ["an invented &lt;b&gt;GPU&lt;/b&gt;, measured: 12.5 TFLOP/s"]
    assert "measured" not in {dots.name for dots in speed_figure(points, [], SM_80.problem.m, 1).data}


def test_groups_and_scales_count_in_predictions() -> None:
    """A kernel for 256 groups computes its rows once, not for each group; fp8 is under the roof of its own rate."""
    asked: RecordedProblem = msgspec.structs.replace(
        SM_80.problem, m=4096, n=4096, k=7168, batch=256, mode="grouped", dtype="fp8_e4m3", out_dtype="bf16",
        scales="1x128,128x128",
    )  # fmt: skip
    points, trouble = predictions(msgspec.structs.replace(SM_80, arch="sm_90a", problem=asked))
    assert trouble == ""
    assert {point.operation.work.flops for point in points} == {2 * 4096 * 4096 * 7168}
    h100 = next(point for point in points if point.chip.name == "H100")
    assert h100.peak == GPUS["H100"].fp8_flops
    figure = speed_figure(points, [invented(m=4096, batch=256)], 4096, 256)
    assert "measured" in {dots.name for dots in figure.data}
    roof = next(line for line in figure.data if line.name == "H100 roofline")
    assert max(roof.y) == pytest.approx(h100.peak / 1e12)


def test_times_of_several_kernels_are_compared() -> None:
    larger = msgspec.structs.replace(SM_80, problem=msgspec.structs.replace(SM_80.problem, n=8192))
    wrong = invented(device="a third", verified=False)
    timings = ([invented(median_us=50.0), invented(median_us=70.0)], [invented(device="another"), wrong])
    measured, predicted = speed_rows([SM_80, larger], timings)
    m = SM_80.problem.m
    assert measured == {
        f"m = {m} on an invented <b>GPU</b>, measured": [50.0, None],
        f"m = {m} on another, measured": [None, 100.0],
    }
    assert list(predicted) == ["cuBLAS-like kernel on A100, predicted"]
    assert speed_rows([SM_80, SM_80], timings)[1] == {}, "one prediction for both says nothing"
    assert time_change(Pair("", 50.0, 60.0)) == "+20.0%"
    assert [time_change(Pair("", first, 60.0)) for first in (None, 0.0)] == ["", ""]
    assert [time_text(value) for value in (50.0, None)] == ["50.00 µs", "–"]


@pytest.mark.parametrize(
    ("arch", "problem", "why"),
    [
        ("sm_75", {}, "none of them runs this target"),
        ("<script>", {}, "none of them runs this target"),
        ("sm_80", {"dtype": "fp32", "out_dtype": "fp32"}, "not calibrated on GPUs"),
        ("sm_80", {"m": 0}, "m is "),
    ],
)
def test_where_the_model_does_not_apply_it_says_why(arch: str, problem: dict[str, Any], why: str) -> None:
    asked: RecordedProblem = msgspec.structs.replace(SM_80.problem, **problem)
    points, trouble = predictions(msgspec.structs.replace(SM_80, arch=arch, problem=asked))
    assert points == []
    assert why in trouble
