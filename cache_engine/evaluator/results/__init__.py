"""Stored results of the core-grid evaluator: one file per accelerator, shared by any number of processes.

A lookup matches the problem, types, search mode and major version of the model, on an accelerator with the same
fingerprint, which covers every field of its description. A result of another minor version is searched again.

- ``entry`` — a result as stored and exchanged, and the types of return values; ``store.results`` has their file
- ``reference`` — reads files to import, ours or the public reference evaluator's
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import msgspec

from cache_engine.errors import CorruptEntry, StoreError, UsageError
from cache_engine.evaluator.cost import EVALUATOR, MODEL_VERSION, Evaluation, SearchMode
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results.entry import (
    Answer,
    Entry,
    Older,
    Pruned,
    Taken,
    decode_entry,
    encode_entry,
    is_older,
    is_to_validate,
    judge,
    key_of,
    last_used,
    make_entry,
)
from cache_engine.evaluator.results.reference import read_results, write_reference
from cache_engine.model.events import IMPORT, PRUNE
from cache_engine.model.outcome import Failure
from cache_engine.process import holds, renew_after_fork, run_at_end, weak
from cache_engine.store.layout import StoreLayout
from cache_engine.store.results import (
    NewResult,
    ResultFile,
    Snapshot,
    Usage,
    add_result,
    count_usage,
    empty_snapshot,
    stored_fingerprints,
)
from cache_engine.units import counted, printable

__all__ = ["MAX_ENTRIES", "UNUSED_DAYS", "Answer", "Evaluations", "Pruned", "Taken", "search"]

_log = logging.getLogger(__name__)

MAX_ENTRIES = 10_000
UNUSED_DAYS = 90.0
"""The days without use after which pruning removes a result, and the most results of an accelerator, by default."""

_OLDEST_SHARE = 10
"""If an accelerator has too many results, pruning removes one in this many, the least recently used first."""

_REST = 10
"""After a write, results are collected for this many times the duration of the write, so that storing many is fast."""

_LONGEST_DETAIL = 1000
_MOST_SETS = 64
"""The most accelerators whose results a process holds in memory; a service may get requests for any number."""


class Evaluations:
    """The stored results of a store. Safe to use from several threads and processes.

    A result is written at once or, if many are found in a row, a moment later together with others. Use the object in a
    ``with``, or call :meth:`close`, to write the last results and usage counts; otherwise they are written when the
    process ends. A killed process loses at most the results not yet written, which are then searched again.
    """

    def __init__(
        self,
        layout: StoreLayout,
        *,
        durable: bool = True,
        lock_timeout_s: float = 60.0,
        stored: Callable[[], None] = lambda: None,
        acted: Callable[[str, str, str], None] = lambda *_: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Stores the arguments; opens nothing yet.

        Args:
            durable: whether results are synced to disk before they count as stored.
            stored: called after a result was stored, or was accepted for storing.
            acted: called after results were deleted or imported, for the audit log: with the kind of event, what was
                done in words, and who did it (empty: the user of this process).
        """
        self._layout, self._stored, self._acted, self._now = layout, stored, acted, now
        self._file = partial(ResultFile, layout, judge=judge, durable=durable, lock_timeout_s=lock_timeout_s)
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """Called in a forked child: drops unwritten results, because the parent writes them."""
        self._lock = threading.RLock()
        self._sets: dict[str, _Results] = {}
        self._forget_end: Callable[[], None] | None = None

    def evaluate(
        self,
        problem: EvaluationProblem,
        hardware: Hardware,
        mode: SearchMode | None = None,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> Answer:
        """The best result of the model: the stored one, else one that is searched now and stored.

        Args:
            may_go_on: as for ``search.evaluate``.

        Raises:
            InvalidHardware, SearchStopped: as ``search.evaluate``.
        """
        mode, older = mode or SearchMode(), None
        key = key_of(problem, mode)
        with self._lock:
            results = self._of(hardware)
            entry = results.find(key)
            if entry is not None and is_to_validate(entry):
                older, entry = Older(entry.metadata.model_version, entry.result.latency_us), None
            results.count(key, hit=entry is not None)
        if entry is not None:
            return _stored_answer(key, entry)
        answer = search(problem, hardware, mode, may_go_on)
        unkept = self.put(problem, hardware, mode, answer.evaluation, answer.search_ms)
        if unkept is None:
            self._stored()
        return replace(answer, unkept=unkept, older=older)

    def look_up(self, problem: EvaluationProblem, hardware: Hardware, mode: SearchMode | None = None) -> Answer | None:
        """The stored result on disk; ``None`` if there is none. Does not search, count or change the store."""
        key, fingerprint = key_of(problem, mode or SearchMode()), _fingerprint_of(hardware)
        with self._lock:
            if fingerprint not in self._sets and fingerprint not in self.fingerprints():
                return None
            entry = self._of(hardware).read(key)
        return None if entry is None or is_to_validate(entry) else _stored_answer(key, entry)

    def put(
        self,
        problem: EvaluationProblem,
        hardware: Hardware,
        mode: SearchMode,
        evaluation: Evaluation,
        search_ms: float = 0.0,
    ) -> Failure | None:
        """Stores a result, now or in a moment; returns why a write failed, or ``None``. The next write tries again."""
        new = _new_result(make_entry(problem, mode, evaluation, search_ms, self._now()))
        try:
            decode_entry(new.entry)  # so that no reader rejects its numbers
        except CorruptEntry as error:
            return Failure(str(error))
        with self._lock:
            results = self._of(hardware)
            results.unwritten[new.key] = new
            return results.write(self._now()) if time.monotonic() >= results.next_write else None

    def preload(self, hardware: Hardware) -> int:
        """Reads an accelerator's results now, not at the first lookup; returns their number."""
        with self._lock:
            return len(self._of(hardware).file.load().cache_entries)

    def flush(self) -> None:
        """Writes unwritten results and usage counts. A failed write is logged, and tried again next time."""
        with self._lock:
            failures = [results.write(self._now()) for results in self._sets.values()]
        for failure in filter(None, failures):
            # Logged without the lock: a signal handler may have interrupted another log message.
            _log.warning("could not store results: %s", failure)

    def close(self) -> None:
        """Writes unwritten results and usage counts; may be called in a signal handler."""
        if holds(self._lock):
            return  # a signal handler during a write; the rest is written at the end of the process
        self.flush()
        if self._forget_end is not None:
            self._forget_end()
            self._forget_end = None

    def __enter__(self) -> Evaluations:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Dropped without being closed; no caller can handle a failure.
        if not sys.is_finalizing():
            with suppress(Exception):
                self.close()

    # ---- Looking, and keeping in order ----

    def fingerprints(self) -> list[str]:
        """The fingerprints of accelerators that have results."""
        return stored_fingerprints(self._layout)

    def snapshot(self, fingerprint: str) -> Snapshot:
        """All results of an accelerator on disk, not decoded; first writes unwritten ones.

        Raises:
            UsageError: when the accelerator has no results.
            UnknownResults: when its results have another format version.
        """
        self.flush()
        if fingerprint not in self.fingerprints():
            raise UsageError(f"there are no results of an accelerator with fingerprint {fingerprint[:40]!r}")
        with self._lock:
            return self._known(fingerprint).file.load()

    def summaries(self) -> list[dict[str, Any]]:
        """The name and the statistics of each accelerator with results; an ``error`` if its results are unreadable."""
        found: list[dict[str, Any]] = []
        for fingerprint in self.fingerprints():
            try:
                snapshot = self.snapshot(fingerprint)
            except StoreError as error:
                found.append({"arch_fingerprint": fingerprint, "error": str(error)})
                continue
            about = {"arch_fingerprint": fingerprint, "chip": snapshot.chip}
            about |= {"evaluator": snapshot.evaluator, "version": snapshot.version}
            found.append(about | msgspec.to_builtins(snapshot.statistics))
        return found

    def entries(self, fingerprint: str) -> Iterator[tuple[str, Entry]]:
        """Yields the keys and results of an accelerator. Skips damaged results, with a warning."""
        for key, raw in list(self.snapshot(fingerprint).cache_entries.items()):
            try:
                yield key, decode_entry(raw)
            except CorruptEntry as error:
                _log.warning("result %s is skipped: %s", key, error)

    def plan_pruning(self, max_entries: int = MAX_ENTRIES, unused_days: float = UNUSED_DAYS) -> list[Pruned]:
        """The results that pruning would remove. Changes nothing.

        It would remove each result unused for ``unused_days``. If an accelerator has more than ``max_entries`` results,
        it would also remove the least recently used: a tenth of the results, or more if that is not enough.
        """
        plan: list[Pruned] = []
        for fingerprint in self.fingerprints():
            try:
                snapshot = self.snapshot(fingerprint)
            except StoreError as error:
                _log.warning("results of %s are skipped: %s", fingerprint, error)
                continue
            plan += _superfluous(snapshot, max_entries, self._now() - unused_days * 86_400)
        return plan

    def prune(self, plan: Iterable[Pruned], *, by: str = "") -> int:
        """Removes the results of a plan, unless they were used meanwhile; returns the number removed."""
        victims: dict[str, list[Pruned]] = {}
        for one in plan:
            victims.setdefault(one.fingerprint, []).append(one)
        gone: dict[str, int] = {}
        try:
            with self._lock:
                for fingerprint, there in victims.items():
                    gone[fingerprint] = self._known(fingerprint).drop(there)
        finally:  # also if writing a file fails after others were written
            chips = {it: there[0].chip or it[:12] for it, there in victims.items()}
            whose = [f"{counted(count, 'result')} of {printable(chips[it])}" for it, count in gone.items() if count]
            if whose:
                self._acted(PRUNE, ", ".join(whose)[:_LONGEST_DETAIL], by)
        return sum(gone.values())

    def mend(self, fingerprint: str) -> None:
        """Copies an accelerator's damaged files to quarantine, and continues with the sound entries.

        Raises:
            UnknownResults, LockTimeout, OSError: when the files cannot be read or written.
        """
        with self._lock:
            self._known(fingerprint).file.mend()

    def export(self, fingerprint: str) -> bytes:
        """The interchange file of an accelerator, with all its results."""
        return msgspec.json.encode(msgspec.structs.replace(self.snapshot(fingerprint), generation=0))

    def export_reference(self, fingerprint: str) -> tuple[bytes, int]:
        """As ``export``, in the public reference evaluator's format 2025.01; also the number of results written."""
        hardware = Hardware.from_dict(self.snapshot(fingerprint).architecture, "architecture")
        return write_reference(hardware, (entry for _, entry in self.entries(fingerprint)))

    def import_file(self, data: bytes, chip: Hardware | None = None, *, by: str = "") -> Taken:
        """Imports the results of an interchange file, ours or the reference's.

        A result that is already stored stays, unless an older model made it.

        Args:
            chip: the accelerator of a file of the reference evaluator, which describes it only in part; by default the
                known chip with the name in the file.
            by: the user who imports, for the audit log.

        Raises:
            CorruptEntry, UnknownResults: when the file is damaged or has another format.
            UsageError: when the file is another evaluator's, or its accelerator is invalid.
            OSError, LockTimeout: when the results cannot be stored.
        """
        hardware, entries, refused, theirs = read_results(data, chip)
        given, taken = {entry.key(): entry for entry in entries}, 0

        def new(snapshot: Snapshot) -> list[Entry]:
            ours = snapshot.cache_entries
            return [entry for key, entry in given.items() if key not in ours or is_older(ours[key], entry)]

        def merge(snapshot: Snapshot) -> None:
            nonlocal taken
            is_first = not snapshot.cache_entries
            results = [_new_result(entry) for entry in new(snapshot)]
            for result in results:
                add_result(snapshot, result)
            taken = len(results)
            # All count as used now, so that pruning leaves them.
            count_usage(snapshot, Usage(self._now(), dict.fromkeys(given, 0)))
            if theirs is not None and is_first:
                snapshot.statistics = theirs.statistics

        with self._lock:
            file = self._of(hardware).file
            try:
                file.change(merge)
            except (OSError, StoreError):
                if new(file.load()):
                    raise  # else only when they were used last is lost, as in a read-only store
        if taken:
            self._acted(IMPORT, f"{counted(taken, 'result')} of {printable(hardware.name)}", by)
        return Taken(hardware.fingerprint(), taken, len(entries) - taken, tuple(refused))

    # ---- Inside ----

    def _of(self, hardware: Hardware) -> _Results:
        """The results of an accelerator: one object for each accelerator and process."""
        if self._forget_end is None:  # also after ``close``
            self._forget_end = run_at_end(weak(self.close))
        fingerprint = _fingerprint_of(hardware)
        if fingerprint not in self._sets:
            if len(self._sets) >= _MOST_SETS:
                self.flush()
                self._sets = {name: one for name, one in self._sets.items() if one.unwritten}
            new = empty_snapshot(MODEL_VERSION, EVALUATOR, fingerprint, hardware.to_dict())
            self._sets[fingerprint] = _Results(self._file(new))
        return self._sets[fingerprint]

    def _known(self, fingerprint: str) -> _Results:
        """The results of an accelerator known only by its fingerprint, to which none can be added."""
        found = self._sets.get(fingerprint)
        return found or _Results(self._file(empty_snapshot(MODEL_VERSION, EVALUATOR, fingerprint, {})))


class _Results:
    """One accelerator's results in this process: its file, and the unwritten ones.

    Only one thread at a time may use the object.
    """

    def __init__(self, file: ResultFile) -> None:
        self.file = file
        self.unwritten: dict[str, NewResult] = {}
        self.usage = Usage(0.0)
        self.next_write = 0.0

    def find(self, key: str) -> Entry | None:
        """The result for a key, written or not, of any minor version; ``None`` if there is none."""
        unwritten = self.unwritten.get(key)
        return self.read(key) if unwritten is None else decode_entry(unwritten.entry)

    def read(self, key: str) -> Entry | None:
        """The result for a key on disk, without unwritten results; ``None`` if there is none."""
        try:
            # The snapshot in memory may be old; it is read again when the key is missing.
            raw = self.file.snapshot.cache_entries.get(key) or self.file.load().cache_entries.get(key)
            return None if raw is None else decode_entry(raw, key)
        except CorruptEntry as error:
            _log.warning("result %s is skipped and searched again: %s", key, error)
        except (OSError, StoreError) as error:
            _log.warning("cannot read stored results: %s", error)
        return None

    def count(self, key: str, *, hit: bool) -> None:
        """Counts a lookup of this key as a hit or a miss, in the usage counts that are written later."""
        if hit:
            self.usage.hits[key] = self.usage.hits.get(key, 0) + 1
        else:
            self.usage.misses += 1

    def write(self, at: float) -> Failure | None:
        """Writes unwritten results and usage counts; returns the reason if that failed.

        After a failure, the next call writes them too.
        """
        if not self.unwritten and not self.usage.hits and not self.usage.misses:
            return None
        started = time.monotonic()
        self.usage.at = at
        try:
            self.file.append(self.unwritten.values(), self.usage)
        except (OSError, StoreError) as error:
            return Failure(str(error))
        self.unwritten, self.usage = {}, Usage(0.0)
        ended = time.monotonic()
        self.next_write = ended + _REST * (ended - started)
        return None

    def drop(self, victims: Iterable[Pruned]) -> int:
        """Removes results that were not used since they were listed; returns the number removed."""
        gone = 0

        def change(snapshot: Snapshot) -> None:
            nonlocal gone
            there = [one for one in victims if one.key in snapshot.cache_entries]
            unused = [one.key for one in there if last_used(snapshot, one.key) <= one.last_used]
            for key in unused:
                del snapshot.cache_entries[key]
                snapshot.usage.pop(key, None)
            gone = len(unused)

        self.file.change(change)
        return gone


def search(
    problem: EvaluationProblem,
    hardware: Hardware,
    mode: SearchMode,
    may_go_on: Callable[[], bool] = lambda: True,
) -> Answer:
    """The best result of the model, searched now and not stored. Raises as ``Evaluations.evaluate``."""
    from cache_engine.evaluator.search import evaluate

    started = time.perf_counter()
    evaluation = evaluate(problem, hardware, mode, may_go_on)
    return Answer(key_of(problem, mode), evaluation, False, (time.perf_counter() - started) * 1e3)


def _stored_answer(key: str, entry: Entry) -> Answer:
    return Answer(key, entry.evaluation(), True, entry.metadata.search_time_ms)


def _new_result(entry: Entry) -> NewResult:
    """A result in the form to be appended to the file: one line with its checksum."""
    return NewResult(entry.key(), entry.metadata.timestamp, entry.metadata.search_time_ms, encode_entry(entry))


def _superfluous(snapshot: Snapshot, max_entries: int, expiry: float) -> list[Pruned]:
    """The results of an accelerator that pruning would remove: unused since ``expiry``, or the oldest if too many."""
    used = sorted((last_used(snapshot, key), key) for key in snapshot.cache_entries)
    too_many = len(used) - max_entries
    count = max(too_many, -(-len(used) // _OLDEST_SHARE)) if too_many > 0 else 0
    return [
        Pruned(
            snapshot.arch_fingerprint, key, at, "unused for long" if at < expiry else "too many results", snapshot.chip
        )
        for index, (at, key) in enumerate(used)
        if at < expiry or index < count
    ]


@lru_cache(maxsize=256)
def _fingerprint_of(hardware: Hardware) -> str:
    """The accelerator's fingerprint, which is computed only once."""
    return hardware.fingerprint()
