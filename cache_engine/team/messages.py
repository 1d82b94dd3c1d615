"""Messages that travel through a broker, as JSON. Both sides treat them as hostile."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from cache_engine.cache.selection import Selection
from cache_engine.errors import UsageError
from cache_engine.model.artifact import RecordedProblem
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.units import printable

MOST_BYTES = 4096
_MOST_ERROR = 500
_KEY, _JOB = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{32}")


class CompileMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel to compile.

    Attributes:
        job: the submitter's name for its run, 32 hexadecimal digits.
        key: the key that the kernel must have. A worker whose toolchain makes another key refuses.
    """

    job: str
    key: str
    problem: RecordedProblem
    arch: str
    family: str
    compiler: str
    config: KernelConfig

    @classmethod
    def of(cls, job: str, selection: Selection) -> CompileMessage:
        """The message that requests a kernel."""
        s = selection
        problem = RecordedProblem.of(s.problem)
        return cls(job, s.key, problem, s.problem.arch or "", s.family.name, s.compiler.name, s.config)

    @property
    def gemm(self) -> GemmProblem:
        """The problem that the message names; raises ``InvalidProblem``."""
        return self.problem.on(self.arch)


class Answered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's answer to a ``CompileMessage``.

    Attributes:
        error: why there is no kernel; empty if the worker says that the remote has the kernel.
        worker: the worker's process that answers, as ``HOST:PID``.
        compiled: whether the kernel was compiled for this request; if not, it existed already.
    """

    key: str
    error: str
    worker: str
    compiled: bool
    seconds: float


_T = TypeVar("_T", CompileMessage, Answered)


def encode(message: CompileMessage | Answered) -> str:
    """A message as JSON text, with only the beginning of a long error."""
    if isinstance(message, Answered):
        message = msgspec.structs.replace(message, error=printable(message.error[:_MOST_ERROR]))
    return msgspec.json.encode(message).decode()


def asked(text: object) -> CompileMessage:
    """Decodes a request.

    Raises:
        UsageError: when the text is not a request, or is too long.
    """
    found = _decoded(text, CompileMessage)
    if not is_job(found.job):
        raise UsageError("the message names no job")
    return found


def answered(text: object) -> Answered:
    """Decodes an answer; raises as ``asked``."""
    found = _decoded(text, Answered)
    if not 0 <= found.seconds < float("inf"):
        raise UsageError("the message has an impossible time")
    return msgspec.structs.replace(found, error=printable(found.error), worker=printable(found.worker))


def is_job(text: str) -> bool:
    """Whether a text can be the name of a job."""
    return bool(_JOB.fullmatch(text))


def _decoded(text: object, kind: type[_T]) -> _T:
    if not isinstance(text, str) or len(text) > MOST_BYTES:
        raise UsageError(f"a message is text of at most {MOST_BYTES} characters")
    try:
        found = msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UsageError(f"the message cannot be read: {printable(str(error))}") from error
    if not _KEY.fullmatch(found.key):
        raise UsageError("the message names no key")
    return found
