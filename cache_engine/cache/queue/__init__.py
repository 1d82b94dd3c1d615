"""Tickets: who compiles, who waits for a slot, and who waits for a kernel that another compiles.

A ticket is an empty file among the temporaries. Its name says everything, so one look at the folder shows the queue,
and no content has to be trusted. Its owner holds its lock until it deletes it: a ticket whose lock is free is that of a
process that was killed, and is deleted by the next that finds it first in line, or with the temporaries.

``PendingKernel`` is the handle of a kernel that is compiled in the background.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
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
    """The purpose of a compile, the most urgent first."""

    CALLER = 0
    """A caller waits for it."""
    PROMOTION = 1
    """Another kernel serves meanwhile."""
    WARM = 2
    """It was asked for in advance."""
    SPECULATION = 3
    """It may be asked for."""


class State(StrEnum):
    """The activity of a ticket's owner."""

    COMPILES = "compiles"
    QUEUED = "queued"
    """It waits for a slot."""
    WAITS = "waits"
    """It waits for the kernel that another compiles, or has in the queue."""


_STATES, _PRIORITIES = frozenset(State), frozenset(Priority)

HEAD_START_S = 30.0
"""Seconds by which a more urgent compile may come later and still go first, for each step of priority.

A bound, so that a stream of urgent compiles starves no other.
"""


class Ticket:
    """A ticket of this process, for the body of a ``with``.

    It may have no file, as on a full disk: its owner then waits like the others, and only they do not see it.
    """

    def __init__(self, layout: StoreLayout, key: CacheKey, priority: Priority, state: State) -> None:
        """Makes no file yet."""
        self._layout = layout
        now_us = time.time_ns() // 1000
        self.name = TicketName(state, priority, now_us, key, os.getpid(), os.urandom(4).hex())
        self._path = layout.ticket(self.name)
        self._file: OwnFile | None = None

    def __enter__(self) -> Ticket:
        with suppress(OSError):
            path, file = stage(self._layout.temp)
            try:
                # Locked before it has the name of a ticket, so that no look finds one with a free lock.
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
                if file.is_ours:  # else this is a forked child
                    delete(self._path)
            finally:
                file.close()

    def becomes(self, state: State) -> None:
        """Says that its owner now does something else."""
        if self._file is not None:
            with suppress(OSError):
                name = self.name._replace(state=state)
                path = self._layout.ticket(name)
                os.rename(self._path, path)
                self._path, self.name = path, name


class Turn(msgspec.Struct, frozen=True):
    """A compile or a wait that is under way.

    Attributes:
        state: what its owner does.
        priority: its own, not one that is lent.
        key: the kernel.
        pid: the process.
        seconds: for how long, by the clock of this machine.
    """

    state: State
    priority: Priority
    key: CacheKey
    pid: int
    seconds: float


class QueueState(msgspec.Struct, frozen=True):
    """The compile queue of a store at one moment.

    Attributes:
        slots: how many may compile at a time, by the settings of who asks.
        compiling: the kernels that are compiled now.
        queued: those that wait for a slot, the next first.
        waiting: who waits for a kernel that another compiles or has in the queue.
    """

    slots: int
    compiling: tuple[Turn, ...] = ()
    queued: tuple[Turn, ...] = ()
    waiting: tuple[Turn, ...] = ()


def queue_state(layout: StoreLayout, slots: int) -> QueueState:
    """The compiles that run and those that wait now, without those that were killed. Changes nothing."""
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
    """All tickets, those of killed processes included."""
    found = (ticket_of_name(name) for name in os.listdir(layout.temp))
    return [ticket for ticket in found if ticket and ticket.state in _STATES and ticket.priority in _PRIORITIES]


def is_alive(layout: StoreLayout, ticket: TicketName) -> bool:
    """Whether the owner of a ticket holds it still; where locks do not work, it counts as held."""
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
    """Those that wait for a slot, the next first.

    The oldest goes first, but a compile of less priority lets others pass that come up to ``HEAD_START_S`` later for
    each step. Who waits for a key's lock lends its priority to the compile it waits for: that of any key of this lock.
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
    """The part of a key that keys with the same lock have in common."""
    return ticket.key[:3]


# ---- A kernel that is compiled in the background: what a caller holds meanwhile ----


class PendingKernel(Generic[T]):
    """A kernel that is compiled in the background. Safe to use from several threads; ``await`` it in a coroutine.

    Attributes:
        key: its CacheKey.
        kernel: the kernel, once it is there.
        failure: why there will be none, once that is known.
    """

    def __init__(self, key: CacheKey, lend: Callable[[], AbstractContextManager[object]]) -> None:
        """Not ready yet; who waits for it does so in what ``lend`` returns."""
        self.key = key
        self.kernel: T | None = None
        self.failure: Failure | None = None
        self.error: Exception | None = None
        self._lend = lend
        # A queue, as a signal handler may wait for it as well: it has no lock that could be held.
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._callbacks: deque[Callable[[PendingKernel[T]], object]] = deque()

    @classmethod
    def of(cls, key: CacheKey, kernel: T) -> PendingKernel[T]:
        """That of a kernel which is there."""
        made = cls(key, nullcontext)
        made.succeed(kernel)
        return made

    @property
    def ready(self) -> bool:
        """Whether ``kernel`` is there."""
        return self.kernel is not None

    @property
    def done(self) -> bool:
        """Whether ``kernel`` or ``failure`` is there."""
        return self.kernel is not None or self.failure is not None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end of the compile, as urgently as a caller; returns whether the kernel is ready.

        Args:
            timeout_s: at most so many seconds; ``None`` waits without a limit, 0 not at all.
        """
        if not self.done and (timeout_s is None or timeout_s > 0):
            with self._lend(), suppress(Empty):
                self._ended.put(self._ended.get(timeout=timeout_s))  # for the next that waits
        return self.ready

    def on_done(self, callback: Callable[[PendingKernel[T]], object]) -> None:
        """Calls ``callback`` with this, once, when ``kernel`` or ``failure`` is there; at once if it is there now.

        It runs in the thread that compiled, or in the one that closes the cache, so it should be short. What it raises
        is logged. A forked child calls none of its parent's.
        """
        self._callbacks.append(callback)
        if self.done:
            self._call()

    def __await__(self) -> Generator[Any, None, T]:
        """The kernel, when it is there; waits as urgently as a caller, and the event loop goes on meanwhile.

        Raises:
            GemmCacheError: what the compile raised; ``NotCached`` where the cache was closed before it.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():  # else who waited was cancelled
                future.set_result(None)

        if not self.done:
            self.on_done(lambda _: loop.call_soon_threadsafe(wake))
            with self._lend():
                yield from future
        if self.kernel is None:
            raise self.error or NotCached(f"{self.key[:12]} is not there: {self.failure}")
        return self.kernel

    def succeed(self, kernel: T) -> None:
        """The compile has ended well."""
        self.kernel = kernel
        self._ended.put(None)
        self._call()

    def fail(self, why: str, error: Exception | None = None) -> None:
        """The compile has failed, or will not be tried."""
        self.error, self.failure = error, Failure(why)
        self._ended.put(None)
        self._call()

    def renew_after_fork(self) -> None:
        """In a forked child: fails, as the thread that compiles is the parent's."""
        # Another thread of the parent may have been in the queue; callbacks may wake an event loop of the parent.
        self._ended, self._callbacks = SimpleQueue(), deque()
        self.fail("it was compiled by the parent of this process")

    def _call(self) -> None:
        while self._callbacks:
            with suppress(IndexError):  # another thread took it
                callback = self._callbacks.popleft()
                try:
                    callback(self)
                except Exception:
                    _log.exception("what %s was to call when it was ready has failed", self.key[:12])
