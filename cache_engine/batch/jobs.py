"""Jobs: long work in a subprocess of its own, which reports its progress in a job file.

The job file is a small JSON document, replaced whole at every step, so a reader always sees a consistent state, also
after a reload and from another process. The subprocess runs one of our verbs with ``--report-to FILE``; the verb writes
its stages, its progress and, at the end, its JSON result to the file. A second file requests that the job be cancelled.

At most ``MOST_AT_ONCE`` jobs of a store run at a time, and at most one of the kind that uses every processor; further
jobs are refused. The last ``MOST_KEPT`` jobs are stored, for ``KEPT_DAYS`` days; older ones that have ended are deleted
when a job is started.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cache_engine.errors import CorruptEntry, StoreError, TooManyJobs
from cache_engine.model.job import (
    CANCELED,
    DIED,
    DONE,
    FAILED,
    MOST_BYTES,
    RUNNING,
    Job,
    JobArguments,
    JobProgress,
    JobStage,
    decode_job,
)
from cache_engine.store.files import read_file
from cache_engine.store.layout import StoreLayout, job_of_name
from cache_engine.store.lock import file_lock
from cache_engine.store.ownership import open_file, private
from cache_engine.store.publish import publish_file

__all__ = ["CANCELED", "DIED", "DONE", "FAILED", "RUNNING", "Job", "JobProgress", "JobStage", "Jobs", "LostJob"]

MOST_KEPT = 50
KEPT_DAYS = 30
MOST_AT_ONCE = 4

_BUSY_VERBS = ("warm", "sample", "tune")
_LONGEST_TEXT = 200_000
_FIRST_REPORT_S = 60.0
_PROGRESS_S = 0.2
_START_LOCK_S = 10.0


@dataclass(frozen=True, slots=True)
class LostJob:
    """A job whose file cannot be read: its id and the error."""

    id: str
    error: str


class Jobs:
    """The jobs of one store, for a process that can start jobs."""

    def __init__(self, layout: StoreLayout) -> None:
        """Only stores the layout; starts no process."""
        self._layout = layout
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, command: list[str], asked: JobArguments | None = None, given: bytes = b"") -> str:
        """Starts ``gemm-cache --store … COMMAND --json`` in the background; returns the job's id.

        Args:
            asked: the values of the dashboard's form, which the job file stores with the command.
            given: the bytes that the command reads from its standard input.

        Raises:
            TooManyJobs: when the limit of running jobs is reached, no matter who started them.
            OSError: when the job file cannot be written to the store, or no process can be started.
        """
        with file_lock(self._layout.jobs_lock, _START_LOCK_S):
            _check_room(command, [job for job in self.recent() if isinstance(job, Job) and job.state == RUNNING])
            job_id = f"{abs(time.time_ns()):x}-{secrets.token_hex(4)}"
            job = Job(id=job_id, command=command, asked=asked or {}, started_at=time.time())
            path = self._path(job.id)
            _save(self._layout.temp, path, job)
            # Reaps ended children here, so that at most the last one stays a zombie.
            self._children = {started: child for started, child in self._children.items() if child.poll() is None}
            program = [sys.executable, "-m", "cache_engine", "--store", str(self._layout.root)]
            # A file without a name: the job may open it as /dev/stdin, and it is gone when the job ends.
            with (
                tempfile.TemporaryFile(dir=self._layout.temp) as stdin,
                open(path.with_suffix(".log"), "xb", opener=private) as log,
            ):
                stdin.write(given)
                stdin.seek(0)
                self._children[job.id] = subprocess.Popen(
                    [*program, *command, "--json", "--report-to", str(path)],
                    stdin=stdin,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self._forget_old(keep=job.id)
        return job.id

    def load(self, job_id: str) -> Job:
        """The present state of a job.

        Raises:
            StoreError: when there is no such job, or its file cannot be read.
        """
        child = self._children.get(job_id)
        # Before the file is read: an ended job writes nothing more. This also reaps the child.
        ended = child is not None and child.poll() is not None
        path = self._path(job_id)
        job = _read(path)
        job.cancel_asked = _cancel_mark(path).exists()
        # A process reports first of all; one that has not after this time never will.
        silent = not job.pid and not 0 <= time.time() - job.started_at < _FIRST_REPORT_S
        gone = job.pid and _process_start(job.pid) != job.process_start
        if job.state == RUNNING and (ended or (child is None and (silent or gone))):
            job.state = CANCELED if job.cancel_asked else DIED
            with suppress(OSError, CorruptEntry):
                log = path.with_suffix(".log")
                job.ended_at = log.stat().st_mtime
                if job.state == DIED:
                    job.error = _tail(log)
        return job

    def recent(self) -> list[Job | LostJob]:
        """All stored jobs of all users of the store, newest first."""
        found: list[Job | LostJob] = []
        for path in reversed(self._files()):
            try:
                found.append(self.load(path.stem))
            except StoreError as error:
                if path.exists():
                    found.append(LostJob(path.stem, str(error)))
        return found

    def cancel(self, job_id: str) -> None:
        """Cancels a running job: it finishes the kernels it has begun. A second call ends it at once.

        The signal goes only to the job's own process; at the second call, also to the processes that it has started.

        Raises:
            StoreError: when there is no such job.
            OSError: when the request to cancel cannot be written to the store.
        """
        before = self.load(job_id)
        if before.state != RUNNING:
            return
        path = self._path(job_id)
        _cancel_mark(path).touch(mode=0o600)
        # Read again: a job first writes its process id and then checks for the mark, so one of the two sees the other.
        child = self._children.get(job_id)
        pid = _read(path).pid or (child.pid if child is not None else 0)
        if not _works_for(pid, path):
            return
        with suppress(ProcessLookupError):
            if before.cancel_asked:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGTERM)

    def _path(self, job_id: str) -> Path:
        if job_of_name(f"{job_id}.json") != job_id:
            raise StoreError(f"{job_id!r} is not a job id; copy one from a link of the Compile page")
        return self._layout.jobs / f"{job_id}.json"

    def _files(self) -> list[Path]:
        """The jobs' files, oldest first."""
        files = [path for path in self._layout.jobs.glob("*.json") if job_of_name(path.name)]
        return sorted(files, key=lambda path: (_began(path), path.stem))

    def _forget_old(self, keep: str) -> None:
        """Deletes the files of ended jobs: the oldest beyond ``MOST_KEPT``, and those older than ``KEPT_DAYS`` days.

        Never deletes the file of the job ``keep``.
        """
        files = [path for path in self._files() if path.stem != keep]  # its clock may be behind the others'
        oldest = time.time() - KEPT_DAYS * 86_400
        for path in [*files[: 1 - MOST_KEPT], *(path for path in files[1 - MOST_KEPT :] if _began(path) < oldest)]:
            with suppress(StoreError):
                if self.load(path.stem).state == RUNNING:
                    continue
            for old in (path, path.with_suffix(".log"), _cancel_mark(path)):
                with suppress(OSError):
                    old.unlink()


class Reporter:
    """Writes the job file, on the side of the command that runs as the job."""

    def __init__(self, path: Path) -> None:
        """Continues the job file that ``start`` has written.

        Raises:
            StoreError: when the file is not a job's.
        """
        self._path = path
        self._temp = path.parent.parent / "temp"
        self._saved_at = 0.0
        self._job = _read(path)
        self._job.pid = os.getpid()
        self._job.process_start = _process_start(self._job.pid)
        self._save()

    @property
    def cancel_asked(self) -> bool:
        """Whether the job was canceled."""
        return _cancel_mark(self._path).exists()

    def stage(self, name: str, ms: float | None) -> None:
        """Records that a stage has started (``ms`` is ``None``) or ended."""
        if ms is None:
            self._job.stages.append(JobStage(name))
        else:
            self._job.stages[-1].ms = ms
        self._save()

    def progress(self, progress: JobProgress) -> None:
        """Records a job's progress.

        The file is not written each time: the progress is written from time to time, and together with the next stage,
            result or error.
        """
        self._job.progress = progress
        if time.monotonic() - self._saved_at >= _PROGRESS_S:
            self._save()

    def finish(self, result: str) -> None:
        """Records the result of the command, as JSON text, and that the job is done."""
        self._job.state, self._job.result, self._job.ended_at = DONE, result, time.time()
        self._save()

    def fail(self, error: str, level: str = "", told: dict[str, str] | None = None) -> None:
        """Records the error and its details, and that the job has failed."""
        self._job.state, self._job.error, self._job.ended_at = FAILED, error, time.time()
        self._job.level = level
        self._job.told = {name: text[:_LONGEST_TEXT] for name, text in (told or {}).items()}
        self._save()

    def cancel(self) -> None:
        """Records that the job was canceled, unless it has ended already."""
        if self._job.state != RUNNING:
            return
        self._job.state, self._job.ended_at = CANCELED, time.time()
        self._save()

    def _save(self) -> None:
        _save(self._temp, self._path, self._job)
        self._saved_at = time.monotonic()


def _check_room(command: list[str], running: list[Job]) -> None:
    """Raises ``TooManyJobs`` if the limits do not allow one more job in addition to those that run."""
    busy = next((job for job in running if job.command[:1] and job.command[0] in _BUSY_VERBS), None)
    if busy is not None and command[0] in _BUSY_VERBS:
        raise TooManyJobs(
            f"many kernels are being compiled already ({' '.join(busy.command[:2])}), which keeps every processor "
            "busy; wait for that job to end, or cancel it"
        )
    if len(running) >= MOST_AT_ONCE:
        raise TooManyJobs(
            f"{len(running)} jobs are running on this store, and no more than {MOST_AT_ONCE} may; "
            "wait for one to end, or cancel it"
        )


def _read(path: Path) -> Job:
    try:
        data = read_file(path, MOST_BYTES + 1)
        if data is None:
            raise StoreError(f"there is no job {path.stem}; the store keeps the last {MOST_KEPT}, for {KEPT_DAYS} days")
        job = decode_job(data)
    except (OSError, CorruptEntry) as error:
        raise StoreError(f"the file of job {path.stem} cannot be read: {error}") from error
    job.id = path.stem
    return job


def _save(temp: Path, path: Path, job: Job) -> None:
    publish_file(temp, str(path), msgspec.json.encode(job), durable=False)


def _process_start(pid: int) -> str:
    """The start time of a process, in clock ticks since boot; empty if the process does not exist.

    Source: proc(5), /proc/pid/stat.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as status:
            fields = status.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    state, started = fields[0], fields[19]
    return "" if state in "ZX" else started


def _works_for(pid: int, path: Path) -> bool:
    """Whether a process was started for the job of this file, and leads its own process group."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            arguments = file.read().split(b"\0")
        return any(argument.endswith(os.fsencode(path.name)) for argument in arguments) and os.getpgid(pid) == pid
    except OSError:
        return False


def _began(path: Path) -> float:
    """The start time of a job, in seconds since 1970, read from the name of its file."""
    return int(path.stem.partition("-")[0], 16) / 1e9


def _cancel_mark(path: Path) -> Path:
    return path.with_suffix(".cancel")


def _tail(log: Path) -> str:
    """The last part of a process's output, read from its log file."""
    with os.fdopen(open_file(log), "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
        return file.read().decode("utf-8", "replace").strip()
