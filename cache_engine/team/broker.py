"""The broker: Redis, with a farm's queue, answers, leases and cancelled jobs. No answer of the broker is trusted.

Each answer is bounded in bytes and in time. The name of each key in Redis begins with a hash of the farm's remote.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlsplit

import msgspec

from cache_engine.cache.selection import Selection
from cache_engine.errors import RemoteError, UsageError
from cache_engine.model.artifact import RecordedProblem
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.settings.extras import require
from cache_engine.units import human_bytes, printable

LEASE_S = 20
"""Seconds after which another process may compile the key of a process that died. A living process renews its lease
four times in that time.
"""
MOST_ANSWER_BYTES = 8 << 20
FARMS = "gemm-cache-farm:farms"
"""The Redis key that lists the farms that used this Redis lately, for ``farm status`` without a remote."""
_DAY_S = 86_400
_WAIT_S = 5.0
_CHUNK = 500  # messages
_MOST_READ = 100_000  # messages of a queue
_P = ParamSpec("_P")
_T = TypeVar("_T")


class BrokerAway(RemoteError):
    """The broker does not answer. The requested kernel is not at fault."""


class AnswerTooLong(BrokerAway):
    """An answer of the broker is longer than any that a farm needs.

    The connection is closed, and the rest is not read.
    """


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of a farm's keys in Redis, which begin with a hash of its remote."""

    farm: str

    @classmethod
    def of(cls, remote: str) -> Keys:
        """The key names of the farm with this remote; the login and options in the remote's URL do not change them."""
        parts = urlsplit(remote)
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        return cls(hashlib.sha256(place.encode()).hexdigest()[:16])

    def name(self, *parts: str) -> str:
        """The name of the farm's Redis key with these parts, such as ``lease`` and a kernel's key."""
        return ":".join(("gemm-cache-farm", self.farm, *parts))

    @property
    def queue(self) -> str:
        """The name of the queue: a list, new messages first."""
        return self.name("queue")


def _reached(method: Callable[Concatenate[Broker, _P], _T]) -> Callable[Concatenate[Broker, _P], _T]:
    """A decorator: the method raises ``BrokerAway`` also for answers that do not follow Redis's protocol."""

    @wraps(method)
    def asked_for(self: Broker, /, *given: _P.args, **named: _P.kwargs) -> _T:
        with reaching(self.url):
            return method(self, *given, **named)

    return asked_for


class Broker:
    """The Redis of a farm: its queue, answers and leases. Compiled kernels are not in it but in the remote."""

    def __init__(self, url: str, keys: Keys, wait_s: float = _WAIT_S) -> None:
        """Prepares a client, which connects at its first request; raises as ``connected``.

        Each answer may take ``wait_s`` seconds.
        """
        self.url, self._keys = url, keys
        self._redis = connected(url, wait_s)

    @_reached
    def send(self, texts: Sequence[str]) -> None:
        """Puts messages into the queue; raises ``RemoteError``."""
        for start in range(0, len(texts), _CHUNK):
            self._ask(lambda r: r.lpush(self._keys.queue, *texts[start : start + _CHUNK]))  # noqa: B023 (called at once)

    @_reached
    def message(self, wait_s: float) -> CompileMessage | None:
        """Takes the oldest message out of the queue; ``None`` if no message comes within ``wait_s`` seconds.

        Raises:
            UsageError: for text that is not a valid message; it has left the queue.
            RemoteError: when the broker does not answer.
        """
        try:
            found = self._redis.brpop([self._keys.queue], timeout=wait_s)
        except AnswerTooLong as error:
            raise UsageError(f"a message is text of at most {MOST_MESSAGE_BYTES} characters") from error
        return None if found is None else asked(found[1].decode(errors="replace"))

    @_reached
    def waiting(self) -> int:
        """The number of messages that no worker has taken; raises ``RemoteError``."""
        return int(self._ask(lambda r: r.llen(self._keys.queue)))

    @_reached
    def queued(self, job: str) -> list[tuple[bytes, str]]:
        """A submitter's requests that no worker has taken: each message, and the key that it asks for.

        If the queue has more than 100,000 messages, only the newest are read. Raises ``RemoteError``.
        """
        own = []
        for start in range(0, min(self.waiting(), _MOST_READ), _CHUNK):
            with suppress(AnswerTooLong):
                for text in self._ask(lambda r: r.lrange(self._keys.queue, start, start + _CHUNK - 1)):  # noqa: B023
                    with suppress(UsageError):
                        message = asked(text.decode(errors="replace"))
                        own += [(text, message.key)] if message.job == job else []
        return own

    @_reached
    def withdraw(self, job: str) -> int:
        """Takes a submitter's requests out of the queue; returns the number of messages. Raises ``RemoteError``.

        Requests that a worker has taken meanwhile are dropped by the worker, once the job is cancelled.
        """
        own = self.queued(job)  # each near the head: it is the newest
        return sum(int(self._ask(lambda r: r.lrem(self._keys.queue, 1, text))) for text, _ in own)  # noqa: B023

    @_reached
    def answer(self, job: str, text: str) -> None:
        """Writes a worker's answer for the submitter of ``job``; raises ``RemoteError``."""
        name = self._keys.name("answers", job)
        self._ask(lambda r: r.rpush(name, text))
        self._ask(lambda r: r.expire(name, _DAY_S))

    @_reached
    def answers(self, job: str, wait_s: float) -> list[str]:
        """A submitter's answers since the last call, at most 501; waits at most ``wait_s`` seconds for the first one.

        If an answer is too long, all that were read together with it are lost; the remote shows the same results.
        Raises ``RemoteError``.
        """
        name = self._keys.name("answers", job)
        found: list[bytes] = []
        with suppress(AnswerTooLong):
            first = self._ask(lambda r: r.blpop([name], timeout=wait_s))
            if first is not None:
                found.append(first[1])
                found += self._ask(
                    lambda r: r.pipeline().lrange(name, 0, _CHUNK - 1).ltrim(name, _CHUNK, -1).execute()
                )[0]
        return [one.decode(errors="replace") for one in found]

    @_reached
    def cancel(self, job: str) -> None:
        """Tells workers to drop the requests of a submitter; raises ``RemoteError``."""
        self._ask(lambda r: r.set(self._keys.name("canceled", job), b"1", ex=_DAY_S))

    @_reached
    def is_canceled(self, job: str) -> bool:
        """Whether a submitter's requests were cancelled; raises ``RemoteError``."""
        return bool(self._ask(lambda r: r.exists(self._keys.name("canceled", job))))

    @_reached
    def take(self, key: str, owner: str) -> bool:
        """Tries to take the lease of a key: true if ``owner`` alone may compile it for ``LEASE_S`` seconds.

        Raises ``RemoteError``.
        """
        name = self._keys.name("lease", key)
        if self._ask(lambda r: r.set(name, owner, nx=True, ex=LEASE_S)):
            return True
        if self.leased([key]):
            return False
        self._ask(lambda r: r.set(name, owner, ex=LEASE_S))  # what is there is no lease of ours, or has just ended
        return True

    @_reached
    def leased(self, keys: Sequence[str]) -> set[str]:
        """Those of ``keys`` that a process compiles now, because it has their leases; raises ``RemoteError``.

        A lease that never expires is ignored, because no worker makes one.
        """
        with self._redis.pipeline(transaction=False) as asking:
            for key in keys:
                asking.pttl(self._keys.name("lease", key))
            left_ms = asking.execute()
        return {key for key, left in zip(keys, left_ms, strict=True) if 0 < left <= LEASE_S * 1000}

    @_reached
    def renew(self, key: str, owner: str) -> None:
        """Renews ``owner``'s lease of a key for ``LEASE_S`` seconds, also if the broker has lost the lease.

        Raises ``RemoteError``.
        """
        name = self._keys.name("lease", key)
        if not self._ask(lambda r: r.set(name, owner, nx=True, ex=LEASE_S)) and self._is_of(name, owner):
            self._ask(lambda r: r.expire(name, LEASE_S))

    @_reached
    def release(self, key: str, owner: str) -> None:
        """Ends the lease of a key, if ``owner`` still has it; raises ``RemoteError``."""
        name = self._keys.name("lease", key)
        if self._is_of(name, owner):
            self._ask(lambda r: r.delete(name))

    def _is_of(self, name: str, owner: str) -> bool:
        return bool(self._ask(lambda r: r.get(name)) == owner.encode())

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        return call(self._redis)


def connected(url: str, wait_s: float) -> Any:
    """A client of Redis, which connects at its first request.

    An answer of more than ``MOST_ANSWER_BYTES`` raises ``AnswerTooLong``. An answer that does not begin within
    ``wait_s`` seconds, or is not complete after twice that, raises a timeout.

    Raises:
        UsageError: when this is not the URL of a broker.
        ExtraMissing: when the extra ``team`` is not installed.
    """
    if urlsplit(url).scheme != "redis":
        raise UsageError(f"{printable(url[:80])!r} is no broker; it starts with redis://, such as redis://host:6379/0")
    require("team", "the farm", "celery", "redis")
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    pool = redis.ConnectionPool.from_url(
        url, socket_timeout=wait_s, socket_connect_timeout=wait_s, retry=Retry(NoBackoff(), 0),
        connection_class=_connection_class(),
    )  # fmt: skip
    return redis.Redis.from_pool(pool)


@cache
def _connection_class() -> type:
    from redis import Connection

    class Bounded(Connection):  # type: ignore[misc]  # Redis has no types here
        """A connection to Redis whose answers are bounded in bytes and in time, whichever parser reads them."""

        def _connect(self) -> _Socket:
            return _Socket(super()._connect())

    return Bounded


class _Socket:
    """A socket that receives, after each request, only a bounded number of bytes and only for a bounded time."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped
        self._renew()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def sendall(self, data: bytes) -> None:
        """Sends a request, or a part of one."""
        self._wrapped.sendall(data)
        self._renew()

    def recv(self, *arguments: int) -> bytes:
        """Receives bytes of the answer; raises ``AnswerTooLong``, or ``ConnectionError`` where they come too slowly."""
        data: bytes = self._wrapped.recv(*arguments)
        self._count(len(data))
        return data

    def recv_into(self, *arguments: Any) -> int:
        """Receives bytes of the answer into a buffer, for hiredis's parser; returns their number."""
        count: int = self._wrapped.recv_into(*arguments)
        self._count(count)
        return count

    def _renew(self) -> None:
        self._left, self._until = MOST_ANSWER_BYTES, time.monotonic() + 2 * self._wrapped.gettimeout()

    def _count(self, received: int) -> None:
        self._left -= received
        if self._left < 0:
            raise AnswerTooLong(
                f"the broker answers with more than {human_bytes(MOST_ANSWER_BYTES)}, which nothing of a farm is; "
                "something else has written to its keys"
            )
        if received and time.monotonic() > self._until:
            raise ConnectionError("the answer takes too long")


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """In the body of the ``with``, errors of the broker become ``BrokerAway``."""
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        where = urlsplit(url).hostname or "?"
        raise BrokerAway(f"the broker at {printable(where)} does not answer: {printable(str(error))[:200]}") from error


# ---- Messages that travel through a broker, as JSON. Both sides treat them as hostile ----

MOST_MESSAGE_BYTES = 4096
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


_M = TypeVar("_M", CompileMessage, Answered)


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


def _decoded(text: object, kind: type[_M]) -> _M:
    if not isinstance(text, str) or len(text) > MOST_MESSAGE_BYTES:
        raise UsageError(f"a message is text of at most {MOST_MESSAGE_BYTES} characters")
    try:
        found = msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UsageError(f"the message cannot be read: {printable(str(error))}") from error
    if not _KEY.fullmatch(found.key):
        raise UsageError("the message names no key")
    return found
