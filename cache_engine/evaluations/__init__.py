"""Results of the core-grid evaluator, kept: one set for each accelerator, shared by any number of processes.

A result is found again for the same problem, types, search mode and major version of the model, on an accelerator with
the same fingerprint, which covers every field of its description. One of another minor version is searched for again.

- ``entry`` — a result as it is kept and exchanged
- ``kept`` — one accelerator's results in one process; ``store.results`` has their files
- ``outcomes`` — what comes back
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from cache_engine.errors import CorruptEntry, StoreError, UsageError
from cache_engine.evaluations.entry import Entry, decode_entry, judge, key_of, make_entry
from cache_engine.evaluations.kept import ResultSet, adopt, fingerprint_of, is_older, last_used
from cache_engine.evaluations.outcomes import Answer, Pruned, Taken
from cache_engine.evaluator.cost import EVALUATOR, MODEL_VERSION, Evaluation, SearchMode
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.process import holds, renew_after_fork, run_at_end
from cache_engine.store.layout import StoreLayout
from cache_engine.store.results.file import (
    ResultFile,
    Snapshot,
    decode_snapshot,
    empty_snapshot,
    stored_fingerprints,
)

__all__ = ["MAX_ENTRIES", "UNUSED_DAYS", "Answer", "Evaluations", "Pruned", "Taken"]

_log = logging.getLogger(__name__)

MAX_ENTRIES = 10_000
UNUSED_DAYS = 90.0
"""What pruning keeps by default, for each accelerator."""

_OLDEST_SHARE = 10
"""Above the number of entries to keep, one in so many goes, the longest unused first."""


_MOST_SETS = 64
"""How many accelerators' results a process holds in memory; a service may be asked about any number."""


class Evaluations:
    """The kept results of a store. Safe to use from several threads, and processes, at once.

    Use it in a ``with``, or call :meth:`close`, to have the last usage counts and results written at once; else they
    are at the end of the process.
    """

    def __init__(
        self,
        layout: StoreLayout,
        *,
        durable: bool = True,
        lock_timeout_s: float = 60.0,
        save_later: bool = False,
        compressed: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Opens nothing yet.

        Args:
            durable: whether results are on disk before they count as kept.
            save_later: whether results are written in batches, by a thread, rather than before they are handed out.
            compressed: whether files are written compressed; read they are in both forms.
        """
        self._layout = layout
        self._later, self._now = save_later, now
        self._file = partial(
            ResultFile, layout, judge=judge, durable=durable, lock_timeout_s=lock_timeout_s, compressed=compressed
        )
        self._forget_end: Callable[[], None] = lambda: None
        self._start()
        renew_after_fork(self)

    def _start(self) -> None:
        self._lock = threading.RLock()
        self._sets: dict[str, ResultSet] = {}
        self._wanted = threading.Event()
        self._saver: threading.Thread | None = None
        self.is_closed = False

    def renew_after_fork(self) -> None:
        """In a forked child: open logs and what is not written yet are the parent's."""
        self._start()

    def evaluate(
        self,
        problem: EvaluationProblem,
        hardware: Hardware,
        mode: SearchMode | None = None,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> Answer:
        """The best that the model finds, from what is kept, else searched for now and kept.

        Args:
            may_go_on: as of the search.

        Raises:
            InvalidHardware, SearchStopped: as the search.
        """
        mode = mode or SearchMode()
        key = key_of(problem, mode)
        with self._lock:
            kept = self._set(hardware)
            entry = kept.find(key)
        if entry is not None:
            return Answer(key, entry.evaluation(), True, entry.metadata.search_time_ms)
        from cache_engine.evaluator.search import evaluate

        started = time.perf_counter()
        evaluation = evaluate(problem, hardware, mode, may_go_on)
        search_ms = (time.perf_counter() - started) * 1e3
        unkept = self.put(problem, hardware, mode, evaluation, search_ms)
        return Answer(key, evaluation, False, search_ms, unkept)

    def look_up(self, problem: EvaluationProblem, hardware: Hardware, mode: SearchMode | None = None) -> Answer | None:
        """The stored result, if there is one. Searches for nothing, counts nothing and leaves the store as it is."""
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
    ) -> str:
        """Keeps a result; returns why it could not be kept, or an empty text. It is tried again with the next one."""
        entry = make_entry(problem, mode, evaluation, search_ms, self._now())
        with self._lock:
            kept = self._set(hardware)
            try:
                kept.add(entry)
            except CorruptEntry as error:
                return str(error)
            if not self._later or self.is_closed:
                return kept.save(usage=False)
            self._start_saver()
        self._wanted.set()
        return ""

    def preload(self, hardware: Hardware) -> int:
        """Reads what is kept for an accelerator now, not when it is first asked for; returns how much that is."""
        with self._lock:
            return len(self._set(hardware).load().cache_entries)

    def flush(self) -> None:
        """Writes results and usage not written yet; what cannot be written is said, and tried again next time."""
        with self._lock:
            for kept in self._sets.values():
                unkept = kept.save(usage=True)
                if unkept:
                    _log.warning("results are not kept: %s", unkept)

    def close(self) -> None:
        """Writes what is left to write, folds long logs and ends the thread."""
        if holds(self._lock):
            return  # a signal handler in the middle of writing; what is left is written at the end of the process
        self.is_closed = True
        self._wanted.set()
        if self._saver is not None:
            self._saver.join()
        self.flush()
        with self._lock:
            for kept in self._sets.values():
                kept.close()
        self._forget_end()

    def __enter__(self) -> Evaluations:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Dropped without being closed; whatever fails here has nobody left to be told.
        if not sys.is_finalizing():
            with suppress(Exception):
                self.is_closed = True
                self._wanted.set()
                self.flush()
                self._forget_end()

    # ---- Looking, and keeping in order ----

    def fingerprints(self) -> list[str]:
        """Accelerators of which there are results."""
        return stored_fingerprints(self._layout)

    def snapshot(self, fingerprint: str) -> Snapshot:
        """All that is kept for an accelerator, entries undecoded.

        Raises:
            UsageError: when there is nothing.
            UnknownResults: when it is of another format version.
        """
        if fingerprint not in self.fingerprints():
            raise UsageError(f"there are no results of an accelerator with fingerprint {fingerprint[:40]!r}")
        with self._lock:
            return self._known(fingerprint).load()

    def summaries(self) -> list[dict[str, Any]]:
        """For each accelerator with results its name and statistics; or its ``error``, when they cannot be read."""
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
        """Keys and results of an accelerator; damaged ones are passed over, and said."""
        for key, raw in list(self.snapshot(fingerprint).cache_entries.items()):
            try:
                yield key, decode_entry(raw)
            except CorruptEntry as error:
                _log.warning("result %s is passed over: %s", key, error)

    def plan_pruning(self, max_entries: int = MAX_ENTRIES, unused_days: float = UNUSED_DAYS) -> list[Pruned]:
        """What pruning would take out. Changes nothing.

        What was unused for so many days; and where an accelerator has more results than so many, a tenth of them, or
        more where that is not enough, the longest unused first.
        """
        self.flush()
        expiry = self._now() - unused_days * 86_400
        victims: list[Pruned] = []
        for fingerprint in self.fingerprints():
            try:
                snapshot = self.snapshot(fingerprint)
            except StoreError as error:
                _log.warning("results of %s are left alone: %s", fingerprint, error)
                continue
            used = sorted((last_used(snapshot, key), key) for key in snapshot.cache_entries)
            too_many = len(used) - max_entries
            count = max(too_many, -(-len(used) // _OLDEST_SHARE)) if too_many > 0 else 0
            for index, (at, key) in enumerate(used):
                if at < expiry or index < count:
                    reason = "unused for long" if at < expiry else "too many results"
                    victims.append(Pruned(fingerprint, key, at, reason))
        return victims

    def prune(self, plan: Iterable[Pruned]) -> int:
        """Takes out what a plan names, unless it was used meanwhile; returns how many went."""
        by_fingerprint: dict[str, dict[str, float]] = {}
        for victim in plan:
            by_fingerprint.setdefault(victim.fingerprint, {})[victim.key] = victim.last_used
        gone: list[str] = []
        with self._lock:
            for fingerprint, victims in by_fingerprint.items():
                self._known(fingerprint).drop(victims, gone)
        return len(gone)

    def mend(self, fingerprint: str) -> None:
        """Copies an accelerator's damaged files to quarantine, and goes on with what is sound.

        Raises:
            UnknownResults, LockTimeout, OSError: when they cannot be read or written.
        """
        with self._lock:
            self._known(fingerprint).file.mend()

    def export(self, fingerprint: str) -> bytes:
        """The interchange file of an accelerator, all that is kept in it."""
        self.flush()
        return msgspec.json.encode(msgspec.structs.replace(self.snapshot(fingerprint), generation=0))

    def import_file(self, data: bytes) -> Taken:
        """Merges an interchange file. A result that is there already stays, unless an older model made it.

        Raises:
            CorruptEntry, UnknownResults: when the file is damaged or of another format.
            UsageError: when it is another evaluator's, or its accelerator is invalid.
            OSError, LockTimeout: when the results cannot be kept.
        """
        theirs = decode_snapshot(data)
        if theirs.evaluator != EVALUATOR:
            raise UsageError(
                f"the results are those of evaluator {theirs.evaluator[:40]!r}; only {EVALUATOR}'s are kept"
            )
        hardware = Hardware.from_dict(theirs.architecture, "architecture")
        if theirs.arch_fingerprint not in ("", hardware.fingerprint()):
            raise UsageError(
                f"arch_fingerprint {theirs.arch_fingerprint[:40]!r} is not that of the file's architecture, which is "
                f"{hardware.fingerprint()}; leave it empty if another tool wrote the file"
            )
        with self._lock:
            kept = self._set(hardware)
            ours = kept.load().cache_entries
            is_new = hardware.fingerprint() not in self.fingerprints()
            refused, wanted, present = [], [], 0
            for name, raw in theirs.cache_entries.items():
                try:
                    entry = decode_entry(raw)
                except CorruptEntry as error:
                    refused.append((name, str(error)))
                    continue
                key = entry.key()
                if key in ours and not is_older(ours[key], entry):
                    present += 1
                else:
                    wanted.append(entry)
            stored, lost = kept.merge(wanted)
            refused += [(key, "it was written, and did not read back the same") for key in sorted(lost)]
            if is_new and stored:
                kept.file.fold(partial(adopt, theirs))
        return Taken(hardware.fingerprint(), len(stored), present, tuple(refused))

    # ---- Inside ----

    def _set(self, hardware: Hardware) -> ResultSet:
        """An accelerator's results; there is one such object for each in a process."""
        fingerprint = fingerprint_of(hardware)
        found = self._sets.pop(fingerprint, None)
        if found is None:
            if not self._sets:
                self._forget_end()
                self._forget_end = run_at_end(partial(_close_if_alive, weakref.ref(self)))
            self._drop_idle()
            new = empty_snapshot(MODEL_VERSION, EVALUATOR, fingerprint, hardware.to_dict())
            found = ResultSet(self._file(new), self._now)
        self._sets[fingerprint] = found  # the last used is the last of all
        return found

    def _drop_idle(self) -> None:
        """Makes room for one more accelerator: drops the longest unused, once all of it is on disk."""
        for fingerprint in list(self._sets)[: max(0, len(self._sets) - _MOST_SETS + 1)]:
            if not self._sets[fingerprint].save(usage=True):
                del self._sets[fingerprint]

    def _known(self, fingerprint: str) -> ResultSet:
        """Results by fingerprint alone: nothing can be added to them, as what accelerator it is may not be known."""
        found = self._sets.get(fingerprint)
        if found is None:
            found = ResultSet(self._file(empty_snapshot(MODEL_VERSION, EVALUATOR, fingerprint, {})), self._now)
        return found

    def _start_saver(self) -> None:
        if self._saver is None:
            self._saver = threading.Thread(
                target=_save_when_wanted, args=(weakref.ref(self), self._wanted), daemon=True
            )
            self._saver.start()


def _close_if_alive(reference: weakref.ref[Evaluations]) -> None:
    evaluations = reference()
    if evaluations is not None:
        evaluations.close()


def _save_when_wanted(reference: weakref.ref[Evaluations], wanted: threading.Event) -> None:
    """Body of the saving thread: one write for all that came since the last."""
    while True:
        wanted.wait()
        wanted.clear()
        evaluations = reference()
        if evaluations is None or evaluations.is_closed:
            return
        evaluations.flush()
        del evaluations
