"""The GPU model: its parameters are where they should be, and its formulas hold."""

from __future__ import annotations

import csv
import gzip
import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.errors import InvalidHardware, InvalidProblem, UsageError
from cache_engine.evaluator import gpu
from cache_engine.evaluator.chips import GPUS, Gpu, gpu_called, gpus_running, load_chip, load_gpu, load_hardware
from cache_engine.evaluator.gpu import (
    ALL,
    choice_times_us,
    fitted,
    latencies_us,
    parameters_of,
    predict,
    predict_grouped,
    roofline_us,
    spread_of,
)
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.validation import read_measurements, validate

sizes = st.integers(1, 10**12)


@given(sizes, sizes, sizes, sizes, st.sampled_from(sorted(GPUS)))
def test_every_size_has_a_prediction(m: int, n: int, k: int, batch: int, name: str) -> None:
    prediction = predict(EvaluationProblem(m, n, k, batch), GPUS[name])
    assert 0 < prediction.latency_us < float("inf")
    assert prediction.roofline_us > 0
    assert 0 < prediction.low_us < prediction.high_us
    assert prediction.split_k <= max(1, k // 256)
    assert prediction.calibrated_on == (name if name in ("A100", "H100", "H200", "B200") else ALL)


def test_a_prediction_is_the_fastest_choice_and_the_same_one_by_one_or_together() -> None:
    m, n, k = (np.array(column, dtype=float) for column in zip((1, 64, 64), (4096, 7168, 2048), strict=True))
    h100 = GPUS["H100"]
    together = latencies_us(fitted()["H100"], h100, m, n, k)
    alone = [predict(EvaluationProblem(*size), h100).latency_us for size in ((1, 64, 64), (4096, 7168, 2048))]
    assert together.tolist() == pytest.approx(alone, rel=1e-12)
    assert predict(EvaluationProblem(64, 64, 64, dtype="fp16"), h100) == predict(EvaluationProblem(64, 64, 64), h100)


def test_large_problems_are_slower_than_roofline_and_more_work_never_faster() -> None:
    for chip in GPUS.values():
        last = 0.0
        for size in (256, 1024, 4096, 16384):
            prediction = predict(EvaluationProblem(size, size, size), chip)
            assert prediction.latency_us > max(last, prediction.roofline_us)
            last = prediction.latency_us


def test_roofline_is_what_the_datasheet_says() -> None:
    one = np.array([4096.0])
    h100 = GPUS["H100"]
    assert roofline_us(h100, one, one, one)[0] == pytest.approx(2 * 4096**3 / 989.4e12 * 1e6)
    assert roofline_us(h100, np.array([1.0]), one, one)[0] == pytest.approx((4096**2 + 2 * 4096) * 2 / 3.352e12 * 1e6)


def test_another_gpu_of_a_known_name_does_not_use_its_calibration() -> None:
    slower = replace(GPUS["H100"], dram_bandwidth=2e12)
    assert predict(EvaluationProblem(64, 64, 64), slower).calibrated_on == ALL


@pytest.mark.parametrize("dtypes", [("fp64", "fp16"), ("bf16", "fp32"), ("fp32", "fp32")])
def test_types_that_cannot_be_predicted_are_refused(dtypes: tuple[str, str]) -> None:
    with pytest.raises(InvalidProblem, match="not calibrated"):
        predict(EvaluationProblem(64, 64, 64, dtype=dtypes[0], out_dtype=dtypes[1]), GPUS["H100"])


@pytest.mark.parametrize("name", sorted(GPUS))
def test_the_peaks_of_narrow_types_bound_their_predictions(name: str) -> None:
    """Large problems are slower than their own roofline, and faster than in bf16 where the datasheet says so."""
    chip = GPUS[name]
    wide = predict(EvaluationProblem(8192, 8192, 8192), chip)
    for dtype, peak in (("fp8", chip.fp8_flops), ("int8", chip.int8_ops)):
        problem = EvaluationProblem(8192, 8192, 8192, 1, dtype)
        if not peak:
            with pytest.raises(InvalidProblem, match=f"{name} has no rate for {dtype}"):
                predict(problem, chip)
            continue
        narrow = predict(problem, chip)
        assert narrow.roofline_us == pytest.approx(2 * 8192**3 / peak * 1e6)
        assert narrow.roofline_us < narrow.latency_us
        assert narrow.latency_us < wide.latency_us or peak <= chip.peak_flops
        unmeasured = spread_of(replace(chip, name="another"), 8192)
        assert (narrow.low_us, narrow.high_us) == pytest.approx([narrow.latency_us * share for share in unmeasured])


def test_the_rates_of_datasheets_are_those_of_their_tensor_cores() -> None:
    """Operations per SM and cycle are powers of two, but for GPUs whose rate is capped."""
    for name, chip in GPUS.items():
        per_cycle = chip.peak_flops / chip.sms / chip.clock_ghz / 1e9
        expected = {"A100": 2048, "H100": 4096, "H200": 4096, "GH200": 4096, "B200": 8192, "B300": 8192, "MI300X": 2048}
        expected |= {"RTX4090": 512, "H20": 1037}  # half rate; capped
        assert per_cycle == pytest.approx(expected.get(name, 1024), rel=0.015), name
        assert chip.reached_flops <= chip.peak_flops
        assert chip.reads_asynchronously == (name in ("H100", "H200", "GH200", "H20", "B200", "B300"))


def test_groups_cost_less_together_than_alone() -> None:
    h100 = GPUS["H100"]
    groups = [3, 0, 130, 17, 64]
    together = predict_grouped(groups, 2048, 7168, h100).latency_us
    alone = sum(predict(EvaluationProblem(m, 2048, 7168), h100).latency_us for m in groups if m)
    assert predict(EvaluationProblem(max(groups), 2048, 7168), h100).latency_us < together < alone
    same = predict_grouped([48] * 8, 2048, 7168, h100)
    assert same == predict(EvaluationProblem(48, 2048, 7168, 8), h100)
    assert predict_grouped([0, 48, 0], 2048, 7168, h100) == predict(EvaluationProblem(48, 2048, 7168), h100)
    one_weight = predict(EvaluationProblem(8, 2048, 7168), h100).latency_us
    assert predict_grouped([1] * 8, 2048, 7168, h100).latency_us > 4 * one_weight, "each group has its own weights"
    with pytest.raises(InvalidProblem, match="every group has 0 rows"):
        predict_grouped([0, 0], 2048, 7168, h100)
    with pytest.raises(InvalidProblem, match="m is -1"):
        predict_grouped([1, -1], 2048, 7168, h100)


def test_the_prediction_is_the_time_of_its_own_choice() -> None:
    for chip in (GPUS["A100"], GPUS["H100"]):
        _, parameters = parameters_of(chip)
        for size in ((1, 4096, 4096), (64, 512, 8192), (4096, 7168, 2048)):
            found = predict(EvaluationProblem(*size), chip)
            m, n, k, one = (np.array([float(each)]) for each in (*size, 1))
            choice = ((found.tile_m, found.tile_n, found.split_k),)
            assert choice_times_us(parameters, chip, m, n, k, one, choice)[0, 0] == pytest.approx(found.latency_us)
            assert choice_times_us(parameters, chip, m, n, k, one, ((64, 64, 1),))[0, 0] >= found.latency_us * 0.999


def test_weights_that_fit_into_the_l2_five_times_do_not_come_from_dram() -> None:
    """An L40S reads a few megabytes from its L2 at many times its DRAM's bandwidth; an A40 has next to no L2."""
    small, large = EvaluationProblem(16, 1536, 2048), EvaluationProblem(16, 8192, 8192)
    slow = replace(GPUS["L40S"], l2_bytes=6 * 2**20)
    assert predict(small, slow).latency_us > 1.2 * predict(small, GPUS["L40S"]).latency_us
    assert predict(large, slow).latency_us == pytest.approx(predict(large, GPUS["L40S"]).latency_us, rel=0.02)
    halved = replace(GPUS["L40S"], l2_partitions=16)
    assert predict(small, halved).latency_us == pytest.approx(predict(small, slow).latency_us)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L40", None),
        ("NVIDIA RTX A4000", None),
        ("NVIDIA RTX A6000", "A6000"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A10G", None),
        ("h100_sxm", "H100"),
        ("", None),
    ],
)
def test_a_gpu_is_known_by_what_drivers_call_it(device: str, name: str | None) -> None:
    found = gpu_called(device)
    assert (found and found.name) == name


def test_the_first_gpu_of_a_target_stays_the_one_it_was() -> None:
    """Demand and replay take it where none is named."""
    assert [gpus_running(target)[0].name for target in ("sm_80", "sm_89", "sm_90a", "sm_100")] == [
        "A100", "L40S", "H100", "B200",
    ]  # fmt: skip
    assert gpus_running("sm_120") == []


def test_gpus_come_by_name_and_from_files(tmp_path: Path) -> None:
    assert load_chip("h100") == GPUS["H100"]
    with pytest.raises(InvalidHardware, match="is a GPU"):
        load_hardware("h100")
    with pytest.raises(InvalidHardware, match="SG2262 is no GPU"):
        load_gpu("SG2262")
    path = tmp_path / "gpu.json"
    plain = asdict(GPUS["L40S"])
    path.write_text(json.dumps({**plain, "name": "Mine"}))
    assert load_chip(path) == Gpu(**{**plain, "name": "Mine"})
    for change, named in (
        ({"sms": 0}, "sms is 0"),
        ({"l2_bytes": "x"}, "l2_bytes"),
        ({"more": 1}, "unknown field"),
        ({"asynchronous": 1}, "asynchronous is 1"),
        ({"matmul_flops": 1e15}, "matmul_flops is 1e\\+15"),
        ({"calibration": []}, "calibration is no JSON object"),
        ({"calibration": {"id": "x"}}, "lacks the field calibration.source"),
    ):
        path.write_text(json.dumps({**plain, **change}))
        with pytest.raises(InvalidHardware, match=named):
            load_chip(path)
    del plain["l2_bytes"]
    path.write_text(json.dumps(plain))
    with pytest.raises(InvalidHardware, match="lacks the field l2_bytes"):
        load_chip(path)


def write_csv(path: Path, rows: list[tuple[object, ...]]) -> Path:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("arch", "dtype", "M", "N", "K", "latency_us"), *rows])
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["some.csv", "some.csv.gz"])
def test_validation_measures_errors_by_range(tmp_path: Path, name: str) -> None:
    """Against latencies that are off the model, and off roofline, by known shares."""
    h100 = GPUS["H100"]
    off = ((1, 1.0), (16, 1.2), (2000, 0.5))
    rows: list[tuple[object, ...]] = []
    for m, factor in off:
        predicted = predict(EvaluationProblem(m, 4096, 4096), h100).latency_us
        rows.append(("h100_sxm", "bfloat16", m, 4096, 4096, repr(predicted * factor)))
    (measured,) = read_measurements(write_csv(tmp_path / name, rows))
    lines = list(validate(measured))
    assert [(line.m_from, line.m_to, line.count) for line in lines] == [(0, 0, 3), (1, 16, 2), (1025, 4096, 1)]
    whole, small, large = (line.model for line in lines)
    assert (whole.mape, whole.median, whole.bias) == pytest.approx(((1 / 6 + 1) / 3, 1 / 6, (1 - 1 / 6) / 3))
    assert (small.mape, small.bias, small.within_20) == pytest.approx((1 / 12, -1 / 12, 1.0))
    assert (large.mape, large.within_20) == pytest.approx((1.0, 0.0))
    assert lines[0].roofline.bias != lines[0].model.bias


def test_each_type_is_validated_on_its_own(tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = []
    for named, dtype, factor in (("float16", "fp16", 1.1), ("float8_e4m3fn", "fp8", 2.0), ("INT8", "int8", 0.5)):
        predicted = predict(EvaluationProblem(4096, 4096, 8192, 1, dtype, "bf16"), GPUS["H100"]).latency_us
        rows.append(("h100_sxm", named, 4096, 4096, 8192, repr(predicted * factor)))
    found = [next(validate(measured)) for measured in read_measurements(write_csv(tmp_path / "some.csv", rows))]
    assert [(line.arch, line.dtype, line.count) for line in found] == [
        ("H100", "fp16", 1), ("H100", "fp8", 1), ("H100", "int8", 1),
    ]  # fmt: skip
    assert [line.model.bias for line in found] == pytest.approx([1 / 1.1 - 1, -0.5, 1.0])


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([], "no measurements"),
        ([("h9000", "bf16", 1, 1, 1, 1)], "line 2: unknown arch 'h9000'"),
        ([("H100", "bf16", 1, 1, 1, 1), ("H100", "bf16", 1, 0, 1, 1)], "line 3: N is '0'"),
        ([("H100", "bf16", 1, 1, 1, "fast")], "latency_us is 'fast'"),
        ([("H100", "bf16", 1, 1)], "K is None"),
        ([("H100", "bf16", 1, 1, 1, 1), ("H100", "fp64", 1, 1, 1, 1)], "line 3: dtype fp64 .* is not calibrated"),
        ([("A100", "float8_e4m3fn", 1, 1, 1, 1)], "line 2: A100 has no rate for fp8"),
    ],
)
def test_a_file_of_measurements_that_cannot_be_right_is_refused(
    tmp_path: Path, rows: list[tuple[object, ...]], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        read_measurements(write_csv(tmp_path / "some.csv", rows))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.csv.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(UsageError, match="cannot be decompressed"):
        read_measurements(path)
    with pytest.raises(UsageError, match="cannot read"):
        read_measurements(tmp_path / "none.csv")
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="lacks the column arch"):
        read_measurements(other)
    assert gpu.M_RANGES[-1][1] >= 10**12
