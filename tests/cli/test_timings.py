"""``tune`` and ``timings`` on the command line, on a machine without a GPU.

Every timing here is invented: input for what lists and exports, not a measurement.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from cache_engine.batch.tuning import Candidate, Tuned
from cache_engine.cache.cache import open_cache
from cache_engine.cli import tune
from cache_engine.cli.main import commands
from cache_engine.gpu.probe import gpu
from cache_engine.kernels.select import predicted_cycles, ranking
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.outcome import Failure
from tests.cli.test_cli import document, run
from tests.helpers import INVENTED_GPU, invented_timing

SHAPE = ("16", "64", "96", "--dtype", "fp16", "--arch", "sm_90")
CONFIG = KernelConfig(64, 64, 32, 2, 2, 3)
without_a_gpu = pytest.mark.skipif(isinstance(gpu(), DeviceFingerprint), reason="is about machines without a GPU")


@pytest.fixture
def timed(compiled_store: Path) -> Path:
    """A store with invented timings: three of its first kernel, and one of a kernel that is gone, on a hostile GPU."""
    hostile = msgspec.structs.replace(INVENTED_GPU, name='=HYPERLINK("http://x")[red]')
    with open_cache(compiled_store, durability="fast") as cache:
        record = next(cache.records())
        problem = record.problem.on(record.arch)
        cache.timings.add(
            [
                invented_timing(problem, record.config, 3.0 + at, key=record.key, measured_at=at, tflops=1.5, extra=[1])
                for at in (1e9, 2e9, 3e9)
            ]
        )
        gone = GemmProblem(1, 64, 64, arch="sm_90")
        cache.timings.add([invented_timing(gone, CONFIG, 7.0, device=hostile, verified=False, measured_at=5e8)])
    return compiled_store


@without_a_gpu
def test_tune_without_a_gpu_says_that_it_needs_one(tmp_path: Path) -> None:
    done = run("tune", *SHAPE, store=tmp_path / "store")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "timing kernels needs an NVIDIA GPU" in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_dry_run_says_what_would_be_timed_and_what_is_compiled(compiled_store: Path) -> None:
    found = document("tune", "128", "256", "192", "--arch", "sm_90", "--top", "3", "--dry-run", store=compiled_store)
    assert (found["dry_run"], found["failed"], len(found["candidates"])) == (True, 0, 3)
    first, *rest = found["candidates"]
    assert (first["tier"], [one["tier"] for one in rest]) == ("disk", [None, None])
    assert first["key"] == found["chosen"]["key"]
    assert found["chosen"]["config_from"] == "cost model"
    for one in found["candidates"]:
        assert one["predicted_us"] == pytest.approx(one["predicted_cycles"] / found["clock_mhz"])
        assert "median_us" not in one
    text = run("tune", "128", "256", "192", "--arch", "sm_90", "--top", "3", "--dry-run", store=compiled_store).stdout
    assert "yes (disk)" in text
    assert (found["estimated_error"], found["estimated_seconds"] > 0) == (None, True), "four records are too few"
    assert "Would time 3 configs; compiling 2 takes about " in text
    assert ", predicted from 4 compiles in this store." in text
    assert "Predictions are the ranking of the cost model: cycles converted at 1,830 MHz, the clock of H100 SXM" in text
    assert len(document("ls", store=compiled_store)["rows"]) == 4, "nothing was compiled"


def test_a_report_says_how_the_cost_model_ranks_what_was_timed(tmp_path: Path) -> None:
    store, problem = tmp_path / "store", GemmProblem(128, 256, 192, arch="sm_90")
    ranked = [config for _, config in ranking(problem, "tensor_core")[:6]]
    with open_cache(store) as cache:
        assert document("tune", "--check", store=store) == {"devices": []}
        assert "no timings in this store" in run("tune", "--check", store=store).stdout
        times = [predicted_cycles(problem, "tensor_core", config) / 1000 for config in ranked]
        cache.timings.add([invented_timing(problem, config, us) for config, us in zip(ranked, times, strict=True)])
    (found,) = document("tune", "--check", store=store)["devices"]
    assert (found["device"], found["problems"], found["timings"]) == (INVENTED_GPU.name, 1, 6)
    assert found["rank_correlation"] == pytest.approx(1)
    assert found["lowest"] == pytest.approx(1)
    text = run("tune", "--check", store=store).stdout
    assert "Rank correlation of predicted and measured times (Spearman): 1.00, the median of 1 problem" in text


def test_a_problem_is_asked_for_without_a_report(tmp_path: Path) -> None:
    done = run("tune", "128", "256", store=tmp_path / "store")
    assert (done.returncode, done.stderr) == (2, "error: Missing argument 'K'.\n")


def test_a_dry_run_accepts_families_and_refuses_invalid_input(compiled_store: Path) -> None:
    options = ("--family", "simt", "--family", "tensor_core", "--top", "2", "--dry-run")
    found = document("tune", *SHAPE, *options, store=compiled_store)
    assert sorted(one["family"] for one in found["candidates"]) == ["simt", "simt", "tensor_core", "tensor_core"]
    done = run("tune", *SHAPE, "--family", "wmma", "--dry-run", store=compiled_store)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "unknown family 'wmma'" in done.stderr


def test_a_config_that_fails_is_counted_and_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: what times is replaced."""

    def timed(_: object, chosen: list[Candidate], *__: object) -> list[Tuned]:
        return [Tuned(one, None, Failure("ptxas ended") if number else None) for number, one in enumerate(chosen)]

    monkeypatch.setattr("cache_engine.gpu.probe.require_gpu", lambda _: None)
    monkeypatch.setattr(tune, "_timed", timed)
    done = CliRunner().invoke(commands, ["--store", str(tmp_path / "store"), "tune", *SHAPE, "--top", "3", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["failed"]) == (1, 2)


def test_timings_are_listed_newest_first_and_filtered(timed: Path) -> None:
    found = document("timings", store=timed)
    assert [row["measured_at"] for row in found["rows"]] == [3e9, 2e9, 1e9, 5e8]
    assert (found["total"], [device["count"] for device in found["devices"]]) == (4, [3, 1])
    first = found["rows"][0]
    assert (first["device"], first["device_fingerprint"]["driver"], first["extra"]) == ("Invented GPU", "13.0", [1])
    assert document("timings", "--device", "invented", store=timed)["total"] == 3
    assert document("timings", "--device", INVENTED_GPU.digest()[:6], store=timed)["total"] == 3
    assert document("timings", "--key", "abab", store=timed)["total"] == 1
    assert document("timings", "--device", "nobody's", store=timed)["rows"] == []
    assert run("timings", "--key", "x", store=timed).returncode == 2
    text = run("timings", store=timed)
    assert text.returncode == 0
    assert "WRONG" in text.stdout
    assert "[red]" in text.stdout, "text from a store is no markup"
    assert "No timing matches" in run("timings", "--device", "nobody's", store=timed).stdout


def test_show_prints_the_timings_of_a_kernel(timed: Path) -> None:
    key = document("timings", store=timed)["rows"][0]["key"]
    shown = document("show", key, store=timed)
    assert [row["median_us"] for row in shown["timings"]] == [3e9 + 3, 2e9 + 3, 1e9 + 3]
    assert "Timings, newest first:" in run("show", key, store=timed).stdout


def test_timings_are_exported_as_json_and_as_csv_that_no_spreadsheet_runs(timed: Path, tmp_path: Path) -> None:
    rows = document("timings", store=timed)["rows"]
    assert json.loads(run("timings", "-", store=timed).stdout) == rows
    for name in ("timings.json", "timings.csv"):
        assert document("timings", tmp_path / name, store=timed)["timings"] == 4
    assert json.loads((tmp_path / "timings.json").read_text()) == rows
    with (tmp_path / "timings.csv").open(newline="") as file:
        exported = list(csv.DictReader(file))
    assert [float(row["median_us"]) for row in exported] == [row["median_us"] for row in rows]
    assert exported[0]["problem.n"] == str(rows[0]["problem"]["n"])
    assert exported[0]["device_fingerprint.sms"] == "132"
    assert exported[-1]["device"].startswith("'=HYPERLINK")
    done = run("timings", tmp_path / "timings.csv", store=timed)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--force to replace it" in done.stderr
    assert run("timings", tmp_path / "timings.csv", "--force", store=timed).returncode == 0


def test_cleaning_everything_keeps_timings_and_reports_that(timed: Path) -> None:
    cleaned = document("clean", "--yes", "--all", store=timed)
    assert (cleaned["kept_entries"], cleaned["kept_timings"]) == (0, 4)
    assert document("timings", store=timed)["total"] == 4
    assert "Timings are kept: 4 timings." in run("clean", "--yes", "--all", store=timed).stdout
    assert document("verify", store=timed)["findings"] == []


def test_timings_choose_the_config_and_compile_and_explain_report_it(
    compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = document("tune", *SHAPE, "--top", "2", "--dry-run", store=compiled_store)["candidates"]
    problem = GemmProblem(16, 64, 96, dtype="fp16", arch="sm_90")
    with open_cache(compiled_store, durability="fast") as cache:
        for one, median_us in zip(planned, (5.0, 4.0), strict=True):
            cache.timings.add([invented_timing(problem, KernelConfig(**one["config"]), median_us)])
    expected = "measured on Invented GPU: 4 µs at m = 16"
    assert document("explain", *SHAPE, store=compiled_store)["config_from"] == "cost model"
    monkeypatch.setenv("GEMM_CACHE_TIMINGS_OF", "Invented GPU")
    explained = document("explain", *SHAPE, store=compiled_store)
    assert (explained["key"], explained["config_from"]) == (planned[1]["key"], expected)
    assert expected in run("explain", *SHAPE, store=compiled_store).stdout
    compiled = document("compile", *SHAPE, store=compiled_store)
    assert (compiled["key"], compiled["config_from"]) == (planned[1]["key"], expected)
    assert document("show", compiled["key"], store=compiled_store)["config_from"] == expected
    monkeypatch.setenv("GEMM_CACHE_TIMINGS_OF", "none")
    assert document("explain", *SHAPE, store=compiled_store)["config_from"] == "cost model"
