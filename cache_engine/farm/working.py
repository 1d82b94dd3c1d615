"""What a worker of the farm does: it compiles what a message asks for, and sends that to the remote, signed."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from cache_engine.config import Settings
from cache_engine.engine.cache import Cache, open_cache
from cache_engine.errors import GemmCacheError, NotHereError, RemoteError, UsageError
from cache_engine.farm.board import Board, Heart
from cache_engine.farm.broker import LEASE_S, QUEUE, TASK, Broker, BrokerAway, application
from cache_engine.farm.messages import Answered, Asked, asked, encode
from cache_engine.model.key import CacheKey
from cache_engine.process import Background, Order
from cache_engine.queue.tickets import Priority
from cache_engine.remote.base import Remote
from cache_engine.remote.entries import MOST_BYTES, name_of
from cache_engine.remote.moving import push
from cache_engine.remote.opening import open_remote
from cache_engine.trust.keys import SigningKey

_log = logging.getLogger(__name__)

MOST_TRIES = 10
_LOOK_S = 0.5


class Worker:
    """A process that compiles for a farm. It opens store, remote and broker when it is first asked, after any fork."""

    def __init__(self, settings: Settings, broker: str, remote: str, key: SigningKey) -> None:
        self._settings, self._urls, self._key = settings, (broker, remote), key
        self.host = socket.gethostname()
        self.name = f"{self.host}:{os.getpid()}"  # of the main process; those that compile are forked from it
        self._opened: tuple[int, Cache, Broker, Remote] | None = None
        self._board = Board(broker)

    def work(self, text: object) -> None:
        """Does what a message asks for, and answers. A message that asks for nothing valid is dropped.

        Raises:
            UsageError: for such a message.
            BrokerAway: when the broker does not answer.
        """
        message = asked(text)
        _, broker, _ = self._open()
        if broker.is_canceled(message.job):
            return
        self._board.begins(self.name, message)
        started = time.perf_counter()
        compiled, error = False, ""
        try:
            compiled = self._compiled(message)
        except BrokerAway:
            raise
        except (GemmCacheError, OSError) as trouble:
            error = str(trouble)
        took = time.perf_counter() - started
        name = f"{self.host}:{os.getpid()}"
        broker.answer(message.job, encode(Answered(message.key, error, name, compiled, took)))
        self._board.ends(self.name, message, compiled=compiled, error=error)

    def _compiled(self, message: Asked) -> bool:
        """Has the remote have the kernel; whether that took a compile here."""
        cache, broker, remote = self._open()
        problem, config = message.gemm, message.config
        selection = cache.select(problem, family=message.family, compiler=message.compiler, config=config)
        if selection.key != message.key:
            here = selection.compiler.fingerprint()
            raise NotHereError(f"this worker makes another key of it, with {here.compiler} {here.version}")
        if broker.tries(f"{message.job}:{message.key}") > MOST_TRIES:
            raise NotHereError(f"{MOST_TRIES} workers ended while they compiled it")
        # Not of the message: a broker may deliver one twice.
        owner = secrets.token_hex(16)
        while not broker.take(selection.key, owner):
            if _has(remote, selection.key):
                return False
            time.sleep(_LOOK_S)  # another is at it, or was killed; its lease ends
        with _kept(broker, selection.key, owner):
            return not _has(remote, selection.key) and self._made(message, selection.key)

    def _made(self, message: Asked, key: CacheKey) -> bool:
        """Sends the kernel, which is compiled if this machine does not have it; whether it was."""
        cache, _, remote = self._open()
        kernel = cache.get_or_compile(
            message.gemm, family=message.family, compiler=message.compiler, config=message.config,
            priority=Priority.WARM,
        )  # fmt: skip
        if kernel.unpublished is not None:
            raise RemoteError(f"it was compiled but not stored: {kernel.unpublished}")
        sent = push(cache.store, remote, [key], sign=self._key.sign)
        if sent.refused:
            raise RemoteError(sent.refused[0].cause)
        return kernel.tier == "compiled"

    def _open(self) -> tuple[Cache, Broker, Remote]:
        if self._opened is None or self._opened[0] != os.getpid():
            broker, remote = self._urls
            self._opened = (os.getpid(), open_cache(settings=self._settings), Broker(broker), open_remote(remote))
        return self._opened[1:]


def serve(worker: Worker, broker: str, *, processes: int, redeliver_s: int) -> int:
    """Works until it is stopped; returns the exit code.

    Raises:
        ExtraMissing: when Celery is not installed.
    """
    app = application(broker, redeliver_s=redeliver_s)

    @app.task(name=TASK)  # type: ignore[untyped-decorator]  # Celery has no types
    def compile_kernel(text: object) -> None:
        try:
            worker.work(text)
        except UsageError as error:
            _log.warning("a message is dropped: %s", error)
        except BrokerAway as error:  # who asked sends it again
            _log.warning("%s", error)

    only(app)
    name = f"gemm-cache-{os.getpid()}@{worker.host}"
    command = app.Worker(
        hostname=name, concurrency=processes, pool="prefork", queues=[QUEUE], loglevel="WARNING", quiet=True,
        without_gossip=True, without_mingle=True, without_heartbeat=True,
    )  # fmt: skip
    heart = Heart(broker, worker.name, worker.host, processes)
    try:
        command.start()
    finally:
        heart.stop()
    return int(command.exitcode or 0)


def only(app: Any) -> None:
    """Leaves an application our task alone: Celery brings others, which messages could ask for as well."""
    app.finalize(auto=True)
    for name in list(app.tasks):
        if name != TASK:
            app.tasks.unregister(name)


class _Keeper:
    """Renews a lease."""

    def __init__(self, broker: Broker, key: CacheKey, owner: str) -> None:
        self._renew = partial(broker.renew, key, owner)

    def work(self, order: Order | None) -> float | None:
        """One step of its thread; see ``process.Worker``."""
        if order is Order.END:
            return None
        with suppress(RemoteError):  # a broker that comes back is asked again
            self._renew()
        return LEASE_S / 4


@contextmanager
def _kept(broker: Broker, key: CacheKey, owner: str) -> Iterator[None]:
    """Keeps a lease for the body of a ``with``, however long that takes, and gives it back."""
    keeper = _Keeper(broker, key, owner)  # its thread does not keep it
    thread = Background(keeper, LEASE_S / 4)
    try:
        yield
    finally:
        thread.end()
        thread.join()
        with suppress(RemoteError):
            broker.release(key, owner)


def _has(remote: Remote, key: CacheKey) -> bool:
    return remote.get(name_of(key), MOST_BYTES) is not None
