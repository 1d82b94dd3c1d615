"""One accelerator's results in one process: decoded entries, unwritten results and uncounted usage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache

import msgspec

from cache_engine.errors import CorruptEntry, StoreError
from cache_engine.evaluations.entry import Entry, check_range, decode_entry, encode_entry
from cache_engine.evaluations.outcomes import Older
from cache_engine.evaluator.cost import MODEL_VERSION
from cache_engine.evaluator.hardware import Hardware
from cache_engine.model.outcome import Failure
from cache_engine.store.descriptors import spare_descriptors
from cache_engine.store.results.file import NewResult, ResultFile, Snapshot, Usage

_log = logging.getLogger(__name__)


class ResultSet:
    """One accelerator's results. For one thread at a time."""

    def __init__(self, file: ResultFile, now: Callable[[], float]) -> None:
        self.file = file
        self._now = now
        self._found: dict[str, Entry] = {}
        self._older: dict[str, Older] = {}
        self._unwritten: list[NewResult] = []
        self._hits: dict[str, int] = {}
        self._misses = 0
        self._spare = spare_descriptors()

    def load(self) -> Snapshot:
        """All results on disk, and the unwritten ones."""
        snapshot = self._spare.retried(self.file.load)
        for new in self._unwritten:
            snapshot.cache_entries[new.key] = msgspec.Raw(new.entry)
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
            raw = self.file.snapshot.cache_entries.get(key)
            raw = raw or self._spare.retried(self.file.load).cache_entries.get(key)
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

    def add(self, entry: Entry) -> None:
        """Adds a result, to be written by ``save``.

        Raises:
            CorruptEntry: when a number in it is out of range, so that no reader accepts it.
        """
        new = new_result(entry)
        check_range(new.entry)
        self._found[new.key] = entry
        self._unwritten.append(new)

    def merge(self, entries: Iterable[Entry], used: Iterable[str]) -> tuple[set[str], set[str]]:
        """Writes results that are new, or of a later model, and reads them back.

        Args:
            used: keys of results, new or stored, that count as used now, so that pruning leaves them.

        Returns:
            The keys of stored results, and of those that differed when read back.

        Raises:
            OSError, StoreError: when the store cannot be written.
        """
        new = {entry.key(): new_result(entry) for entry in entries}
        usage = Usage(self._now(), dict.fromkeys(used, 0))
        if not new:
            with suppress(OSError, StoreError):  # as of a read-only store; only when they were used last is lost
                self.file.append((), usage)
            return set(), set()
        self.file.append(new.values(), usage)
        there = self.file.load().cache_entries
        stored = {key for key, one in new.items() if key in there and bytes(there[key]) == one.entry}
        for key in stored:
            self._found.pop(key, None)
        return stored, new.keys() - stored

    def save(self, *, usage: bool) -> Failure | None:
        """Writes unwritten results; returns why that failed. After a failure they stay for the next time."""
        counted = Usage(self._now(), self._hits, self._misses) if usage and (self._hits or self._misses) else None
        if not self._unwritten and counted is None:
            return None
        try:
            self._spare.retried(lambda: self.file.append(self._unwritten, counted))
        except (OSError, StoreError) as error:
            return Failure(str(error))
        self._unwritten = []
        if counted is not None:
            self._hits, self._misses = {}, 0
        return None

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

        self.file.fold(change)
        return len(gone)

    def close(self) -> None:
        """Folds a log that is long relative to its snapshot."""
        with suppress(OSError, StoreError):
            self.file.fold_if_long()


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


def new_result(entry: Entry) -> NewResult:
    """A result as one line with its checksum, wherever it was read from."""
    return NewResult(entry.key(), entry.metadata.timestamp, entry.metadata.search_time_ms, encode_entry(entry))


def adopt(theirs: Snapshot, snapshot: Snapshot) -> None:
    """Copies the statistics of an import into a new, fully imported snapshot."""
    snapshot.statistics = theirs.statistics
