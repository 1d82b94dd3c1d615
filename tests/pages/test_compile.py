"""Compile."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from streamlit.testing.v1 import AppTest

from app import context
from cache_engine.batch.jobs import CANCELED, DIED, DONE, FAILED, RUNNING, Job, JobProgress, JobStage, _process_start
from cache_engine.compilers import COMPILERS
from cache_engine.errors import CompilerMissing
from cache_engine.gpu.probe import local_arch
from cache_engine.settings.extras import how_to_install
from tests.cache.test_debug_dump import ASKED, broken
from tests.helpers import make_store
from tests.pages.opening import Open, frames, sound
from tests.pages.test_all_pages import HOSTILE
from tests.pages.test_compiled import BESIDE, KERNEL, OLD_JOB
from tests.remote.waiting import until


def _job_of(app: AppTest) -> str:
    named = app.query_params["job"]
    return named if isinstance(named, str) else named[0]


def _wait_for_job(app: AppTest) -> AppTest:
    until(lambda: context.jobs().load(_job_of(app)).state != RUNNING)
    return app.run()


def _submit(app: AppTest) -> AppTest:
    next(button for button in app.button if button.label == "Compile").click()
    return app.run()


def _put(store: Path, job: Job) -> str:
    """A job's file as another process would have left it."""
    (store / "jobs" / f"{job.id}.json").write_bytes(msgspec.json.encode(job))
    return job.id


@pytest.fixture
def running(compiled_store: Path) -> Iterator[Job]:
    """A job of another dashboard over a table, half done; its process sleeps."""
    job = Job(id=f"{time.time_ns():x}-1", command=["warm", "Qwen3-8B"], started_at=time.time() - 10)
    job.asked = {"arch": ["sm_80"]}
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)", f"{job.id}.json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        job.pid, job.process_start = process.pid, _process_start(process.pid)
        job.progress = JobProgress(total=20, compiled=6, found=3, failed=1)
        _put(compiled_store, job)
        yield job
        process.kill()


def test_compile_misses_then_hits_and_shows_why(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "compile"))
    app.number_input(key="s_n").set_value(96)
    app.number_input(key="s_k").set_value(64)
    app.selectbox(key="s_arch").set_value("sm_80")
    sound(app.run())
    assert any(text.value.endswith("by nvrtc: not cached") for text in app.text)
    next(button for button in app.button if button.label == "Explain the miss").click().run()
    assert any("Closest of 4 cached kernels: gemm_" in text.value for text in sound(app).text), "before it is compiled"
    _wait_for_job(sound(_submit(app)))
    assert app.success[0].value.startswith("Miss. Compiled in")
    assert {"Registers", "Spills", "Shared memory", "Cubin size"} <= {metric.label for metric in app.metric}
    (why,) = [text.value for text in app.text if "Closest of 4 cached kernels: gemm_" in text.value]
    assert "k: 192 in the nearest kernel, 64 requested" in why
    assert [one.proto.page for one in app.get("page_link") if one.proto.label == "Open kernel"] == ["kernel"]
    _wait_for_job(_submit(sound(app)))
    assert app.success[0].value.startswith("Hit (disk): loaded in")
    assert any(text.value.endswith("by nvrtc: cached") for text in app.text)


def test_a_link_to_a_job_shows_its_request_and_result(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "compile"))
    asked = {"m": 33, "n": 96, "k": 64, "batch": 3}
    for name, value in asked.items():
        app.number_input(key=f"s_{name}").set_value(value)
    chosen = {"dtype": "fp16", "out_dtype": "fp32", "layout": "tn", "arch": "sm_80", "family": "tensor_core"}
    chosen |= {"specialisation": "bucketed", "opt_level": "2"}
    for name, text in chosen.items():
        app.selectbox(key=f"s_{name}").set_value(text)
    app.multiselect(key="s_epilogue").set_value(["alpha", "relu"])
    app.toggle(key="s_force").set_value(True)
    _wait_for_job(sound(_submit(app)))
    linked = sound(open_page(compiled_store, "compile", job=_job_of(app)))
    assert {name: linked.number_input(key=f"s_{name}").value for name in asked} == asked
    assert {name: linked.selectbox(key=f"s_{name}").value for name in chosen} == chosen
    assert (linked.multiselect(key="s_epilogue").value, linked.toggle(key="s_force").value) == (["alpha", "relu"], True)
    (record,) = [record for record in make_store(compiled_store).records() if record.problem.m == 33]
    assert record.problem.epilogue == "alpha+relu"
    assert (record.problem.specialisation, record.problem.opt_level) == ("bucketed", 2)
    assert f"{record.name}\n{record.key}" in [code.value for code in linked.code]


def test_the_address_alone_fills_in_the_form(open_page: Open, compiled_store: Path) -> None:
    """Values that are invalid there are ignored."""
    app = sound(
        open_page(compiled_store, "compile", s_m="33", s_k="many", s_layout="tn", s_arch="<b>", s_compiler="nvcc")
    )
    assert [app.number_input(key=f"s_{name}").value for name in ("m", "n", "k")] == [33, 7168, 2048]
    assert [app.selectbox(key=f"s_{name}").value for name in ("layout", "compiler")] == ["tn", "nvcc"]


def test_a_config_given_by_hand_is_used_and_an_impossible_one_says_why(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "compile"))
    config = "block_m=64,block_n=64,block_k=32,warps_m=2,warps_n=2,stages={}"
    app.text_input(key="s_config").set_value(config.format(90))
    app.run()
    assert [error.value for error in app.error] == ["Invalid request."]
    assert "bytes of shared memory per block" in app.text[0].value
    app.text_input(key="s_config").set_value(config.format(3))
    assert "64x64x32_w2x2_s3, by nvrtc" in sound(app.run()).text[0].value


def test_a_missing_compiler_is_reported_with_how_to_install_it(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise CompilerMissing(f"nvcc is not installed; run: {how_to_install('nvcc')}")

    monkeypatch.setattr(COMPILERS["nvcc"], "fingerprint", missing)
    app = sound(open_page(compiled_store, "compile"))
    assert "Unavailable compilers: nvcc" in [expander.label for expander in app.expander]
    app.selectbox(key="s_compiler").set_value("nvcc")
    app.run()
    assert [error.value for error in app.error] == ["Compiler not installed."]
    assert how_to_install("nvcc") in app.text[0].value


def test_a_failed_compile_shows_log_source_flags_and_command(open_page: Open, compiled_store: Path) -> None:
    job = _put(compiled_store, Job(id=f"{time.time_ns():x}-2", command=list(ASKED), started_at=time.time()))
    broken("--store", compiled_store, *ASKED, "--report-to", compiled_store / "jobs" / f"{job}.json")
    app = open_page(compiled_store, "compile", job=job)
    assert not app.exception
    assert [error.value for error in app.error] == ["Compilation failed."]
    shown = "\n".join(code.value for code in app.code)
    assert "error: " in shown
    assert "| broken;" in shown
    assert "-arch=sm_90 --std=c++17" in shown
    command = f"gemm-cache --store {compiled_store} compile 64 48 80 "
    assert shown.count(command) == 2, "that of the job, and the one that states every choice"
    assert any(caption.value.startswith("Error: this request failed.") for caption in app.caption)


def test_a_table_is_compiled_as_a_job(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "compile", what="Whole model"))
    app.selectbox(key="s_model").set_value("Qwen3-0.6B")
    app.selectbox(key="s_dtype").set_value("fp32")
    app.selectbox(key="s_layout").set_value("nn")
    app.multiselect(key="s_targets").set_value(["sm_75"])
    app.text_input(key="s_tokens").set_value(" 1, 2")
    sound(app.run())
    next(button for button in app.button if button.label == "Compile missing kernels").click()
    _wait_for_job(sound(app.run()))
    (done,) = [found.value for found in app.success]
    assert "compiled, 0 cached, 0 failed: " in done
    made = [record for record in make_store(compiled_store).records() if record.problem.layout == "nn"]
    assert {(record.arch, record.problem.dtype) for record in made} == {("sm_75", "fp32")}
    linked = sound(open_page(compiled_store, "compile", job=_job_of(app)))
    assert linked.selectbox(key="s_model").value == "Qwen3-0.6B"
    assert linked.multiselect(key="s_targets").value == ["sm_75"]
    assert linked.text_input(key="s_tokens").value == "1,2"


def test_a_table_lists_problems_without_a_kernel_at_the_end(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "compile", what="Whole model", s_model="Qwen3-0.6B", s_targets="sm_75")
    assert "unsupported shapes." in sound(app).warning[0].value
    app.text_input(key="s_tokens").set_value("16")
    app.run()
    next(button for button in app.button if button.label == "Compile missing kernels").click()
    _wait_for_job(sound(app.run()))
    assert "0 kernels compiled, 0 cached, 5 failed" in app.warning[-1].value
    causes = next(frame for frame in frames(app) if "Cause" in frame.columns)
    assert all("bf16 needs the tensor_core family" in cause for cause in causes["Cause"])


def test_a_table_of_too_many_problems_is_refused(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "compile", what="Whole model", s_model="DeepSeek-V3")
    targets = app.multiselect(key="s_targets")
    targets.set_value(targets.options)
    app.run()
    assert [error.value for error in app.error] == ["Invalid request."]
    assert "choices of a config, and the limit is 100,000 at a time" in app.text[0].value


@pytest.mark.parametrize("tokens", ["", "16,many", "0", "-1", "1_000", "9" * 50, "²"])
def test_numbers_of_tokens_that_are_none_are_refused(open_page: Open, compiled_store: Path, tokens: str) -> None:
    app = open_page(compiled_store, "compile", what="Whole model")
    app.text_input(key="s_tokens").set_value(tokens)
    app.run()
    assert not app.exception
    assert [error.value for error in app.error] == ["Invalid request."]


def test_a_running_job_of_another_dashboard_is_followed_and_canceled(
    open_page: Open, compiled_store: Path, running: Job
) -> None:
    app = sound(open_page(compiled_store, "compile", job=running.id))
    assert "6 kernels compiled, 3 cached, 1 failed so far." in [text.value for text in app.text]
    assert app.multiselect(key="s_targets").value == ["sm_80"]
    next(button for button in app.button if button.label == "Cancel").click()
    app.run()
    until(lambda: context.jobs().load(running.id).state != RUNNING)
    assert sound(app.run()).warning[0].value == "This job was canceled."


def test_a_job_too_many_is_refused_and_no_error_page(open_page: Open, compiled_store: Path, running: Job) -> None:
    app = open_page(compiled_store, "compile", what="Whole model")
    next(button for button in app.button if button.label == "Compile missing kernels").click()
    app.run()
    assert not app.exception
    assert [error.value for error in app.error] == ["Could not start the job."]
    assert any("wait for that job to end, or cancel it" in text.value for text in app.text)


def test_a_dead_job_is_shown_as_died(open_page: Open, compiled_store: Path) -> None:
    job = _put(compiled_store, Job(id="1f-2e", command=["compile", "8", "8", "8"], pid=1, process_start="0"))
    (compiled_store / "jobs" / "1f-2e.log").write_text("Killed <b>")
    app = open_page(compiled_store, "compile", job=job)
    assert [error.value for error in app.error] == ["The job process died unexpectedly."]
    assert any("Killed <b>" in text.value for text in app.text)


def test_a_job_of_another_kind_shows_its_result(open_page: Open, compiled_store: Path) -> None:
    job = _put(compiled_store, Job(id="1f-2e", command=["verify"], state=DONE, result='{"checked": 4}'))
    app = sound(open_page(compiled_store, "compile", job=job))
    assert '{"checked": 4}' in [code.value for code in app.code]


def test_jobs_of_all_processes_are_listed(open_page: Open, compiled_store: Path, running: Job) -> None:
    _put(compiled_store, Job(id="1f-2e", command=["verify"], state=DONE, started_at=1e9, ended_at=1e9 + 2))
    (compiled_store / "jobs" / "1f-3.json").write_text("{")
    app = sound(open_page(compiled_store, "compile"))
    jobs = next(frame for frame in frames(app) if "Command" in frame.columns)
    assert list(jobs["State"]) == ["▶ running", "✓ done", "? unreadable"]
    assert jobs["Command →"].iloc[0] == f"/compile?job={running.id}"
    assert list(jobs["Duration"])[1:] == ["2.0 s", "–"]


def test_a_running_job_is_canceled_from_the_list(
    open_page: Open, compiled_store: Path, running: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second press of the same button, as of a double click, does not kill."""
    app = sound(open_page(compiled_store, "compile"))
    progress = next(frame for frame in frames(app) if "Progress" in frame.columns)["Progress"][0]
    assert progress.startswith("10 of 20 kernels; about ")
    (button,) = [button for button in app.button if button.label == "Cancel"]
    with monkeypatch.context() as patched:
        patched.setattr("cache_engine.batch.jobs.os.kill", lambda *_: None)  # the job finishes a kernel
        sound(button.click().run())
        (kill,) = [button for button in app.button if button.label == "Kill now"]
        assert kill.key != button.key
        assert next(frame for frame in frames(app) if "State" in frame.columns)["State"][0] == "▶ canceling"
    context.jobs().cancel(running.id)
    until(lambda: context.jobs().load(running.id).state != RUNNING)
    assert "■ canceled" in [state for frame in frames(sound(app.run())) for state in frame.get("State", [])]


def test_a_job_of_an_older_version_is_shown(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "compile", job=_put(compiled_store, OLD_JOB)))
    assert app.success[0].value == "Miss. Compiled in 256 ms."
    assert next(metric.value for metric in app.metric if metric.label == "Registers") == "142"


@pytest.mark.parametrize("verb", ["compile", "warm"])
@pytest.mark.parametrize("result", ["", "[]", '{"key": 1}', '{"tier": [], "size_bytes": "<b>"}', "[" * 5000, "1e999"])
def test_a_result_that_says_nonsense_breaks_no_page(
    open_page: Open, compiled_store: Path, verb: str, result: str
) -> None:
    job = Job(id="1f-2e", command=[verb, "8", "8", "8"], state=DONE, result=result)
    app = open_page(compiled_store, "compile", job=_put(compiled_store, job))
    assert not app.exception
    assert [error.value for error in app.error] == ["Unreadable job result."]


@pytest.mark.parametrize("size", [10**12, -1, 0, "x"])
def test_a_job_with_options_that_the_form_lacks_fills_in_the_others(
    open_page: Open, compiled_store: Path, size: int | str
) -> None:
    job = Job(id="1f-2e", command=["compile"], state=DONE, asked={"m": size, "n": 64, "arch": "../.."})
    app = open_page(compiled_store, "compile", job=_put(compiled_store, job))
    assert not app.exception
    assert (app.number_input(key="s_m").value, app.number_input(key="s_n").value) == (4096, 64)


@pytest.mark.parametrize(
    ("state", "text"),
    [*((DONE, text) for text in HOSTILE), *((state, HOSTILE[0]) for state in (FAILED, DIED, CANCELED))],
)
def test_hostile_text_in_a_job_is_only_ever_text(open_page: Open, compiled_store: Path, state: str, text: str) -> None:
    job = Job(
        id="1f-2e", command=["time", text], state=state, error=text, level=text, result=json.dumps(_document(text)),
        stages=[JobStage(text, 1.0)], told={"log": text, "excerpt": text, "flags": text, "command": text, text: text},
    )  # fmt: skip
    app = open_page(compiled_store, "compile", job=_put(compiled_store, job))
    assert not app.exception
    shown = (app.markdown, app.caption, app.title, app.header, app.info, app.warning, app.success, app.error)
    for markdown in (one for kind in shown for one in kind):
        assert text not in markdown.value
    for metric in app.metric:
        assert text not in (metric.label, metric.value)


def _document(text: str) -> dict[str, object]:
    """What a ``time`` job would print, invented: hostile in every field that is text."""
    difference = {"component": text, "there": text, "here": text, "follows": False, "text": text}
    why = {"compared": 1, "notes": [text], "nearest": {"key": text, "name": text, "differences": [difference]}}
    kernel = {**KERNEL, "tier": "compiled", "name": text, "key": text, "unpublished": text, "warnings": [text]}
    about = {"device": text, "reference": text, "verified": False}
    return {**BESIDE, **about, "kernel": kernel, "why": {**KERNEL["why"], **why}}


@pytest.mark.parametrize("data", [b"[" * 100_000, b"{" + b" " * (9 << 20) + b"}", b"\xff", b"null"])
def test_an_invalid_job_file_is_reported_and_listed(open_page: Open, compiled_store: Path, data: bytes) -> None:
    (compiled_store / "jobs" / "1f-2e.json").write_bytes(data)
    app = open_page(compiled_store, "compile", job="1f-2e")
    assert not app.exception
    assert [error.value for error in app.error] == ["Job not found."]
    assert "? unreadable" in [state for frame in frames(app) for state in frame.get("State", [])]


def test_compile_says_that_timing_needs_a_gpu(open_page: Open, compiled_store: Path) -> None:
    if local_arch() is not None:
        pytest.skip("this machine has a GPU")
    app = sound(open_page(compiled_store, "compile"))
    assert "here (no NVIDIA driver is installed), so the kernel is compiled but not run or timed" in app.info[0].value


def test_compile_refuses_invalid_input_and_starts_no_job(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "compile")
    app.selectbox(key="s_arch").set_value("sm_75")
    _submit(app)
    assert [error.value for error in app.error] == ["Invalid request."]
    assert "sm_75 computes: fp16, fp32, fp64, int8" in app.text[0].value
    assert "job" not in app.query_params


@pytest.mark.parametrize("job", ["nonsense", "../../store", "123-abc"])
def test_a_link_to_an_unknown_job_is_reported(open_page: Open, compiled_store: Path, job: str) -> None:
    app = open_page(compiled_store, "compile", job=job)
    assert not app.exception
    assert [error.value for error in app.error] == ["Job not found."]
