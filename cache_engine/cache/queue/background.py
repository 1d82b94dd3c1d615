"""Compiles in the background, while another kernel serves.

A compile runs in a daemon thread of this process, at most as many at a time as the store has slots. The end of the
process, or of the cache, drops what has not begun and waits some seconds for the rest. A forked child has none of them.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from cache_engine.cache.queue.slots import GivenUp
from cache_engine.errors import NotCached
from cache_engine.logs import fields
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure
from cache_engine.process import Thread, renew_after_fork, run_at_end

_log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_AFTER_S = 60.0
"""For so long a compile that failed is not tried again."""

# The longest wait for compiles under way when the cache is closed.
_END_S = 5.0


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
        self._start_waiting()

    def _start_waiting(self) -> None:
        # A queue, as a signal handler may wait for it as well: it has no lock that could be held.
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._callbacks: deque[Callable[[PendingKernel[T]], object]] = deque()
        self._lock = threading.RLock()
        self._waiting = 0
        self._lent: AbstractContextManager[object] = nullcontext()

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

    @property
    def is_waited_for(self) -> bool:
        """Whether a thread or a coroutine waits for its end."""
        return self._waiting > 0

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end of the compile, as urgently as a caller; returns whether the kernel is ready.

        Args:
            timeout_s: at most so many seconds; ``None`` waits without a limit, 0 not at all.
        """
        if not self.done and (timeout_s is None or timeout_s > 0):
            try:
                with self._lending(), suppress(Empty):
                    self._ended.get(timeout=timeout_s)
            finally:  # also when interrupted
                if self.ready or self.failure is not None:
                    self._ended.put(None)  # for the next that waits
        return self.ready

    @contextmanager
    def _lending(self) -> Iterator[None]:
        """The body of a ``with`` waits; all that wait at a time lend once, as a ticket takes a descriptor."""
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
        self._start_waiting()
        if not self.done:
            self.fail("it was compiled by the parent of this process")

    def _call(self) -> None:
        while self._callbacks:
            with suppress(IndexError):  # another thread took it
                callback = self._callbacks.popleft()
                try:
                    callback(self)
                except KeyboardInterrupt:
                    raise
                except BaseException:  # also SystemExit and asyncio's CancelledError: others wait for this thread
                    _log.exception("what %s was to call when it was ready has failed", self.key[:12])


Compile = Callable[[Callable[[], bool]], T]
"""Compiles; asks what it is given whether that is still wanted, while it waits for a slot."""


class BackgroundCompiles(Generic[T]):
    """The background compiles of this process for one store. Its methods can be called in a signal handler."""

    def __init__(self, most: int, retry_after_s: float = RETRY_AFTER_S) -> None:
        """At most so many at a time. Starts no thread yet."""
        self._most, self._retry_after_s = most, retry_after_s
        self.dropped = 0
        """How many compiles were dropped before they began."""
        self._start_afresh()
        renew_after_fork(self)

    def _start_afresh(self) -> None:
        # Held for some instructions only. Reentrant, for signal handlers.
        self._lock = threading.RLock()
        self._pending: dict[CacheKey, PendingKernel[T]] = {}
        self._failed: dict[CacheKey, tuple[float, PendingKernel[T]]] = {}
        self._queued: deque[tuple[PendingKernel[T], Compile[T]]] = deque()
        self._threads: list[Thread] = []
        self._working = 0
        self._closed = False
        self._forget_end: Callable[[], None] = lambda: None

    def renew_after_fork(self) -> None:
        """In a forked child: the compiles are the parent's."""
        pending = list(self._pending.values())
        self._start_afresh()
        for better in pending:
            better.renew_after_fork()

    def start(
        self, key: CacheKey, compile_it: Compile[T], lend: Callable[[], AbstractContextManager[object]]
    ) -> PendingKernel[T]:
        """Has a kernel compiled, once for all that ask; returns at once.

        A compile that failed lately is not tried again: then what is returned is that one.

        Args:
            lend: what waiters are in, so that the compile gets their priority.
        """
        failed = self.failed(key)
        if failed is not None:
            return failed
        with self._lock:
            better = self._pending.get(key)
            if better is not None:
                return better
            better = self._pending[key] = PendingKernel(key, lend)
            self._queued.append((better, compile_it))
            self._closed = False
            self._threads = [thread for thread in self._threads if thread.is_alive]
            # One may be about to end and have counted itself out, or have had no memory to run and never count.
            self._working = min(self._working, len(self._threads))
            if self._working < self._most:
                self._start_thread()
        return better

    def failed(self, key: CacheKey) -> PendingKernel[T] | None:
        """The last compile of a key, if it failed lately."""
        at, better = self._failed.get(key, (0.0, None))
        return better if better is not None and time.monotonic() - at < self._retry_after_s else None

    def _fail(self, better: PendingKernel[T], error: Exception) -> None:
        """Notes a failed compile, so that it is not tried again for a while; then tells those that wait."""
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
        """Drops what has not begun; waits for the rest, but for seconds only.

        Args:
            wait: whether to wait at all, which a signal handler must not if it has interrupted a compile.
        """
        self._closed = True
        with self._lock:
            queued = [better for better, _ in self._queued]
            self._queued.clear()
        for better in queued:  # not what their callbacks ask for
            self._drop(better)
        latest = time.monotonic() + _END_S
        for thread in self._threads if wait else ():
            thread.join(max(0.0, latest - time.monotonic()))
        self._forget_end()

    def _drop(self, better: PendingKernel[T]) -> None:
        self.dropped += 1
        self._pending.pop(better.key, None)
        better.fail("the cache was closed before it was compiled")
        _log.info("dropped: %s was not compiled before the end", better.key[:12])

    def _start_thread(self) -> None:
        self._forget_end()
        self._forget_end = run_at_end(partial(_close_if_alive, weakref.ref(self)))
        try:
            self._threads.append(Thread(self._work))
            self._working += 1
        except RuntimeError as error:
            if not self._working:  # else these do it
                while self._queued:
                    better, _ = self._queued.popleft()
                    self._pending.pop(better.key, None)
                    better.fail(f"this process can start no thread: {error}")

    def _work(self) -> None:
        """Body of a thread: compiles until nothing is queued, first what is waited for."""
        while True:
            with self._lock:
                if not self._queued:
                    self._working -= 1
                    return
                place = next((place for place, (one, _) in enumerate(self._queued) if one.is_waited_for), 0)
                better, compile_it = self._queued[place]
                del self._queued[place]
            try:
                kernel = compile_it(lambda: not self._closed)
            except GivenUp:
                self._drop(better)
            except Exception as error:
                self._fail(better, error)
            else:
                better.succeed(kernel)
            finally:
                if self._pending.get(better.key) is better:  # else a callback has asked for it again
                    del self._pending[better.key]


def _close_if_alive(reference: weakref.ref[BackgroundCompiles[T]]) -> None:
    behind = reference()
    if behind is not None:
        behind.close()
