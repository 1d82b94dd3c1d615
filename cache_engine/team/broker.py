"""The broker: Redis, with a farm's queue, answers, leases, and what was canceled. Nothing that it says is trusted.

Each answer is bounded in bytes and in time. A farm is known by its remote, which is part of each key's name.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlsplit

from cache_engine.errors import RemoteError, UsageError
from cache_engine.settings.extras import require
from cache_engine.team.messages import MOST_BYTES, CompileMessage, asked
from cache_engine.units import human_bytes, printable

LEASE_S = 20
"""The time after which another process compiles the key of one that died; a living one says so four times as often."""
MOST_ANSWER_BYTES = 8 << 20
FARMS = "gemm-cache-farm:farms"
"""The farms that have used this Redis of late, for ``farm status`` without a remote."""
_DAY_S = 86_400
_WAIT_S = 5.0
_CHUNK = 500  # messages
_MOST_READ = 100_000  # messages of a queue
_P = ParamSpec("_P")
_T = TypeVar("_T")


class BrokerAway(RemoteError):
    """The broker does not answer, which is no fault of the kernel that is asked for."""


class AnswerTooLong(BrokerAway):
    """The broker says more than anything of a farm is; the connection is closed, and the rest is not read."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of a farm's keys in Redis, which begin with a hash of its remote."""

    farm: str

    @classmethod
    def of(cls, remote: str) -> Keys:
        """Those of a remote, whatever the login and options in its URL."""
        parts = urlsplit(remote)
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        return cls(hashlib.sha256(place.encode()).hexdigest()[:16])

    def name(self, *parts: str) -> str:
        """A key's name."""
        return ":".join(("gemm-cache-farm", self.farm, *parts))

    @property
    def queue(self) -> str:
        """The name of the queue: a list, new messages first."""
        return self.name("queue")


def _reached(method: Callable[Concatenate[Broker, _P], _T]) -> Callable[Concatenate[Broker, _P], _T]:
    """Its errors on answers that are not Redis's become ``BrokerAway`` too."""

    @wraps(method)
    def asked_for(self: Broker, /, *given: _P.args, **named: _P.kwargs) -> _T:
        with reaching(self.url):
            return method(self, *given, **named)

    return asked_for


class Broker:
    """The Redis of a farm, for work only. Nothing of it is needed for results: the remote has those."""

    def __init__(self, url: str, keys: Keys, wait_s: float = _WAIT_S) -> None:
        """Connects when it is first asked; raises as ``connected``. Each answer may take ``wait_s``."""
        self.url, self._keys = url, keys
        self._redis = connected(url, wait_s)

    @_reached
    def send(self, texts: Sequence[str]) -> None:
        """Puts messages into the queue; raises ``RemoteError``."""
        for start in range(0, len(texts), _CHUNK):
            self._ask(lambda r: r.lpush(self._keys.queue, *texts[start : start + _CHUNK]))  # noqa: B023 (called at once)

    @_reached
    def message(self, wait_s: float) -> CompileMessage | None:
        """Takes the oldest message out of the queue; ``None`` where none comes in ``wait_s``.

        Raises:
            UsageError: for what is no message; it is out of the queue.
            RemoteError: when the broker does not answer.
        """
        try:
            found = self._redis.brpop([self._keys.queue], timeout=wait_s)
        except AnswerTooLong as error:
            raise UsageError(f"a message is text of at most {MOST_BYTES} characters") from error
        return None if found is None else asked(found[1].decode(errors="replace"))

    @_reached
    def waiting(self) -> int:
        """The number of messages that no worker has taken; raises ``RemoteError``."""
        return int(self._ask(lambda r: r.llen(self._keys.queue)))

    @_reached
    def queued(self, job: str) -> list[tuple[bytes, str]]:
        """The requests of a submitter that no worker has taken: messages, each with its key. Raises ``RemoteError``.

        Of a queue of more than 100,000 messages, the newest.
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
        """Takes what a submitter asked for out of the queue; returns how many messages. Raises ``RemoteError``.

        What a worker has taken meanwhile is dropped there, once the job is canceled.
        """
        own = self.queued(job)  # each near the head: it is the newest
        return sum(int(self._ask(lambda r: r.lrem(self._keys.queue, 1, text))) for text, _ in own)  # noqa: B023

    @_reached
    def answer(self, job: str, text: str) -> None:
        """Leaves an answer for a submitter; raises ``RemoteError``."""
        name = self._keys.name("answers", job)
        self._ask(lambda r: r.rpush(name, text))
        self._ask(lambda r: r.expire(name, _DAY_S))

    @_reached
    def answers(self, job: str, wait_s: float) -> list[str]:
        """Answers since the last call, of many the first 501; waits for one. Raises ``RemoteError``.

        Those that come with one that is too long are lost: the remote says what they would.
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
        """Has workers drop what a submitter asked for; raises ``RemoteError``."""
        self._ask(lambda r: r.set(self._keys.name("canceled", job), b"1", ex=_DAY_S))

    @_reached
    def is_canceled(self, job: str) -> bool:
        """Whether it was; raises ``RemoteError``."""
        return bool(self._ask(lambda r: r.exists(self._keys.name("canceled", job))))

    @_reached
    def take(self, key: str, owner: str) -> bool:
        """Whether ``owner`` compiles a key now, and no other for ``LEASE_S``; raises ``RemoteError``."""
        name = self._keys.name("lease", key)
        if self._ask(lambda r: r.set(name, owner, nx=True, ex=LEASE_S)):
            return True
        if self.leased([key]):
            return False
        self._ask(lambda r: r.set(name, owner, ex=LEASE_S))  # what is there is no lease of ours, or has just ended
        return True

    @_reached
    def leased(self, keys: Sequence[str]) -> set[str]:
        """Those that a process compiles now; raises ``RemoteError``. What has no end is no lease."""
        with self._redis.pipeline(transaction=False) as asking:
            for key in keys:
                asking.pttl(self._keys.name("lease", key))
            left_ms = asking.execute()
        return {key for key, left in zip(keys, left_ms, strict=True) if 0 < left <= LEASE_S * 1000}

    @_reached
    def renew(self, key: str, owner: str) -> None:
        """Keeps it for as long again, also where the broker has lost who took it; raises ``RemoteError``."""
        name = self._keys.name("lease", key)
        if not self._ask(lambda r: r.set(name, owner, nx=True, ex=LEASE_S)) and self._is_of(name, owner):
            self._ask(lambda r: r.expire(name, LEASE_S))

    @_reached
    def release(self, key: str, owner: str) -> None:
        """Lets others compile it, if ``owner`` still has it; raises ``RemoteError``."""
        name = self._keys.name("lease", key)
        if self._is_of(name, owner):
            self._ask(lambda r: r.delete(name))

    def _is_of(self, name: str, owner: str) -> bool:
        return bool(self._ask(lambda r: r.get(name)) == owner.encode())

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        return call(self._redis)


def connected(url: str, wait_s: float) -> Any:
    """A client of Redis, which connects when it is first asked.

    An answer of more than ``MOST_ANSWER_BYTES`` raises ``AnswerTooLong``, and one that is not whole after twice
    ``wait_s`` a timeout, as one that does not begin in ``wait_s``.

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
        """A connection whose answers are bounded in bytes and in time, whatever reads them."""

        def _connect(self) -> _Socket:
            return _Socket(super()._connect())

    return Bounded


class _Socket:
    """A socket that gives so many bytes, and for so long, after each request; otherwise the one that it wraps."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped
        self._renew()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def sendall(self, data: bytes) -> None:
        """Sends a request, or a part of it."""
        self._wrapped.sendall(data)
        self._renew()

    def recv(self, *arguments: int) -> bytes:
        """Bytes of the answer; raises ``AnswerTooLong``, or ``ConnectionError`` where they come too slowly."""
        data: bytes = self._wrapped.recv(*arguments)
        self._count(len(data))
        return data

    def recv_into(self, *arguments: Any) -> int:
        """As ``recv``, for the parser of hiredis."""
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
    """For a body that asks the broker: its errors become ``BrokerAway``."""
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        where = urlsplit(url).hostname or "?"
        raise BrokerAway(f"the broker at {printable(where)} does not answer: {printable(str(error))[:200]}") from error
