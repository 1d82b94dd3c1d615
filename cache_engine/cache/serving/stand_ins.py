"""Stand-ins: other kernels that compute a problem correctly, and serve while its own kernel is being compiled."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from typing import Generic, TypeVar

import msgspec

from cache_engine.background import CLOSE_S, BackgroundQueue
from cache_engine.cache.other_toolchains import OtherToolchains
from cache_engine.cache.queue import PendingKernel, Priority
from cache_engine.cache.queue.slots import GivenUp
from cache_engine.cache.selection import Request, Selection, Selector
from cache_engine.cache.serving import CompiledKernel, Serving
from cache_engine.cache.stages import LOAD, SELECT, StageClock
from cache_engine.errors import GemmCacheError
from cache_engine.logs import fields
from cache_engine.model.gemm import MAX_DIMENSION, Specialisation
from cache_engine.model.key import CacheKey
from cache_engine.process import renew_after_fork, run_at_end, weak
from cache_engine.settings import Settings

# Kernels for another m: for powers of two up to this factor away. Farther away, a dynamic kernel is as good.
_FACTOR = 64
# Problems whose stand-ins are remembered.
_MOST_KEPT = 4096


def stand_ins(selector: Selector, asked: Request) -> Iterator[Selection]:
    """Other kernels that compute the problem correctly, best first, whether or not they are stored.

    First kernels for the same m (exact, or for its bucket), then kernels with the configs chosen for other m, the
    nearest m first, then the dynamic kernel. Each is selected for the problem itself, only with another config; so each
    key is of a kernel that is correct for the problem.
    """
    problem, family, compiler, _ = asked
    found = {selector.select(*asked).key}

    def offered(specialisation: Specialisation, m: int) -> Selection | None:
        other = replace(problem, specialisation=specialisation, m=m)
        try:
            selection = selector.select(other, family, compiler, None)
            if m == problem.m:
                return selection
            chosen = (selection.family.name, selection.compiler.name, selection.config)
            return selector.select(replace(other, m=problem.m), *chosen)
        except GemmCacheError:  # such a kernel is not possible for this problem, or its compiler not installed
            return None

    powers = {1 << power for power in range(MAX_DIMENSION.bit_length())}
    near = {m for m in powers if problem.m / _FACTOR <= m <= problem.m * _FACTOR} - {problem.m}
    nearest = sorted(near, key=lambda m: abs(math.log2(m / problem.m)))
    offers = [
        (Specialisation.EXACT, problem.m),
        (Specialisation.BUCKETED, problem.m),
        *((Specialisation.NK, m) for m in (problem.m, *nearest)),
        (Specialisation.DYNAMIC, problem.m),
    ]
    for specialisation, m in offers:
        selection = offered(specialisation, m)
        if selection is not None and selection.key not in found:
            found.add(selection.key)
            yield selection


class StandIns:
    """Serves a problem by another stored kernel while its own is compiled. Safe to use from several threads."""

    def __init__(self, serving: Serving, selector: Selector, elsewhere: OtherToolchains, settings: Settings) -> None:
        """Compiles nothing yet."""
        self._serving, self._selector, self._elsewhere, self._settings = serving, selector, elsewhere, settings
        self._kept: dict[Request, tuple[Selection, ...]] = {}

    @cached_property
    def behind(self) -> BackgroundCompiles[CompiledKernel]:
        """The compiles of this process in the background."""
        return BackgroundCompiles(self._settings.slots)

    def get_or_compile(self, asked: Request, stages: StageClock, wait_ms: float) -> CompiledKernel:
        """The kernel asked for, if it is ready within ``wait_ms`` milliseconds; else another correct stored kernel.

        If no such kernel is stored, waits for the compile. Raises as ``Cache.get_or_compile``.
        """
        got = self.get(asked, stages, wait_ms, must_serve=True)
        if isinstance(got, CompiledKernel):
            return got
        if got.error is not None:
            raise got.error
        return self._serving.get_or_compile(self._selector, asked, stages)

    def get(
        self, asked: Request, stages: StageClock, wait_ms: float, *, must_serve: bool = False
    ) -> CompiledKernel | PendingKernel[CompiledKernel]:
        """As ``get_or_compile``; but if no stored kernel can serve, returns the handle of the compile.

        Args:
            must_serve: whether to wait for the compile if no stored kernel can serve, with a caller's priority.
        """
        with stages(SELECT):
            selection = self._selector.select(*asked)
        faster = self._serving.hit_faster(asked, stages)
        if faster is not None:
            return faster
        with stages(LOAD):
            found = self._serving.look_up(selection.key)
        own = selection if selection.is_compilable else self._selector.better_here(asked, selection)
        if found is not None:
            kernel = self._serving.hit(selection, found, stages)
            if own is None or own is selection:
                return kernel
            return msgspec.structs.replace(kernel, better=self._behind(asked, own))
        if own is None or not self._settings.enable_jit:
            return self._stand_in(asked, stages) or self._serving.get_or_compile(self._selector, asked, stages)
        better = self._behind(asked, own, installed=own is not selection)
        if better.wait(wait_ms / 1e3) and better.kernel is not None:
            self._serving.ask(asked[0])
            return better.kernel
        stand_in = self._stand_in(asked, stages)
        if stand_in is not None:
            return msgspec.structs.replace(stand_in, better=better)
        self._serving.ask(asked[0])
        if must_serve and better.wait() and better.kernel is not None:
            return better.kernel
        return better

    def submit(self, asked: Request, stages: StageClock) -> PendingKernel[CompiledKernel]:
        """The handle of the kernel asked for; it is ready if memory, a pack or the disk has the kernel.

        Otherwise the kernel is looked up in the remote, or compiled, in the background.
        """
        selection = self._selector.select(*asked)
        faster = self._serving.hit_faster(asked, stages)
        if faster is not None:
            return PendingKernel.of(faster.key, faster)
        with stages(LOAD):
            found = self._serving.look_up(selection.key)
        if found is not None:
            return PendingKernel.of(selection.key, self._serving.hit(selection, found, stages))
        self._serving.ask(asked[0])
        return self._behind(asked, selection, installed=False)

    def _stand_in(self, asked: Request, stages: StageClock) -> CompiledKernel | None:
        """The best stored kernel in place of the one asked for, counted as a hit; ``None`` if there is none."""
        with stages(LOAD):
            for selection in self.look(asked):
                found = self._serving.look_up(selection.key)
                if found is not None:  # otherwise it is damaged, or was evicted just now
                    return self._serving.hit(selection, found, stages, problem=asked[0])
        return None

    def look(self, asked: Request) -> Iterator[Selection]:
        """The stand-ins that are stored, best first. Reads no entry; from the second call on, it takes microseconds."""
        offers = self._kept.get(asked)
        if offers is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            offers = self._kept[asked] = tuple(stand_ins(self._selector, asked))
        return (offer for offer in offers if self._serving.is_in_memory(offer.key) or self._elsewhere.has(offer.key))

    def _behind(self, asked: Request, own: Selection, *, installed: bool = True) -> PendingKernel[CompiledKernel]:
        """Starts to look up or compile the kernel ``own`` in the background; returns its handle."""
        get = partial(self._serving.get_or_compile, self._selector, asked, priority=Priority.PROMOTION)

        def compile_it(is_wanted: Callable[[], bool]) -> CompiledKernel:
            kernel = get(stages=StageClock(), is_wanted=is_wanted, installed=installed)
            if installed:
                self._selector.prefer(asked, own)
            return kernel

        return self.behind.start(own.key, compile_it, partial(self._serving.waiting, own.key))

    def close(self, *, wait: bool) -> None:
        """Drops compiles that have not begun, and waits some seconds for those that run."""
        if "behind" in self.__dict__:
            self.behind.close(wait=wait)


# ---- Compiles kernels in the background, while another kernel serves ----
# The compiles run in daemon threads of this process, at most as many at a time as the store has slots. When the process
# ends or the cache is closed, compiles that have not begun are dropped, and running ones get some seconds to finish. A
# forked child has none of its parent's compiles.


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
            lend: returns a context manager that raises the compile's priority while a caller waits for the kernel.
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
