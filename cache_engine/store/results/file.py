"""Results of an evaluator on disk, for one accelerator: a JSON snapshot that other tools read too, and logs.

The snapshot may be compressed, under a name of its own. Both forms are read, and the one that is not written goes;
where both are there, for a writer was killed in between or another tool wrote one, what either has counts.

Adding a result appends a line to a log, whatever there is already. Folding puts a log's lines into the snapshot.
Appending takes the lock shared, folding exclusively, so no line is written to a log that is being folded. The entries
themselves are opaque here, and stay undecoded until they are asked for.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

import msgspec

from cache_engine.errors import CorruptEntry
from cache_engine.store.files import read_file
from cache_engine.store.layout import StoreLayout, fingerprint_of_results_name
from cache_engine.store.lock import file_lock
from cache_engine.store.publish import publish_file
from cache_engine.store.results.interchange import (
    FORMAT,
    LARGEST_BYTES,
    Snapshot,
    Statistics,
    UnknownResults,
    compress,
    decode_snapshot,
    decompress,
    empty_snapshot,
)
from cache_engine.store.results.log import NewResult, ResultLogs, Usage, log_lines

__all__ = [
    "FORMAT",
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
    """How far results were read: which snapshot, whose logs from which number on, and each of those to where."""

    forms: tuple[tuple[int, int, int], ...]
    generation: int
    logs: dict[int, int]


class ResultFile:
    """The results of one accelerator. Used by one thread at a time, and by any number of processes."""

    def __init__(
        self, layout: StoreLayout, new: Snapshot, *, durable: bool, lock_timeout_s: float, compressed: bool = False
    ) -> None:
        """Opens nothing yet.

        Args:
            new: the snapshot to begin with where there is none; it names the accelerator.
            compressed: whether snapshots are written compressed.
        """
        self._layout, self._fingerprint = layout, new.arch_fingerprint
        self._forms = [layout.results_file(self._fingerprint), layout.compressed_results_file(self._fingerprint)]
        self._target, self._other = reversed(self._forms) if compressed else self._forms
        self._logs = ResultLogs(layout, new.arch_fingerprint)
        self._new = new
        self._durable, self._lock_timeout_s = durable, lock_timeout_s
        self._descriptor: int | None = None
        self._snapshot_state: tuple[tuple[int, int, int], ...] = ()
        self._read: dict[int, int] = {}
        self.snapshot = new

    def load(self) -> Snapshot:
        """The results with all that the logs add, kept in ``snapshot``. Read again only when they changed.

        A snapshot that is damaged is set aside and reported; what the logs have still counts.

        Raises:
            UnknownResults: when they are of another format version.
            OSError: when they cannot be read.
        """
        if self._disk_state() == (self._snapshot_state, self._read):
            return self.snapshot
        damage = None
        with ExitStack() as locked:
            with suppress(OSError):  # a store that may only be read has no lock to take, and nobody who writes
                locked.enter_context(self._lock(shared=True))
            snapshot_state, _ = self._disk_state()
            if snapshot_state != self._snapshot_state:
                try:
                    self.snapshot = self._read_snapshot()
                except CorruptEntry as error:
                    damage, self.snapshot = error, self._empty()
                self._snapshot_state, self._read = snapshot_state, {}
            self._replay(self.snapshot, self._read)
        if damage is not None:
            try:
                self._set_aside(damage)
            except OSError as error:
                _log.warning("%s; it could not be set aside: %s", damage, error.strerror)
        return self.snapshot

    @property
    def read_so_far(self) -> ReadSoFar:
        """How far ``load`` has read."""
        return ReadSoFar(self._snapshot_state, self.snapshot.generation, self._read)

    def resume(self, read: ReadSoFar, statistics: Statistics) -> None:
        """Has ``load`` go on from where another reader got to.

        It then gives what was added since alone, with all statistics; or everything, if the snapshot is another by now.
        """
        self.snapshot = msgspec.structs.replace(
            self._new, cache_entries={}, usage={}, statistics=statistics, generation=read.generation
        )
        self._snapshot_state, self._read = read.forms, dict(read.logs)

    def append(self, results: Iterable[NewResult], usage: Usage | None = None) -> None:
        """Adds results and counts usage, in one write that other processes see whole.

        Raises:
            LockTimeout: when folding took longer than the wait.
            UnknownResults: when what is there is of another format version.
            OSError: when the disk refuses.
        """
        data = log_lines(results, usage)
        while True:
            with self._lock(shared=True):
                if self._is_open():
                    assert self._descriptor is not None  # noqa: S101 (for the type checker)
                    if os.write(self._descriptor, data) != len(data):
                        raise OSError("the log took only a part; the disk may be full")
                    if self._durable:
                        os.fsync(self._descriptor)
                    size = os.fstat(self._descriptor).st_size
                    break
            self._begin()
        if size > _FOLD_BYTES and size > self._snapshot_bytes():
            self.fold()

    def fold(self, keep: Callable[[Snapshot], None] = lambda _: None) -> None:
        """Puts the logs into the snapshot.

        Args:
            keep: may change the snapshot before it is written, such as taking entries out.

        Raises:
            as ``append``; a snapshot that is damaged is set aside first.
        """
        self.load()
        with self._lock(shared=False):
            snapshot = self._read_snapshot()
            read: dict[int, int] = {}
            self._replay(snapshot, read)
            keep(snapshot)
            generations = list(read)
            snapshot.generation = max([snapshot.generation, *generations]) + 1
            snapshot.statistics.total_entries = len(snapshot.cache_entries)
            # The next log first: whoever finds no log would begin at the start.
            self._logs.make(snapshot.generation, durable=self._durable)
            self._write(snapshot)
            for generation in generations:
                self._logs.path(generation).unlink(missing_ok=True)
            self.snapshot = snapshot
            self._snapshot_state, self._read = self._disk_state()

    def fold_if_long(self) -> None:
        """Puts the logs into the snapshot if they are long beside it: to be called when there is time."""
        if self._descriptor is not None:
            logs = sum(self._logs.sizes().values())
            if logs > _FOLD_BYTES // 16 and logs > self._snapshot_bytes() // 4:
                self.fold()

    def close(self) -> None:
        """Lets the log go."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    # ---- Reading ----

    def _read_snapshot(self) -> Snapshot:
        found = [snapshot for path in self._forms if (snapshot := self._read_form(path)) is not None]
        if not found:
            return self._empty()
        newest, *older = sorted(found, key=lambda snapshot: snapshot.generation, reverse=True)
        for other in older:
            newest.cache_entries = other.cache_entries | newest.cache_entries
            newest.usage = other.usage | newest.usage
        return newest

    def _read_form(self, path: Path) -> Snapshot | None:
        data = read_file(path, LARGEST_BYTES, _size(path) + 1)
        return None if data is None else decode_snapshot(decompress(data), self._fingerprint)

    def _empty(self) -> Snapshot:
        statistics = Statistics(created_at=time.time())
        return msgspec.structs.replace(self._new, cache_entries={}, usage={}, statistics=statistics)

    def _replay(self, snapshot: Snapshot, read: dict[int, int]) -> None:
        damaged = self._logs.replay(snapshot, read)
        if damaged:
            _log.warning("%d damaged lines of results for %s were skipped", damaged, self._fingerprint)

    def _disk_state(self) -> tuple[tuple[tuple[int, int, int], ...], dict[int, int]]:
        """What identifies the snapshot, and the logs' sizes: equal states mean that nothing was written in between."""
        return tuple(_identity(path) for path in self._forms), self._logs.sizes()

    def _snapshot_bytes(self) -> int:
        return sum(_size(path) for path in self._forms)

    # ---- Writing ----

    def _lock(self, *, shared: bool) -> AbstractContextManager[None]:
        return file_lock(self._layout.results_lock(self._fingerprint), self._lock_timeout_s, shared=shared)

    def _is_open(self) -> bool:
        """Whether a log is open that was not folded meanwhile."""
        return self._descriptor is not None and os.fstat(self._descriptor).st_nlink > 0

    def _begin(self) -> None:
        """Opens the newest log; where there is none, the first, after a snapshot that names the accelerator."""
        self.close()
        self.load()  # sets a damaged snapshot aside, and refuses to add to an unknown one
        with self._lock(shared=False):
            snapshot = self._read_snapshot()
            if not any(path.exists() for path in self._forms):
                self._write(snapshot)
            generations = self._logs.generations()
            newest = max([snapshot.generation, *generations])
            if newest not in generations:
                self._logs.make(newest, durable=self._durable)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self._logs.path(newest), flags)

    def _write(self, snapshot: Snapshot) -> None:
        snapshot.version, snapshot.cache_format_version = self._new.version, FORMAT
        # Whoever wrote it before may have known the accelerator by its fingerprint alone.
        snapshot.architecture = snapshot.architecture or self._new.architecture
        data = msgspec.json.encode(snapshot)
        is_plain = self._target.suffix == ".json"
        publish_file(self._layout.temp, str(self._target), data if is_plain else compress(data), durable=self._durable)
        self._other.unlink(missing_ok=True)

    def _set_aside(self, damage: CorruptEntry) -> None:
        """Moves a damaged snapshot to quarantine, unless another process did or replaced it."""
        with self._lock(shared=False):
            for path in self._forms:
                try:
                    self._read_form(path)
                except CorruptEntry:
                    stem, _, suffix = path.name.partition(".")
                    aside = self._layout.quarantine / f"{stem}-{time.time_ns():x}.{suffix}"
                    path.rename(aside)
                    _log.warning("%s; it is set aside as %s, and what was added since is kept", damage, aside)


def _size(path: Path) -> int:
    return _identity(path)[2]


def _identity(path: Path) -> tuple[int, int, int]:
    """What tells a file from another that took its place."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size


def stored_fingerprints(layout: StoreLayout) -> list[str]:
    """Fingerprints of all accelerators that a store has results of."""
    with suppress(FileNotFoundError):
        found = (fingerprint_of_results_name(name) for name in os.listdir(layout.evaluations))
        return sorted({name[0] for name in found if name is not None})
    return []
