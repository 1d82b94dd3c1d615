"""``python -m benchmarks kernels``: all that surrounds the launching, which is in tests/gpu."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import msgspec
import pytest

from benchmarks import command as verb
from benchmarks import documents
from benchmarks.kernels import speed as kernel_speed
from benchmarks.kernels.speed import Kept, Measured, Report, Run, cases, file_name, load, save, summarise
from benchmarks.results import LeftOut
from cache_engine.cache.cache import Cache
from cache_engine.errors import UsageError
from cache_engine.gpu.probe import gpu
from cache_engine.model.documents import to_json
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import DType, GemmProblem
from tests.benchmarks.running import run
from tests.helpers import require_triton

DEVICE = DeviceFingerprint("A GPU-8 of 80GB", "sm_90", 4, 2**30, 2**20, 1_000_000, "13.0")
RUN = Run("python -m benchmarks kernels", "2026-11-21T00:00:00+00:00", DEVICE, "580.1", {"CuPy": "14.2.0"})


def measurement(operation: str = "o", *, ratio: float | None = 0.5, **changed: object) -> Measured:
    values: dict[str, object] = {
        "run": 0, "model": "DeepSeek-V3", "operation": operation, "m": 16, "n": 7168, "k": 16384, "batch": 1,
        "dtype": "bf16", "family": "tensor_core", "key": "ab" * 32, "compiler": "nvrtc 13.5",
        "config": "64x64x64_w2x2_s4", "median_us": 2.0, "p10_us": 1.0, "p90_us": 3.0, "repeats": 50,
        "reference": "cuBLAS 13.1.0", "reference_median_us": None if ratio is None else 2.0 * ratio, "ratio": ratio,
        "max_rel_error": 0.001, "verified": True, **changed,
    }  # fmt: skip
    return Measured(**values)  # type: ignore[arg-type]


@pytest.mark.skipif(not isinstance(gpu(), str), reason="a GPU is here")
def test_without_a_gpu_it_says_that_it_needs_one_and_touches_nothing(tmp_path: Path) -> None:
    done = run("kernels", "--output", str(tmp_path / "measured"), "--json", store=tmp_path / "store")
    assert done.returncode == 3
    assert "kernels needs an NVIDIA GPU, and no" in done.stderr
    assert json.loads(done.stdout)["error"]["kind"] == "GpuRequired"
    assert list(tmp_path.iterdir()) == []


def test_the_cases_are_every_shape_of_the_tables_with_every_m_for_every_family() -> None:
    chosen = cases()
    assert len(chosen) == (16 + 5 + 5) * 6 * 3
    assert {case.problem.m for case in chosen} == {1, 16, 64, 256, 1024, 4096}
    assert {case.family for case in chosen} == {"tensor_core", "hopper", "triton"}
    assert [case.problem.m for case in chosen] == sorted(case.problem.m for case in chosen)
    assert len({(kernel_speed._name(case)) for case in chosen}) == len(chosen)
    assert {case.problem.dtype for case in chosen} == {DType.BF16}


def test_saved_results_are_read_again_and_also_written_as_csv(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / file_name(DEVICE, DType.BF16)
    assert file.name == "kernels_a_gpu_8_of_80gb_bf16.json"
    assert load(file) == Kept(1, [], [])
    failed = measurement("q_b", ratio=None, median_us=None, verified=False, error="out of\nmemory, it said")
    kept = Kept(1, [RUN], [measurement(), failed, measurement("router", max_rel_error=float("nan"), verified=False)])
    save(file, kept)
    again = load(file)
    assert again.runs == [RUN]
    assert again.measurements[:2] == kept.measurements[:2]
    assert again.measurements[2].max_rel_error is None, "JSON has no NaN"
    with file.with_suffix(".csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert [(row["operation"], row["median_us"], row["device"]) for row in rows] == [
        ("o", "2.0", DEVICE.name), ("q_b", "", DEVICE.name), ("router", "2.0", DEVICE.name),
    ]  # fmt: skip
    assert rows[1]["error"] == "out of\nmemory, it said"
    assert {path.suffix for path in file.parent.iterdir()} == {".json", ".csv"}, "nothing temporary is left"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "holds no measurements"),
        ("[", "holds no measurements"),
        ('{"format":2,"runs":[],"measurements":[]}', "2"),
    ],
)
def test_another_file_is_refused_and_left_alone(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "kernels.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=f"{says}.*move the file"):
        load(file)
    assert file.read_text() == text


def test_timings_of_another_gpu_or_driver_do_not_count_as_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_speed, "driver_release", lambda: "580.1")
    other = msgspec.structs.replace(DEVICE, clock_khz=2_000_000)
    runs = [RUN, Run("", "", other, "580.1", {}), Run("", "", DEVICE, "590.1", {})]
    kept = Kept(1, runs, [measurement(str(number), run=number) for number in range(3)])
    done = kernel_speed._done(kept, DEVICE)
    assert done == {"DeepSeek-V3 0 16 × 7168 × 16384, batch 1, tensor_core": "ab" * 32}


def test_a_case_and_its_measurement_have_the_same_name(cache: Cache) -> None:
    case = cases()[7]
    made = kernel_speed._measured(0, case, "key", "no compiler", "no compiler")
    assert kernel_speed._same(made) == kernel_speed._name(case)
    assert (made.error, made.median_us, made.verified, made.key) == ("no compiler", None, False, "key")


def test_the_summary_is_the_median_ratio_of_the_correct_kernels() -> None:
    measured = [
        measurement("a", ratio=0.25), measurement("b", ratio=0.75), measurement("c", ratio=1.0),
        measurement("d", ratio=9.0, verified=False), measurement("e", ratio=None, error="no memory", verified=False),
        measurement("a", m=1, ratio=None), measurement("a", family="triton", ratio=2.0),
    ]  # fmt: skip
    found = [(one.family, one.m, one.count, one.median_ratio, one.verified) for one in summarise(measured)]
    assert found == [("tensor_core", 1, 1, None, 1), ("tensor_core", 16, 5, 0.75, 3), ("triton", 16, 1, 2.0, 1)]


def test_kernels_are_compiled_ahead_and_failures_are_reported(cache: Cache) -> None:
    """Really compiled, for a GPU that is not here."""
    few = [kernel_speed.Case("M", str(n), GemmProblem(16, n, 64, arch="sm_90"), "tensor_core") for n in (64, 128)]
    none = kernel_speed.Case("M", "none", GemmProblem(16, 64, 64, dtype=DType.FP64, arch="sm_90"), "tensor_core")
    (_, first), (_, second), (_, third) = kernel_speed._compiled(cache, [*few, none], None)
    assert not isinstance(first, str)
    assert not isinstance(second, str)
    assert first.tier == second.tier == "memory", "compiled before"
    assert isinstance(third, str)
    assert "does not compute fp64" in third
    assert list(kernel_speed._compiled(cache, few, 0.0)) == [], "time was up before it began"


def test_families_without_their_compiler_are_skipped_and_reported(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_triton()
    monkeypatch.setattr(kernel_speed, "FAMILIES", [*kernel_speed.FAMILIES, "unheard"])
    usable, (of_hopper, unknown) = kernel_speed._usable(cache)
    assert usable == ["tensor_core", "triton"]
    assert (of_hopper.name, "it needs the target sm_90a" in of_hopper.reason) == ("hopper", True)
    assert (unknown.name, "unknown family 'unheard'" in unknown.reason) == ("unheard", True)


def test_a_report_is_printed_for_people_and_programs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    several = [measurement(), measurement("b", verified=False), measurement("c", ratio=None, error="no\x1bmemory")]
    report = Report(tmp_path / "f.json", 3, 4, 5, [LeftOut("triton", "it is not installed")], several)
    verb.print_kernel_heading()
    for one in several:
        verb.print_measurement(one)
    verb.print_report(report, summarise(several))
    shown = capsys.readouterr().out
    assert "0.50  1.0e-03\n" in shown
    assert "1.0e-03 WRONG\n" in shown
    assert "no?memory" in shown, "an escape from a file never reaches the terminal"
    assert "triton is not measured: it is not installed" in shown
    assert "\n\n3 measured now, 4 before; 5 remain: the same command resumes." in shown
    document = json.loads(to_json(documents.kernel_benchmark(report, summarise(several))))
    assert document["summary"][0]["median_ratio"] == 0.5
    assert (document["file"], document["left"], len(document["measurements"])) == (str(tmp_path / "f.json"), 5, 3)
