"""Sends compiled kernels to a remote, in a background thread. No caller waits for this."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cache_engine.background import BackgroundQueue
from cache_engine.cache.remote.base import Remote
from cache_engine.cache.remote.tier import Breaker
from cache_engine.errors import GemmCacheError, RemoteError
from cache_engine.model.key import CacheKey
from cache_engine.process import renew_after_fork, weak
from cache_engine.store.disk import DiskStore

_log = logging.getLogger(__name__)
MOST_WAITING = 256
"""The largest number of kernels in the queue, including the one being sent; further ones are dropped."""
_PAUSED_S = 1.0


@dataclass(frozen=True, slots=True)
class SendTarget:
    """The remote to send to, a function that signs a record's bytes, and the breaker of the remote."""

    remote: Remote
    sign: Callable[[bytes], bytes]
    breaker: Breaker


class SendQueue:
    """The kernels that wait to be sent. Safe to use from several threads; in a forked child it is empty."""

    def __init__(
        self,
        store: DiskStore,
        find_target: Callable[[], SendTarget],
        count: Callable[[int, int], None],
        most: int = MOST_WAITING,
    ) -> None:
        """Sends nothing yet.

        Args:
            find_target: returns the destination; the thread calls it once, before the first kernel. If it raises
                ``GemmCacheError``, no kernel is sent: all are dropped.
            count: a function called with the number of kernels sent and the number dropped.
            most: the largest number of kernels that wait.
        """
        self._store, self._find_target, self._count = store, find_target, count
        self._queue = BackgroundQueue(most=most)
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: forgets the waiting kernels, because the parent sends them."""
        self._lock = threading.RLock()
        self._unsent = 0
        self._way: SendTarget | None = None
        self._is_lost = False

    def put(self, key: CacheKey) -> None:
        """Queues the entry of a key to be sent. Returns at once; drops the entry if too many wait."""
        with self._lock:
            is_put = not self._is_lost and self._queue.put(weak(self._send, key))
            self._unsent += is_put
        if not is_put:
            self._count(0, 1)

    def end(self, at: float) -> None:
        """From the time ``at`` of ``time.monotonic`` on, starts to send no kernel. Returns at once."""
        self._queue.end(at)

    def close(self, until: float) -> None:
        """As ``end``, and waits until the time ``until``; drops and counts the kernels that were not sent."""
        if not self._queue.is_closed:
            self.end(until)
        self._queue.settle(until - time.monotonic())
        with self._lock:
            dropped, self._unsent = self._unsent, 0
        if dropped:
            self._count(0, dropped)
            _log.info("%d kernels were not sent to the remote; gemm-cache remote push sends them", dropped)

    def _send(self, key: CacheKey) -> float | None:
        """Sends one kernel; if the remote fails, returns the seconds until the next try."""
        from cache_engine.cache.remote.entries import name_of
        from cache_engine.cache.remote.transfer import sealed
        from cache_engine.upkeep.packs import Refused

        way = self._found_way()
        if way is None:
            self._ended(0, 1)
            return None
        if way.breaker.why:
            return _PAUSED_S
        started = time.monotonic()
        try:
            data = sealed(self._store, key, sign=way.sign)
            is_new = isinstance(data, bytes) and way.remote.create(name_of(key), data)
        except RemoteError as error:
            way.breaker.failed(str(error), time.monotonic() - started)
            return _PAUSED_S
        except (OSError, GemmCacheError) as error:
            data, is_new = Refused(key, str(error)), False
        is_counted = self._ended(int(is_new), int(isinstance(data, Refused)))
        if is_counted and isinstance(data, Refused):
            _log.warning("%s is not sent to the remote: %s", key[:12], data.cause)
        return None

    def _ended(self, sent: int, dropped: int) -> bool:
        """Counts a kernel as sent or dropped; returns ``False`` if ``close`` has already counted it as dropped."""
        with self._lock:
            if not self._unsent:
                return False
            self._unsent -= 1
        if sent or dropped:
            self._count(sent, dropped)
        return True

    def _found_way(self) -> SendTarget | None:
        if self._way is None and not self._is_lost:
            try:
                self._way = self._find_target()
            except (GemmCacheError, OSError) as error:
                self._is_lost = True
                _log.warning("kernels are not sent to the remote: %s", error)
        return self._way
