"""A worker of the farm: it compiles the kernel that a message asks for, and sends it to the remote, signed.

Celery runs the processes and gives them work. Celery gets the work through a transport of ours, so only the text of a
checked message passes from the broker. Celery's own message format, which cannot be checked, stays within the process.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

from cache_engine.background import BackgroundQueue
from cache_engine.cache.cache import open_cache
from cache_engine.cache.queue import Priority
from cache_engine.cache.remote.base import MOST_ENTRY_BYTES, name_of
from cache_engine.cache.remote.client_process import open_remote
from cache_engine.cache.remote.transfer import push
from cache_engine.errors import GemmCacheError, NotHereError, RemoteError, UsageError
from cache_engine.model.key import CacheKey
from cache_engine.settings import Settings
from cache_engine.settings.extras import needing
from cache_engine.store.signatures.signers import SigningKey
from cache_engine.team.board import GONE_S, Board, Heart, Present, kernel_text
from cache_engine.team.broker import LEASE_S, Answered, Broker, BrokerAway, CompileMessage, Keys, asked, encode
from cache_engine.units import counted, human_ms, printable

_TASK, _QUEUE = "gemm_cache.compile", "farm"
_MESSAGE_S = 1.0
"""Seconds to wait for a message of the broker. A signal is obeyed within this time."""
_TURN_S = 0.05
"""Seconds between two checks of Celery for finished processes, while all processes are busy."""
_MOST_REFUSED = 100
"""The most messages refused in a row before signals are checked."""


class Worker:
    """A process that compiles for a farm. It opens the store and the remote at the first request, after any fork."""

    def __init__(self, settings: Settings, broker: str, remote: str, key: SigningKey) -> None:
        self._settings, self._sign = settings, key.sign
        self._remote, self.host, keys = remote, socket.gethostname(), Keys.of(remote)
        self.broker, self.board = Broker(broker, keys), Board(broker, keys)
        self.name = f"{self.host}:{os.getpid()}"  # of the main process; those that compile are forked from it
        self._opened: tuple[int, _Maker] | None = None

    def work(self, text: object) -> None:
        """Compiles the kernel that a message asks for, answers the submitter, and prints a line about the kernel.

        If no answer comes, as when another process compiles the kernel, the submitter looks in the remote.

        Raises:
            UsageError: for text that is not a valid message.
            BrokerAway: when the broker does not answer.
        """
        message = asked(text)
        if self.broker.is_canceled(message.job):
            return
        started = time.perf_counter()
        is_compiled, error = False, ""
        try:
            maker = self._maker()
            key = maker.checked(message)
            with _leased(self.broker, key) as is_ours:
                if not is_ours:
                    _say(f"{kernel_text(message)}: another process compiles it")
                    return
                self.board.begins(self.name, message)
                is_compiled = maker.made(message, key)
        except BrokerAway:
            raise
        except (GemmCacheError, OSError) as trouble:
            error = str(trouble)
        seconds = time.perf_counter() - started
        outcome = f"{'compiled' if is_compiled else 'found'} in {human_ms(1e3 * seconds)}"
        _say(f"{kernel_text(message)}: {error or outcome}")
        answer = Answered(message.key, error, f"{self.host}:{os.getpid()}", is_compiled, seconds)
        self.broker.answer(message.job, encode(answer))
        self.board.ends(self.name, message, compiled=is_compiled, error=error)

    def _maker(self) -> _Maker:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), _Maker(self._settings, self._remote, self._sign))
        return self._opened[1]


class _Maker:
    """Makes kernels for a remote.

    It opens the store and the remote at once, so only the process that made it may use it.
    """

    def __init__(self, settings: Settings, remote: str, sign: Callable[[bytes], bytes]) -> None:
        self._cache, self._remote, self._sign = open_cache(settings=settings.made_here()), open_remote(remote), sign

    def checked(self, message: CompileMessage) -> CacheKey:
        """The key that a message asks for; raises ``NotHereError`` if this machine's toolchain makes another key."""
        selection = self._cache.select(
            message.gemm, family=message.family, compiler=message.compiler, config=message.config
        )
        if selection.key != message.key:
            here = selection.compiler.fingerprint()
            raise NotHereError(f"this worker makes another key of it, with {here.compiler} {here.version}")
        return selection.key

    def made(self, message: CompileMessage, key: CacheKey) -> bool:
        """Sends a kernel to the remote if the remote lacks it, compiling it if needed; returns whether it was compiled.

        Raises:
            GemmCacheError: where the kernel cannot be compiled, stored or sent.
        """
        if self._remote.get(name_of(key), MOST_ENTRY_BYTES) is not None:
            return False
        kernel = self._cache.get_or_compile(
            message.gemm, family=message.family, compiler=message.compiler, config=message.config,
            priority=Priority.WARM,
        )  # fmt: skip
        if kernel.unpublished is not None:
            raise RemoteError(f"it was compiled but not stored: {kernel.unpublished}")
        sent = push(self._cache.store, self._remote, [key], sign=self._sign)
        if sent.refused:
            raise RemoteError(sent.refused[0].cause)
        return kernel.tier == "compiled"


class _Intake:
    """Takes messages out of the queue for Celery, and passes on only valid requests for a kernel."""

    def __init__(self, worker: Worker, *, until_empty: bool) -> None:
        self._broker, self._board = worker.broker, worker.board
        self._until_empty, self._refused, self._is_away = until_empty, 0, False
        self._turned = time.monotonic()
        self.stops = False

    def is_well(self) -> bool:
        """Whether the main process has worked lately, or only finishes its last kernels."""
        return self.stops or time.monotonic() - self._turned < GONE_S

    def turn(self) -> None:
        """Stores the present time as the last time at which the main process worked."""
        self._turned = time.monotonic()

    def message(self) -> str | None:
        """The next message's text; ``None`` if no message has come yet."""
        for _ in range(_MOST_REFUSED):
            if self.stops:
                break
            try:
                message = self._broker.message(_MESSAGE_S)
            except UsageError as error:
                self._refuse(error)
                continue
            except RemoteError as error:
                self._wait(error)
                break
            self._is_away = False
            if message is not None:
                return encode(message)
            if self._until_empty:
                _say("The queue is empty, and the worker ends.")
                self.stop()
        return None

    def stop(self) -> None:
        """Tells Celery to end after the kernels in work."""
        from celery.worker import state

        self.stops, state.should_stop = True, 0

    def _wait(self, error: RemoteError) -> None:
        if not self._is_away:
            _say(f"{error}; the worker waits for it")
        self._is_away = True
        time.sleep(_MESSAGE_S)

    def _refuse(self, error: UsageError) -> None:
        self._refused += 1
        self._board.refuses()
        if self._refused & (self._refused - 1) == 0:  # many are said a few times
            _say(f"{counted(self._refused, 'message')} refused, the last: {error}")


def serve(worker: Worker, *, processes: int, until_empty: bool = False, health_file: Path | None = None) -> int:
    """Compiles until it is stopped or, with ``until_empty``, until the queue is empty; returns the exit code.

    Args:
        health_file: a file to touch every five seconds while the worker is well.

    Raises:
        ExtraMissing: when Celery is not installed.
    """
    intake = _Intake(worker, until_empty=until_empty)
    app = _application(intake)

    @app.task(name=_TASK)  # type: ignore[untyped-decorator]  # Celery has no types
    def compile_kernel(text: object) -> None:
        try:
            worker.work(text)
        except GemmCacheError as error:  # who asked sends it again
            _say(str(error))

    class Stoppable(app.Worker):  # type: ignore[misc,name-defined]
        def install_platform_tweaks(self, _worker: object) -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, partial(_stop, intake))

    command = Stoppable(
        hostname=f"gemm-cache-{os.getpid()}@{worker.host}", concurrency=processes, pool="prefork", queues=[_QUEUE],
        loglevel="WARNING", quiet=True, without_gossip=True, without_mingle=True, without_heartbeat=True,
    )  # fmt: skip
    present = Present(worker.host, os.getpid(), processes, worker.board.now())
    heart = Heart(worker.board, worker.name, present, intake.is_well, health_file)
    try:
        command.start()
    finally:
        heart.stop()
    return int(command.exitcode or 0)


def _stop(intake: _Intake, number: int, _frame: object) -> None:
    from billiard import active_children
    from celery.worker import state

    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    if not intake.stops:
        at_work = counted(len(state.reserved_requests), "kernel")
        _say(f"{name}: the worker finishes {at_work} and ends. A second signal ends it at once.")
        intake.stop()
        return
    _say(f"{name}: the worker ends at once. What it compiled is asked for again by who asked for it.")
    for child in active_children():
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
    os._exit(1)


def _application(intake: _Intake) -> Any:
    """The Celery application: it has only one task, and gets it from our queue.

    If a process dies, its message is lost with it, and the submitter sends the message again.
    """
    with needing("team", "the farm"):
        from celery import Celery
    app = Celery("gemm-cache", broker="memory://localhost", set_as_current=False)
    app.conf.update(
        broker_transport=_transport(intake),
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=True,  # so that no more is taken than is compiled at a time
        task_default_queue=_QUEUE,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
    )
    app.finalize(auto=True)
    for name in list(app.tasks):
        app.tasks.unregister(name)
    return app


def _transport(intake: _Intake) -> type:
    """A class of transport for Celery's library kombu. It makes each message here, from checked text."""
    from kombu.transport import virtual

    class Channel(virtual.Channel):  # type: ignore[misc]
        do_restore = False  # who asked sends again what is lost

        def _get(self, queue: str, **_: object) -> dict[str, Any]:
            text = intake.message()
            if text is None:
                raise Empty
            name = secrets.token_hex(16)
            return {
                "body": base64.b64encode(json.dumps([[text], {}, {}]).encode()).decode(),
                "content-type": "application/json",
                "content-encoding": "utf-8",
                "headers": {"lang": "py", "task": _TASK, "id": name},
                "properties": {
                    "body_encoding": "base64",
                    "correlation_id": name,
                    "delivery_tag": name,
                    "delivery_info": {"exchange": "", "routing_key": queue},
                },
            }

        def _size(self, _queue: str) -> int:
            return 0

    class Transport(virtual.Transport):  # type: ignore[misc]
        driver_type = driver_name = "gemm-cache"
        polling_interval = 0.005

        def drain_events(self, connection: object, **_: object) -> None:
            intake.turn()
            super().drain_events(connection, timeout=_TURN_S)

    Transport.Channel = Channel
    return Transport


@contextmanager
def _leased(broker: Broker, key: CacheKey) -> Iterator[bool]:
    """Yields whether this process alone compiles a key in the body of a ``with``, however long the body takes."""
    owner = secrets.token_hex(16)  # not of the message: a broker may deliver one twice
    if not broker.take(key, owner):
        yield False
        return

    def renew() -> float:
        with suppress(RemoteError):  # a broker that comes back is asked again
            broker.renew(key, owner)
        return LEASE_S / 4

    queue = BackgroundQueue()
    queue.put(renew, LEASE_S / 4)
    try:
        yield True
    finally:
        queue.close()
        with suppress(RemoteError):
            broker.release(key, owner)


def _say(line: str) -> None:
    """Prints a whole line for people; safe in a signal handler."""
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"{printable(line)}\n".encode())
