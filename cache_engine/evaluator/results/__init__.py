"""Stored results of the core-grid evaluator: one set per accelerator, shared by any number of processes.

A lookup matches the problem, types, search mode and major version of the model, on an accelerator with the same
fingerprint, which covers every field of its description. A result of another minor version is searched again.

- ``entry`` — a result as stored and exchanged, and the types of return values; ``store.results`` has their file
- ``reference`` — what a file to import has, ours or the public reference evaluator's
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
    check_range,
    decode_entry,
    encode_entry,
    judge,
    key_of,
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
    Statistics,
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
"""The default limits of pruning, per accelerator."""

_OLDEST_SHARE = 10
"""When there are too many entries, pruning removes one in this many, least recently used first."""

_REST = 10
"""After a write, results are collected for this many times as long as it took, so that storing many costs little."""

_LONGEST_DETAIL = 1000
_MOST_SETS = 64
"""How many accelerators' results a process holds in memory; a service may get requests for any number."""


class Evaluations:
    """The stored results of a store. Safe to use from several threads and processes.

    A result is written at once, or, where many are found in a row, a moment later together with others. Use it in a
    ``with``, or call :meth:`close`, to write the last results and usage counts; otherwise they are written at the end
    of the process. One that is killed loses at most those of that moment, which are searched again.
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
        """Opens nothing yet.

        Args:
            durable: whether results are synced to disk before they count as stored.
            stored: called after a result was stored, or will be.
            acted: called after results were deleted or imported, for the audit log: with the kind of event, what was
                done in words, and who did it (empty: the user of this process).
        """
        self._layout, self._stored, self._acted, self._now = layout, stored, acted, now
        self._file = partial(ResultFile, layout, judge=judge, durable=durable, lock_timeout_s=lock_timeout_s)
        self._start()
        renew_after_fork(self)

    def _start(self) -> None:
        self._lock = threading.RLock()
        self._sets: dict[str, ResultSet] = {}
        self._forget_end: Callable[[], None] | None = None

    def renew_after_fork(self) -> None:
        """In a forked child: the parent keeps unwritten results."""
        self._start()

    def evaluate(
        self,
        problem: EvaluationProblem,
        hardware: Hardware,
        mode: SearchMode | None = None,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> Answer:
        """The best result of the model, from the store, else searched now and stored.

        Args:
            may_go_on: as of the search.

        Raises:
            InvalidHardware, SearchStopped: as the search.
        """
        mode = mode or SearchMode()
        key = key_of(problem, mode)
        with self._lock:
            results = self._set(hardware)
            entry, older = results.find(key), results.older(key)
        if entry is not None:
            return Answer(key, entry.evaluation(), True, entry.metadata.search_time_ms)
        answer = search(problem, hardware, mode, may_go_on)
        unkept = self.put(problem, hardware, mode, answer.evaluation, answer.search_ms)
        if unkept is None:
            self._stored()
        return replace(answer, unkept=unkept, older=older)

    def look_up(self, problem: EvaluationProblem, hardware: Hardware, mode: SearchMode | None = None) -> Answer | None:
        """The stored result, if there is one. Searches nothing, counts nothing and does not change the store."""
        key = key_of(problem, mode or SearchMode())
        with self._lock:
            fingerprint = fingerprint_of(hardware)
            if fingerprint not in self._sets and fingerprint not in self.fingerprints():
                return None
            entry = self._set(hardware).peek(key)
        return None if entry is None else Answer(key, entry.evaluation(), True, entry.metadata.search_time_ms)

    def put(
        self,
        problem: EvaluationProblem,
        hardware: Hardware,
        mode: SearchMode,
        evaluation: Evaluation,
        search_ms: float = 0.0,
    ) -> Failure | None:
        """Stores a result, or will in a moment; returns why that failed. The next write tries again."""
        entry = make_entry(problem, mode, evaluation, search_ms, self._now())
        with self._lock:
            return self._set(hardware).add(entry)

    def preload(self, hardware: Hardware) -> int:
        """Reads an accelerator's results now, not at the first lookup; returns their number."""
        with self._lock:
            return len(self._set(hardware).load().cache_entries)

    def flush(self, *, usage: bool = True) -> None:
        """Writes unwritten results, and usage. A failed write is logged and tried again next time.

        Args:
            usage: whether usage alone is worth writing.
        """
        with self._lock:
            saved = [results.save(usage=usage) for results in self._sets.values()]
        for failure in filter(None, saved):
            # Logged without the lock: a signal handler may have interrupted another log message.
            _log.warning("could not store results: %s", failure)

    def close(self) -> None:
        """Writes unwritten results and usage; safe in a signal handler."""
        if holds(self._lock):
            return  # a signal handler during a write; the rest is written at the end of the process
        self.flush()
        self._forget()

    def __enter__(self) -> Evaluations:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Dropped without being closed; no caller can handle a failure.
        if not sys.is_finalizing():
            with suppress(Exception):
                self.flush()
                self._forget()

    # ---- Looking, and keeping in order ----

    def fingerprints(self) -> list[str]:
        """Accelerators with results."""
        return stored_fingerprints(self._layout)

    def snapshot(self, fingerprint: str) -> Snapshot:
        """All results of an accelerator, entries undecoded.

        Raises:
            UsageError: when there are none.
            UnknownResults: when they have another format version.
        """
        if fingerprint not in self.fingerprints():
            raise UsageError(f"there are no results of an accelerator with fingerprint {fingerprint[:40]!r}")
        with self._lock:
            return self._known(fingerprint).load()

    def summaries(self) -> list[dict[str, Any]]:
        """Name and statistics of each accelerator with results; or an ``error`` when they cannot be read."""
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
        """Keys and results of an accelerator. Skips damaged ones, with a warning."""
        for key, raw in list(self.snapshot(fingerprint).cache_entries.items()):
            try:
                yield key, decode_entry(raw)
            except CorruptEntry as error:
                _log.warning("result %s is skipped: %s", key, error)

    def plan_pruning(self, max_entries: int = MAX_ENTRIES, unused_days: float = UNUSED_DAYS) -> list[Pruned]:
        """The results that pruning would remove. Changes nothing.

        That is each result unused for ``unused_days``; and if an accelerator has more than ``max_entries``, a tenth of
        them, or more if that is not enough, least recently used first.
        """
        self.flush()
        victims: list[Pruned] = []
        for fingerprint in self.fingerprints():
            try:
                snapshot = self.snapshot(fingerprint)
            except StoreError as error:
                _log.warning("results of %s are skipped: %s", fingerprint, error)
                continue
            victims += superfluous(snapshot, max_entries, self._now() - unused_days * 86_400)
        return victims

    def prune(self, plan: Iterable[Pruned], *, by: str = "") -> int:
        """Removes the results of a plan, unless they were used meanwhile; returns the number removed."""
        by_fingerprint: dict[str, dict[str, float]] = {}
        chips: dict[str, str] = {}
        for victim in plan:
            by_fingerprint.setdefault(victim.fingerprint, {})[victim.key] = victim.last_used
            chips[victim.fingerprint] = victim.chip or victim.fingerprint[:12]
        gone: dict[str, int] = {}
        try:
            with self._lock:
                for fingerprint, victims in by_fingerprint.items():
                    gone[fingerprint] = self._known(fingerprint).drop(victims)
        finally:  # also if writing a file fails after others were written
            whose = [f"{counted(count, 'result')} of {printable(chips[it])}" for it, count in gone.items() if count]
            if whose:
                self._acted(PRUNE, ", ".join(whose)[:_LONGEST_DETAIL], by)
        return sum(gone.values())

    def mend(self, fingerprint: str) -> None:
        """Copies an accelerator's damaged files to quarantine, and continues with the sound entries.

        Raises:
            UnknownResults, LockTimeout, OSError: when they cannot be read or written.
        """
        with self._lock:
            self._known(fingerprint).file.mend()

    def export(self, fingerprint: str) -> bytes:
        """The interchange file of an accelerator, with all its results."""
        self.flush()
        return msgspec.json.encode(msgspec.structs.replace(self.snapshot(fingerprint), generation=0))

    def export_reference(self, fingerprint: str) -> tuple[bytes, int]:
        """As ``export``, in the public reference evaluator's format 2025.01; and how many results it can say."""
        self.flush()
        hardware = Hardware.from_dict(self.snapshot(fingerprint).architecture, "architecture")
        return write_reference(hardware, (entry for _, entry in self.entries(fingerprint)))

    def import_file(self, data: bytes, chip: Hardware | None = None, *, by: str = "") -> Taken:
        """Merges an interchange file, ours or the reference's. A stored result stays, unless an older model made it.

        Args:
            chip: whose results the reference's file has, which does not describe it whole; by default the known chip
                of that name.
            by: the user who imports, for the audit log.

        Raises:
            CorruptEntry, UnknownResults: when the file is damaged or has another format.
            UsageError: when it is another evaluator's, or its accelerator is invalid.
            OSError, LockTimeout: when the results cannot be stored.
        """
        hardware, entries, refused, theirs = read_results(data, chip)
        with self._lock:
            is_new = hardware.fingerprint() not in self.fingerprints()
            stored = self._set(hardware).merge(entries, theirs.statistics if theirs is not None and is_new else None)
        if stored:
            self._acted(IMPORT, f"{counted(stored, 'result')} of {printable(hardware.name)}", by)
        return Taken(hardware.fingerprint(), stored, len(entries) - stored, tuple(refused))

    # ---- Inside ----

    def _forget(self) -> None:
        """Leaves nothing to do at the end of the process."""
        if self._forget_end is not None:
            self._forget_end()
            self._forget_end = None

    def _set(self, hardware: Hardware) -> ResultSet:
        """An accelerator's results: one object per accelerator and process."""
        if self._forget_end is None:  # also after ``close``
            self._forget_end = run_at_end(weak(self.close))
        fingerprint = fingerprint_of(hardware)
        found = self._sets.pop(fingerprint, None)
        if found is None:
            self._drop_idle()
            new = empty_snapshot(MODEL_VERSION, EVALUATOR, fingerprint, hardware.to_dict())
            found = ResultSet(self._file(new), self._now)
        self._sets[fingerprint] = found  # the most recently used is last
        return found

    def _drop_idle(self) -> None:
        """Makes room for one more accelerator: drops the least recently used one after writing its results."""
        for fingerprint in list(self._sets)[: max(0, len(self._sets) - _MOST_SETS + 1)]:
            if self._sets[fingerprint].save() is None:
                del self._sets[fingerprint]

    def _known(self, fingerprint: str) -> ResultSet:
        """Results found by fingerprint only. Nothing can be added, because the accelerator may be unknown."""
        found = self._sets.get(fingerprint)
        if found is None:
            found = ResultSet(self._file(empty_snapshot(MODEL_VERSION, EVALUATOR, fingerprint, {})), self._now)
        return found


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


# ---- One accelerator's results in one process; those that are old, unused or too many ----


class ResultSet:
    """One accelerator's results. For one thread at a time."""

    def __init__(self, file: ResultFile, now: Callable[[], float]) -> None:
        self.file = file
        self._now = now
        self._found: dict[str, Entry] = {}
        self._older: dict[str, Older] = {}
        self._unwritten: dict[str, NewResult] = {}
        self._hits: dict[str, int] = {}
        self._misses = 0
        self._next_write = 0.0

    def load(self) -> Snapshot:
        """All results on disk, and the unwritten ones."""
        snapshot = self.file.load()
        snapshot.cache_entries.update({key: msgspec.Raw(new.entry) for key, new in self._unwritten.items()})
        return snapshot

    def find(self, key: str) -> Entry | None:
        """The result of a key, of a model version that gives the same result; counts the lookup."""
        entry = self.peek(key)
        if entry is None:
            self._misses += 1
        else:
            self._hits[key] = self._hits.get(key, 0) + 1
        return entry

    def peek(self, key: str) -> Entry | None:
        """As ``find``, without counting."""
        return self._found.get(key) or self._look(key)

    def older(self, key: str) -> Older | None:
        """The result that ``find`` did not take last, as its model has another minor version."""
        return self._older.pop(key, None)

    def _look(self, key: str) -> Entry | None:
        try:
            # The snapshot in memory may be old; it is read again when the key is missing.
            raw = self.file.snapshot.cache_entries.get(key) or self.file.load().cache_entries.get(key)
        except (OSError, StoreError) as error:
            _log.warning("cannot read stored results: %s", error)
            return None
        if raw is None:
            return None
        try:
            entry = decode_entry(raw, key)
        except CorruptEntry as error:
            _log.warning("result %s is skipped and searched again: %s", key, error)
            return None
        if is_to_validate(entry):
            self._older[key] = Older(entry.metadata.model_version, entry.result.latency_us)
            return None
        self._found[key] = entry
        return entry

    def add(self, entry: Entry) -> Failure | None:
        """Stores a result, or collects it for the next write; returns why that failed."""
        new = _new_result(entry)
        try:
            check_range(new.entry)
        except CorruptEntry as error:
            return Failure(str(error))
        self._found[new.key] = entry
        self._unwritten[new.key] = new
        return self.save() if time.monotonic() >= self._next_write else None

    def save(self, *, usage: bool = True) -> Failure | None:
        """Writes unwritten results, and usage; returns why that failed. After a failure they stay for the next time.

        Args:
            usage: whether usage alone is worth writing.
        """
        if not self._unwritten and not (usage and (self._hits or self._misses)):
            return None
        started = time.monotonic()
        try:
            self.file.append(self._unwritten.values(), Usage(self._now(), self._hits, self._misses))
        except (OSError, StoreError) as error:
            return Failure(str(error))
        self._unwritten, self._hits, self._misses = {}, {}, 0
        ended = time.monotonic()
        self._next_write = ended + _REST * (ended - started)
        return None

    def merge(self, entries: Iterable[Entry], first: Statistics | None) -> int:
        """Stores the entries that are new or of a later model; all count as used now, so that pruning leaves them.

        Args:
            first: the statistics of an accelerator that had no results.

        Returns:
            How many were stored.

        Raises:
            OSError, StoreError: when the store cannot be written.
        """
        taken: set[str] = set()
        given = {entry.key(): entry for entry in entries}

        def change(snapshot: Snapshot) -> None:
            ours, is_first = snapshot.cache_entries, not snapshot.cache_entries
            for key, entry in given.items():
                if key not in ours or is_older(ours[key], entry):
                    add_result(snapshot, _new_result(entry))
                    taken.add(key)
            count_usage(snapshot, Usage(self._now(), dict.fromkeys(given, 0)))
            if first is not None and is_first:
                snapshot.statistics = first

        ours = self.load().cache_entries
        if all(key in ours and not is_older(ours[key], entry) for key, entry in given.items()):
            with suppress(OSError, StoreError):  # as of a read-only store; only when they were used last is lost
                self.file.change(change)
        else:
            self.file.change(change)
        for key in taken:
            self._found.pop(key, None)
        return len(taken)

    def drop(self, victims: dict[str, float]) -> int:
        """Removes results that were not used after the given time; returns how many."""
        gone: list[str] = []

        def change(snapshot: Snapshot) -> None:
            for key, unused_since in victims.items():
                if key in snapshot.cache_entries and last_used(snapshot, key) <= unused_since:
                    del snapshot.cache_entries[key]
                    snapshot.usage.pop(key, None)
                    self._found.pop(key, None)
                    gone.append(key)

        self.file.change(change)
        return len(gone)


def superfluous(snapshot: Snapshot, max_entries: int, expiry: float) -> list[Pruned]:
    """The results of an accelerator last used before ``expiry``, and if they are too many, those used longest ago."""
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


def _new_result(entry: Entry) -> NewResult:
    """A result as one line with its checksum, wherever it was read from."""
    return NewResult(entry.key(), entry.metadata.timestamp, entry.metadata.search_time_ms, encode_entry(entry))


@lru_cache(maxsize=256)
def fingerprint_of(hardware: Hardware) -> str:
    """The fingerprint, computed once."""
    return hardware.fingerprint()


def last_used(snapshot: Snapshot, key: str) -> float:
    """The time when a result was last used or made; 0 when it cannot be read."""
    used = snapshot.usage.get(key)
    if used is None:
        with suppress(CorruptEntry):
            used = decode_entry(snapshot.cache_entries[key]).metadata.timestamp
    return used or 0.0


def is_older(raw: msgspec.Raw, entry: Entry) -> bool:
    """Whether the stored result is unreadable, or of an older model than an entry with the same key."""
    try:
        return _version(decode_entry(raw).metadata.model_version) < _version(entry.metadata.model_version)
    except CorruptEntry:
        return True


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def is_to_validate(entry: Entry) -> bool:
    """Whether a result is of another minor version of the model: worth searching again."""
    return _minor(entry.metadata.model_version) != _minor(MODEL_VERSION)


def _minor(version: str) -> str:
    return version.rpartition(".")[0]
