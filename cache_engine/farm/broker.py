"""The broker: a queue of Celery in Redis, with answers, leases and what was canceled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec

from cache_engine.errors import RemoteError, UsageError
from cache_engine.extras import needing, require
from cache_engine.units import printable

QUEUE = "gemm-cache-farm"
TASK = "gemm_cache.compile"
REDELIVER_S = 300
"""How long after a worker vanished its work is given to another; more than any compile takes."""
LEASE_S = 20
"""How long after a process died another compiles its key; one that lives renews its lease four times as often."""
_PURPOSE = "the farm"
_DAY_S = 86_400
_WAIT_S, _START_S = 5.0, 120.0
_CHUNK = 500  # messages
UNACKED = f"{QUEUE}:unacked"  # where kombu's Redis transport notes what a worker has and has not finished


class BrokerAway(RemoteError):
    """The broker does not answer, which is no fault of the kernel that is asked for."""


def application(url: str, *, redeliver_s: int = REDELIVER_S) -> Any:
    """The Celery application: JSON alone, and a message is done when its work is.

    Args:
        redeliver_s: see ``REDELIVER_S``.

    Raises:
        UsageError: when this is not the URL of a broker.
        ExtraMissing: when Celery is not installed.
    """
    with needing("farm", _PURPOSE):
        from celery import Celery
    app = Celery("gemm-cache", broker=_checked(url), set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        event_serializer="json",
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_default_queue=QUEUE,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        # A machine that compiles is busy, and Celery would kill a process that takes 4 s to start, and the next.
        worker_proc_alive_timeout=_START_S,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": redeliver_s,
            "socket_timeout": _WAIT_S,
            "socket_connect_timeout": _WAIT_S,
            # Of our own: another application may use the same Redis.
            "unacked_key": UNACKED,
            "unacked_index_key": f"{UNACKED}:index",
            "unacked_mutex_key": f"{UNACKED}:mutex",
        },
    )
    return app


class Broker:
    """What the farm keeps in Redis next to the queue. Nothing of it is needed for results: the remote has those."""

    def __init__(self, url: str, wait_s: float = _WAIT_S) -> None:
        """Connects when it is first asked; raises as ``application``. Each answer may take ``wait_s``."""
        self.url = _checked(url)
        self._redis = connected(url, wait_s)

    def waiting(self) -> tuple[int, int]:
        """How many messages no worker has taken, and how many are taken and not finished; raises ``RemoteError``."""
        return self._ask(lambda r: int(r.llen(QUEUE))), self._ask(lambda r: int(r.hlen(UNACKED)))

    def answer(self, job: str, text: str) -> None:
        """Leaves an answer for a submitter; raises ``RemoteError``."""
        self._ask(lambda r: r.rpush(f"{QUEUE}:answers:{job}", text))
        self._ask(lambda r: r.expire(f"{QUEUE}:answers:{job}", _DAY_S))

    def answers(self, job: str, wait_s: float) -> list[str]:
        """Answers since the last call; waits for one. Raises ``RemoteError``."""
        found: list[str] = []
        first = self._ask(lambda r: r.blpop([f"{QUEUE}:answers:{job}"], timeout=wait_s))
        while first is not None:
            found.append(first[1].decode(errors="replace"))
            more = self._ask(lambda r: r.lpop(f"{QUEUE}:answers:{job}"))
            first = None if more is None else ("", more)
        return found

    def cancel(self, job: str) -> None:
        """Has workers drop what a submitter asked for; raises ``RemoteError``."""
        self._ask(lambda r: r.set(f"{QUEUE}:canceled:{job}", b"1", ex=_DAY_S))

    def withdraw(self, job: str) -> int:
        """Takes what a submitter asked for out of the queue; returns how many messages. Raises ``RemoteError``.

        What a worker has taken meanwhile is dropped there, once the job is canceled.
        """
        own, start, gone = [], 0, 0
        while messages := self._ask(lambda r: r.lrange(QUEUE, start, start + _CHUNK - 1)):  # noqa: B023 (called at once)
            own += [one for one in messages if _job_of(one) == job]
            start += len(messages)
        for one in own:  # each near the head: it is the newest
            gone += int(self._ask(lambda r: r.lrem(QUEUE, 1, one)))  # noqa: B023
        return gone

    def is_canceled(self, job: str) -> bool:
        """Whether it was; raises ``RemoteError``."""
        return bool(self._ask(lambda r: r.exists(f"{QUEUE}:canceled:{job}")))

    def take(self, key: str, owner: str) -> bool:
        """Whether ``owner`` compiles a key now, and no other for ``LEASE_S``; raises ``RemoteError``."""
        return bool(self._ask(lambda r: r.set(f"{QUEUE}:lease:{key}", owner, nx=True, ex=LEASE_S)))

    def renew(self, key: str, owner: str) -> None:
        """Keeps it for as long again, also where the broker has lost who took it; raises ``RemoteError``."""
        name = f"{QUEUE}:lease:{key}"
        if not self._ask(lambda r: r.set(name, owner, nx=True, ex=LEASE_S)) and self._is_of(name, owner):
            self._ask(lambda r: r.expire(name, LEASE_S))

    def release(self, key: str, owner: str) -> None:
        """Lets others compile it, if ``owner`` still has it; raises ``RemoteError``."""
        name = f"{QUEUE}:lease:{key}"
        if self._is_of(name, owner):
            self._ask(lambda r: r.delete(name))

    def _is_of(self, name: str, owner: str) -> bool:
        return bool(self._ask(lambda r: r.get(name)) == owner.encode())

    def tries(self, owner: str) -> int:
        """How often a message was begun, this time included; raises ``RemoteError``."""
        name = f"{QUEUE}:tries:{owner}"
        count = int(self._ask(lambda r: r.incr(name)))
        self._ask(lambda r: r.expire(name, _DAY_S))
        return count

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        with reaching(self.url):
            return call(self._redis)


def connected(url: str, wait_s: float) -> Any:
    """A client of Redis, which connects when it is first asked; each answer may take ``wait_s``.

    Raises:
        UsageError: when this is not the URL of a broker.
        ExtraMissing: when the extra ``farm`` is not installed.
    """
    require("farm", _PURPOSE)
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.Redis.from_url(
        _checked(url), socket_timeout=wait_s, socket_connect_timeout=wait_s, retry=Retry(NoBackoff(), 0)
    )


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """For a body that asks the broker: its errors become ``BrokerAway``."""
    from kombu.exceptions import OperationalError
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OperationalError, OSError, ValueError, TypeError) as error:
        where = urlsplit(url).hostname or "?"
        raise BrokerAway(f"the broker at {printable(where)} does not answer: {printable(str(error))[:200]}") from error


def _job_of(message: bytes) -> str:
    """The job that a message in the queue is of, by the name that ``submitting`` gave it; empty where it has none."""
    try:
        return msgspec.json.decode(message, type=_Queued).headers.id.partition("-")[0]
    except (msgspec.MsgspecError, UnicodeError):
        return ""


class _Headers(msgspec.Struct):
    id: str


class _Queued(msgspec.Struct):
    headers: _Headers


def _checked(url: str) -> str:
    if urlsplit(url).scheme != "redis":
        raise UsageError(f"{printable(url[:80])!r} is no broker; it starts with redis://, such as redis://host:6379/0")
    return url
