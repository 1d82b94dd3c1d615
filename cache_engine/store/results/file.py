"""Results on disk, for one subject (an accelerator, or a device): a JSON snapshot that other tools read too, and logs.

The snapshot may be compressed, under another name. Both forms are read; writing one deletes the other. If both exist,
because a writer was killed or another tool wrote one, their entries are merged.

Adding a result appends a line to a log. Folding moves a log's lines into the snapshot. Appending takes the shared lock
and folding the exclusive one, so no line is written to a log that is being folded. The entries are opaque here and are
not decoded until requested. No file stays open between two calls.

Reading changes nothing. From a damaged snapshot it returns the sound entries; the next writer copies the file to
quarantine and continues with those.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from cache_engine.errors import CorruptEntry
from cache_engine.store.files import MOST_BYTES, copy_to_quarantine, read_whole
from cache_engine.store.layout import StoreLayout, fingerprint_of_results_name
from cache_engine.store.lock import Held, file_lock
from cache_engine.store.ownership import open_file
from cache_engine.store.publish import publish_file
from cache_engine.store.results.checking import DamagedEntries, damaged_files
from cache_engine.store.results.interchange import (
    FORMAT,
    Snapshot,
    Statistics,
    UnknownResults,
    compress,
    decode_snapshot,
    decompress,
    empty_snapshot,
)
from cache_engine.store.results.log import NewResult, ResultLogs, Usage, log_lines
from cache_engine.store.results.salvage import Judge, decompressed_part, salvage

__all__ = [
    "FORMAT",
    "Judge",
    "NewResult",
    "ReadSoFar",
    "ResultFile",
    "Snapshot",
    "Statistics",
    "UnknownResults",
    "Usage",
    "compress",
    "decode_snapshot",
    "decompress",
    "empty_snapshot",
    "stored_fingerprints",
]

_log = logging.getLogger(__name__)

_FOLD_BYTES = 2**20


class ReadSoFar(msgspec.Struct, frozen=True):
    """How far results were read: which snapshot, and how many bytes of each log."""

    forms: tuple[tuple[int, int, int], ...]
    generation: int
    logs: dict[int, int]


class ResultFile:
    """The results of one subject. Used by one thread at a time, and by any number of processes."""

    def __init__(
        self,
        layout: StoreLayout,
        new: Snapshot,
        judge: Judge,
        *,
        durable: bool,
        lock_timeout_s: float,
        compressed: bool = False,
    ) -> None:
        """Opens nothing yet.

        Args:
            new: the snapshot to start with if none exists; it names the subject.
            judge: says which entries of a damaged snapshot are sound.
            compressed: whether snapshots are written compressed.
        """
        self._layout, self._fingerprint = layout, new.arch_fingerprint
        self._forms = [layout.results_file(self._fingerprint), layout.compressed_results_file(self._fingerprint)]
        self._target, self._other = reversed(self._forms) if compressed else self._forms
        self._logs = ResultLogs(layout, new.arch_fingerprint)
        self._new, self._judge = new, judge
        self._durable, self._lock_timeout_s = durable, lock_timeout_s
        self._newest: tuple[str, str] | None = None  # the newest log, and the one that folding would make next
        self._snapshot_state: tuple[tuple[int, int, int], ...] = ()
        self._read: dict[int, int] = {}
        self.snapshot = new

    def load(self) -> Snapshot:
        """The results of snapshot and logs, stored in ``snapshot``. Reads them again only when they changed.

        Of a damaged snapshot, only the sound entries count; a warning is logged.

        Raises:
            UnknownResults: when they have another format version.
            OSError: when they cannot be read.
        """
        if self._disk_state() == (self._snapshot_state, self._read):
            return self.snapshot
        lock: Held | None = None
        with suppress(OSError):  # a read-only store has no lock files and no writers
            lock = self._lock(shared=True)  # ended also if it is not taken, which does nothing
            lock.__enter__()
        try:
            self._load_now()
        finally:  # not by an ExitStack, which keeps the lock when it has no memory to end
            if lock is not None:
                lock.__exit__()
        return self.snapshot

    def _load_now(self) -> None:
        snapshot_state, _ = self._disk_state()
        if snapshot_state != self._snapshot_state:
            self.snapshot, damage = self._read_snapshot()
            for path, error in damage.items():
                _log.warning(
                    "%s; its %d sound results still count; to repair %s, run gemm-cache verify --repair",
                    error, len(self.snapshot.cache_entries), path.name,
                )  # fmt: skip
            self._snapshot_state, self._read = snapshot_state, {}
        self._replay(self.snapshot, self._read)

    @property
    def read_so_far(self) -> ReadSoFar:
        """How far ``load`` has read."""
        return ReadSoFar(self._snapshot_state, self.snapshot.generation, self._read)

    def resume(self, read: ReadSoFar, statistics: Statistics) -> None:
        """Makes ``load`` continue where another reader stopped.

        It then returns only newer results, with all statistics; or everything, if the snapshot has changed.
        """
        self.snapshot = msgspec.structs.replace(
            self._new, cache_entries={}, usage={}, statistics=statistics, generation=read.generation
        )
        self._snapshot_state, self._read = read.forms, dict(read.logs)

    def append(self, results: Iterable[NewResult], usage: Usage | None = None) -> None:
        """Adds results and counts usage, in one write that other processes see as a whole.

        Raises:
            LockTimeout: when folding took longer than the wait.
            UnknownResults: when the stored results have another format version.
            OSError: when writing fails.
        """
        data = log_lines(results, usage)
        while True:
            with self._lock(shared=True):
                size = self._append(data)
            if size is not None:
                break
            self._begin()
        if size > _FOLD_BYTES and size > self._snapshot_bytes():
            self.fold()

    def fold(self, keep: Callable[[Snapshot], None] = lambda _: None) -> None:
        """Folds the logs into the snapshot.

        Args:
            keep: may change the snapshot before it is written, e.g. remove entries.

        A damaged snapshot is first copied to quarantine.

        Raises:
            as ``append``.
        """
        with self._lock(shared=False):
            self._logs.quarantine_refused()
            snapshot, damage = self._read_snapshot()
            read: dict[int, int] = {}
            self._replay(snapshot, read)
            keep(snapshot)
            generations = list(read)
            snapshot.generation = max([snapshot.generation, *generations]) + 1
            snapshot.statistics.total_entries = len(snapshot.cache_entries)
            # The next log first: a writer that finds no log would start at the first number.
            self._logs.make(snapshot.generation, durable=self._durable)
            self._write(snapshot, damage)
            for generation in generations:
                self._logs.path(generation).unlink(missing_ok=True)
            self.snapshot = snapshot
            self._snapshot_state, self._read = self._disk_state()

    def mend(self) -> None:
        """Copies every damaged file to quarantine, and folds the sound entries into a new snapshot.

        Raises:
            as ``append``.
        """
        with self._lock(shared=False):
            forms = set(self._forms)
            for path, damage in damaged_files(self._layout, self._fingerprint, self._judge):
                if isinstance(damage, UnknownResults):
                    raise damage
                # Folding copies a snapshot that cannot be read as a whole.
                if path not in forms or isinstance(damage, DamagedEntries):
                    copy_to_quarantine(self._layout, path, durable=self._durable)
        self.fold(self._drop_damaged)

    def _drop_damaged(self, snapshot: Snapshot) -> None:
        entries, snapshot.cache_entries = snapshot.cache_entries, {}
        for name, raw in entries.items():
            key = self._judge(name, raw)
            if key:
                snapshot.cache_entries.setdefault(key, raw)

    def fold_if_long(self) -> None:
        """Folds the logs into the snapshot if they are long relative to it. Call it when there is time."""
        if self._newest is not None:
            logs = sum(self._logs.sizes().values())
            if logs > _FOLD_BYTES // 16 and logs > self._snapshot_bytes() // 4:
                self.fold()

    # ---- Reading ----

    def _read_snapshot(self) -> tuple[Snapshot, dict[Path, CorruptEntry]]:
        """The content of the snapshots, and which of them are damaged."""
        found: list[Snapshot] = []
        damage: dict[Path, CorruptEntry] = {}
        for path in self._forms:
            data = b""
            try:
                data = read_whole(path, MOST_BYTES) or b""
                if data or path.exists():
                    found.append(decode_snapshot(decompress(data), self._fingerprint))
            except CorruptEntry as error:
                damage[path] = error
                with suppress(CorruptEntry):
                    text = decompressed_part(data) if path.suffix == ".zst" else data
                    found.append(salvage(text, self._empty(), self._judge))
        if not found:
            return self._empty(), damage
        newest, *older = sorted(found, key=lambda snapshot: snapshot.generation, reverse=True)
        for other in older:
            newest.cache_entries = other.cache_entries | newest.cache_entries
            newest.usage = other.usage | newest.usage
        return newest, damage

    def _empty(self) -> Snapshot:
        statistics = Statistics(created_at=time.time())
        return msgspec.structs.replace(self._new, cache_entries={}, usage={}, statistics=statistics)

    def _replay(self, snapshot: Snapshot, read: dict[int, int]) -> None:
        damaged = self._logs.replay(snapshot, read)
        if damaged:
            _log.warning("skipped %d damaged lines of results for %s", damaged, self._fingerprint)

    def _disk_state(self) -> tuple[tuple[tuple[int, int, int], ...], dict[int, int]]:
        """The snapshot's identity and the logs' sizes. Equal states mean that nothing was written in between."""
        return tuple(_identity(path) for path in self._forms), self._logs.sizes()

    def _snapshot_bytes(self) -> int:
        return sum(_size(path) for path in self._forms)

    # ---- Writing ----

    def _lock(self, *, shared: bool) -> Held:
        return file_lock(self._layout.results_lock(self._fingerprint), self._lock_timeout_s, shared=shared)

    def _append(self, data: bytes) -> int | None:
        """Writes to the newest log and returns its size; ``None`` when this object knows none."""
        if self._newest is None:
            return None
        newest, next_one = self._newest
        # Folding creates the next log first. If it is killed before it deletes this one, readers ignore this one.
        if os.path.lexists(next_one):
            return None
        try:
            descriptor = open_file(newest, os.O_WRONLY | os.O_APPEND)
        except (FileNotFoundError, CorruptEntry):
            return None
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError("only a part of the data was written; the disk may be full")
            if self._durable:
                os.fsync(descriptor)
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def _begin(self) -> None:
        """Finds the newest log, or creates the first, after a snapshot that names the accelerator."""
        with self._lock(shared=False):
            self._logs.quarantine_refused()
            snapshot, damage = self._read_snapshot()
            if damage or not any(path.exists() for path in self._forms):
                self._write(snapshot, damage)
            generations = self._logs.generations()
            newest = max([snapshot.generation, *generations])
            if newest not in generations:
                self._logs.make(newest, durable=self._durable)
            self._newest = str(self._logs.path(newest)), str(self._logs.path(newest + 1))

    def _write(self, snapshot: Snapshot, damage: Iterable[Path]) -> None:
        for path in damage:
            copied = copy_to_quarantine(self._layout, path, durable=self._durable)
            _log.warning(
                "%s is damaged; it is copied to quarantine as %s, and its sound entries are still used",
                path.name,
                copied,
            )
        snapshot.version, snapshot.cache_format_version = self._new.version, FORMAT
        # An earlier writer may have known only the accelerator's fingerprint.
        snapshot.architecture = snapshot.architecture or self._new.architecture
        data = msgspec.json.encode(snapshot)
        is_plain = self._target.suffix == ".json"
        publish_file(self._layout.temp, str(self._target), data if is_plain else compress(data), durable=self._durable)
        self._other.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return _identity(path)[2]


def _identity(path: Path) -> tuple[int, int, int]:
    """The identity of a file, which changes when the file is replaced."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size


def stored_fingerprints(layout: StoreLayout) -> list[str]:
    """Fingerprints of all accelerators with results in a store."""
    with suppress(FileNotFoundError, NotADirectoryError):
        found = (fingerprint_of_results_name(name) for name in os.listdir(layout.results_folder))
        return sorted({name[0] for name in found if name is not None})
    return []
