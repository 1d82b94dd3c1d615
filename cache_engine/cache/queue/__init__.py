"""Tickets of the processes that compile, wait for a slot to compile in, or wait for another process's compile.

A ticket is an empty file in ``temp``. Its name has all the information, so listing the folder shows the queue, and no
content has to be trusted. The process that owns a ticket holds its lock until it deletes it. A ticket whose lock is
free belonged to a process that was killed; the next process that finds it first in line deletes it, or a cleaning does.

``PendingKernel`` is the handle of a kernel that is compiled in the background.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from enum import IntEnum, StrEnum
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import msgspec

from cache_engine.errors import CorruptEntry, NotCached
from cache_engine.logs import Log
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure
from cache_engine.process import OwnFile
from cache_engine.store.layout import StoreLayout, TicketName, ticket_of_name
from cache_engine.store.lock import try_lock
from cache_engine.store.ownership import own_file
from cache_engine.store.publish import delete, stage

_log = Log(__name__)

T = TypeVar("T")


class Priority(IntEnum):
    """The purpose of a compile, most urgent first."""

    CALLER = 0
    """A caller waits for the kernel."""
    PROMOTION = 1
    """The kernel was asked for, and another kernel serves until it is ready."""
    WARM = 2
    """The kernel is compiled in advance, because a user asked for that."""
    SPECULATION = 3
    """The kernel may be asked for later."""


class State(StrEnum):
    """The activity of the process that owns a ticket."""

    COMPILES = "compiles"
    QUEUED = "queued"
    """The process waits for a slot."""
    WAITS = "waits"
    """The process waits for a kernel that another process compiles, or has in the queue."""


_STATES, _PRIORITIES = frozenset(State), frozenset(Priority)

HEAD_START_S = 30.0
"""The head start, in seconds, of a more urgent compile over a less urgent one, for each step of priority.

A more urgent compile goes first if it comes at most this much later. The limit ensures that a stream of urgent compiles
does not delay others for ever.
"""


class Ticket:
    """A ticket of this process, held while the body of a ``with`` runs.

    If the file cannot be created, as on a full disk, the process still waits in the queue, but others do not see it.
    """

    def __init__(self, layout: StoreLayout, key: CacheKey, priority: Priority, state: State) -> None:
        """Creates no file yet."""
        self._layout = layout
        now_us = time.time_ns() // 1000
        self.name = TicketName(state, priority, now_us, key, os.getpid(), os.urandom(4).hex())
        self._path = layout.ticket(self.name)
        self._file: OwnFile | None = None

    def __enter__(self) -> Ticket:
        with suppress(OSError):
            path, file = stage(self._layout.temp)
            try:
                # Locked before it gets the name of a ticket, so that no process sees a ticket with a free lock.
                os.rename(path, self._path)
            except BaseException:
                delete(path)
                file.close()
                raise
            self._file = file
        return self

    def __exit__(self, *_: object) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                if file.is_ours:  # otherwise this is a forked child
                    delete(self._path)
            finally:
                file.close()

    def becomes(self, state: State) -> None:
        """Changes the state in the ticket."""
        if self._file is not None:
            with suppress(OSError):
                name = self.name._replace(state=state)
                path = self._layout.ticket(name)
                os.rename(self._path, path)
                self._path, self.name = path, name


class Turn(msgspec.Struct, frozen=True):
    """A compile or a wait in progress.

    Attributes:
        state: the activity of the process: compiling, or waiting for a slot or for another process.
        priority: the priority with which it began, without one lent to it by a waiting process.
        key: the key of the kernel.
        pid: the process id.
        seconds: the seconds since the compile or the wait began, by this machine's clock.
    """

    state: State
    priority: Priority
    key: CacheKey
    pid: int
    seconds: float


class QueueState(msgspec.Struct, frozen=True):
    """The compile queue of a store at one moment.

    Attributes:
        slots: the number of kernels that may be compiled at a time, by the settings of this process.
        compiling: the compiles that run.
        queued: the compiles that wait for a slot, in the order in which they will start.
        waiting: the processes that wait for a kernel that another compiles or has in the queue.
    """

    slots: int
    compiling: tuple[Turn, ...] = ()
    queued: tuple[Turn, ...] = ()
    waiting: tuple[Turn, ...] = ()


def queue_state(layout: StoreLayout, slots: int) -> QueueState:
    """The compiles that run and those that wait now, without those of killed processes. Changes nothing."""
    now_us = time.time_ns() // 1000
    try:
        alive = [ticket for ticket in tickets(layout) if is_alive(layout, ticket)]
    except OSError:
        return QueueState(slots)

    def turns(found: Iterable[TicketName]) -> tuple[Turn, ...]:
        return tuple(
            Turn(State(one.state), Priority(one.priority), one.key, one.pid, max(0.0, (now_us - one.since_us) / 1e6))
            for one in found
        )

    oldest_first = sorted(alive, key=lambda one: one.since_us)
    compiling, waiting = (
        turns(one for one in oldest_first if one.state == state) for state in (State.COMPILES, State.WAITS)
    )
    return QueueState(slots, compiling, turns(in_order(alive)), waiting)


def tickets(layout: StoreLayout) -> list[TicketName]:
    """All tickets, including those of killed processes."""
    found = (ticket_of_name(name) for name in os.listdir(layout.temp))
    return [ticket for ticket in found if ticket and ticket.state in _STATES and ticket.priority in _PRIORITIES]


def is_alive(layout: StoreLayout, ticket: TicketName) -> bool:
    """Whether a process still holds a ticket. True if the file system has no locks, so that this cannot be known."""
    try:
        file = own_file(layout.ticket(ticket), os.O_RDWR)
    except (FileNotFoundError, CorruptEntry):
        return False
    except OSError:
        return True
    try:
        return not try_lock(file.descriptor)
    except OSError:
        return True
    finally:
        file.close()


def in_order(found: Iterable[TicketName]) -> list[TicketName]:
    """The tickets that wait for a slot, in the order in which they get one.

    The oldest goes first, except that a less urgent compile lets more urgent ones pass that come up to ``HEAD_START_S``
    later for each step of priority. A process that waits for a key's lock lends its priority to the compile that it
    waits for. Several keys share a lock; all their compiles get the priority.
    """
    found = list(found)
    lent: dict[str, int] = {}
    for ticket in found:
        if ticket.state == State.WAITS:
            lock = _lock_of(ticket)
            lent[lock] = min(ticket.priority, lent.get(lock, ticket.priority))

    def turn(ticket: TicketName) -> tuple[float, int, str]:
        priority = min(ticket.priority, lent.get(_lock_of(ticket), ticket.priority))
        return ticket.since_us + priority * HEAD_START_S * 1e6, ticket.since_us, ticket.token

    return sorted((ticket for ticket in found if ticket.state == State.QUEUED), key=turn)


def _lock_of(ticket: TicketName) -> str:
    """The part of a ticket's key that decides which lock file the key has; several keys share one."""
    return ticket.key[:3]


# ---- A kernel that is compiled in the background: the handle that a caller gets ----


class PendingKernel(Generic[T]):
    """A handle of a kernel that is compiled in the background. Safe to use from several threads; can be awaited.

    Attributes:
        key: the CacheKey of the kernel.
        kernel: the kernel, once it is ready.
        failure: the reason, once the compile has failed.
    """

    def __init__(self, key: CacheKey, lend: Callable[[], AbstractContextManager[object]]) -> None:
        """Creates a handle that is not ready.

        Args:
            lend: returns a context manager that raises the compile's priority while a caller waits for the kernel.
        """
        self.key = key
        self.kernel: T | None = None
        self.failure: Failure | None = None
        self.error: Exception | None = None
        self._lend = lend
        self._start_waiting()

    def _start_waiting(self) -> None:
        # A queue, because it has no lock that could be held when a signal handler waits for it as well.
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._callbacks: deque[Callable[[PendingKernel[T]], object]] = deque()
        self._lock = threading.RLock()
        self._waiting = 0
        self._lent: AbstractContextManager[object] = nullcontext()

    @classmethod
    def of(cls, key: CacheKey, kernel: T) -> PendingKernel[T]:
        """A handle for a kernel that is ready already."""
        made = cls(key, nullcontext)
        made.succeed(kernel)
        return made

    @property
    def ready(self) -> bool:
        """Whether ``kernel`` is set."""
        return self.kernel is not None

    @property
    def done(self) -> bool:
        """Whether ``kernel`` or ``failure`` is set."""
        return self.kernel is not None or self.failure is not None

    @property
    def is_waited_for(self) -> bool:
        """Whether a thread or a coroutine waits for the end of the compile."""
        return self._waiting > 0

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end of the compile, which gets the priority of a caller; returns whether the kernel is ready.

        Args:
            timeout_s: the longest wait in seconds; ``None`` for no limit, 0 for no wait.
        """
        if not self.done and (timeout_s is None or timeout_s > 0):
            try:
                with self._lending(), suppress(Empty):
                    self._ended.get(timeout=timeout_s)
            finally:  # also when interrupted
                if self.ready or self.failure is not None:
                    self._ended.put(None)  # wakes the next waiter
        return self.ready

    @contextmanager
    def _lending(self) -> Iterator[None]:
        """Lends a caller's priority to the compile while the body runs.

        All threads that wait at the same time lend it once, because a ticket takes a file descriptor.
        """
        with self._lock:
            if not self._waiting:
                lent = self._lend()
                lent.__enter__()
                self._lent = lent
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                if not self._waiting:
                    self._lent.__exit__(None, None, None)

    def on_done(self, callback: Callable[[PendingKernel[T]], object]) -> None:
        """Calls ``callback`` once with this handle, when ``kernel`` or ``failure`` is set; maybe at once.

        It is called in the thread that compiles, or in the one that closes the cache, so it should be short. An
        exception of it is logged. A forked child does not call the callbacks of its parent.
        """
        self._callbacks.append(callback)
        if self.done:
            self._call()

    def __await__(self) -> Generator[Any, None, T]:
        """Waits for the kernel and returns it, without blocking the event loop.

        The compile gets the priority of a caller.

        Raises:
            GemmCacheError: the error of the compile; ``NotCached`` if the cache was closed before.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():  # otherwise the waiting coroutine was cancelled
                future.set_result(None)

        def ended(_: PendingKernel[T]) -> None:
            with suppress(RuntimeError):  # the loop was closed, so no coroutine waits
                loop.call_soon_threadsafe(wake)

        if not self.done:
            self.on_done(ended)
            with self._lending():
                yield from future
        if self.kernel is None:
            raise self.error or NotCached(f"{self.key[:12]} is not there: {self.failure}")
        return self.kernel

    def succeed(self, kernel: T) -> None:
        """Sets ``kernel``: the compile has succeeded."""
        self.kernel = kernel
        self._ended.put(None)
        self._call()

    def fail(self, why: str, error: Exception | None = None) -> None:
        """Sets ``failure``: the compile has failed, or will not be tried."""
        self.error, self.failure = error, Failure(why)
        self._ended.put(None)
        self._call()

    def renew_after_fork(self) -> None:
        """In a forked child: sets ``failure``, because only the parent has the thread that compiles."""
        # Another thread of the parent may have been in the queue; callbacks may wake an event loop of the parent.
        self._start_waiting()
        if not self.done:
            self.fail("it was compiled by the parent of this process")

    def _call(self) -> None:
        while self._callbacks:
            with suppress(IndexError):  # another thread took its entry
                callback = self._callbacks.popleft()
                try:
                    callback(self)
                except KeyboardInterrupt:
                    raise
                except BaseException:  # also SystemExit and asyncio's CancelledError: others wait for this thread
                    _log.exception("what %s was to call when it was ready has failed", self.key[:12])
