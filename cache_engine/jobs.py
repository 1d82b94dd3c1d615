"""Long work outside of the process that asked for it: one command in a subprocess, followed through a job file.

The job file is a small JSON document, replaced whole at every step, so whoever polls it sees a consistent state, also
after a reload and from another process. The command is one of ours, run with ``--report-to FILE``; it reports its
stages there, and its JSON result at the end.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from cache_engine.errors import StoreError
from cache_engine.store.layout import StoreLayout
from cache_engine.store.publish import publish_file

RUNNING, DONE, FAILED, DIED = "running", "done", "failed", "died"
_KEPT = 50
_FIRST_REPORT_S = 60.0


class JobStage(msgspec.Struct):
    """A stage of a job; ``ms`` is ``None`` while it is under way."""

    name: str
    ms: float | None = None


class Job(msgspec.Struct, kw_only=True):
    """A job's state.

    Attributes:
        command: the arguments after ``gemm-cache``.
        state: running, done, failed, or died (ended without saying so).
        pid: the process at work, and
        process_start: when it started, as the system counts; a number may be given to another process later.
        started_at, ended_at: seconds since 1970.
        result: the command's JSON document, as text.
        error: what went wrong, for people.
    """

    id: str
    command: list[str]
    state: str = RUNNING
    pid: int = 0
    process_start: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    stages: list[JobStage] = msgspec.field(default_factory=list)
    result: str = ""
    error: str = ""


class Jobs:
    """The jobs of one store, as seen from a process that may start some."""

    def __init__(self, layout: StoreLayout) -> None:
        """Starts nothing yet."""
        self._layout = layout
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, command: list[str]) -> str:
        """Starts ``gemm-cache --store … COMMAND --json`` in the background; returns the job's id.

        Raises:
            OSError: when the store cannot take the job file, or no process can be started.
        """
        job = Job(id=f"{time.time_ns():x}-{secrets.token_hex(4)}", command=command, started_at=time.time())
        path = self._path(job.id)
        _save(self._layout.temp, path, job)
        # Children that have ended are let go of here, so that no more than the last of them lingers.
        self._children = {started: child for started, child in self._children.items() if child.poll() is None}
        program = [sys.executable, "-m", "cache_engine", "--store", str(self._layout.root)]
        with open(path.with_suffix(".log"), "wb") as log:
            self._children[job.id] = subprocess.Popen(
                [*program, *command, "--json", "--report-to", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _forget_old(self._layout.jobs, keep=job.id)
        return job.id

    def load(self, job_id: str) -> Job:
        """A job's state now.

        Raises:
            StoreError: when there is no such job.
        """
        child = self._children.get(job_id)
        # Before the file is read: a job that has ended has said all it had to say. This also lets the child go.
        ended = child is not None and child.poll() is not None
        path = self._path(job_id)
        job = _read(path)
        # A process reports as its first act; one that has not after so long never will.
        silent = not job.pid and not 0 <= time.time() - job.started_at < _FIRST_REPORT_S
        gone = job.pid and _process_start(job.pid) != job.process_start
        if job.state == RUNNING and (ended or (child is None and (silent or gone))):
            job.state = DIED
            with suppress(OSError):
                job.error = path.with_suffix(".log").read_text(errors="replace").strip()[-2000:]
        return job

    def _path(self, job_id: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]+-[0-9a-f]+", job_id):
            raise StoreError(f"{job_id!r} is not the id of a job; take it from a link of the Compile page")
        return self._layout.jobs / f"{job_id}.json"


class Reporter:
    """How a command reports to its job file."""

    def __init__(self, path: Path) -> None:
        """Takes over the job that ``start`` has written.

        Raises:
            StoreError: when the file is not a job's.
        """
        self._path = path
        self._temp = path.parent.parent / "temp"
        self._job = _read(path)
        self._job.pid = os.getpid()
        self._job.process_start = _process_start(self._job.pid)
        self._save()

    def stage(self, name: str, ms: float | None) -> None:
        """Notes that a stage has started (``ms`` is ``None``) or ended."""
        if ms is None:
            self._job.stages.append(JobStage(name))
        else:
            self._job.stages[-1].ms = ms
        self._save()

    def finish(self, result: str) -> None:
        """Notes the result; the job is done."""
        self._job.state, self._job.result, self._job.ended_at = DONE, result, time.time()
        self._save()

    def fail(self, error: str) -> None:
        """Notes what went wrong; the job has failed."""
        self._job.state, self._job.error, self._job.ended_at = FAILED, error, time.time()
        self._save()

    def _save(self) -> None:
        _save(self._temp, self._path, self._job)


def _read(path: Path) -> Job:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Job)
    except FileNotFoundError as error:
        raise StoreError(f"there is no job {path.stem}; the store keeps the last {_KEPT}") from error
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"the file of job {path.stem} cannot be read: {error}") from error


def _save(temp: Path, path: Path, job: Job) -> None:
    publish_file(temp, str(path), msgspec.json.encode(job), durable=False)


def _process_start(pid: int) -> str:
    """When a process started, in the system's ticks; empty when there is none. Source: proc(5), /proc/pid/stat."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as status:
            fields = status.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    state, started = fields[0], fields[19]
    return "" if state in "ZX" else started


def _forget_old(folder: Path, keep: str) -> None:
    """Deletes the files of all but the newest jobs. Ids sort by time."""
    for path in sorted(folder.glob("*.json"))[:-_KEPT]:
        if path.stem == keep:  # its clock may be behind that of the others
            continue
        for old in (path, path.with_suffix(".log")):
            with suppress(OSError):
                old.unlink()
