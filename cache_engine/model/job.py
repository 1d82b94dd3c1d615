"""A job, as its file states it: its arguments, its progress, and its result."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cache_engine.errors import CorruptEntry

RUNNING, DONE, FAILED, DIED, CANCELED = "running", "done", "failed", "died", "canceled"

MOST_BYTES = 8 * 2**20
"""The largest file of a job, in bytes."""

JobArguments = dict[str, str | int | bool | list[str]]
"""The values of a form, by the names of its fields."""

# A file may contain any values. One with an impossible time, count or state counts as unreadable.
_Seconds = Annotated[float, msgspec.Meta(ge=-(2**31), le=1e11)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class JobStage(msgspec.Struct):
    """A stage of a job; ``ms`` is ``None`` while the stage runs."""

    name: str
    ms: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None


class JobProgress(msgspec.Struct):
    """The progress of a job: the number of all kernels (for ``tune``, steps), the number done, and how they ended."""

    total: _Count = 0
    compiled: _Count = 0
    found: _Count = 0
    failed: _Count = 0

    @property
    def done(self) -> int:
        """The number of kernels or steps that are done, with success or failure."""
        return self.compiled + self.found + self.failed


class Job(msgspec.Struct, kw_only=True):
    """A job's state.

    Attributes:
        command: the arguments after ``gemm-cache``.
        asked: the values of the form that started the job; empty for a job of an older version.
        state: running, done, failed, canceled, or died (the process ended before it could write a result).
        pid: the id of its process.
        process_start: the start time of the process, in the system's unit, because a later process can have the same
            id.
        started_at, ended_at: seconds since 1970.
        progress: the progress of a job that gets many kernels.
        result: the command's JSON document, as text.
        error: the error as text for people.
        level: the scope of the error (``errors.Level``).
        told: further texts about the error, by name, such as a compiler's log.
        cancel_asked: whether the job was asked to end. Not in the file.
    """

    id: str
    command: list[str]
    asked: JobArguments = msgspec.field(default_factory=dict)
    state: Annotated[str, msgspec.Meta(pattern=f"^({RUNNING}|{DONE}|{FAILED}|{DIED}|{CANCELED})$")] = RUNNING
    pid: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    process_start: str = ""
    started_at: _Seconds = 0.0
    ended_at: _Seconds = 0.0
    stages: list[JobStage] = msgspec.field(default_factory=list)
    progress: JobProgress | None = None
    result: str = ""
    error: str = ""
    level: str = ""
    told: dict[str, str] = msgspec.field(default_factory=dict)
    cancel_asked: bool = False


_decode = msgspec.json.Decoder(Job).decode


def decode_job(data: bytes) -> Job:
    """The job in the content of a job's file.

    Raises:
        CorruptEntry: when the content is not a job.
    """
    if len(data) > MOST_BYTES:
        raise CorruptEntry("it is larger than any job's")
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptEntry(str(error)) from error
