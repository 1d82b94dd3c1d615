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
from cache_engine.errors import NotHereError, RemoteError, UsageError
from cache_engine.farm.board import Board, Heart
from cache_engine.farm.broker import LEASE_S, QUEUE, TASK, Broker, BrokerAway, application
from cache_engine.farm.making import Maker, answer_of
from cache_engine.farm.messages import Asked, asked, encode
from cache_engine.model.key import CacheKey
from cache_engine.process import Background, Order
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
        self._opened: tuple[int, Maker, Broker] | None = None
        self._board = Board(broker)

    def work(self, text: object) -> None:
        """Does what a message asks for, and answers. A message that asks for nothing valid is dropped.

        Raises:
            UsageError: for such a message.
            BrokerAway: when the broker does not answer.
        """
        message = asked(text)
        _, broker = self._open()
        if broker.is_canceled(message.job):
            return
        self._board.begins(self.name, message)
        answer = answer_of(message, f"{self.host}:{os.getpid()}", self._made)
        broker.answer(message.job, encode(answer))
        self._board.ends(self.name, message, compiled=answer.compiled, error=answer.error)

    def _made(self, message: Asked) -> bool:
        """Has the remote have the kernel, as the one process that is at it; whether that took a compile here."""
        maker, broker = self._open()
        key = maker.checked(message)
        if broker.tries(f"{message.job}:{key}") > MOST_TRIES:
            raise NotHereError(f"{MOST_TRIES} workers ended while they compiled it")
        # Not of the message: a broker may deliver one twice.
        owner = secrets.token_hex(16)
        while not broker.take(key, owner):
            if maker.has(key):
                return False
            time.sleep(_LOOK_S)  # another is at it, or was killed; its lease ends
        with _kept(broker, key, owner):
            return maker.made(message, key)

    def _open(self) -> tuple[Maker, Broker]:
        if self._opened is None or self._opened[0] != os.getpid():
            broker, remote = self._urls
            self._opened = (os.getpid(), Maker(self._settings, remote, self._key), Broker(broker))
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
