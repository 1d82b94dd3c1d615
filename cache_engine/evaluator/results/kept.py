"""One accelerator's results in one process, and which of them are old, unused or too many."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache

import msgspec

from cache_engine.errors import CorruptEntry, StoreError
from cache_engine.evaluator.cost import MODEL_VERSION
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.results.entry import Entry, check_range, decode_entry, encode_entry
from cache_engine.evaluator.results.outcomes import Older, Pruned
from cache_engine.model.outcome import Failure
from cache_engine.store.results.file import NewResult, ResultFile, Usage, add_result, count_usage
from cache_engine.store.results.interchange import Snapshot, Statistics

_log = logging.getLogger(__name__)

MAX_ENTRIES = 10_000
UNUSED_DAYS = 90.0
"""The default limits of pruning, per accelerator."""

_OLDEST_SHARE = 10
"""When there are too many entries, pruning removes one in this many, least recently used first."""

_REST = 10
"""After a write, results are collected for this many times as long as it took, so that storing many costs little."""


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
    """When a result was last used or made; 0 when it cannot be read."""
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
