"""Results on disk: one JSON file for each subject (an accelerator, or a device), which other tools read too.

The file is read whole. A process that adds to it merges, and replaces it whole, under its lock; so readers need no
lock. The entries are opaque here and are not decoded until requested. Each is on a line of its own and has its own
checksum: of a damaged file the sound lines count, and the next writer copies the file to quarantine and goes on with
those.

Version 0.2 also wrote a compressed form, and logs of results to be merged into the file of a higher generation. Both
are read, and the next write merges them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from xxhash import xxh3_64_hexdigest

from cache_engine.errors import CorruptEntry, Misplaced
from cache_engine.model.artifact import Count, Ms, Seconds
from cache_engine.store.files import MOST_BYTES, copy_to_quarantine, read_whole
from cache_engine.store.layout import StoreLayout, fingerprint_of_results_name
from cache_engine.store.lock import Held, file_lock
from cache_engine.store.publish import publish_file
from cache_engine.store.results.interchange import (
    FORMAT,
    UNREADABLE,
    Snapshot,
    Statistics,
    UnknownResults,
    decode_snapshot,
    decompress,
    encode_snapshot,
)

_log = logging.getLogger(__name__)

Judge = Callable[[str, bytes | msgspec.Raw], str]
"""Returns the key of a sound entry from its name and its bytes; empty for one that is not sound."""

State = list[tuple[str, int, int, int]]
"""Name, inode, size and time of change of files. Equal states mean that nothing was written in between."""


class NewResult(msgspec.Struct):
    """An entry to be stored: its key, its time, its search time, and its JSON text."""

    key: str
    at: float
    search_ms: float
    entry: bytes


class Usage(msgspec.Struct):
    """Lookups to be counted: hits per key, and the number of misses."""

    at: Seconds
    hits: dict[str, Count] = {}
    misses: Count = 0


class ResultFile:
    """The results of one subject. Used by one thread at a time, and by any number of processes."""

    def __init__(
        self, layout: StoreLayout, new: Snapshot, judge: Judge, *, durable: bool, lock_timeout_s: float
    ) -> None:
        """Opens nothing yet.

        Args:
            new: the snapshot to start with if none exists; it names the subject.
            judge: says which entries of a damaged file are sound.
        """
        self._layout, self._new, self._judge = layout, new, judge
        self._fingerprint = new.arch_fingerprint
        self._durable, self._lock_timeout_s = durable, lock_timeout_s
        self._state: State = []
        self.snapshot = new

    def state(self) -> State:
        """The state of its files on disk."""
        return files_state(self._layout.results_folder, self._layout.results_file(self._fingerprint).stem)

    def load(self) -> Snapshot:
        """The results on disk, stored in ``snapshot``. Reads them again only when they changed.

        Of a damaged file, only the sound entries count; a warning is logged.

        Raises:
            UnknownResults: when they have another format version.
            OSError: when they cannot be read.
        """
        state = self.state()
        if state != self._state:
            snapshot, damage, _ = self._read()
            for path, error in damage.items():
                _log.warning("%s: %s; to repair it, run gemm-cache store repair", path.name, error)
            self.snapshot, self._state = snapshot, state
        return self.snapshot

    def append(self, results: Iterable[NewResult], usage: Usage | None = None) -> None:
        """Adds results and counts usage, in one write that other processes see as a whole.

        Raises:
            LockTimeout: when another process holds the lock for longer than the wait.
            UnknownResults: when the stored results have another format version.
            OSError: when writing fails.
        """

        def add(snapshot: Snapshot) -> None:
            for new in results:
                add_result(snapshot, new)
            if usage is not None:
                count_usage(snapshot, usage)

        self.change(add)

    def change(self, change: Callable[[Snapshot], None]) -> None:
        """Replaces the file by what ``change`` makes of its newest content; raises as ``append``."""
        with self._lock():
            snapshot, damage, logs = self._read()
            change(snapshot)
            self._write(snapshot, damage, logs)

    def mend(self) -> None:
        """Copies every damaged file to quarantine, and goes on with the sound entries; raises as ``append``."""
        with self._lock():
            damaged = dict(damaged_files(self._layout, self._fingerprint, self._judge))
            for error in damaged.values():
                if isinstance(error, UnknownResults | OSError):
                    raise error
            snapshot, _, logs = self._read()
            sound = ((self._judge(name, raw), raw) for name, raw in snapshot.cache_entries.items())
            snapshot.cache_entries = {key: raw for key, raw in sound if key}
            self._write(snapshot, damaged, logs)

    # ---- Inside ----

    def _lock(self) -> Held:
        return file_lock(self._layout.results_lock(self._fingerprint), self._lock_timeout_s)

    def _read(self) -> tuple[Snapshot, dict[Path, CorruptEntry], list[int]]:
        """The content of all files, which of them are damaged, and the numbers of the logs.

        Writers replace the file before they delete what they merged. So it is read last, and nothing is missed.
        """
        damage: dict[Path, CorruptEntry] = {}
        logs = _read_logs(self._layout, self._fingerprint, damage)
        found = []
        for path in _forms(self._layout, self._fingerprint):
            data = b""
            try:
                data = read_whole(path, MOST_BYTES) or b""
                if data or path.exists():
                    found.append(decode_snapshot(decompress(data), self._fingerprint))
            except CorruptEntry as error:
                damage[path] = error
                with suppress(CorruptEntry):
                    found.append(_sound_lines(data, self._empty(), self._judge))
        snapshot = max(found, key=lambda one: one.generation, default=self._empty())
        for other in found:
            snapshot.cache_entries = other.cache_entries | snapshot.cache_entries
            snapshot.usage = other.usage | snapshot.usage
        for number, lines in logs:
            if number >= snapshot.generation:  # a lower one was merged; its deletion was interrupted
                _replay(snapshot, lines)
        snapshot.statistics.total_entries = len(snapshot.cache_entries)
        return snapshot, damage, [number for number, _ in logs]

    def _empty(self) -> Snapshot:
        statistics = Statistics(created_at=time.time())
        return msgspec.structs.replace(self._new, cache_entries={}, usage={}, statistics=statistics)

    def _write(self, snapshot: Snapshot, damage: Iterable[Path], logs: list[int]) -> None:
        for path in damage:
            copied = copy_to_quarantine(self._layout, path, durable=self._durable)
            _log.warning("%s is damaged; it is in quarantine as %s, and its sound entries count", path.name, copied)
        snapshot.version, snapshot.cache_format_version = self._new.version, FORMAT
        # An earlier writer may have known only the fingerprint.
        snapshot.architecture = snapshot.architecture or self._new.architecture
        snapshot.statistics.total_entries = len(snapshot.cache_entries)
        snapshot.generation = max([snapshot.generation, *logs]) + 1
        path = self._layout.results_file(self._fingerprint)
        publish_file(self._layout.temp, str(path), encode_snapshot(snapshot), durable=self._durable)
        for number in logs:
            self._layout.results_log(self._fingerprint, number).unlink(missing_ok=True)
        self._layout.compressed_results_file(self._fingerprint).unlink(missing_ok=True)
        self.snapshot, self._state = snapshot, self.state()


def files_state(folder: Path, prefix: str = "") -> State:
    """The state of the files in a folder whose names begin so."""
    found = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as files:
        for file in files:
            if file.name.startswith(prefix):
                with suppress(FileNotFoundError):
                    status = file.stat(follow_symlinks=False)
                    found.append((file.name, status.st_ino, status.st_size, status.st_mtime_ns))
    return sorted(found)


def stored_fingerprints(layout: StoreLayout) -> list[str]:
    """Fingerprints of all accelerators with results in a store."""
    return sorted({fingerprint for fingerprint, _ in _names(layout)})


def damaged_files(
    layout: StoreLayout, fingerprint: str, judge: Judge
) -> Iterator[tuple[Path, CorruptEntry | UnknownResults | OSError]]:
    """The damaged files of an accelerator or device, each with its error. Changes nothing.

    Call it under the lock of these results, so that none is replaced meanwhile.
    """
    generation = 0
    for path in _forms(layout, fingerprint):
        try:
            data = read_whole(path, MOST_BYTES)
            if data is None:
                continue
            snapshot = decode_snapshot(decompress(data), fingerprint)
        except (CorruptEntry, UnknownResults, OSError) as error:
            yield path, error
            continue
        generation = max(generation, snapshot.generation)
        damaged = sum(judge(name, raw) != name for name, raw in snapshot.cache_entries.items())
        if damaged:
            yield path, CorruptEntry(f"{damaged:,} of {len(snapshot.cache_entries):,} results are damaged")
    refused: dict[Path, CorruptEntry] = {}
    for number, lines in _read_logs(layout, fingerprint, refused):
        damaged = sum(
            one is None or (isinstance(one, NewResult) and judge(one.key, one.entry) != one.key) for one in lines
        )
        if damaged and number >= generation:
            path = layout.results_log(fingerprint, number)
            yield path, CorruptEntry(f"{damaged:,} of {len(lines):,} lines are damaged")
    yield from refused.items()


def _forms(layout: StoreLayout, fingerprint: str) -> tuple[Path, Path]:
    return layout.compressed_results_file(fingerprint), layout.results_file(fingerprint)


def _names(layout: StoreLayout) -> Iterator[tuple[str, int | None]]:
    """The fingerprint of each file of results, and its number if it is a log."""
    with suppress(FileNotFoundError, NotADirectoryError):
        yield from filter(None, map(fingerprint_of_results_name, os.listdir(layout.results_folder)))


def _sound_lines(data: bytes, new: Snapshot, judge: Judge) -> Snapshot:
    """The content of the sound lines of a damaged file.

    Raises:
        Misplaced: when the first line does not name the subject, so that the entries may be another's.
    """
    head, *lines = data.split(b"\n")
    try:
        found = decode_snapshot(head + b'},"statistics":{}}', new.arch_fingerprint)
    except (CorruptEntry, UnknownResults) as error:
        raise Misplaced(f"its first line is not that of results of {new.arch_fingerprint}") from error
    for line in lines:
        if b'"checksum":"' not in line or b'"checksum":""' in line:
            continue  # an entry of another tool, which nothing proves to be whole
        with suppress(*UNREADABLE):
            entries = msgspec.json.decode(b"{%b}" % line.rstrip(b","), type=dict[str, msgspec.Raw])
            found.cache_entries.update({name: raw for name, raw in entries.items() if judge(name, raw) == name})
    found.statistics = new.statistics
    return found


def add_result(snapshot: Snapshot, new: NewResult) -> None:
    """Adds a result to a snapshot, and to its sums."""
    statistics = snapshot.statistics
    snapshot.cache_entries[new.key] = msgspec.Raw(new.entry)
    statistics.last_updated = max(statistics.last_updated, new.at)
    statistics.count(hours=new.search_ms / 3_600_000)


def count_usage(snapshot: Snapshot, usage: Usage) -> None:
    """Counts lookups in a snapshot."""
    snapshot.statistics.count(hits=sum(usage.hits.values()), misses=usage.misses)
    for key in usage.hits:
        snapshot.usage[key] = max(usage.at, snapshot.usage.get(key, 0.0))


# ---- Logs of version 0.2 ----

Line = NewResult | Usage | None
"""What a line of a log says; ``None`` when it is damaged.

A line is ``<XXH3 of the rest> <key> <time> <ms> <entry>`` or ``<XXH3 of the rest> ~ <usage>``.
"""

_decode_usage = msgspec.json.Decoder(Usage).decode
_decode_at = msgspec.json.Decoder(Seconds).decode
_decode_ms = msgspec.json.Decoder(Ms).decode


def _read_logs(layout: StoreLayout, fingerprint: str, damage: dict[Path, CorruptEntry]) -> list[tuple[int, list[Line]]]:
    """The numbers and lines of the logs in order; adds those that cannot be read as a whole to ``damage``."""
    found = []
    numbers = {number for name, number in _names(layout) if name == fingerprint and number is not None}
    for number in sorted(numbers):
        path, lines = layout.results_log(fingerprint, number), list[Line]()
        try:
            data = read_whole(path, MOST_BYTES) or b""
            # A process of that version may still be writing a line without its end.
            lines = list(read_lines(data[: data.rfind(b"\n") + 1]))
        except CorruptEntry as error:
            damage[path] = error
        found.append((number, lines))
    return found


def read_lines(data: bytes) -> Iterator[Line]:
    """The lines of a log."""
    for line in data.split(b"\n"):
        if line:
            text = line[17:]
            is_whole = xxh3_64_hexdigest(text) == line[:16].decode("ascii", "replace")
            yield _decode_line(text) if is_whole else None


def _decode_line(text: bytes) -> Line:
    # A checksum shows that a line is unchanged, not that its values are valid.
    try:
        if text.startswith(b"~ "):
            return _decode_usage(text[2:])
        key, at, search_ms, entry = text.split(b" ", 3)
        return NewResult(key.decode(), _decode_at(at), _decode_ms(search_ms), entry)
    except (*UNREADABLE, ValueError):
        return None


def _replay(snapshot: Snapshot, lines: list[Line]) -> None:
    for line in lines:
        if isinstance(line, NewResult):
            add_result(snapshot, line)
        elif isinstance(line, Usage):
            count_usage(snapshot, line)
    damaged = sum(line is None for line in lines)
    snapshot.statistics.count(corrupt_lines=damaged)
    if damaged:
        _log.warning("skipped %d damaged lines of results for %s", damaged, snapshot.arch_fingerprint)
