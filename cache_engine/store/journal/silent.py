"""The journal of a cache without a store: it counts in memory, and nothing outlives the process."""

from __future__ import annotations

import threading

import msgspec

from cache_engine.model.events import UNPUBLISHED, Event, Totals
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.process import renew_after_fork
from cache_engine.store.journal.spans import Spans
from cache_engine.store.journal.writing import Journal


class NoJournal(Journal):
    """Counts the lookups of this process and writes nothing. Safe to use as a ``Journal`` is.

    Attributes:
        totals: what is counted so far.
    """

    def __init__(self) -> None:
        """Counts from zero."""
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: what the parent counted is the parent's."""
        self.totals = Totals()
        self._lock = threading.RLock()  # a signal handler may count while its thread does
        self.spans = Spans()

    def hit(
        self, key: CacheKey, tier: str, *, made_at: float = 0.0, saved_us: int = 0, problem: GemmProblem | None = None
    ) -> None:
        """Counts a hit."""
        del key, made_at, problem  # of use to a later process alone
        with self._lock:
            self.totals.hits[tier] = self.totals.hits.get(tier, 0) + 1
            self.totals.saved_us += saved_us

    def asked(self, problem: GemmProblem) -> None:
        """Counts nothing, as this is of use to a later process alone."""

    def miss(self, arch: str = "") -> None:
        """Counts a miss."""
        with self._lock:
            self.totals.misses += 1
            self.totals.misses_by_arch[arch] = self.totals.misses_by_arch.get(arch, 0) + 1

    def failure(self, tier: str) -> None:
        """Counts a tier that failed and was skipped."""
        with self._lock:
            self.totals.failures[tier] = self.totals.failures.get(tier, 0) + 1

    def lock_wait(self, seconds: float, *, timed_out: bool) -> None:
        """Counts nothing: no other process is waited for."""

    def shared(self, sent: int, dropped: int) -> None:
        """Counts nothing: without a store there is nothing to send."""

    def decided(self, kind: str, **fields: object) -> None:
        """Notes nothing: there is no log."""

    def event(self, kind: str, **fields: object) -> None:
        """Counts a kernel that was compiled and could not be stored, as none can."""
        if kind == UNPUBLISHED:
            event = msgspec.convert({"kind": kind, "at": 0.0, **fields}, Event)
            with self._lock:
                self.totals.compiles += 1
                self.totals.compile_us += event.compile_us
                self.totals.publish_failures += 1

    def flush(self) -> None:
        """Writes nothing, and adds to ``totals`` how long things took."""
        for name, count in self.spans.take().items():
            self.totals.spans[name] = self.totals.spans.get(name, 0) + count

    @property
    def is_interrupted(self) -> bool:
        """Never: it does nothing that could be."""
        return False

    def close(self) -> None:
        """Has nothing to close."""

    def __del__(self) -> None:
        pass
