"""Jobs in words, as bars, and as a list."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import msgspec
import pytest

from app.presenters.columns import rows_of
from app.presenters.forms import (
    FieldKind,
    choice_of,
    command_of,
    problem_of,
    shape_form,
    shown_of,
    table_form,
    tune_form,
)
from app.presenters.jobs import (
    STAGE_COLUMNS,
    ended_badly,
    job_columns,
    progress_share,
    progress_text,
    stage_times,
    took_ms,
)
from cache_engine.batch.jobs import CANCELED, DIED, DONE, FAILED, RUNNING, Job, JobProgress, JobStage, LostJob
from cache_engine.cli.main import commands
from cache_engine.cli.support import asked_choice, asked_problem
from cache_engine.model.job import decode_job

FORM, TABLE = shape_form("sm_90"), table_form("sm_90")


def _job(**fields: Any) -> Job:
    return Job(**{"id": "1f-2e", "command": ["warm", "Qwen3-8B"], "started_at": 1000.0, **fields})


def _stored(job: Job) -> Job:
    """The job as its file gives it back."""
    return decode_job(msgspec.json.encode(job))


def test_each_stage_has_its_time() -> None:
    """One entered twice adds up; the one under way has no length yet."""
    stages = [JobStage("load", 1.0), JobStage("select", 2.0), JobStage("load", 3.0), JobStage("<b>")]
    assert rows_of(stage_times(stages).items(), STAGE_COLUMNS, UTC) == [
        {"Stage": "select config", "Time": 2.0},
        {"Stage": "look up", "Time": 4.0},
        {"Stage": "<b>", "Time": None},
    ]


def test_stages_without_end_are_cut_off() -> None:
    times = stage_times([JobStage(f"{number}" * 500, 1.0) for number in range(5000)])
    assert len(times) < 50
    assert max(map(len, times)) < 200


def test_the_time_left_is_estimated_only_once_there_is_something_to_go_by() -> None:
    def told(**progress: int) -> str:
        return progress_text(_job(progress=JobProgress(**progress)), 1030.0)

    assert progress_text(_job(), 1030.0) == "Selecting configs…"
    assert told(total=20, compiled=2) == "2 of 20 kernels"
    assert told(total=20, compiled=5, found=4, failed=1) == "10 of 20 kernels; about 30.0 s left"
    assert told(total=20, compiled=20) == "20 of 20 kernels"
    assert progress_text(_job(progress=JobProgress(total=9, found=3), state=CANCELED), 2e9) == "3 of 9 kernels"


@pytest.mark.parametrize(
    ("progress", "share"),
    [(None, 0.0), (JobProgress(), 0.0), (JobProgress(4, 1, 1), 0.5), (JobProgress(1, 9), 1.0)],
)
def test_a_share_is_never_beyond_the_whole(progress: JobProgress | None, share: float) -> None:
    assert progress_share(_job(progress=progress)) == share


def test_a_job_list_shows_state_command_and_duration() -> None:
    jobs: list[Job | LostJob] = [
        _job(pid=7),
        _job(cancel_asked=True),
        *(_job(state=state, ended_at=1002.0) for state in (DONE, FAILED, DIED, CANCELED)),
        _job(state=DIED),
        LostJob("2-a", "the file of job 2-a cannot be read: " + "x" * 1000),
    ]
    table = rows_of(jobs, job_columns(1005.0), UTC)
    assert [row["State"] for row in table] == [
        "▶ running", "▶ canceling", "✓ done", "✗ failed", "✗ died", "■ canceled", "✗ died", "? unreadable",
    ]  # fmt: skip
    assert [row["Duration"] for row in table] == ["5.0 s", "5.0 s", *["2.0 s"] * 4, "–", "–"]
    (command,) = [column for column in job_columns(1005.0) if column.name == "Command"]
    assert (command.value(jobs[0], UTC), table[0]["Command"]) == ("/compile?job=1f-2e", "warm Qwen3-8B")
    assert [row["Where"] for row in table[:3]] == ["this store, process 7", "this store", "this store"]
    assert max(len(row["Command"]) for row in table) < 200


def test_a_clock_that_was_set_back_makes_no_negative_duration() -> None:
    assert took_ms(_job(state=DONE, ended_at=900.0), 0.0) == 0.0
    assert took_ms(_job(state=RUNNING), 1.0) == 0.0


def test_each_failure_is_reported_with_its_cause() -> None:
    assert ended_badly(_job(state=FAILED, error="why")) == ("The job failed.", "why")
    assert ended_badly(_job(state=FAILED, error="why", command=["time"]))[0] == "Compilation failed."
    assert "run the job again to resume" in ended_badly(_job(state=CANCELED))[1]
    assert "start it again" in ended_badly(_job(state=CANCELED, command=["compile"]))[1]
    assert "Killed" in ended_badly(_job(state=DIED, error="Killed"))[1]


# ---- Forms ----


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"m": 33, "batch": 3, "dtype": "fp16", "out_dtype": "fp32", "layout": "tn", "arch": "sm_80"},
        {"epilogue": ["alpha", "beta", "bias", "gelu"], "compiler": "nvcc", "family": "tensor_core", "force": True},
        {"config": "block_m=128,block_n=128,block_k=32,warps_m=2,warps_n=2,stages=4"},
        {"dtype": "fp8_e4m3", "scales": "1x128,128x128", "family": "scaled"},
        {"batch": 8, "mode": "masked", "family": "grouped"},
        {"fast_math": "on"},
        {"fast_math": "off"},
    ],
)
def test_a_form_is_filled_in_again_with_the_request_of_its_job(changed: dict[str, Any]) -> None:
    """Through the job's file. The command line takes the same problem and choice from the form's command."""
    values = {one.name: one.default for one in FORM} | changed
    command = command_of("compile", FORM, values)
    assert shown_of(_stored(_job(command=command, asked=values)).asked, FORM) == values
    problem, choice = problem_of(values), choice_of(values)
    parsed = commands.commands["compile"].make_context("compile", command[1:]).params
    assert (problem, choice) == (asked_problem(parsed), asked_choice(parsed))
    assert (problem.m, problem.batch, str(problem.epilogue)) == (
        values["m"], values["batch"], "+".join(values["epilogue"])
    )  # fmt: skip
    assert (choice["config"] is None) == (not values["config"])


def test_the_form_of_a_whole_model_is_filled_in_again_too() -> None:
    values = {one.name: one.default for one in TABLE} | {"arch": ["sm_80", "sm_90"], "tokens": "1,2", "layout": "nn"}
    command = command_of("warm", TABLE, values)
    assert command[2:] == ["--layout", "nn", "--arch", "sm_80", "--arch", "sm_90", "--m", "1,2"]
    assert shown_of(_stored(_job(command=command, asked=values)).asked, TABLE) == values


def test_a_job_of_an_older_version_fills_in_nothing() -> None:
    old = b'{"id": "1f-2e", "command": ["compile", "1", "2", "3"], "state": "done"}'
    assert shown_of(decode_job(old).asked, FORM) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("m", 0), ("m", 10**12), ("m", True), ("m", "33"), ("batch", -1), ("arch", "../.."), ("arch", ["sm_90"]),
        ("epilogue", ["alpha", "<b>"]), ("epilogue", "alpha"), ("force", "yes"), ("force", 1), ("config", "x" * 201),
        ("config", 7), ("debug_dump", "/x"),
    ],
)  # fmt: skip
def test_options_that_the_form_lacks_are_left_out(name: str, value: Any) -> None:
    assert shown_of({name: value, "k": 64}, FORM) == {"k": 64}


@pytest.mark.parametrize(("verb", "form"), [("compile", FORM), ("warm", TABLE), ("tune", tune_form("sm_90"))])
def test_a_form_asks_all_that_the_command_takes(verb: str, form: Any) -> None:
    """But for what is no business of a dashboard."""
    shown = [one for one in commands.commands[verb].params if not getattr(one, "hidden", False)]
    named = ([name for name in parameter.opts if name.startswith("--")] for parameter in shown)
    taken = {names[0] for names in named if names}  # the others are second names
    asked = {one.option for one in form if one.option}
    assert asked <= taken
    only_typed = {
        "compile": {"--output", "--wait"},
        "warm": {"--jobs", "--dry-run", "--by", "--sample", "--check", "--device"},
        "tune": {"--jobs", "--dry-run", "--check", "--device"},
    }[verb]
    everywhere = {"--store", "--settings-file", "--no-pager", "--verbose", "--json"}
    assert taken - asked - everywhere == only_typed


def test_sizes_and_types_are_never_advanced_options() -> None:
    rare = ["epilogue", "scales", "mode", "specialisation", "opt_level", "fast_math"]
    rare += ["compiler", "family", "config", "force"]
    assert [one.name for one in FORM if one.rare] == rare
    assert all(one.kind is not FieldKind.NUMBER for one in FORM if one.rare)
