"""Compile."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from streamlit.testing.v1 import AppTest

from app import context
from cache_engine.device.probe import local_arch
from cache_engine.jobs import DONE, RUNNING, Job
from tests.helpers import make_store
from tests.pages.opening import Open, sound


def _job_of(app: AppTest) -> str:
    named = app.query_params["job"]
    return named if isinstance(named, str) else named[0]


def _wait_for_job(app: AppTest) -> AppTest:
    deadline = time.monotonic() + 60
    while context.jobs().load(_job_of(app)).state == RUNNING and time.monotonic() < deadline:
        time.sleep(0.05)
    return app.run()


def _submit(app: AppTest) -> AppTest:
    next(button for button in app.button if button.label == "Get kernel").click()
    return app.run()


def test_compile_misses_then_hits(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "compile"))
    app.number_input(key="n").set_value(96)
    app.number_input(key="k").set_value(64)
    app.selectbox(key="arch").set_value("sm_80")
    _wait_for_job(sound(_submit(app)))
    assert app.success[0].value.startswith("Miss: compiled in")
    assert {metric.label for metric in app.metric} == {"Registers", "Spilled", "Shared memory", "Code"}
    _wait_for_job(_submit(sound(app)))
    assert app.success[0].value.startswith("Hit (disk): found in")


def test_a_link_to_a_job_shows_what_was_asked_and_found(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "compile"))
    asked = {"m": 33, "n": 96, "k": 64, "batch": 3}
    for name, value in asked.items():
        app.number_input(key=name).set_value(value)
    chosen = {"dtype": "fp16", "out_dtype": "fp32", "layout": "tn", "arch": "sm_80"}
    for name, text in chosen.items():
        app.selectbox(key=name).set_value(text)
    _wait_for_job(sound(_submit(app)))
    linked = sound(open_page(compiled_store, "compile", job=_job_of(app)))
    assert {name: linked.number_input(key=name).value for name in asked} == asked
    assert {name: linked.selectbox(key=name).value for name in chosen} == chosen
    (record,) = [record for record in make_store(compiled_store).records() if record.problem.m == 33]
    assert f"{record.name}\n{record.key}" in [code.value for code in linked.code]


@pytest.mark.parametrize("size", [str(10**12), "-1", "0", "x"])
@pytest.mark.parametrize("result", ["", "[]", '{"key": 1}', '{"tier": [], "size_bytes": "<b>"}'])
def test_a_job_file_that_says_nonsense_breaks_no_page(
    open_page: Open, compiled_store: Path, size: str, result: str
) -> None:
    job = Job(id="1f-2e", command=["compile", size, "8", "8", "--arch", "../.."], state=DONE, result=result)
    (compiled_store / "jobs" / "1f-2e.json").write_bytes(msgspec.json.encode(job))
    app = open_page(compiled_store, "compile", job="1f-2e")
    assert not app.exception
    assert [error.value for error in app.error] == ["The result of this job cannot be read."]
    assert app.number_input(key="m").value == 4096


def test_compile_says_that_timing_needs_a_gpu(open_page: Open, compiled_store: Path) -> None:
    if local_arch() is not None:
        pytest.skip("this machine has a GPU")
    app = sound(open_page(compiled_store, "compile"))
    assert "Timing needs an NVIDIA GPU, and no NVIDIA driver is installed" in app.info[0].value


def test_compile_refuses_what_cannot_be_right_and_starts_nothing(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "compile")
    app.selectbox(key="arch").set_value("sm_75")
    _submit(app)
    assert [error.value for error in app.error] == ["This cannot be compiled."]
    assert "sm_75 computes: fp16, fp32, fp64, int8" in app.text[0].value
    assert "job" not in app.query_params


@pytest.mark.parametrize("job", ["nonsense", "../../store", "123-abc"])
def test_a_link_to_no_job_is_told_plainly(open_page: Open, compiled_store: Path, job: str) -> None:
    app = open_page(compiled_store, "compile", job=job)
    assert not app.exception
    assert [error.value for error in app.error] == ["This job cannot be shown."]
