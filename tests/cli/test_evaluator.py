"""The evaluator's verbs as other programs and people use them: real processes, real exit codes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cache_engine.evaluator.chips import GPUS
from cache_engine.evaluator.gpu import predict
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from tests.cli.test_cli import document, run

SHAPE = ("evaluate", 64, 2112, 7168)
CHIP = ("--chip", "SG2262")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_second_evaluation_is_a_stored_result(place: Path) -> None:
    first, second = (document(*SHAPE, *CHIP, store=place) for _ in range(2))
    assert (first["cached"], second["cached"]) == (False, True)
    apart = {"cached"}
    assert {name: value for name, value in first.items() if name not in apart} == {
        name: value for name, value in second.items() if name not in apart
    }
    assert {
        "key", "chip", "arch_fingerprint", "model", "problem", "mode", "latency_us", "compute_us", "memory_us", "flops",
        "traffic_bytes", "arch_utilization", "effective_utilization", "alignment_efficiency", "tile", "order",
        "partition", "cached", "search_ms", "unkept",
    } <= set(first)  # fmt: skip
    assert first["flops"] == 2 * 64 * 2112 * 7168
    assert first["partition"].keys() == {"g", "m", "n", "k"}
    plain = run(*SHAPE, *CHIP, store=place).stdout
    assert "predicted by core-grid" in plain
    assert "stored result" in plain


def test_each_switch_gives_another_result(place: Path) -> None:
    switches: tuple[tuple[object, ...], ...] = (
        (), ("--no-search", "tile"), ("--no-search", "partition"), ("--reduce-partial-sums",), ("--compute-rate", 2),
        ("--dtype", "fp8"), ("--out-dtype", "fp32"), ("--batch", 3),
    )  # fmt: skip
    found = [document(*SHAPE, *CHIP, *switch, store=place) for switch in switches]
    assert len({one["key"] for one in found}) == len(switches)
    assert not any(one["cached"] for one in found)
    assert found[1]["tile"] == {"m": 16, "n": 8, "k": 32}
    assert found[2]["partition"] == {"g": 1, "m": 8, "n": 8, "k": 1}
    listed = document("evaluations", store=place)["architectures"]
    assert [(one["chip"], one["total_entries"], one["cache_misses"]) for one in listed] == [("SG2262", 8, 8)]
    rows = document("evaluations", *CHIP, store=place)
    assert rows["total"] == 8
    assert {row["key"] for row in rows["rows"]} == {one["key"] for one in found}
    assert "8 results" in run("evaluations", *CHIP, store=place).stdout


def test_a_file_that_lost_its_times_is_listed_without_an_age(place: Path) -> None:
    document(*SHAPE, *CHIP, store=place)
    (path,) = (place / "evaluations").glob("*.json")
    path.write_bytes(path.read_bytes().replace(b'"statistics":{', b'"statistics":{"cache_hits":-1,', 1))
    for log in (place / "evaluations").glob("*.log"):
        log.unlink()
    listed = run("evaluations", store=place)
    assert listed.returncode == 0
    assert "unknown" in listed.stdout
    assert "days ago" not in listed.stdout
    assert "corrupt evaluations" in run("verify", store=place).stdout


def test_hardware_from_a_file(place: Path, tmp_path: Path) -> None:
    description = {**PRESETS["SG2262"].to_dict(), "name": "Mine"}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(description))
    evaluated = document(*SHAPE, "--chip", path, store=place)
    assert (evaluated["chip"], evaluated["cached"]) == ("Mine", False)
    path.write_text(json.dumps({**description, "dram_bandwidth": 1e11}))
    assert document(*SHAPE, "--chip", path, store=place)["latency_us"] > evaluated["latency_us"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("evaluate", 0, 5, 5, *CHIP), "m is 0"),
        (("evaluate", 5, -5, 5, *CHIP), "-5 is not a size"),
        (("evaluate", 5, 5, 10**12 + 1, *CHIP), "k is 1,000,000,000,001"),
        (("evaluate", 5, 5, 5, *CHIP, "--dtype", "fp7"), "unknown dtype 'fp7'"),
        (("evaluate", 5, 5, 5, *CHIP, "--compute-rate", "0"), "compute_rate is 0.0"),
        (("evaluate", 5, 5, 5, "--chip", "H9000"), "neither a known chip"),
        (("evaluate", 5, 5, 5), "--chip"),
    ],
    ids=str,
)
def test_wrong_usage_is_one_line_and_exit_2(place: Path, arguments: tuple[object, ...], named: str) -> None:
    done = run(*arguments, "--json", store=place)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert named in done.stderr
    assert named in json.loads(done.stdout)["error"]["message"]


def test_a_contradictory_file_is_refused_by_field(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "chip.json"
    for change, named in (
        ({"peak_flops": 1e12}, "peak_flops"),
        ({"lane_num": 0}, "lane_num"),
        ({"sram_utilization": 2}, "sram_utilization"),
    ):
        path.write_text(json.dumps({**PRESETS["SG2262"].to_dict(), **change}))
        done = run(*SHAPE, "--chip", path, store=place)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert named in done.stderr


def test_the_largest_sizes_are_exact(place: Path) -> None:
    for _ in range(2):
        evaluated = document("evaluate", 10**12, 10**12, 10**12, "--batch", 10**12, *CHIP, store=place)
        assert evaluated["flops"] == 2 * 10**48


@pytest.mark.parametrize("name", ["some.json", "some.json.zst"])
def test_results_go_out_and_in_again(place: Path, tmp_path: Path, name: str) -> None:
    for m in (1, 2, 3):
        document("evaluate", m, 64, 64, *CHIP, store=place)
    file, other = tmp_path / name, tmp_path / "other"
    exported = document("evaluations", file, store=place)
    assert (exported["entries"], exported["bytes"]) == (3, file.stat().st_size)
    assert "--force" in run("evaluations", file, store=place).stderr
    assert run("evaluations", file, "--force", store=place).returncode == 0
    assert document("evaluations", "--import", file, store=other)["taken"] == 3
    assert document("evaluations", "--import", file, store=other)["present"] == 3
    assert document("evaluate", 2, 64, 64, *CHIP, store=other)["cached"]
    printed: dict[str, Any] = json.loads(run("evaluations", "-", store=place).stdout)
    assert len(printed["cache_entries"]) == 3


def test_results_go_out_in_the_format_of_the_reference_and_in_again(place: Path, tmp_path: Path) -> None:
    for m in (1, 2):
        document("evaluate", m, 64, 64, *CHIP, store=place)
    document("evaluate", 3, 64, 64, *CHIP, "--reduce-partial-sums", store=place)
    file, other = tmp_path / "theirs.json", tmp_path / "other"
    done = run("evaluations", file, "--format", "reference", "--json", store=place)
    assert (done.returncode, json.loads(done.stdout)["entries"]) == (0, 2)
    assert "left out: 1 result," in done.stderr
    assert json.loads(file.read_text())["cache_format_version"] == "2025.01"
    assert document("evaluations", "--import", file, store=other)["taken"] == 2
    assert document("evaluate", 2, 64, 64, *CHIP, store=other)["cached"]


def test_import_refuses_bad_results_and_bad_files(place: Path, tmp_path: Path) -> None:
    document("evaluate", 1, 64, 64, *CHIP, store=place)
    file = tmp_path / "some.json"
    document("evaluations", file, store=place)
    exported = json.loads(file.read_text())
    (entry,) = exported["cache_entries"].values()
    entry["result"]["latency_us"] = 1.0
    file.write_text(json.dumps(exported))
    refused = document("evaluations", "--import", file, store=tmp_path / "other", code=1)
    assert (refused["taken"], len(refused["refused"])) == (0, 1)
    for content in (b"", b"{", b"\x28\xb5\x2f\xfd\x00"):
        file.write_bytes(content)
        done = run("evaluations", "--import", file, store=tmp_path / "other")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_a_small_file_that_declares_to_be_large_is_refused_before_it_is_decompressed(tmp_path: Path) -> None:
    """With 512 MiB of memory, where it declares 2 GiB."""
    bomb = tmp_path / "bomb.json.zst"
    # Magic; four bytes of size, one segment, a checksum; the size.
    bomb.write_bytes(b"\x28\xb5\x2f\xfd\xa4" + (2**31 - 1).to_bytes(4, "little") + bytes(1000))
    done = subprocess.run(
        [sys.executable, "-m", "cache_engine", "evaluations", "--import", str(bomb)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29)),
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "declare 2,147,483,647 bytes, and 32 MiB may be read" in done.stderr


def test_clean_says_and_then_does(place: Path) -> None:
    for m in (1, 2, 3):
        document("evaluate", m, 64, 64, *CHIP, store=place)
    assert document("evaluations", "--delete", store=place)["victims"] == []
    would = document("evaluations", "--delete", "--max-entries", 2, store=place)
    assert (len(would["victims"]), would["pruned"]) == (1, None)
    did = document("evaluations", "--delete", "--max-entries", 2, "--yes", store=place)
    assert (did["victims"], did["pruned"]) == (would["victims"], 1)
    assert document("evaluations", store=place)["architectures"][0]["total_entries"] == 2
    assert run("evaluations", "--delete", "--days", 0, "--yes", store=place).stdout.endswith("Deleted 2 results.\n")
    acts = document("log", "--audit", store=place)["rows"]
    assert [(act["kind"], act["detail"]) for act in acts] == [
        ("prune", "2 results of SG2262"),
        ("prune", "1 result of SG2262"),
    ]
    assert all(act["by"] for act in acts)
    assert "1 result of SG2262" in run("log", "--audit", store=place).stdout


def test_reading_creates_no_store_and_an_empty_one_is_reported(place: Path, compiled_store: Path) -> None:
    assert run("evaluations", store=place).returncode == 2
    assert not place.exists()
    assert document("evaluations", store=compiled_store) == {"architectures": []}
    assert run("evaluations", "-", store=compiled_store).returncode == 2
    assert "no results of SG2262" in run("evaluations", *CHIP, store=compiled_store).stderr


def test_without_caching_it_is_searched_for_and_not_stored(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_CACHE_ENABLE_CACHING", "0")
    assert document(*SHAPE, *CHIP, store=place)["unkept"] == "caching is switched off"
    assert not place.exists()


def test_a_gpu_prediction_shows_the_roofline_too(place: Path) -> None:
    predicted = document("evaluate", 4096, 4096, 4096, "--chip", "h100", store=place)
    assert (predicted["chip"], predicted["calibrated_on"]) == ("H100", "H100")
    assert predicted["latency_us"] > predicted["roofline_us"]
    assert not place.exists(), "nothing is kept, so the two evaluators' results never mix"
    assert "calibrated on measurements of all measured GPUs" in run("evaluate", 8, 8, 8, "--chip", "L40S").stdout
    assert predicted["low_us"] < predicted["latency_us"] < predicted["high_us"]
    assert (
        document("evaluate", 4096, 4096, 4096, "--chip", "h100", "--dtype", "fp8", store=place)["latency_us"]
        < (predicted["latency_us"])
    )
    for extra in (("--no-search", "tile"), ("--dtype", "fp32")):
        assert run("evaluate", 8, 8, 8, "--chip", "H100", *extra).returncode == 2


def test_validate_prints_errors_and_those_of_the_roofline(tmp_path: Path) -> None:
    file = tmp_path / "some.csv"
    file.write_text("arch,M,N,K,latency_us\nH100,64,4096,4096,20\nh100_sxm,4096,4096,4096,200\n")
    done = run("calibrate", "--check", "all", file, "--json")
    lines = json.loads(done.stdout)["lines"]
    assert [(line["arch"], line["m_from"], line["m_to"], line["count"]) for line in lines] == [
        ("H100", 0, 0, 2), ("H100", 17, 64, 1), ("H100", 1025, 4096, 1),
    ]  # fmt: skip
    assert lines[0]["model"].keys() == {"mape", "median", "bias", "within_20"}
    assert "roofline MAPE" in run("calibrate", "--check", "all", file).stdout
    file.write_text("arch,M,N,K,latency_us\nH100,64,4096,4096,0\n")
    assert run("calibrate", "--check", "all", file).returncode == 2


def test_calibrate_says_before_and_after_and_saves_a_chip(place: Path, tmp_path: Path) -> None:
    """Of times that are a third longer than predicted."""
    rows = ["M,N,K,latency_us"]
    for n, k in ((512, 1024), (1024, 1024), (4096, 4096), (7168, 2048), (2048, 7168), (8192, 8192)):
        for m in (1, 16, 256, 4096):
            us = predict(EvaluationProblem(m, n, k), GPUS["L40S"]).latency_us * 4 / 3
            rows.append(f"{m},{n},{k},{us!r}")
    file, chip = tmp_path / "mine.csv", tmp_path / "mine.json"
    file.write_text("\n".join(rows) + "\n")
    found = document("calibrate", file, "--chip", "L40S", "--output", chip, store=place)
    assert (found["gpu"], found["name"], found["rows"], found["source"]) == ("L40S", "L40S calibrated", 24, "mine.csv")
    assert found["error_before"] == pytest.approx(0.25)
    assert found["error_after"] < 0.1
    assert (found["better"], found["file"]) == (True, str(chip))
    predicted = document("evaluate", 4096, 7168, 2048, "--chip", chip, store=place)
    assert (predicted["calibration"], predicted["calibrated_on"]) == (found["calibration"], "all")
    assert found["calibration"] in run("evaluate", 64, 64, 64, "--chip", chip).stdout
    again = run("calibrate", file, "--chip", "L40S", "--output", chip)
    assert again.returncode == 2
    assert "--force to replace it" in again.stderr
    whole, *_ = document("calibrate", "--check", "all", file, "--chip", chip, store=place)["lines"]
    assert (whole["arch"], whole["calibrated_on"]) == ("L40S calibrated", "mine.csv")
    text = run("calibrate", file, "--chip", "L40S").stdout
    assert "mean error 25.0%" in text
    assert "--output FILE saves it" in text
    few = tmp_path / "few.csv"
    few.write_text("\n".join(rows[:12]) + "\n")
    refused = run("calibrate", few, "--chip", "L40S")
    assert refused.returncode == 2
    assert "few.csv has 11 rows with 3 pairs" in refused.stderr
    file.write_text("\n".join([*rows[:5], "1,512,1024,0", *rows[5:]]) + "\n")
    refused = run("calibrate", file, "--chip", "L40S")
    assert refused.returncode == 2
    assert "line 6: latency_us is '0'" in refused.stderr
    assert "arch" in run("calibrate", file).stderr, "without --chip the column is needed"
