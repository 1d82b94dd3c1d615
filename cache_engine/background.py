"""Work in the background: one queue of it, which everything uses that no caller is to wait for.

Nothing starts with a queue: the first work starts a thread, and the thread ends when no work waits. All threads are
daemons. A forked child has none of its parent's work. The owner of a queue closes it, also at the end of the process.

A signal handler may call each method, as the lock of a queue is reentrant and held for some instructions only.
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
"""The longest wait for work when its queue is closed: a signal handler may have interrupted what the work waits for."""
# At least so long repeated work waits after it failed.
_PAUSE_S = 1.0
# How often those that wait check that a thread is still there.
_LOOK_S = 1.0

Work = Callable[[], float | None]
"""Does one step; returns after how many seconds it is to be done again, or ``None`` if it is not."""


class _Waiting(NamedTuple):
    """Work that waits, in the order in which it is done: what is due first, then what was put first."""

    due: float
    number: int
    work: Work
    wait_s: float


class BackgroundQueue:
    """Work that threads of this process do, the oldest first. Safe to use from several threads.

    Work that fails is logged. It is lost, unless it was put to be done after a wait: then it is done again after that.

    Attributes:
        is_closed: whether it takes no more work.
    """

    def __init__(self, threads: int = 1, most: float = math.inf) -> None:
        """Starts no thread yet.

        Args:
            threads: the number of steps that are done at a time, at most.
            most: the number of steps that wait or are being done, at most.
        """
        self._most_threads, self._most = threads, most
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: the work is the parent's."""
        self._lock = threading.RLock()
        self._waiting: list[_Waiting] = []
        self._doing: set[int] = set()
        self._numbers = count()
        self._threads: list[Thread] = []
        self._working = 0
        self._ends_at = math.inf
        self.is_closed = False
        # Queues without a lock: of the thread that waits until work is due, and of callers of ``settle``.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._settling: list[SimpleQueue[None]] = []

    @property
    def is_idle(self) -> bool:
        """Whether no work waits or is being done."""
        return not self._waiting and not self._doing

    def put(self, work: Work, after_s: float = 0.0) -> bool:
        """Has work done soon, or after so many seconds. Returns at once.

        Returns:
            Whether it will be: not if too much waits, the queue is closed, or this process can start no thread.
        """
        with self._lock:
            if self.is_closed or not self._start_thread() or len(self._waiting) + len(self._doing) >= self._most:
                return False
            heappush(self._waiting, _Waiting(time.monotonic() + after_s, next(self._numbers), work, after_s))
        if self._bell.empty():
            self._bell.put(None)
        return True

    def settle(self, timeout_s: float = math.inf) -> bool:
        """Waits until what was put before is done; returns whether it is. Work that repeats counts once."""
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
        """Takes no more work, and begins none after a time of ``time.monotonic``, by default now. Returns at once.

        What was to be done after a wait, or again, is dropped.
        """
        with self._lock:
            self.is_closed, self._ends_at = True, at
            if time.monotonic() >= at:
                self._waiting.clear()
        for _ in self._threads:
            self._bell.put(None)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Ends now, and waits for what is being done and for the end of the threads."""
        self.end()
        latest = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, latest - time.monotonic()))

    def _is_done(self, last: int) -> bool:
        with self._lock:
            return all(number > last for number in (*self._doing, *(one.number for one in self._waiting)))

    def _has_thread(self) -> bool:
        self._threads = [thread for thread in self._threads if thread.is_alive]
        # One may be about to end and have counted itself out, or have had no memory to run and never count.
        self._working = min(self._working, len(self._threads))
        return self._working > 0

    def _start_thread(self) -> bool:
        """Starts another thread if one is allowed; returns whether any works."""
        if not self._has_thread() or self._working < self._most_threads:
            with suppress(RuntimeError):  # this process may have no more threads
                self._threads.append(Thread(self._work))
                self._working += 1
        return self._working > 0

    def _work(self) -> None:
        """Body of a thread: does what is due until nothing waits."""
        while (wait_s := self._do_next()) is not None:
            with suppress(Empty):
                self._bell.get(timeout=wait_s)

    def _do_next(self) -> float | None:
        """Does the first work if it is due; returns the seconds until there may be more, ``None`` to end the thread."""
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
    """Exists as long as its thread runs."""

    __slots__ = ("__weakref__",)


class Thread:
    """A daemon thread. Its start returns at once, even if the thread has no memory to run.

    ``threading.Thread.start`` waits for the first instruction of the thread without a limit. A thread that has no
    memory for its first frame dies before that, and the wait never ends (CPython 3.11 to 3.13).
    """

    def __init__(self, work: Callable[..., object], *arguments: object) -> None:
        """Starts it.

        Raises:
            RuntimeError: when this process cannot start another thread.
        """
        self._process = os.getpid()
        self._ended: SimpleQueue[object] = SimpleQueue()
        running = _Running()
        # The thread holds the only other reference. No frame of Python runs at its end, as there may be no memory.
        self._running = weakref.ref(running, self._ended.put)
        start_new_thread(_run, (running, work, arguments))

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, or is about to."""
        return self._running() is not None and self._process == os.getpid()

    def join(self, timeout_s: float) -> None:
        """Waits for the end of the thread, but no longer than the timeout."""
        if self.is_alive:
            with suppress(Empty):
                self._ended.put(self._ended.get(timeout=timeout_s))  # for the next that waits


def _run(running: _Running, work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    try:
        work(*arguments)
    finally:
        # A log handler that keeps an error of this thread keeps this frame too, and with it the sign that it runs.
        del running
