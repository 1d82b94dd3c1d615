"""Results on disk: one JSON file for each subject (an accelerator, or a device). Other tools read these files too.

A file is read whole. A process that adds to it takes its lock, merges, and replaces the file whole; so readers need no
lock. The results are opaque to this module and are decoded only when requested. Each result is on its own line and has
its own checksum. Of a damaged file only the undamaged (sound) lines are used; the next writer copies the file to
quarantine and continues with these lines.

Version 0.2 also wrote a compressed form of the file, and logs of results to be merged later. Both are read, and the
next write merges them into the file.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from xxhash import xxh3_64_hexdigest

from cache_engine.errors import CorruptEntry, StoreError
from cache_engine.model.artifact import MOST_COUNT, Count, Ms, Seconds
from cache_engine.store.files import MOST_BYTES, copy_to_quarantine, read_whole
from cache_engine.store.layout import StoreLayout, fingerprint_of_results_name
from cache_engine.store.lock import Held, file_lock
from cache_engine.store.publish import publish_file

# ---- The format of a results file, which other tools read and write too: its versions and compression ----

FORMAT = "1.0"
"""The format version of the file. A file with another first number has another format, and is not changed."""

LARGEST_IMPORT_BYTES = 32 * 2**20
"""The largest imported results file, in bytes after decompressing; three times the size to which results are pruned.

The limit is this low because decoding may take thirty times as much memory.
"""


# Limits on the values in a file, so that every value fits wherever it is used.
MOST_HOURS = 1e9
_Hours = Annotated[float, msgspec.Meta(ge=0, le=MOST_HOURS)]
_Generation = Annotated[int, msgspec.Meta(ge=0, le=10**17)]
_Text = Annotated[str, msgspec.Meta(max_length=100)]


class Statistics(msgspec.Struct):
    """Counts of a subject's results and of lookups of them; times are in seconds since 1970.

    ``corrupt_lines`` counts damaged lines, in the logs of version 0.2, that were skipped.
    """

    total_entries: Count = 0
    created_at: Seconds = 0.0
    last_updated: Seconds = 0.0
    cache_hits: Count = 0
    cache_misses: Count = 0
    total_search_time_hours: _Hours = 0.0
    corrupt_lines: Count = 0

    def count(self, hits: int = 0, misses: int = 0, corrupt_lines: int = 0, hours: float = 0.0) -> None:
        """Adds to the counts. Each count stops at its upper bound, because readers refuse a larger one."""
        self.cache_hits = min(MOST_COUNT, self.cache_hits + hits)
        self.cache_misses = min(MOST_COUNT, self.cache_misses + misses)
        self.corrupt_lines = min(MOST_COUNT, self.corrupt_lines + corrupt_lines)
        self.total_search_time_hours = min(MOST_HOURS, self.total_search_time_hours + hours)


class Snapshot(msgspec.Struct):
    """The content of a results file.

    Attributes:
        version: the version of the model that wrote it last.
        cache_format_version: the version of the file's format.
        arch_fingerprint: identifies the accelerator of these results.
        architecture: every field of that accelerator.
        cache_entries: the results, by key.
        statistics: counts of these results and of lookups of them.
        evaluator: the evaluator that made the results.
        usage: by key, the time of the last use of each result; results that were never used are missing.
        generation: the logs of version 0.2 with a lower number are already merged into the file; if missing, none is.
    """

    version: _Text
    cache_format_version: str
    arch_fingerprint: str
    architecture: dict[str, Any]
    cache_entries: dict[str, msgspec.Raw]
    statistics: Statistics
    evaluator: _Text = "core-grid"
    usage: dict[str, Seconds] = {}
    generation: _Generation = 0

    @property
    def chip(self) -> str:
        """The accelerator's name; empty if the file has no printable one."""
        name = self.architecture.get("name")
        return name if isinstance(name, str) and len(name) <= 100 and name.isprintable() else ""


class UnknownResults(StoreError):
    """Results have a format version that this program does not know; their file must stay unchanged."""


class _Head(msgspec.Struct):
    cache_format_version: str = FORMAT


_decode_snapshot = msgspec.json.Decoder(Snapshot).decode
_decode_head = msgspec.json.Decoder(_Head).decode
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors that decoding invalid bytes can raise; ``RecursionError`` comes from brackets nested too deep."""


def empty_snapshot(version: str, evaluator: str, fingerprint: str, architecture: Mapping[str, Any]) -> Snapshot:
    """The snapshot of an accelerator that has no results yet."""
    return Snapshot(version, FORMAT, fingerprint, dict(architecture), {}, Statistics(), evaluator)


def decode_snapshot(data: bytes, fingerprint: str = "") -> Snapshot:
    """The snapshot in a results file.

    Raises:
        CorruptEntry: when the file is damaged, or is another accelerator's.
        UnknownResults: when it has another format version, whatever else it has.
    """
    try:
        snapshot = _decode_snapshot(data)
    except UNREADABLE as error:
        with suppress(*UNREADABLE):
            _check_format(_decode_head(data).cache_format_version)
        raise CorruptEntry(f"the results file of {fingerprint or 'an accelerator'} is damaged: {error}") from error
    _check_format(snapshot.cache_format_version)
    if fingerprint and snapshot.arch_fingerprint != fingerprint:
        raise CorruptEntry(f"the results file of {fingerprint} holds results of {snapshot.arch_fingerprint[:40]!r}")
    return snapshot


def _check_format(version: str) -> None:
    if version.partition(".")[0] != FORMAT.partition(".")[0]:
        raise UnknownResults(
            f"the results have format {version[:20]!r}, and this program knows {FORMAT}; they are left unchanged"
        )


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of a results file, with each result on its own line."""
    encode = msgspec.json.encode
    text = encode(msgspec.structs.replace(snapshot, cache_entries={}))
    # The fields behind the last of these have only numbers, so that it is the field itself.
    head, _, tail = text.rpartition(b'"cache_entries":{}')
    lines = b",\n".join(b"%b:%b" % (encode(key), bytes(raw)) for key, raw in snapshot.cache_entries.items())
    return b'%b"cache_entries":{\n%b\n}%b' % (head, lines, tail)


def check_names(data: bytes) -> None:
    """Refuses a file with a JSON object that has a name twice: decoding would keep the last value only.

    Raises:
        CorruptEntry: when there is one; the text has the name.
    """

    def check(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise CorruptEntry(f"the results file has {name[:40]!r} twice in one object; delete one of them")
            seen.add(name)

    try:
        # Objects are dropped once they are checked, and numbers stay text, which has no largest size.
        json.loads(data, object_pairs_hook=check, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise CorruptEntry(f"the results file is damaged: {error}") from error


def compress(data: bytes) -> bytes:
    """A results file as a zstd frame with a checksum."""
    import zstandard

    return zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=True).compress(data)


def decompress(data: bytes, largest: int = MOST_BYTES) -> bytes:
    """The bytes of a results file, decompressed if it is compressed.

    Args:
        largest: the largest size in bytes after decompressing; checked before anything is decompressed.

    Raises:
        CorruptEntry: when it is compressed and damaged, or too large.
    """
    if not data.startswith(b"\x28\xb5\x2f\xfd"):
        if len(data) > largest:
            raise CorruptEntry(f"the results have more than {largest / 2**20:,.0f} MiB, and no more are read at a time")
        return data
    import zstandard

    try:
        # max_output_size is ignored for frames that declare their size, so the declaration is checked first.
        declared = zstandard.frame_content_size(data)
        if declared < 0:
            raise CorruptEntry("the compressed results do not declare their size; compress a file, not a stream")
        if declared > largest:
            raise CorruptEntry(
                f"the compressed results declare {declared:,} bytes, and {largest / 2**20:,.0f} MiB may be read at once"
            )
        # Data after the first frame, such as a second file, would be lost without notice.
        return bytes(zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False))
    except zstandard.ZstdError as error:
        raise CorruptEntry(f"the compressed results cannot be decompressed: {error}") from error


_log = logging.getLogger(__name__)

Judge = Callable[[str, bytes | msgspec.Raw], str]
"""A function that checks one result, given its name and bytes: returns its key, or an empty text if it is damaged."""

State = list[tuple[str, int, int, int]]
"""For each of some files its name, inode, size and time of change; equal states mean that no file was written."""


class NewResult(msgspec.Struct):
    """A result to be stored: its key, the time when it was found, the milliseconds of its search, and its JSON text."""

    key: str
    at: float
    search_ms: float
    entry: bytes


class Usage(msgspec.Struct):
    """Lookups to be counted: the number of hits by key, and the number of misses."""

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
            new: the snapshot to start with if the store has none; it names the subject.
            judge: decides which results of a damaged file are undamaged.
        """
        self._layout, self._new, self._judge = layout, new, judge
        self._fingerprint = new.arch_fingerprint
        self._path = layout.results_file(self._fingerprint)
        self._durable, self._lock_timeout_s = durable, lock_timeout_s
        self._state: State = []
        self.snapshot = new

    def state(self) -> State:
        """The state of the subject's files on disk."""
        return files_state(self._path.parent, self._path.stem)

    def load(self) -> Snapshot:
        """The results on disk, also stored in ``snapshot``. Reads them again only if the files changed.

        Of a damaged file, only the undamaged results are used; a warning is logged.

        Raises:
            UnknownResults: when they have another format version.
            OSError: when they cannot be read.
        """
        state = self.state()
        if state != self._state:
            snapshot, damage, _ = self._read()
            for path, error in damage.items():
                _log.warning("%s: %s; to repair it, run gemm-cache verify --repair", path.name, error)
            self.snapshot, self._state = snapshot, state
        return self.snapshot

    def append(self, results: Iterable[NewResult], usage: Usage | None = None) -> None:
        """Adds results and counts usage, in one write: other processes see all of it or nothing.

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
        """Replaces the file: ``change`` edits its newest content in place; raises as ``append``."""
        with self._lock():
            snapshot, damage, logs = self._read()
            change(snapshot)
            self._write(snapshot, damage, logs)

    def damage(self) -> dict[Path, CorruptEntry]:
        """Checks every result; returns each damaged file with its error. Changes nothing, and raises as ``load``.

        The caller must hold the lock of these results, so that no file is replaced meanwhile.
        """
        _, damage, _ = self._read(thorough=True)
        return damage

    def mend(self) -> None:
        """Copies every damaged file to quarantine, and writes it again with its sound results; raises as ``append``."""
        with self._lock():
            self._write(*self._read(thorough=True))

    # ---- Inside ----

    def _lock(self) -> Held:
        return file_lock(self._layout.results_lock(self._fingerprint), self._lock_timeout_s)

    def _read(self, *, thorough: bool = False) -> tuple[Snapshot, dict[Path, CorruptEntry], list[int]]:
        """The results in all files of the subject, the damaged files with their errors, and the numbers of the logs.

        Writers replace the results file before they delete the logs that they merged. So this reads that file last, and
        misses no result.

        Args:
            thorough: whether to check each result, and leave out the damaged ones.
        """
        judge, damage = self._judge if thorough else None, dict[Path, CorruptEntry]()
        logs = [(number, _read_log(path, damage)) for number, path in _logs(self._layout, self._fingerprint)]
        found = []
        for path in (self._layout.compressed_results_file(self._fingerprint), self._path):
            data: bytes | None = b""
            try:
                data = read_whole(path, MOST_BYTES)
                if data is None:
                    continue
                found.append(decode_snapshot(decompress(data), self._fingerprint))
                wrong, count = _judged(found[-1], judge)
                if wrong:
                    damage[path] = CorruptEntry(f"{wrong:,} of {count:,} results are damaged")
            except CorruptEntry as error:
                damage[path] = error
                with suppress(CorruptEntry, UnknownResults):
                    found.append(_sound_lines(data or b"", self._empty(), self._judge))
        snapshot = max(found, key=lambda one: one.generation, default=self._empty())
        for other in found:
            snapshot.cache_entries = other.cache_entries | snapshot.cache_entries
            snapshot.usage = other.usage | snapshot.usage
        for number, lines in logs:
            if number >= snapshot.generation:  # a log with a lower number was merged; its deletion was interrupted
                wrong = _replay(snapshot, lines, judge)
                if wrong:
                    path = self._layout.results_log(self._fingerprint, number)
                    damage[path] = CorruptEntry(f"{wrong:,} of {len(lines):,} lines are damaged")
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
        # An earlier version may have known only the fingerprint.
        snapshot.architecture = snapshot.architecture or self._new.architecture
        snapshot.statistics.total_entries = len(snapshot.cache_entries)
        snapshot.generation = max([snapshot.generation, *logs]) + 1
        publish_file(self._layout.temp, str(self._path), encode_snapshot(snapshot), durable=self._durable)
        for number in logs:
            self._layout.results_log(self._fingerprint, number).unlink(missing_ok=True)
        self._layout.compressed_results_file(self._fingerprint).unlink(missing_ok=True)
        self.snapshot, self._state = snapshot, self.state()


def files_state(folder: Path, prefix: str = "") -> State:
    """The state of the files in a folder whose names begin with ``prefix``."""
    found = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as files:
        for file in files:
            if file.name.startswith(prefix):
                with suppress(FileNotFoundError):
                    status = file.stat(follow_symlinks=False)
                    found.append((file.name, status.st_ino, status.st_size, status.st_mtime_ns))
    return sorted(found)


def stored_fingerprints(layout: StoreLayout) -> list[str]:
    """The fingerprints of all subjects with results in a store."""
    return sorted({fingerprint for fingerprint, _ in _names(layout)})


def _names(layout: StoreLayout) -> Iterator[tuple[str, int | None]]:
    """The fingerprint in the name of each results file, and the generation if the file is a log."""
    with suppress(FileNotFoundError, NotADirectoryError):
        yield from filter(None, map(fingerprint_of_results_name, os.listdir(layout.results_folder)))


def _judged(snapshot: Snapshot, judge: Judge | None) -> tuple[int, int]:
    """Removes damaged results from a snapshot, and puts the others under their own keys.

    Returns the number of results that were damaged or under a wrong key, and the number of all.
    """
    if judge is None:
        return 0, 0
    entries = snapshot.cache_entries
    keys = {name: judge(name, raw) for name, raw in entries.items()}
    snapshot.cache_entries = {key: entries[name] for name, key in keys.items() if key}
    return sum(name != key for name, key in keys.items()), len(keys)


def _sound_lines(data: bytes, new: Snapshot, judge: Judge) -> Snapshot:
    """The results in the undamaged lines of a damaged file.

    Raises:
        CorruptEntry, UnknownResults: when the first line does not name the subject; the results may be of another one.
    """
    head, *lines = data.split(b"\n")
    found = decode_snapshot(head + b'},"statistics":{}}', new.arch_fingerprint)
    for line in lines:
        if b'"checksum":"' not in line or b'"checksum":""' in line:
            continue  # an entry of another tool, which nothing proves to be whole
        with suppress(*UNREADABLE):
            entries = msgspec.json.decode(b"{%b}" % line.rstrip(b","), type=dict[str, msgspec.Raw])
            found.cache_entries.update({name: raw for name, raw in entries.items() if judge(name, raw) == name})
    found.statistics = new.statistics
    return found


def add_result(snapshot: Snapshot, new: NewResult) -> None:
    """Adds a result to a snapshot, and updates the snapshot's statistics."""
    statistics = snapshot.statistics
    snapshot.cache_entries[new.key] = msgspec.Raw(new.entry)
    statistics.last_updated = max(statistics.last_updated, new.at)
    statistics.count(hours=new.search_ms / 3_600_000)


def count_usage(snapshot: Snapshot, usage: Usage) -> None:
    """Counts lookups in a snapshot, and notes when its results were used."""
    snapshot.statistics.count(hits=sum(usage.hits.values()), misses=usage.misses)
    for key in usage.hits:
        snapshot.usage[key] = max(usage.at, snapshot.usage.get(key, 0.0))


# ---- Logs of version 0.2 ----
#
# A line is ``<XXH3 of the rest> <key> <time> <ms> <entry>`` or ``<XXH3 of the rest> ~ <usage>``. A process of that
# version may still be writing one without its end.

ResultLine = NewResult | Usage | None
"""The content of a line of a version 0.2 log; ``None`` when the line is damaged."""

_decode_usage = msgspec.json.Decoder(Usage).decode
_decode_at = msgspec.json.Decoder(Seconds).decode
_decode_ms = msgspec.json.Decoder(Ms).decode


def _logs(layout: StoreLayout, fingerprint: str) -> list[tuple[int, Path]]:
    """The number and the path of each version 0.2 log of a subject, sorted by number."""
    numbers = {number for name, number in _names(layout) if name == fingerprint and number is not None}
    return [(number, layout.results_log(fingerprint, number)) for number in sorted(numbers)]


def _read_log(path: Path, damage: dict[Path, CorruptEntry]) -> list[ResultLine]:
    """The lines of a log of version 0.2; if it cannot be read, none, and the error is added to ``damage``."""
    try:
        data = read_whole(path, MOST_BYTES) or b""
    except CorruptEntry as error:
        damage[path] = error
        return []
    return list(read_lines(data[: data.rfind(b"\n") + 1]))


def read_lines(data: bytes) -> Iterator[ResultLine]:
    """The decoded lines of a version 0.2 log."""
    for line in data.split(b"\n"):
        if line:
            text = line[17:]
            is_whole = xxh3_64_hexdigest(text) == line[:16].decode("ascii", "replace")
            yield _decode_line(text) if is_whole else None


def _decode_line(text: bytes) -> ResultLine:
    # A checksum shows that a line is unchanged, not that its values are valid.
    try:
        if text.startswith(b"~ "):
            return _decode_usage(text[2:])
        key, at, search_ms, entry = text.split(b" ", 3)
        return NewResult(key.decode(), _decode_at(at), _decode_ms(search_ms), entry)
    except (*UNREADABLE, ValueError):
        return None


def _replay(snapshot: Snapshot, lines: list[ResultLine], judge: Judge | None) -> int:
    """Adds the undamaged lines of a version 0.2 log to a snapshot; returns the number of damaged lines."""
    damaged = 0
    for line in lines:
        if isinstance(line, Usage):
            count_usage(snapshot, line)
        elif line is None or (judge is not None and judge(line.key, line.entry) != line.key):
            damaged += 1
        else:
            add_result(snapshot, line)
    snapshot.statistics.count(corrupt_lines=damaged)
    return damaged
