"""Stores what a remote had behind the caller, who has it already: to write it durably takes longer than to fetch it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from cache_engine.cache.serving.key_lock import KeyLock
from cache_engine.process import Background, Order, renew_after_fork

MOST_WAITING = 64
"""Entries that wait to be stored, each with a lock; of more, callers store their own."""
_IDLE_S = 3600.0


class Backfill:
    """A queue of kernels to store, each with the lock of its key. Safe to use from several threads.

    Another process that asks for such a key waits for the lock, and finds it on disk. A forked child starts with none.
    """

    def __init__(self) -> None:
        """Starts no thread yet."""
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: what waits, its parent stores."""
        self._starting, self._storing = threading.RLock(), threading.RLock()
        self._waiting: deque[tuple[Callable[[], None], KeyLock]] = deque()
        self._thread: Background | None = None
        self._is_over = False

    def put(self, store: Callable[[], None], lock: KeyLock) -> None:
        """Has ``store`` called soon, and the lock released then. Where too many wait, it is called now."""
        thread = None if self._is_over or len(self._waiting) >= MOST_WAITING else self._started()
        if thread is None:
            store()
            return
        self._waiting.append((store, lock.hand_over()))
        thread.order_work()
        if self._is_over:  # since a moment ago
            self.settle()

    def settle(self) -> None:
        """Returns when all is stored that was put before."""
        while self._store_next():
            pass

    def work(self, order: Order | None) -> float | None:
        """One step of the thread; see ``process.Worker``."""
        self.settle()
        return None if order is Order.END else _IDLE_S

    def close(self, *, wait: bool) -> None:
        """Ends the thread. With ``wait`` it stores what waits first, for five seconds at most; without it, nothing."""
        self._is_over = True
        if not wait:
            self._waiting.clear()
        if self._thread is not None:
            self._thread.order_work()
            self._thread.end()
            if wait:
                self._thread.join()

    def _started(self) -> Background | None:
        """The thread; ``None`` where this process can start none."""
        with self._starting:
            if self._thread is None or not self._thread.is_alive:
                try:
                    self._thread = Background(self, _IDLE_S)
                except RuntimeError:
                    return None
            return self._thread

    def _store_next(self) -> bool:
        with self._storing:
            try:
                store, lock = self._waiting.popleft()
            except IndexError:
                return False
            try:
                store()
            finally:
                lock.release()
            return True
