"""What else the command line does: tuning, shapes of one's own, a debug dump, all timings."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.presenters.downloads import dump_file
from app.presenters.jobs import progress_text
from cache_engine.batch.jobs import DONE, Job, JobProgress
from cache_engine.batch.results import CandidateRow, Chosen, Tuning
from cache_engine.cache.cache import open_cache
from cache_engine.compilers.nvrtc import Nvrtc
from cache_engine.errors import CompileError
from cache_engine.gpu.probe import gpu
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.helpers import INVENTED_GPU, invented_timing, make_store
from tests.pages.opening import Open, frames, sound
from tests.pages.test_compile import _job_of, _put, _wait_for_job

CONFIG = KernelConfig(64, 64, 32, 2, 2, 3)
without_a_gpu = pytest.mark.skipif(isinstance(gpu(), DeviceFingerprint), reason="is about machines without a GPU")


@without_a_gpu
def test_the_configs_that_would_be_tuned_are_listed_and_a_gpu_is_asked_for(
    open_page: Open, compiled_store: Path
) -> None:
    app = sound(open_page(compiled_store, "compile", what="Tune", s_m="128", s_n="256", s_k="192", s_top="3"))
    listed = frames(app)[0]
    assert list(listed["Cached"]) == [True, False, False]
    assert listed["Predicted ÷ best"].iloc[0] == 1.0
    assert listed["Predicted ÷ best"].is_monotonic_increasing
    assert next(button for button in app.button if button.label == "Tune").disabled
    assert "Tuning needs a GPU for sm_90, and there is none here" in app.info[0].value
    command = f"gemm-cache --store {compiled_store} tune 128 256 192 --arch sm_90 --top 3"
    assert command in [code.value for code in app.code]


def _tuning() -> Tuning:
    """Invented: input for a page that shows results, no measurement."""
    row: dict[str, Any] = {
        "compiler": "nvrtc",
        "family": "simt",
        "config": CONFIG,
        "tier": None,
        "predicted_cycles": 1e4,
    }
    return Tuning(
        dry_run=False,
        problem=GemmProblem(16, 64, 96, arch="sm_90"),
        device="<b>GPU</b>",
        clock_mhz=1e3,
        candidates=[
            CandidateRow(**row, key="b", config_text="slow", predicted_us=10.0, median_us=30.0, trouble=""),
            CandidateRow(**row, key="a", config_text="none", predicted_us=11.0, median_us=None, trouble="it fails"),
            CandidateRow(**row, key="c&d", config_text="fast", predicted_us=12.0, median_us=20.0, trouble=""),
        ],
        chosen=Chosen(
            key="c", family="simt", compiler="nvrtc", config=CONFIG, config_text="fast", config_from="measured"
        ),
        failed=1,
        seconds=2.0,
    )


def test_the_result_of_tuning_is_listed_fastest_first(open_page: Open, compiled_store: Path) -> None:
    result = msgspec.json.encode(_tuning()).decode()
    job = Job(id="1f-2e", command=["tune", "16", "64", "96"], asked={"m": 16, "top": 3}, state=DONE, result=result)
    app = sound(open_page(compiled_store, "compile", job=_put(compiled_store, job)))
    assert app.success[0].value == "2 configs timed on <b>GPU</b> in 2.0 s. Now used: simt fast (measured)."
    assert app.warning[0].value == "1 config failed."
    rows = next(frame for frame in frames(app) if "Result" in frame.columns)
    assert list(rows["Config"]) == ["fast", "slow", "none"]
    assert list(rows["Result"]) == ["correct", "correct", "it fails"]
    assert rows["Config →"].iloc[0] == "/kernel?key=c%26d"
    assert (app.number_input(key="s_m").value, app.number_input(key="s_top").value) == (16, 3)


def test_tuning_counts_steps() -> None:
    """Each config is compiled, then timed."""
    job = Job(id="1f-2e", command=["tune", "16", "64", "96"], progress=JobProgress(16, 2))
    assert progress_text(job, 0.0) == "2 of 16 steps"


def test_shapes_of_ones_own_are_compiled_as_a_job(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "compile", what="Whole model", s_model="CSV file", s_dtype="fp32"))
    assert "Upload a CSV file" in app.info[0].value
    app.file_uploader(key="table-file").set_value(("own.csv", b"n,k\n64,0\n", "text/csv"))
    app.run()
    assert [error.value for error in app.error] == ["Unreadable table."]
    assert app.text[0].value.startswith("own.csv, line 2: k is '0'")
    app.file_uploader(key="table-file").set_value(("own.csv", b"n,k,m\n96,64,8\n", "text/csv"))
    sound(app.run())
    next(button for button in app.button if button.label == "Compile missing kernels").click()
    _wait_for_job(sound(app.run()))
    assert "1 kernel compiled, 0 cached, 0 failed: 1 kernel for 1 problem" in app.success[0].value
    assert 96 in [record.problem.n for record in make_store(compiled_store).records()]
    assert json.loads((compiled_store / "jobs" / f"{_job_of(app)}.json").read_text())["command"][1] == "/dev/stdin"


def test_a_debug_dump_is_made_without_a_change_of_the_store(
    compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMM_CACHE_DIR", str(compiled_store))
    with open_cache() as cache:
        selection = cache.select(GemmProblem(8, 96, 64, dtype="fp32", arch="sm_90"))
    with zipfile.ZipFile(io.BytesIO(dump_file(selection))) as dump:
        assert {"kernel.cu", "kernel.ptx", "kernel.cubin", "environment.json", "reproduce.py"} <= set(dump.namelist())
        assert json.loads(dump.read("config.json"))["key"] == selection.key
    assert selection.key not in list(make_store(compiled_store).keys())

    def refuse(*_: object) -> None:
        raise CompileError("it was refused", log="why", source="", flags=())

    monkeypatch.setattr(Nvrtc, "compile", refuse)
    with zipfile.ZipFile(io.BytesIO(dump_file(selection))) as dump:
        assert dump.read("compile.log") == b"why"


def test_all_timings_are_listed_and_downloaded_once_they_are_opened(open_page: Open, compiled_store: Path) -> None:
    device = msgspec.structs.replace(INVENTED_GPU, name="=1+1")
    with open_cache(compiled_store, durability="fast") as cache:
        gone = GemmProblem(1, 64, 64, arch="sm_90")
        cache.timings.add([invented_timing(gone, CONFIG, 7.0, device=device, verified=False)])
    app = sound(open_page(compiled_store, "architectures"))
    assert "Median, µs" not in [name for frame in frames(app) for name in frame.columns]
    app = sound(open_page(compiled_store, "architectures", all_timings="true"))
    rows = next(frame for frame in frames(app) if "Median, µs" in frame.columns)
    assert rows.iloc[0].to_dict() | {"Measured": None} == {
        "Kernel": "ab" * 6, "Kernel →": f"kernel?key={'ab' * 32}",
        "Device": "=1+1", "m × n × k": "1 × 64 × 64", "Batch": 1,
        "Dtype": "bf16", "Target": "sm_90", "Family": "tensor_core", "Config": str(CONFIG), "Median, µs": 7.0,
        "TFLOP/s": "–", "Result": "WRONG RESULT", "Measured": None,
    }  # fmt: skip
