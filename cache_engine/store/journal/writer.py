"""Writes a process's events and counts to the journal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cache_engine.background import CLOSE_S, BackgroundQueue
from cache_engine.errors import CorruptEntry
from cache_engine.logs import DEBUG, WARNING, Log
from cache_engine.model.events import UNPUBLISHED, USE, Event, Totals
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.model.shapes import Shape, ShapeCounts
from cache_engine.process import OwnFile, holds, renew_after_fork, run_at_end, weak
from cache_engine.store.journal.lines import OPEN, append
from cache_engine.store.journal.spans import Spans
from cache_engine.store.lock import ROTATE_BYTES, open_to_append

if TYPE_CHECKING:
    from cache_engine.store.journal.decisions import DecisionLog
    from cache_engine.store.layout import StoreLayout

FLUSH_S = 5.0
"""The shortest time between two writes of counts, in seconds."""


class Wanted:
    """The number of requests for one problem."""

    __slots__ = ("count", "problem")

    def __init__(self, problem: GemmProblem) -> None:
        self.problem, self.count = problem, 1


def lines_of(asked: Mapping[int, Wanted], now: float) -> list[Event | ShapeCounts]:
    """The journal lines for counted requests: for each shape one line, with a count for each m."""
    by_shape: dict[Shape, dict[int, int]] = {}
    for one in asked.values():
        by_m = by_shape.setdefault(Shape.of(one.problem), {})
        by_m[one.problem.m] = by_m.get(one.problem.m, 0) + one.count
    return [ShapeCounts(USE, now, shape, by_m) for shape, by_m in by_shape.items()]


_log = Log(__name__)
# A process that uses many entries writes less often, so that it writes about 1 KiB/s.
_BYTES_PER_S, _LONGEST_WAIT_S = 1024, 300.0
_MOST_WAITING = 10_000  # entries with unwritten hits in memory, or problems; more are written early
_LOOK_S = 60.0  # seconds between two checks whether to fold the journal

_encode = msgspec.json.Encoder().encode

_Hit = tuple[CacheKey, float, str]
"""An entry's key, the time when it was made, and the tier that served it."""

_Line = Event | ShapeCounts


class Journal:
    """Writes one process's events and counts. Safe to use from several threads, in signal handlers and after a fork.

    A background thread, started by the first count, writes everything except events.
    """

    def __init__(
        self,
        folder: Path,
        flush_s: float | None = None,
        now: Callable[[], float] = time.time,
        *,
        fold: Callable[[], object] = lambda: None,
        log: StoreLayout | None = None,
    ) -> None:
        """Writes to files in ``folder``. Opens nothing yet.

        Args:
            flush_s: the shortest time between two writes of counts, in seconds; by default ``FLUSH_S``.
            fold: a function that folds the journal if it is long; the thread calls it from time to time and at the end.
            log: the store whose log of decisions gets the decisions of this process; by default they are not logged.
        """
        self._folder = folder
        self._flush_s = FLUSH_S if flush_s is None else flush_s
        self._now = now
        self._fold = fold
        self._logged_in = log
        self._file: OwnFile | None = None
        self._complaint = WARNING
        self._start_counting()
        renew_after_fork(self)

    def _start_counting(self) -> None:
        # A thread that holds the second lock never waits for the first.
        self._lock = threading.RLock()
        self._writing = threading.RLock()
        self._postponed: list[_Line] = []
        self._log: DecisionLog | None = None  # of this process only: the parent writes its own decisions
        self._hits: dict[_Hit, int] = {}
        # By the identity of the problem object, which lives as long as its count: hashing a problem takes a
        # microsecond.
        self._asked: dict[int, Wanted] = {}
        self._misses: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self.spans = Spans()
        self._rare = Event(kind=USE, at=0.0)
        self._saved_us: dict[CacheKey, int] = {}
        self._queue: BackgroundQueue | None = None
        self._looked_at = 0.0
        self._forget_end: Callable[[], None] = lambda: None

    def _decisions(self) -> DecisionLog:
        """The log for decisions that wait to be written; created at its first use, because no hit needs it."""
        if self._log is None:
            from cache_engine.store.journal.decisions import DecisionLog

            made = DecisionLog(self._logged_in)
            with self._lock:
                self._log = self._log or made
        return self._log

    def renew_after_fork(self) -> None:
        """In a forked child: forgets the counts and the file, which the parent keeps."""
        self._release()  # without unlocking, which would also unlock it for the parent
        self._start_counting()

    def hit(
        self, key: CacheKey, tier: str, *, made_at: float = 0.0, saved_us: int = 0, problem: GemmProblem | None = None
    ) -> None:
        """Counts a hit on the entry of ``key``, and the request for ``problem`` as ``asked`` does. Writes nothing yet.

        Args:
            tier: the tier that served the entry.
            made_at: the time when the entry was made (seconds since 1970).
            saved_us: the compile time saved, in microseconds.
        """
        hit = (key, made_at, tier)
        with self._lock:
            try:
                self._hits[hit] += 1
            except KeyError:
                self._hits[hit] = 1
                if len(self._hits) == _MOST_WAITING and self._queue is not None:
                    self._queue.put(weak(self.flush))
            if problem is not None:
                try:
                    self._asked[id(problem)].count += 1
                except KeyError:
                    self._first_asked(problem)
            if saved_us:
                self._saved_us[key] = self._saved_us.get(key, 0) + saved_us
            if self._queue is None:
                self._start_thread()

    def asked(self, problem: GemmProblem) -> None:
        """Counts a request for a problem whose target is set. Fastest if callers pass the same object each time."""
        with self._lock:
            try:
                self._asked[id(problem)].count += 1
            except KeyError:
                self._first_asked(problem)

    def _first_asked(self, problem: GemmProblem) -> None:
        self._asked[id(problem)] = Wanted(problem)
        if self._queue is None:
            self._start_thread()
        elif len(self._asked) == _MOST_WAITING:
            self._queue.put(weak(self.flush))

    def miss(self, arch: str = "") -> None:
        """Counts a lookup that found nothing, so that a kernel for the target ``arch`` is compiled.

        Writes nothing yet.
        """
        with self._lock:
            self._misses[arch] = self._misses.get(arch, 0) + 1
            if self._queue is None:
                self._start_thread()

    def failure(self, tier: str) -> None:
        """Counts that a tier failed and was skipped. Writes nothing yet."""
        with self._lock:
            self._failures[tier] = self._failures.get(tier, 0) + 1
            if self._queue is None:
                self._start_thread()

    def lock_wait(self, seconds: float, *, timed_out: bool) -> None:
        """Counts a wait of over a second for a key's lock, and whether it timed out. Writes nothing yet."""
        with self._lock:
            self._rare.lock_waits += 1
            self._rare.lock_timeouts += timed_out
            self._rare.lock_wait_us += round(seconds * 1e6)
            if self._queue is None:
                self._start_thread()

    def shared(self, sent: int, dropped: int) -> None:
        """Counts kernels that were sent to a remote, and kernels that were dropped from the queue instead.

        Writes nothing yet.
        """
        with self._lock:
            self._rare.remote_sent += sent
            self._rare.remote_dropped += dropped
            if self._queue is None:
                self._start_thread()

    def decided(self, kind: str, **fields: object) -> None:
        """Adds a decision for the log; ``fields`` are those of ``Decision``. Writes nothing yet."""
        from cache_engine.model.decision import DEMOTION, PROMOTION, SPECULATION, Decision

        self._decisions().add(msgspec.convert({"kind": kind, "at": self._now(), **_encodable(fields)}, Decision))
        with self._lock:
            self._rare.promotions += kind in (PROMOTION, SPECULATION)
            self._rare.demotions += kind == DEMOTION
            if self._queue is None:
                self._start_thread()

    def event(self, kind: str, **fields: object) -> None:
        """Writes an event at once, together with all counts and decisions that wait."""
        event = msgspec.convert({"kind": kind, "at": self._now(), **_encodable(fields)}, Event)
        from cache_engine.model.decision import decision_of

        self._decisions().add(decision_of(event))
        self._write([*self._take_counts(), event])

    def flush(self) -> None:
        """Writes all counts that wait."""
        self._write(self._take_counts())

    @property
    def is_interrupted(self) -> bool:
        """Whether the caller is a signal handler that interrupted counting or writing; waiting could then deadlock."""
        return holds(self._lock) or holds(self._writing)

    def close(self) -> None:
        """Writes all counts that wait, releases the file and ends the thread.

        In a signal handler that interrupted counting or writing, the thread does this after the handler has returned.
        """
        if self.is_interrupted:
            if self._queue is not None:
                self._queue.put(weak(self._finish, 0.0))
            return
        self._finish(CLOSE_S)
        if self._queue is None:  # otherwise new counts came meanwhile
            self._forget_end()

    def write_counts(self) -> float:
        """Writes all counts that wait; returns the seconds until the next write."""
        written = self._write(self._take_counts())
        self._fold_if_due()
        return min(max(self._flush_s, written / _BYTES_PER_S), _LONGEST_WAIT_S)

    def __del__(self) -> None:
        # The journal was dropped without being closed, maybe by its own thread. No caller can handle a failure. At
        # interpreter exit the journal is closed already, or its thread may have stopped while it held a lock.
        if not sys.is_finalizing():
            with suppress(Exception):
                if self._queue is not None:
                    self._queue.end()
                self._forget_end()
                self._flush_and_release()

    def _flush_and_release(self) -> None:
        self.flush()
        if not holds(self._writing):
            with self._writing:
                self._release()

    def _finish(self, wait_s: float) -> None:
        """Ends the thread, writes all counts and releases the file."""
        with self._lock:
            queue, self._queue = self._queue, None
        if queue is not None:
            # At interpreter exit, threads stop at any point and keep the locks they hold.
            queue.close(wait_s)
        self._flush_and_release()
        self._fold_if_due()

    def _start_thread(self) -> None:
        self._forget_end()
        self._forget_end = run_at_end(weak(self.close))
        queue = BackgroundQueue()
        if queue.put(weak(self.write_counts), self._flush_s):
            self._queue = queue
            return
        # This process cannot start another thread. Counts are written with the next event, or at the end.
        _log.log(self._complaint, "usage is written only with events and at the end: this process can start no thread")
        self._complaint = DEBUG
        if len(self._hits) >= _MOST_WAITING or len(self._asked) >= _MOST_WAITING:
            self.flush()

    def _take_counts(self) -> list[_Line]:
        no_waits, spans = Event(kind=USE, at=0.0), self.spans.take()
        with self._lock:
            # No function call from here to the end of the block, so that no signal handler can run in between.
            hits, misses, saved, failures = self._hits, self._misses, self._saved_us, self._failures
            waits, asked = self._rare, self._asked
            has_rare = waits.lock_waits or waits.promotions or waits.demotions
            has_rare = has_rare or waits.remote_sent or waits.remote_dropped
            if not (hits or asked or misses or failures or has_rare or spans):
                return []
            self._hits, self._misses, self._saved_us, self._failures, self._asked = {}, {}, {}, {}, {}
            self._rare = no_waits
        by_entry: dict[tuple[CacheKey, float], dict[str, int]] = {}
        for (key, made_at, tier), count in hits.items():
            by_entry.setdefault((key, made_at), {})[tier] = count
        now = self._now()
        waits.at, waits.failures, waits.spans = now, failures, spans
        counted: list[_Line] = [waits] if failures or spans or has_rare else []
        counted += [Event(kind=USE, at=now, misses=missed, arch=arch) for arch, missed in misses.items()]
        for (key, made_at), tiers in by_entry.items():
            saved_us = saved.pop(key, 0)
            counted.append(Event(kind=USE, at=now, key=key, made_at=made_at, hits=tiers, saved_us=saved_us))
        return counted + lines_of(asked, now)

    def _write(self, events: list[_Line]) -> int:
        """Appends lines to this process's file; returns the number of bytes written."""
        if not events and not self._postponed and not self._log:
            return 0
        if holds(self._writing):
            # A signal handler interrupted ``_write``, which will write these lines too.
            self._postponed += events
            return 0
        written, failure = 0, None
        with self._writing:
            self._postponed += events
            while self._postponed:
                events, self._postponed = self._postponed, []
                data = b"".join(_encode(event) + b"\n" for event in events)
                try:
                    self._append(data)
                    written += len(data)
                except OSError as error:
                    failure = error
                    self._release()
            failure = (self._log.write() if self._log is not None else None) or failure
        if failure is not None:
            # A full disk or read-only store: counts are lost, kernels are not. Logged after the lock is free, because a
            # signal handler may have interrupted another log message.
            _log.log(self._complaint, "usage could not be written to %s: %s", self._folder, failure)
            self._complaint = DEBUG  # one warning is enough
        return written

    def _append(self, data: bytes) -> None:
        status = None if self._file is None else self._file.status()
        if self._file is None or status is None:
            self._file, status = open_to_append(self._folder, OPEN)
        append(self._file.descriptor, data)
        if status.st_size + len(data) >= ROTATE_BYTES:
            self._release()
            self._looked_at = 0.0

    def _fold_if_due(self) -> None:
        """Folds the journal if it is long and was not checked for some time, so that its size has a limit."""
        now = time.monotonic()
        if self._looked_at and now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        try:
            self._fold()
        except (OSError, CorruptEntry) as error:
            _log.log(self._complaint, "the journal in %s could not be folded: %s", self._folder, error)
            self._complaint = DEBUG

    def _release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _encodable(fields: dict[str, object]) -> dict[str, object]:
    """The fields with ``?`` for each byte that is not UTF-8, as the name of a file may have."""
    return {
        name: value.encode(errors="replace").decode() if isinstance(value, str) else value
        for name, value in fields.items()
    }


# ---- The journal of a cache without a store: it counts in memory, and nothing outlives the process ----


class NoJournal(Journal):
    """A journal without a store: counts the lookups of this process and writes nothing.

    Safe to use as a ``Journal`` is.

    Attributes:
        totals: the counts of this process so far.
    """

    def __init__(self) -> None:
        """Starts without counts."""
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: starts without counts, because the parent keeps its own."""
        self.totals = Totals()
        self._lock = threading.RLock()  # a signal handler may count while the interrupted thread does
        self.spans = Spans()

    def hit(
        self, key: CacheKey, tier: str, *, made_at: float = 0.0, saved_us: int = 0, problem: GemmProblem | None = None
    ) -> None:
        """Counts a hit."""
        del key, made_at, problem  # only a later process would use the count
        with self._lock:
            self.totals.hits[tier] = self.totals.hits.get(tier, 0) + 1
            self.totals.saved_us += saved_us

    def asked(self, problem: GemmProblem) -> None:
        """Counts nothing: only a later process would use the count."""

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
        """Counts nothing: without a store, no process waits for another."""

    def shared(self, sent: int, dropped: int) -> None:
        """Counts nothing: without a store there is nothing to send."""

    def decided(self, kind: str, **fields: object) -> None:
        """Drops the decision: there is no log."""

    def event(self, kind: str, **fields: object) -> None:
        """Counts a kernel that was compiled and not stored, as every kernel without a store."""
        if kind == UNPUBLISHED:
            event = msgspec.convert({"kind": kind, "at": 0.0, **fields}, Event)
            with self._lock:
                self.totals.compiles += 1
                self.totals.compile_us += event.compile_us
                self.totals.publish_failures += 1

    def flush(self) -> None:
        """Writes nothing; adds the durations counted since the last call to ``totals``."""
        for name, count in self.spans.take().items():
            self.totals.spans[name] = self.totals.spans.get(name, 0) + count

    @property
    def is_interrupted(self) -> bool:
        """False: no method of this class waits."""
        return False

    def close(self) -> None:
        """Does nothing: no file or thread is open."""

    def __del__(self) -> None:
        pass
