"""Jobs: work in another process, followed through a file, until it ends or dies."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.batch.jobs import (
    CANCELED,
    DIED,
    DONE,
    FAILED,
    MOST_AT_ONCE,
    MOST_KEPT,
    RUNNING,
    Job,
    Jobs,
    LostJob,
    Reporter,
    _process_start,
)
from cache_engine.cli.tune import _steps
from cache_engine.errors import StoreError, TooManyJobs
from cache_engine.gpu.probe import gpu
from cache_engine.store.disk import open_store
from tests.cache.test_debug_dump import ASKED, broken
from tests.cli.test_cli import document, run
from tests.remote.waiting import until


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    started = Jobs(open_store(tmp_path / "store"))
    yield started
    for child in started._children.values():
        child.kill()
        child.wait()


def _wait(jobs: Jobs, job_id: str) -> Job:
    until(lambda: jobs.load(job_id).state != RUNNING)
    return jobs.load(job_id)


def test_a_compile_job_reports_its_stages_and_its_result(jobs: Jobs) -> None:
    job = _wait(jobs, jobs.start(["compile", "64", "48", "80", "--dtype", "fp32", "--arch", "sm_90"]))
    assert (job.state, job.error) == (DONE, "")
    assert [stage.name for stage in job.stages][-2:] == ["compile", "publish"]
    assert all(stage.ms is not None for stage in job.stages)
    assert json.loads(job.result)["tier"] == "compiled"
    assert job.ended_at > job.started_at


def test_a_job_that_cannot_be_done_says_why(jobs: Jobs) -> None:
    job = _wait(jobs, jobs.start(["compile", "64", "48", "80", "--arch", "sm_75"]))
    assert job.state == FAILED
    assert "sm_75 computes: fp16, fp32, fp64, int8" in job.error


def test_a_tuning_job_counts_its_steps_and_says_what_it_needs(jobs: Jobs) -> None:
    (jobs._path("1-a")).write_bytes(msgspec.json.encode(Job(id="1-a", command=["tune"])))
    reporter = Reporter(jobs._path("1-a"))
    _steps(reporter, 8)()
    reporter.finish("{}")
    assert (found := jobs.load("1-a").progress) is not None
    assert (found.done, found.total) == (1, 8)
    if isinstance(gpu(), str):
        job = _wait(jobs, jobs.start(["tune", "64", "48", "80", "--arch", "sm_90"]))
        assert (job.state, "timing kernels needs an NVIDIA GPU" in job.error) == (FAILED, True)


def test_a_job_with_arguments_that_cannot_be_read_has_died_and_shows_its_log(jobs: Jobs) -> None:
    job = _wait(jobs, jobs.start(["compile", "many"]))
    assert job.state == DIED
    assert "error" in job.error


def test_a_killed_job_is_seen_to_have_died(jobs: Jobs) -> None:
    job_id = jobs.start(["sample"])
    os.kill(jobs._children[job_id].pid, signal.SIGKILL)
    jobs._children[job_id].wait()
    assert _wait(jobs, job_id).state == DIED


def test_another_process_sees_the_same_job(jobs: Jobs) -> None:
    job_id = jobs.start(["compile", "64", "48", "80", "--dtype", "fp32", "--arch", "sm_90"])
    _wait(jobs, job_id)
    elsewhere = Jobs(jobs._layout)
    assert elsewhere.load(job_id).state == DONE


def test_another_process_sees_that_a_job_has_died(jobs: Jobs) -> None:
    job_id = jobs.start(["sample"])
    child = jobs._children[job_id]
    child.kill()
    child.wait()
    path = jobs._path(job_id)
    job = json.loads(path.read_text())
    job |= {"pid": child.pid, "process_start": "1"}
    path.write_text(json.dumps(job))
    assert Jobs(jobs._layout).load(job_id).state == DIED


def test_a_number_given_to_another_process_is_not_the_job(jobs: Jobs) -> None:
    job = Job(id="1-a", command=[], pid=os.getpid(), process_start="1", started_at=time.time())
    jobs._path("1-a").write_bytes(msgspec.json.encode(job))
    assert jobs.load("1-a").state == DIED


@pytest.mark.parametrize(("age_s", "state"), [(1, RUNNING), (3600, DIED), (-3600, DIED)])
def test_a_job_that_never_reports_has_died(jobs: Jobs, age_s: float, state: str) -> None:
    job = Job(id="1-a", command=[], started_at=time.time() - age_s)
    jobs._path("1-a").write_bytes(msgspec.json.encode(job))
    assert jobs.load("1-a").state == state


@pytest.mark.parametrize("job_id", ["", "../../store", "no-such-job", "1-2", "a/b"])
def test_an_invalid_job_file_is_refused(jobs: Jobs, job_id: str) -> None:
    with pytest.raises(StoreError):
        jobs.load(job_id)


def test_a_file_that_is_no_jobs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(StoreError, match="the file of job x cannot be read"):
        Reporter(tmp_path / "x.json")


def _job_named(jobs: Jobs, age_s: float, **fields: Any) -> Job:
    """A job's file as another process would have written it so long ago."""
    began = time.time() - age_s
    job = Job(id=f"{int(began * 1e9):x}-{secrets.token_hex(4)}", command=["doctor"], started_at=began, **fields)
    jobs._path(job.id).write_bytes(msgspec.json.encode(job))
    jobs._path(job.id).with_suffix(".log").touch()
    return job


@pytest.fixture
def at_work(jobs: Jobs) -> Iterator[Callable[..., Job]]:
    """Makes jobs that a process of another dashboard is at work on: it sleeps."""
    sleeping = []

    def started(*command: str, age_s: float = 0) -> Job:
        job = _job_named(jobs, age_s)
        code = "import sys, time; print('up', flush=True); time.sleep(600)"
        process = subprocess.Popen(
            [sys.executable, "-c", code, "--report-to", str(jobs._path(job.id))],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        sleeping.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        job.command, job.pid, job.process_start = list(command), process.pid, _process_start(process.pid)
        jobs._path(job.id).write_bytes(msgspec.json.encode(job))
        return job

    yield started
    for process in sleeping:
        process.kill()
        process.communicate()


def test_old_jobs_are_forgotten(jobs: Jobs) -> None:
    for age in range(60):
        _job_named(jobs, 100 + age, state=DONE)
    ahead = _job_named(jobs, -3600, state=DONE)  # from a clock that was ahead
    job_id = jobs.start(["stats"])
    folder = jobs._layout.jobs
    assert len(list(folder.glob("*.json"))) == len(list(folder.glob("*.log"))) == MOST_KEPT
    assert {job.id for job in jobs.recent()} >= {ahead.id, job_id}


def test_a_job_that_is_too_old_is_forgotten_unless_it_runs(jobs: Jobs, at_work: Callable[..., Job]) -> None:
    old, young = (_job_named(jobs, days * 86_400, state=DONE) for days in (31, 29))
    running = at_work("verify", age_s=31 * 86_400)
    started = jobs.start(["stats"])
    assert [job.id for job in jobs.recent()] == [started, young.id, running.id]
    assert not jobs._path(old.id).exists()


def test_jobs_of_other_dashboards_are_listed_the_newest_first(jobs: Jobs) -> None:
    older, newer = _job_named(jobs, 20, state=DONE), _job_named(jobs, 10, state=FAILED)
    damaged = _job_named(jobs, 5)
    jobs._path(damaged.id).write_text("{")
    (jobs._layout.jobs / "notes.json").write_text("{}")
    assert [job.id for job in Jobs(jobs._layout).recent()] == [damaged.id, newer.id, older.id]
    assert isinstance(jobs.recent()[0], LostJob)


HOSTILE = (
    b"", b"[]", b"{", b"\xff\xfe", b"null", b'{"id": "1-a"}', b'{"id": "1-a", "command": [1]}',
    b'{"id": "1-a", "command": [], "started_at": 1e300}', b'{"id": "1-a", "command": [], "state": "<b>"}',
    b'{"id": "1-a", "command": [], "pid": -1}', b'{"id": "1-a", "command": [], "stages": [{"name": "x", "ms": 1e308}]}',
    b'{"id": "1-a", "command": [], "progress": {"total": -1}}', b"[" * 200_000, b'"' + b"x" * (9 << 20) + b'"',
)  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: repr(data[:40]))
def test_a_file_with_nonsense_is_reported_and_listed(jobs: Jobs, data: bytes) -> None:
    jobs._path("1-a").write_bytes(data)
    with pytest.raises(StoreError, match="the file of job 1-a cannot be read"):
        jobs.load("1-a")
    assert [job.id for job in jobs.recent()] == ["1-a"]


def test_a_job_is_known_by_the_name_of_its_file(jobs: Jobs) -> None:
    jobs._path("1-a").write_bytes(msgspec.json.encode(Job(id="../../x", command=[], state=DONE)))
    assert jobs.load("1-a").id == "1-a"


def test_only_so_many_jobs_run_at_once(jobs: Jobs, at_work: Callable[..., Job]) -> None:
    for _ in range(MOST_AT_ONCE - 1):
        at_work("verify")
    _wait(jobs, jobs.start(["stats"]))
    last = at_work("compile", "8", "8", "8")
    with pytest.raises(TooManyJobs, match=f"no more than {MOST_AT_ONCE} may; wait for one to end, or cancel it"):
        jobs.start(["stats"])
    assert len(jobs.recent()) == MOST_AT_ONCE + 1
    jobs.cancel(last.id)
    assert _wait(jobs, last.id).state == CANCELED
    assert _wait(jobs, jobs.start(["stats"])).state != RUNNING


def test_of_those_that_keep_all_processors_busy_one_runs_at_a_time(jobs: Jobs, at_work: Callable[..., Job]) -> None:
    at_work("warm", "Qwen3-8B")
    with pytest.raises(TooManyJobs, match=r"\(warm Qwen3-8B\), which keeps every processor busy"):
        jobs.start(["warm", "Qwen3-0.6B"])
    assert _wait(jobs, jobs.start(["compile", "64", "48", "80", "--arch", "sm_75"])).state == FAILED


def test_a_warm_job_reports_progress_and_leaves_a_sound_store_when_canceled(jobs: Jobs) -> None:
    """What has begun is finished; and started again it goes on from there."""
    root = jobs._layout.root
    command = ["warm", "Qwen3-0.6B", "--m", "16,4096", "--arch", "sm_80", "--arch", "sm_90"]
    job_id = jobs.start(command)

    def has_begun() -> bool:
        job = jobs.load(job_id)
        assert job.state == RUNNING, job.error
        return job.progress is not None and job.progress.compiled > 0

    until(has_begun)
    Jobs(jobs._layout).cancel(job_id)  # by another dashboard
    job = _wait(jobs, job_id)
    assert (job.state, job.error, job.result) == (CANCELED, "", "")
    assert job.progress is not None
    assert 0 < job.progress.done < job.progress.total
    assert jobs.load(job_id).ended_at > job.started_at
    assert list(jobs._layout.temp.iterdir()) == []
    assert document("verify", store=root)["findings"] == []
    kept = document("stats", store=root)["entries"]
    assert kept >= job.progress.compiled

    job = _wait(jobs, jobs.start([*command[:3], "16", *command[4:]]))
    result = json.loads(job.result)
    assert (job.state, result["failed"]) == (DONE, [])
    assert result["found"] >= 1
    assert job.progress is not None
    assert job.progress.done == job.progress.total == result["kernels"] == result["found"] + result["compiled"]


def test_asked_to_end_again_a_job_is_killed_with_all_that_it_has_started_and_nothing_else(
    jobs: Jobs, at_work: Callable[..., Job]
) -> None:
    other = at_work("verify")
    job = _job_named(jobs, 0)
    code = (
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    command = [sys.executable, "-c", code, str(jobs._path(job.id))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        job.pid, job.process_start = process.pid, _process_start(process.pid)
        jobs._path(job.id).write_bytes(msgspec.json.encode(job))
        jobs.cancel(job.id)
        asked = jobs.load(job.id)
        assert (asked.state, asked.cancel_asked) == (RUNNING, True)
        jobs.cancel(job.id)
        assert process.wait(timeout=600) == -signal.SIGKILL
    until(lambda: not _process_start(child))
    assert jobs.load(job.id).state == CANCELED
    assert jobs.load(other.id).state == RUNNING


def test_a_process_that_is_not_the_jobs_is_never_sent_a_signal(jobs: Jobs) -> None:
    """Any content of a job file."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as bystander:
        job = _job_named(jobs, 0, pid=bystander.pid, process_start=_process_start(bystander.pid))
        jobs.cancel(job.id)
        jobs.cancel(job.id)
        assert bystander.poll() is None
        bystander.kill()


def test_a_job_canceled_before_it_began_does_nothing(jobs: Jobs) -> None:
    job = _job_named(jobs, 0)
    jobs.cancel(job.id)
    done = run("compile", 64, 48, 80, "--report-to", jobs._path(job.id), store=jobs._layout.root)
    assert done.returncode == 130
    assert jobs.load(job.id).state == CANCELED
    assert document("stats", store=jobs._layout.root)["entries"] == 0


def test_a_job_that_has_ended_cannot_be_canceled(jobs: Jobs) -> None:
    job = _job_named(jobs, 5, state=DONE)
    jobs.cancel(job.id)
    assert (jobs.load(job.id).state, jobs.load(job.id).cancel_asked) == (DONE, False)


def test_a_compile_error_is_reported_in_full(jobs: Jobs) -> None:
    job = _job_named(jobs, 0)
    assert broken("--store", jobs._layout.root, *ASKED, "--report-to", jobs._path(job.id)).returncode == 1
    job = jobs.load(job.id)
    assert (job.state, job.level) == (FAILED, "error")
    assert "NVRTC rejected the source for sm_90" in job.error
    assert "error: " in job.told["log"]
    assert job.told["excerpt"].endswith("| broken;")
    assert job.told["flags"].startswith("-arch=sm_90 --std=c++17 ")
    assert job.told["command"].startswith("gemm-cache compile 64 48 80 ")


def test_a_job_says_why_its_kernel_was_missed(jobs: Jobs) -> None:
    results = []
    for arch in ("sm_90", "sm_90a", "sm_90a"):
        job = _wait(jobs, jobs.start(["compile", "64", "48", "80", "--dtype", "fp32", "--arch", arch]))
        results.append(json.loads(job.result))
    assert (results[0]["why"]["compared"], results[0]["why"]["nearest"]) == (0, None)
    (difference,) = [d for d in results[1]["why"]["nearest"]["differences"] if not d["follows"]]
    assert difference["text"] == "target: sm_90 in the nearest kernel, sm_90a requested"
    assert (results[2]["tier"], results[2]["why"]) == ("disk", None)


def test_a_job_says_that_a_damaged_entry_was_replaced(jobs: Jobs) -> None:
    command = ["compile", "64", "48", "80", "--dtype", "fp32", "--arch", "sm_90"]
    _wait(jobs, jobs.start(command))
    (blob,) = jobs._layout.kernels.glob("*/*")
    blob.write_bytes(b"x" * 100)
    why = json.loads(_wait(jobs, jobs.start(command)).result)["why"]
    assert "the entry with this key is damaged" in why["notes"][0]
