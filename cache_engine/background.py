"""A queue of background work. All work of this package that callers do not wait for goes through it.

Creating a queue starts no thread. The first work starts one, and the thread ends when no work waits. All threads are
daemons. A forked child does not do its parent's work. The owner of a queue closes it, also at the end of the process.

A signal handler may call every method, because the queue's lock is reentrant and held for a few instructions only.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from typing import NamedTuple

from cache_engine.logs import Log
from cache_engine.process import renew_after_fork

_log = Log(__name__)
CLOSE_S = 5.0
"""The longest time, in seconds, that closing a queue waits for its running work.

The wait is limited, because a signal handler may have interrupted code that this work waits for.
"""
# The shortest delay, in seconds, before repeated work is tried again after it failed.
_PAUSE_S = 1.0
# The seconds after which a waiting caller checks that a thread still exists.
_LOOK_S = 1.0

Work = Callable[[], float | None]
"""A function that does one step of work. Returns the seconds until its next call, or ``None`` if it is finished."""


class _Waiting(NamedTuple):
    """Work that waits, ordered by due time, and then by the order in which it was put in the queue."""

    due: float
    number: int
    work: Work
    wait_s: float


class BackgroundQueue:
    """Work that threads of this process do in the order in which it was put. Safe to use from several threads.

    If work raises an error, this is logged. The work is then dropped or, if put with a delay, tried again after that
    delay.

    Attributes:
        is_closed: whether the queue refuses new work.
    """

    def __init__(self, threads: int = 1, most: float = math.inf) -> None:
        """Creates an empty queue; starts no thread yet.

        Args:
            threads: the largest number of steps done at the same time.
            most: the largest number of steps that wait or are being done.
        """
        self._most_threads, self._most = threads, most
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: drops all work, because the parent does it."""
        self._lock = threading.RLock()
        self._waiting: list[_Waiting] = []
        self._doing: set[int] = set()
        self._numbers = count()
        self._threads: list[Thread] = []
        self._working = 0
        self._ends_at = math.inf
        self.is_closed = False
        # Queues without a lock: one wakes the thread that waits for work, one for each caller of ``settle`` wakes that
        # caller.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._settling: list[SimpleQueue[None]] = []

    @property
    def is_idle(self) -> bool:
        """Whether no work waits or is being done."""
        return not self._waiting and not self._doing

    def put(self, work: Work, after_s: float = 0.0) -> bool:
        """Queues work, to be done soon or after ``after_s`` seconds. Returns at once.

        Returns:
            Whether the work was queued. It is refused if too much work waits, the queue is closed, or this process can
            start no thread.
        """
        with self._lock:
            if self.is_closed or not self._start_thread() or len(self._waiting) + len(self._doing) >= self._most:
                return False
            heappush(self._waiting, _Waiting(time.monotonic() + after_s, next(self._numbers), work, after_s))
        if self._bell.empty():
            self._bell.put(None)
        return True

    def settle(self, timeout_s: float = math.inf) -> bool:
        """Waits until all work that was put before this call is done; returns whether it was done before the timeout.

        Work that repeats counts as done after one more step.
        """
        if self.is_idle:
            return True
        latest, last, ended = time.monotonic() + timeout_s, next(self._numbers), SimpleQueue[None]()
        self._settling.append(ended)
        try:
            while not self._is_done(last) and (left_s := latest - time.monotonic()) > 0 and self._has_thread():
                with suppress(Empty):
                    ended.get(timeout=min(left_s, _LOOK_S))
            return self._is_done(last)
        finally:
            self._settling.remove(ended)

    def end(self, at: float = 0.0) -> None:
        """Refuses new work, and starts no waiting work after the time ``at`` (of ``time.monotonic``; by default now).

        Returns at once. Work that was put with a delay, or that is to be repeated, is dropped.
        """
        with self._lock:
            self.is_closed, self._ends_at = True, at
            if time.monotonic() >= at:
                self._waiting.clear()
        for _ in self._threads:
            self._bell.put(None)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Calls ``end`` for now, then waits until running work is done and the threads have ended."""
        self.end()
        latest = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, latest - time.monotonic()))

    def _is_done(self, last: int) -> bool:
        with self._lock:
            return all(number > last for number in (*self._doing, *(one.number for one in self._waiting)))

    def _has_thread(self) -> bool:
        self._threads = [thread for thread in self._threads if thread.is_alive]
        # A thread may be about to end and no longer count itself, or may have had no memory to run and never count
        # itself.
        self._working = min(self._working, len(self._threads))
        return self._working > 0

    def _start_thread(self) -> bool:
        """Starts another thread if the limit of threads allows it; returns whether the queue has any thread now."""
        if not self._has_thread() or self._working < self._most_threads:
            with suppress(RuntimeError):  # this process may have no more threads
                self._threads.append(Thread(self._work))
                self._working += 1
        return self._working > 0

    def _work(self) -> None:
        """The body of a thread: does work that is due, until no work waits."""
        while (wait_s := self._do_next()) is not None:
            with suppress(Empty):
                self._bell.get(timeout=wait_s)

    def _do_next(self) -> float | None:
        """Does the first work if it is due.

        Returns the seconds until the next work is due; ``None`` to end the thread.
        """
        with self._lock:
            now = time.monotonic()
            if now >= self._ends_at or (self.is_closed and self._waiting and self._waiting[0].due > now):
                self._waiting.clear()
            if not self._waiting:
                self._working -= 1
                self._wake_settling()
                return None
            first = self._waiting[0]
            if first.due > now:
                return first.due - now
            heappop(self._waiting)
            self._doing.add(first.number)
        again_s = None
        try:
            again_s = first.work()
        except Exception:
            _log.exception("a step in the background failed")
            again_s = max(first.wait_s, _PAUSE_S) if first.wait_s else None
        finally:
            with self._lock:
                self._doing.discard(first.number)
                if again_s is not None and not self.is_closed:
                    due = time.monotonic() + again_s
                    heappush(self._waiting, _Waiting(due, next(self._numbers), first.work, again_s))
            self._wake_settling()
        return 0.0

    def _wake_settling(self) -> None:
        for one in tuple(self._settling):
            one.put(None)


class _Running:
    """A marker object that exists as long as its thread runs."""

    __slots__ = ("__weakref__",)


class Thread:
    """A daemon thread. Creating one starts it and returns at once, even if the system has no memory to run the thread.

    ``threading.Thread.start`` waits, without a limit, for the first instruction of the thread. A thread that has no
    memory for its first frame dies before that, and the wait never ends (CPython 3.11 to 3.13).
    """

    def __init__(self, work: Callable[..., object], *arguments: object) -> None:
        """Starts a thread that calls ``work``.

        Raises:
            RuntimeError: when this process cannot start another thread.
        """
        self._process = os.getpid()
        self._ended: SimpleQueue[object] = SimpleQueue()
        running = _Running()
        # The thread holds the only other reference. At its end no Python code runs, since there may be no memory.
        self._running = weakref.ref(running, self._ended.put)
        self._identity = start_new_thread(_run, (running, work, arguments))

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs or is about to start."""
        return self._running() is not None and self._process == os.getpid()

    def join(self, timeout_s: float) -> None:
        """Waits until the thread ends, at most ``timeout_s``; returns at once when called in the thread itself."""
        if self.is_alive and self._identity != threading.get_ident():
            with suppress(Empty):
                self._ended.put(self._ended.get(timeout=timeout_s))  # wakes the next thread that waits


def _run(running: _Running, work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    try:
        work(*arguments)
    finally:
        # A log handler that keeps an error of this thread also keeps this frame, and with it the marker of a running
        # thread.
        del running
