"""Sends kernels to a remote after they were compiled. A thread does it, and no caller waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from cache_engine.cache.remote.base import Remote
from cache_engine.cache.remote.breaker import Breaker
from cache_engine.errors import GemmCacheError, RemoteError
from cache_engine.model.key import CacheKey
from cache_engine.process import Background, Order, renew_after_fork
from cache_engine.store.disk import DiskStore

_log = logging.getLogger(__name__)
MOST_WAITING = 256
"""Kernels that wait to be sent, the one that is being sent included; of more, the newest are dropped."""
_IDLE_S, _PAUSED_S = 3600.0, 1.0


@dataclass(frozen=True, slots=True)
class SendTarget:
    """The destination of kernels: the remote, the signer of a record's bytes, and whether the remote is asked."""

    remote: Remote
    sign: Callable[[bytes], bytes]
    breaker: Breaker


class SendQueue:
    """The kernels that wait to be sent. Safe to use from several threads; a forked child starts with none."""

    def __init__(
        self,
        store: DiskStore,
        find_way: Callable[[], SendTarget],
        count: Callable[[int, int], None],
        most: int = MOST_WAITING,
    ) -> None:
        """Sends nothing yet.

        Args:
            find_way: called once, by the thread; raises ``GemmCacheError`` where there is none: then all are dropped.
            count: called with how many were sent and how many dropped.
            most: kernels that wait at most.
        """
        self._store, self._find_way, self._count, self._most = store, find_way, count, most
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: what waits, its parent sends."""
        self._lock = threading.RLock()
        self._waiting: deque[CacheKey] = deque()
        self._way: SendTarget | None = None
        self._is_lost = False
        self._ends_at: float | None = None
        self._thread: Background | None = None

    def put(self, key: CacheKey) -> None:
        """Has the entry of a key sent soon. Returns at once; drops it where too many wait."""
        with self._lock:
            is_room = len(self._waiting) < self._most and not self._is_lost and self._ends_at is None
            if is_room:
                self._waiting.append(key)
                if self._thread is None or not self._thread.is_alive:
                    with suppress(RuntimeError):  # without a thread they wait for the next, or the end
                        self._thread = Background(self, _IDLE_S)
            thread = self._thread
        if thread is not None:
            thread.order_work()
        if not is_room:
            self._count(0, 1)

    def work(self, order: Order | None) -> float | None:
        """One step of the thread; see ``process.Worker``."""
        if order is not Order.END and self._waiting:
            self._send_all()
        if order is Order.END or self._ends_at is not None:
            return None
        return _PAUSED_S if self._waiting else _IDLE_S

    def end(self, at: float) -> None:
        """Orders the end of the thread, which begins to send none after a time of ``time.monotonic``."""
        self._ends_at = at
        if self._thread is not None:
            if self._waiting:
                self._thread.order_work()
            self._thread.end()

    def close(self, until: float) -> None:
        """Ends the thread; waits for it until a time of ``time.monotonic``; drops and counts what is not sent."""
        if self._ends_at is None:
            self.end(until)
        if self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            dropped = len(self._waiting)
            self._waiting.clear()
        if dropped:
            self._count(0, dropped)
            _log.info("%d kernels were not sent to the remote; gemm-cache remote push sends them", dropped)

    def _send_all(self) -> None:
        way = self._found_way()
        while way is not None and not way.breaker.why and not self._is_over():
            with self._lock:
                if not self._waiting:
                    return
                key = self._waiting[0]  # it waits until it is sent
            if not self._send(way, key):
                return

    def _send(self, way: SendTarget, key: CacheKey) -> bool:
        """Sends the first; ``False`` where the remote fails, or the end has dropped it meanwhile."""
        from cache_engine.cache.remote.entries import name_of
        from cache_engine.cache.remote.transfer import sealed
        from cache_engine.upkeep.packs import Refused

        started = time.monotonic()
        try:
            data = sealed(self._store, key, sign=way.sign)
            is_new = isinstance(data, bytes) and way.remote.create(name_of(key), data)
        except RemoteError as error:
            way.breaker.failed(str(error), time.monotonic() - started)
            return False
        except (OSError, GemmCacheError) as error:
            data, is_new = Refused(key, str(error)), False
        with self._lock:
            if not self._waiting:  # the end did not wait for it
                return False
            self._waiting.popleft()
        if isinstance(data, Refused):
            _log.warning("%s is not sent to the remote: %s", key[:12], data.cause)
        if is_new or isinstance(data, Refused):
            self._count(int(is_new), int(not is_new))
        return True

    def _is_over(self) -> bool:
        return self._ends_at is not None and time.monotonic() >= self._ends_at

    def _found_way(self) -> SendTarget | None:
        if self._way is None and not self._is_lost:
            try:
                self._way = self._find_way()
            except (GemmCacheError, OSError) as error:
                _log.warning("kernels are not sent to the remote: %s", error)
                with self._lock:
                    self._is_lost, dropped = True, len(self._waiting)
                    self._waiting.clear()
                self._count(0, dropped)
        return self._way
