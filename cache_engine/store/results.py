"""Results of an evaluator on disk, for one accelerator: a JSON snapshot that other tools read too, and logs.

Adding a result appends a line to a log, whatever there is already: ``<XXH3 of the rest> <key> <time> <ms> <entry>``, or
``<XXH3 of the rest> ~ <usage>``. Each starts with a newline, so one that a killed writer left half does no harm to the
next. Folding puts a log's lines into the snapshot. Logs are numbered: those below the snapshot's generation are in it.

Appending takes the lock shared, folding exclusively, so no line is written to a log that is being folded. The entries
themselves are opaque here, and stay undecoded until they are asked for.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

from cache_engine.errors import CorruptEntry, StoreError
from cache_engine.store.files import read_file
from cache_engine.store.layout import StoreLayout, fingerprint_of_results_name
from cache_engine.store.lock import file_lock
from cache_engine.store.publish import publish_file, sync_folder

_log = logging.getLogger(__name__)

FORMAT = "1.0"
"""Of the snapshot. Another first number is another format, which is left alone."""

_FOLD_BYTES = 2**20
_LARGEST_BYTES = 2**31
_USAGE = b"~"


class Statistics(msgspec.Struct):
    """What has become of an accelerator's results; times in seconds since 1970.

    ``corrupt_lines`` are lines of logs that were damaged and skipped.
    """

    total_entries: int = 0
    created_at: float = 0.0
    last_updated: float = 0.0
    cache_hits: int = 0
    cache_misses: int = 0
    total_search_time_hours: float = 0.0
    corrupt_lines: int = 0


class Snapshot(msgspec.Struct):
    """The interchange file.

    Attributes:
        version: of the model that wrote it last.
        cache_format_version: of this form.
        arch_fingerprint: whose results these are.
        architecture: every field of that accelerator.
        cache_entries: results by key.
        statistics: of these results.
        evaluator: which evaluator's results these are.
        usage: when results were last used; those never used are not in it.
        generation: logs with lower numbers are in it. Tools that know of no logs leave it out, and then none is.
    """

    version: str
    cache_format_version: str
    arch_fingerprint: str
    architecture: dict[str, Any]
    cache_entries: dict[str, msgspec.Raw]
    statistics: Statistics
    evaluator: str = "core-grid"
    usage: dict[str, float] = {}
    generation: int = 0


class NewResult(msgspec.Struct):
    """An entry to be kept: its key, when and in which time it was made, and its JSON text."""

    key: str
    at: float
    search_ms: float
    entry: bytes


class Usage(msgspec.Struct):
    """Lookups to be counted: keys that were hit, with how often, and how many were missed."""

    at: float
    hits: dict[str, int] = {}
    misses: int = 0


class UnknownResults(StoreError):
    """Results of a format version this program does not know. They are to be left alone."""


_decode_snapshot = msgspec.json.Decoder(Snapshot).decode
_decode_usage = msgspec.json.Decoder(Usage).decode


class ResultFile:
    """The results of one accelerator. Used by one thread at a time, and by any number of processes."""

    def __init__(self, layout: StoreLayout, new: Snapshot, *, durable: bool, lock_timeout_s: float) -> None:
        """Opens nothing yet.

        Args:
            new: the snapshot to begin with where there is none; it names the accelerator.
        """
        self._layout, self._fingerprint = layout, new.arch_fingerprint
        self._new = new
        self._durable, self._lock_timeout_s = durable, lock_timeout_s
        self._descriptor: int | None = None
        self._snapshot_state: object = None
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

    def append(self, results: Iterable[NewResult], usage: Usage | None = None) -> None:
        """Adds results and counts usage, in one write that other processes see whole.

        Raises:
            LockTimeout: when folding took longer than the wait.
            UnknownResults: when what is there is of another format version.
            OSError: when the disk refuses.
        """
        lines = [_line(b"%b %r %r %b" % (new.key.encode(), new.at, new.search_ms, bytes(new.entry))) for new in results]
        if usage is not None:
            lines.append(_line(_USAGE + b" " + msgspec.json.encode(usage)))
        data = b"".join(lines)
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
            self._make_log(snapshot.generation)
            self._write(snapshot)
            for generation in generations:
                self._layout.results_log(self._fingerprint, generation).unlink(missing_ok=True)
            self.snapshot = snapshot
            self._snapshot_state, self._read = self._disk_state()

    def fold_if_long(self) -> None:
        """Puts the logs into the snapshot if they are long beside it: to be called when there is time."""
        if self._descriptor is not None:
            logs = sum(self._log_size(generation) for generation in self._generations())
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
        path = self._layout.results_file(self._fingerprint)
        data = read_file(path, _LARGEST_BYTES, _snapshot_size(path) + 1)
        return self._empty() if data is None else decode_snapshot(data, self._fingerprint)

    def _empty(self) -> Snapshot:
        statistics = Statistics(created_at=time.time())
        return msgspec.structs.replace(self._new, cache_entries={}, usage={}, statistics=statistics)

    def _replay(self, snapshot: Snapshot, read: dict[int, int]) -> None:
        """Puts into a snapshot in memory what logs have beyond the bytes ``read``, which is moved forward."""
        damaged = 0
        for generation in self._generations():
            position = read.setdefault(generation, 0)
            if generation < snapshot.generation:
                read[generation] = self._log_size(generation)  # folded before; its deletion was cut short
                continue
            data = _read_from(self._layout.results_log(self._fingerprint, generation), position)
            # A line without its end may still be being written.
            whole = data.rfind(b"\n") + 1
            read[generation] = position + whole
            damaged += sum(not _take(snapshot, line) for line in data[:whole].split(b"\n") if line)
        snapshot.statistics.total_entries = len(snapshot.cache_entries)
        snapshot.statistics.corrupt_lines += damaged
        if damaged:
            _log.warning("%d damaged lines of results for %s were skipped", damaged, self._fingerprint)

    def _generations(self) -> list[int]:
        found = (fingerprint_of_results_name(name) for name in os.listdir(self._layout.evaluations))
        return sorted(
            name[1] for name in found if name is not None and name[0] == self._fingerprint and name[1] is not None
        )

    def _disk_state(self) -> tuple[object, dict[int, int]]:
        """What identifies the snapshot, and the logs' sizes: equal states mean that nothing was written in between."""
        try:
            status = self._layout.results_file(self._fingerprint).stat()
            snapshot = (status.st_ino, status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            snapshot = (0, 0, 0)
        return snapshot, {generation: self._log_size(generation) for generation in self._generations()}

    def _log_size(self, generation: int) -> int:
        try:
            return self._layout.results_log(self._fingerprint, generation).stat().st_size
        except FileNotFoundError:
            return 0

    def _snapshot_bytes(self) -> int:
        return _snapshot_size(self._layout.results_file(self._fingerprint))

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
            if not self._layout.results_file(self._fingerprint).exists():
                self._write(snapshot)
            generations = self._generations()
            newest = max([snapshot.generation, *generations])
            if newest not in generations:
                self._make_log(newest)
            path = self._layout.results_log(self._fingerprint, newest)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)

    def _make_log(self, generation: int) -> None:
        path = self._layout.results_log(self._fingerprint, generation)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        if self._durable:
            sync_folder(str(self._layout.evaluations))

    def _write(self, snapshot: Snapshot) -> None:
        snapshot.version, snapshot.cache_format_version = self._new.version, FORMAT
        # Whoever wrote it before may have known the accelerator by its fingerprint alone.
        snapshot.architecture = snapshot.architecture or self._new.architecture
        target = str(self._layout.results_file(self._fingerprint))
        publish_file(self._layout.temp, target, msgspec.json.encode(snapshot), durable=self._durable)

    def _set_aside(self, damage: CorruptEntry) -> None:
        """Moves a damaged snapshot to quarantine, unless another process did or replaced it."""
        path = self._layout.results_file(self._fingerprint)
        aside = self._layout.quarantine / f"{path.stem}-{time.time_ns():x}.json"
        with self._lock(shared=False):
            try:
                self._read_snapshot()
            except CorruptEntry:
                path.rename(aside)
                _log.warning("%s; it is set aside as %s, and what was added since is kept", damage, aside)


def decode_snapshot(data: bytes, fingerprint: str = "") -> Snapshot:
    """The snapshot in an interchange file.

    Raises:
        CorruptEntry: when it is damaged, or another accelerator's.
        UnknownResults: when it is of another format version.
    """
    try:
        snapshot = _decode_snapshot(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            version = fields.get("cache_format_version")
            if version is not None:
                _check_format(msgspec.json.decode(version, type=str))
        raise CorruptEntry(f"the results file of {fingerprint or 'an accelerator'} is damaged: {error}") from error
    _check_format(snapshot.cache_format_version)
    if fingerprint and snapshot.arch_fingerprint != fingerprint:
        raise CorruptEntry(f"the results file of {fingerprint} holds those of {snapshot.arch_fingerprint[:40]!r}")
    return snapshot


def compress(data: bytes) -> bytes:
    """An interchange file as a zstd frame with a checksum."""
    import zstandard

    return zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=True).compress(data)


def decompress(data: bytes) -> bytes:
    """An interchange file that may be compressed.

    Raises:
        CorruptEntry: when it is compressed, and damaged or larger than any such file.
    """
    if not data.startswith(b"\x28\xb5\x2f\xfd"):
        return data
    import zstandard

    try:
        # max_output_size is ignored for frames that declare their size, so the declaration is checked first.
        declared = zstandard.frame_content_size(data)
        if not 0 <= declared <= _LARGEST_BYTES:
            raise CorruptEntry(f"the compressed results declare {declared:,} bytes")
        return bytes(zstandard.ZstdDecompressor().decompress(data))
    except zstandard.ZstdError as error:
        raise CorruptEntry(f"the compressed results cannot be decompressed: {error}") from error


def _check_format(version: str) -> None:
    if version.partition(".")[0] != FORMAT.partition(".")[0]:
        raise UnknownResults(
            f"the results are of format {version[:20]!r}, and this program knows {FORMAT}; they are left alone"
        )


def _line(text: bytes) -> bytes:
    return b"\n" + xxh3_64_hexdigest(text).encode() + b" " + text + b"\n"


def _take(snapshot: Snapshot, line: bytes) -> bool:
    """Puts one line of a log into a snapshot; whether the line was sound."""
    text = line[17:]
    if xxh3_64_hexdigest(text) != line[:16].decode("ascii", "replace"):
        return False
    statistics = snapshot.statistics
    if text.startswith(_USAGE + b" "):
        usage = _decode_usage(text[2:])
        statistics.cache_hits += sum(usage.hits.values())
        statistics.cache_misses += usage.misses
        for used in usage.hits:
            snapshot.usage[used] = max(usage.at, snapshot.usage.get(used, 0.0))
        return True
    key, at, search_ms, entry = text.split(b" ", 3)
    snapshot.cache_entries[key.decode()] = msgspec.Raw(entry)
    statistics.last_updated = max(statistics.last_updated, float(at))
    statistics.total_search_time_hours += float(search_ms) / 3_600_000
    return True


def _read_from(path: Path, position: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(position)
        return file.read()


def _snapshot_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def stored_fingerprints(layout: StoreLayout) -> list[str]:
    """Fingerprints of all accelerators that a store has results of."""
    with suppress(FileNotFoundError):
        found = (fingerprint_of_results_name(name) for name in os.listdir(layout.evaluations))
        return sorted({name[0] for name in found if name is not None})
    return []


def empty_snapshot(version: str, evaluator: str, fingerprint: str, architecture: Mapping[str, Any]) -> Snapshot:
    """The snapshot of an accelerator that has no results yet."""
    return Snapshot(version, FORMAT, fingerprint, dict(architecture), {}, Statistics(), evaluator)
