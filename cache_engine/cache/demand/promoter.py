"""Compiles ahead in the background, from time to time, what the demand makes worthwhile."""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress

from cache_engine.cache.demand.demotion import note
from cache_engine.cache.demand.promotion import Promotable, plan_promotion, promote
from cache_engine.errors import GemmCacheError
from cache_engine.logs import fields
from cache_engine.process import Background, Order, renew_after_fork, run_at_end

_log = logging.getLogger(__name__)

_SHARE = 0.1
"""Of the time between two looks, so much may go into compiling."""


class Promoter:
    """Looks at the demand of a cache's store at an interval, and compiles what pays. Its thread ends with the cache."""

    def __init__(self, cache: Promotable, interval_s: float) -> None:
        """Starts the thread; in a process that cannot start one, another process of the store will do the work."""
        self._cache, self._interval_s = weakref.ref(cache), interval_s
        self._closing = False
        self._thread: Background | None = None
        with suppress(RuntimeError):
            self._thread = Background(self, interval_s)
        renew_after_fork(self)
        self._forget_end = run_at_end(self.close)

    def renew_after_fork(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._thread = None

    def work(self, order: Order | None) -> float | None:
        """One look; returns the seconds to the next."""
        cache = self._cache()
        if cache is None or self._closing or order is Order.END:
            return None
        try:
            plan = plan_promotion(cache)
            note(cache.journal, plan.changes)
            chosen = plan.within(_SHARE * self._interval_s)
            failed = promote(cache, chosen, is_wanted=lambda: not self._closing)
        except (GemmCacheError, OSError) as error:
            _log.warning("nothing was compiled ahead: %s", error)
        else:
            if chosen:
                done = len(chosen) - len(failed)
                _log.info("compiled ahead: %d kernels", done, extra=fields("promote", kernels=done))
        return self._interval_s

    def close(self) -> None:
        """Ends the thread after the kernel that it compiles; waits for that some seconds."""
        self._closing = True
        self._forget_end()
        if self._thread is not None:
            self._thread.end()
            self._thread.join()
