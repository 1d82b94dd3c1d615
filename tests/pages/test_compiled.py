"""What the page shows of a requested kernel. The measurements here are invented, and marked so by their device."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.presenters.columns import rows_of
from app.presenters.evaluations import slower_words
from app.presenters.jobs import (
    DIFFERENCES,
    NO_RESULT,
    document_of,
    timing_tiles,
    verdict,
    why_lines,
)
from app.presenters.speed import PREDICTIONS
from cache_engine.batch.jobs import DONE, Job
from cache_engine.batch.results import Compiled, Difference, Explained, Nearest, Timed
from cache_engine.errors import InvalidProblem
from cache_engine.evaluator.chips import GPUS
from cache_engine.evaluator.gpu import predict
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.validation import PUBLISHED_MAPE, PUBLISHED_MAPE_UNMEASURED
from cache_engine.insight.passes import predicted
from cache_engine.model.documents import to_json
from cache_engine.model.gemm import DType, GemmProblem, Layout
from tests.helpers import INVENTED_GPU

OLD_JOB = msgspec.json.decode(
    (Path(__file__).parents[1] / "formats" / "fc4e2bd.job.json").read_bytes(), type=Job
)  # fmt: skip
"""A ``compile`` job as the version of that commit left it."""

KERNEL = {**json.loads(OLD_JOB.result), "tier": "disk", "load_ms": 0.2, "compile_ms": 150.0}
INVENTED = {
    "key": KERNEL["key"], "device": "INVENTED FOR A TEST", "median_us": 250.0, "p10_us": 240.0, "p90_us": 300.0,
    "repeats": 50, "tflops": 480.0, "max_rel_error": 0.001, "verified": True, "seed": 1, "reference": None,
    "no_reference": "", "reference_median_us": None, "speed_ratio": None, "sm_clock_mhz": None,
    "sm_clock_before_mhz": None, "unkept": "", "kernel": KERNEL,
    "device_fingerprint": msgspec.to_builtins(INVENTED_GPU),
}  # fmt: skip
BESIDE = {**INVENTED, "reference": "INVENTED LIBRARY", "reference_median_us": 200.0, "speed_ratio": 0.8}


def timed(document: dict[str, Any]) -> Timed:
    """What the page reads from a ``time`` job with this result."""
    read = document_of(Job(id="1f-2e", command=["time"], state=DONE, result=json.dumps(document)))
    assert isinstance(read, Timed)
    return read


def _only_adds(then: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuses anything but new fields, also of what is in it."""
    for name, value in then.items():
        if isinstance(value, dict):
            _only_adds(value, now[name])
        else:
            assert now[name] == value


def test_the_result_of_a_job_of_an_older_version_is_read() -> None:
    document = document_of(OLD_JOB)
    assert isinstance(document, Compiled)
    written, read = json.loads(OLD_JOB.result), json.loads(to_json(document))
    _only_adds(written, read)
    assert verdict(document) == (False, "Miss. Compiled in 256 ms.")
    assert isinstance(document.why, Explained)
    assert why_lines(document.why)[:2] == [
        "Closest of 1 cached kernel: gemm_simt_fp32_nt_n8_k8_64x64x8_w2x1_s2",
        "the target differs: sm_90 there, sm_80 here",
    ]


def test_the_kernel_of_a_timing_is_part_of_its_result() -> None:
    kernel = timed(INVENTED).kernel
    assert verdict(kernel) == (True, "Hit (disk): loaded in 200 µs; saved 150 ms of compiling.")
    compiled = msgspec.structs.replace(kernel, tier="compiled", compile_ms=9)
    assert verdict(compiled) == (False, "Miss. Compiled in 9.0 ms.")
    assert verdict(compiled, again=True) == (False, "Recompiled in 9.0 ms.")
    with pytest.raises(NO_RESULT):
        verdict(msgspec.structs.replace(kernel, tier="moon"))


def test_a_timing_is_shown_with_its_reference_where_one_was_timed() -> None:
    assert [tile.value for tile in timing_tiles(timed(INVENTED))] == ["250 µs", "480.0 TFLOP/s"]
    assert [tile.value for tile in timing_tiles(timed(BESIDE))] == ["250 µs", "480.0 TFLOP/s", "200 µs", "0.80×"]
    assert timing_tiles(timed(BESIDE))[0].change == "240 µs to 300 µs, 10th to 90th percentile"
    assert all("INVENTED LIBRARY" not in f"{tile.label}{tile.value}{tile.help}" for tile in timing_tiles(timed(BESIDE)))


def test_an_unverified_result_is_marked_at_each_number() -> None:
    for tile in timing_tiles(timed({**INVENTED, "verified": False})):
        assert "WRONG RESULT" in tile.help


@pytest.mark.parametrize("field", ["median_us", "p10_us", "p90_us", "repeats", "tflops", "reference_median_us"])
@pytest.mark.parametrize("wrong", ["1", [], True, float("nan"), float("inf"), -1, 1e300])
def test_a_value_that_is_no_measurement_is_refused(field: str, wrong: Any) -> None:
    with pytest.raises(NO_RESULT):
        timed({**BESIDE, field: wrong})


@pytest.mark.parametrize("field", ["registers", "spill_bytes", "shared_bytes", "size_bytes", "compile_ms", "load_ms"])
@pytest.mark.parametrize("wrong", ["1", None, True, -1, 1e300])
def test_a_value_that_is_no_resource_of_a_kernel_is_refused(field: str, wrong: Any) -> None:
    with pytest.raises(NO_RESULT):
        timed({**INVENTED, "kernel": {**KERNEL, field: wrong}})


def test_the_reason_of_a_miss_is_shown_in_sentences_and_as_a_table() -> None:
    document = document_of(OLD_JOB)
    assert isinstance(document.why, Explained)
    cause = Difference(component="arch", there="sm_90", here="sm_90a", follows=False, text="the target differs")
    follower = Difference(component="KERNEL_NAME", there="a", here="b", follows=True, text="the name differs")
    nearest = Nearest(key="0" * 64, name="gemm_x", differences=[cause, follower])
    why = msgspec.structs.replace(document.why, compared=1200, nearest=nearest, notes=["a hint"])
    assert why_lines(why) == ["Closest of 1,200 cached kernels: gemm_x", "the target differs", "a hint"]
    assert [row["Consequence"] for row in rows_of(nearest.differences, DIFFERENCES, UTC)] == [False, True]
    alone = msgspec.structs.replace(why, compared=0, nearest=None, notes=[])
    assert why_lines(alone) == ["No other kernels to compare with."]
    assert why_lines(msgspec.structs.replace(alone, notes=["damaged"])) == ["damaged"]


def test_a_prediction_of_the_model_is_labelled_as_one() -> None:
    problem = GemmProblem(4096, 7168, 2048, dtype=DType.FP16, arch="sm_90a", layout=Layout.NN)
    h100, h200, *unmeasured = rows_of(predicted(problem), PREDICTIONS, UTC)
    latency = predict(EvaluationProblem(4096, 7168, 2048, 1, "fp16", "fp16"), GPUS["H100"]).latency_us
    assert (h100["GPU"], h100["Predicted, µs"]) == ("H100", latency)
    assert h100["Error"] == "±6.2% on average", "beside the number"
    assert h200["GPU"] == "H200"
    assert [row["GPU"] for row in unmeasured] == ["GH200", "H20"]
    l40s, *_ = rows_of(predicted(problem.on("sm_89")), PREDICTIONS, UTC)
    assert l40s["Error"] == "±8–16%, never measured"
    assert [point.chip.name for point in predicted(problem.on("sm_86"))] == ["A40", "A6000", "A10"], (
        "no L40S, which is sm_89"
    )


def test_a_gpu_predicted_slower_than_one_of_lower_rates_says_why() -> None:
    points = predicted(GemmProblem(4096, 7168, 2048, dtype=DType.BF16, arch="sm_90"))
    assert "H200 is predicted slower than H100, which has no higher rates" in slower_words(points)
    assert slower_words(points[:1]) == slower_words(predicted(GemmProblem(64, 7168, 2048, arch="sm_90"))[:2]) == ""


@pytest.mark.parametrize(
    ("arch", "dtype", "out"),
    [
        ("sm_75", DType.FP16, None),
        ("sm_120", DType.BF16, None),
        ("sm_90", DType.FP32, None),
        ("sm_90", DType.BF16, DType.FP32),
    ],
)
def test_nothing_is_predicted_beyond_the_model(arch: str, dtype: DType, out: DType | None) -> None:
    problem = GemmProblem(64, 64, 64, dtype=dtype, out_dtype=out, arch=arch)
    with suppress(InvalidProblem):
        assert predicted(problem) == []


def test_the_documented_errors_are_the_public_ones() -> None:
    text = (Path(__file__).parents[2] / "docs" / "evaluator.md").read_text(encoding="utf-8")
    published = {
        name: float(mape) for name, mape in re.findall(r"^\| (\w+) \| [\d,]+ \| ([\d.]+)% ", text, re.MULTILINE)
    }
    assert published == PUBLISHED_MAPE
    left_out = re.search(r"from the other three\. The MAPE was (.+?)\.\n", text, re.DOTALL)
    assert left_out
    errors = [float(error) for error in re.findall(r"([\d.]+) %", left_out[1])]
    assert (min(errors), max(errors)) == PUBLISHED_MAPE_UNMEASURED
