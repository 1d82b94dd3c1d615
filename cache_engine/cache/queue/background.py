"""Compiles kernels in the background, while another kernel serves.

The compiles run in daemon threads of this process, at most as many at a time as the store has slots. When the process
ends or the cache is closed, compiles that have not begun are dropped, and running ones get some seconds to finish. A
forked child has none of its parent's compiles.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Generic, TypeVar

from cache_engine.background import CLOSE_S, BackgroundQueue
from cache_engine.cache.queue import PendingKernel
from cache_engine.cache.queue.slots import GivenUp
from cache_engine.logs import fields
from cache_engine.model.key import CacheKey
from cache_engine.process import renew_after_fork, run_at_end, weak

_log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_AFTER_S = 60.0
"""Seconds for which a failed compile is not tried again."""


Compile = Callable[[Callable[[], bool]], T]
"""A function that compiles.

While it waits for a slot, it calls its argument to ask whether the kernel is still wanted.
"""


class BackgroundCompiles(Generic[T]):
    """The background compiles of this process for one store. A signal handler may call its methods."""

    def __init__(self, most: int, retry_after_s: float = RETRY_AFTER_S) -> None:
        """Starts no thread yet.

        Args:
            most: the largest number of compiles at a time.
            retry_after_s: the seconds for which a failed compile is not tried again.
        """
        self._most, self._retry_after_s = most, retry_after_s
        self.dropped = 0
        """The number of compiles that were dropped before they began."""
        self._start_afresh()
        renew_after_fork(self)

    def _start_afresh(self) -> None:
        # Held for a few instructions only. Reentrant, for signal handlers.
        self._lock = threading.RLock()
        self._pending: dict[CacheKey, PendingKernel[T]] = {}
        self._failed: dict[CacheKey, tuple[float, PendingKernel[T]]] = {}
        self._queued: dict[CacheKey, tuple[PendingKernel[T], Compile[T]]] = {}
        self._queue = BackgroundQueue(self._most)
        self._forget_end: Callable[[], None] = lambda: None

    def renew_after_fork(self) -> None:
        """In a forked child: forgets all compiles, because the parent does them."""
        pending = list(self._pending.values())
        self._start_afresh()
        for better in pending:
            better.renew_after_fork()

    def start(
        self, key: CacheKey, compile_it: Compile[T], lend: Callable[[], AbstractContextManager[object]]
    ) -> PendingKernel[T]:
        """Starts the compile of a kernel, once for all callers that ask; returns its handle at once.

        If the compile failed less than ``retry_after_s`` ago, the failed handle is returned instead.

        Args:
            lend: returns a context manager that raises the compile's priority while somebody waits for the kernel.
        """
        failed = self.failed(key)
        if failed is not None:
            return failed
        with self._lock:
            better = self._pending.get(key)
            if better is not None:
                return better
            better = self._pending[key] = PendingKernel(key, lend)
            self._queued[key] = better, compile_it
            if not self._queue.put(partial(self._compile_next, self._queue)):
                self._queued.pop(key, None)
                self._pending.pop(key, None)
                better.fail("this process can start no thread")
                return better
            self._forget_end()
            self._forget_end = run_at_end(weak(self.close))
        return better

    def failed(self, key: CacheKey) -> PendingKernel[T] | None:
        """The handle of the last compile of a key, if it failed less than ``retry_after_s`` ago; else ``None``."""
        at, better = self._failed.get(key, (0.0, None))
        return better if better is not None and time.monotonic() - at < self._retry_after_s else None

    def _fail(self, better: PendingKernel[T], error: Exception) -> None:
        """Remembers a failed compile, so that it is not tried again for a while; then wakes its waiting callers."""
        why = str(error) or type(error).__name__
        now = time.monotonic()
        with self._lock:
            self._failed = {key: (at, one) for key, (at, one) in self._failed.items() if now - at < self._retry_after_s}
            self._failed[better.key] = (now, better)
        extra = fields("compile failed", key=better.key, why=why)
        message = "%s could not be compiled, and is not tried again for %g s: %s"
        try:
            _log.warning(message, better.key[:12], self._retry_after_s, why, extra=extra)
        finally:
            better.fail(why, error)

    def close(self, *, wait: bool = True) -> None:
        """Drops compiles that have not begun; waits some seconds for those that run.

        Args:
            wait: whether to wait for running compiles. A signal handler that has interrupted a compile must not wait.
        """
        with self._lock:
            queue, self._queue = self._queue, BackgroundQueue(self._most)
            queued, self._queued = self._queued, {}
        for better, _ in queued.values():  # only these, not compiles that their callbacks start
            self._drop(better)
        queue.close(CLOSE_S if wait else 0.0)
        self._forget_end()

    def _drop(self, better: PendingKernel[T], why: str = "") -> None:
        why = why or "the cache was closed before it was compiled"
        self.dropped += 1
        self._pending.pop(better.key, None)
        better.fail(why)
        _log.info("dropped: %s: %s", better.key[:12], why)

    def _compile_next(self, queue: BackgroundQueue) -> None:
        """Does one compile, in a thread of the queue. Compiles that a caller waits for go first."""
        with self._lock:
            if queue is not self._queue or not self._queued:  # all compiles were dropped
                return
            waited_for = (key for key, (one, _) in self._queued.items() if one.is_waited_for)
            better, compile_it = self._queued.pop(next(waited_for, next(iter(self._queued))))
        try:
            kernel = compile_it(lambda: not queue.is_closed)
        except GivenUp as given_up:
            self._drop(better, str(given_up))
        except Exception as error:
            self._fail(better, error)
        else:
            better.succeed(kernel)
        finally:
            if self._pending.get(better.key) is better:  # otherwise a callback has started it again
                del self._pending[better.key]
