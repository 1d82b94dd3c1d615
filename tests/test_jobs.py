"""Jobs: work in another process, followed through a file, whatever becomes of it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cache_engine.errors import StoreError
from cache_engine.jobs import DIED, DONE, FAILED, RUNNING, Job, Jobs, Reporter
from cache_engine.store.disk import open_store


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    started = Jobs(open_store(tmp_path / "store"))
    yield started
    for child in started._children.values():
        child.kill()
        child.wait()


def _wait(jobs: Jobs, job_id: str) -> Job:
    deadline = time.monotonic() + 60
    while (job := jobs.load(job_id)).state == RUNNING and time.monotonic() < deadline:
        time.sleep(0.02)
    return job


def test_a_compile_job_tells_its_stages_and_its_result(jobs: Jobs) -> None:
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


def test_a_job_with_arguments_that_cannot_be_read_has_died_and_shows_its_log(jobs: Jobs) -> None:
    job = _wait(jobs, jobs.start(["compile", "many"]))
    assert job.state == DIED
    assert "error" in job.error


def test_a_killed_job_is_seen_to_have_died(jobs: Jobs) -> None:
    job_id = jobs.start(["sample"])
    deadline = time.monotonic() + 30
    while jobs._children[job_id].poll() is None and time.monotonic() < deadline:
        os.kill(jobs._children[job_id].pid, signal.SIGKILL)
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
def test_what_is_no_job_is_refused(jobs: Jobs, job_id: str) -> None:
    with pytest.raises(StoreError):
        jobs.load(job_id)


def test_a_file_that_is_no_jobs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(StoreError, match="the file of job x cannot be read"):
        Reporter(tmp_path / "x.json")


def test_old_jobs_are_forgotten(jobs: Jobs) -> None:
    folder = jobs._layout.jobs
    for number in range(60):
        (folder / f"{number:016x}-00.json").write_text("{}")
        (folder / f"{number:016x}-00.log").touch()
    (folder / "ffffffffffffffff-00.json").write_text("{}")  # from a clock that was ahead
    job_id = jobs.start(["doctor"])
    assert len(list(folder.glob("*.json"))) == 50
    assert len(list(folder.glob("*.log"))) == 49
    assert jobs._path(job_id).exists()
