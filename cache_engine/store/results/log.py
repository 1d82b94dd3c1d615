"""Logs of results: those added to an accelerator since its snapshot was written.

A line is ``<XXH3 of the rest> <key> <time> <ms> <entry>`` or ``<XXH3 of the rest> ~ <usage>``. Each starts with a
newline, so a line that a killed writer left incomplete does not damage the next. Logs are numbered: the snapshot
contains those below its generation.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from xxhash import xxh3_64_hexdigest

from cache_engine.errors import CorruptEntry
from cache_engine.model.artifact import Count, Ms, Seconds
from cache_engine.store.files import MOST_BYTES, check_readable, move_to_quarantine, read_whole
from cache_engine.store.layout import StoreLayout, fingerprint_of_results_name
from cache_engine.store.publish import sync_folder
from cache_engine.store.results.interchange import UNREADABLE, Snapshot

_log = logging.getLogger(__name__)

_USAGE = b"~"


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


_decode_usage = msgspec.json.Decoder(Usage).decode
_decode_at = msgspec.json.Decoder(Seconds).decode
_decode_ms = msgspec.json.Decoder(Ms).decode


class Line(msgspec.Struct):
    """A sound line of a log: an entry with its key, time and search time; or usage."""

    key: str = ""
    at: float = 0.0
    search_ms: float = 0.0
    entry: bytes = b""
    usage: Usage | None = None


class ResultLogs:
    """The logs of one subject."""

    def __init__(self, layout: StoreLayout, fingerprint: str) -> None:
        """Opens nothing."""
        self._layout, self._fingerprint = layout, fingerprint

    def path(self, generation: int) -> Path:
        """The path of a log."""
        return self._layout.results_log(self._fingerprint, generation)

    def generations(self) -> list[int]:
        """Numbers of the existing logs, sorted."""
        found = (fingerprint_of_results_name(name) for name in os.listdir(self._layout.results_folder))
        return sorted(
            name[1] for name in found if name is not None and name[0] == self._fingerprint and name[1] is not None
        )

    def sizes(self) -> dict[int, int]:
        """Bytes of each log, by number."""
        return {generation: self.size(generation) for generation in self.generations()}

    def size(self, generation: int) -> int:
        """Bytes of one log; 0 when it does not exist."""
        try:
            return self.path(generation).stat().st_size
        except FileNotFoundError:
            return 0

    def make(self, generation: int, *, durable: bool) -> None:
        """Creates an empty log, unless it exists."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        os.close(os.open(self.path(generation), flags, 0o600))
        if durable:
            sync_folder(str(self._layout.results_folder))

    def quarantine_refused(self) -> None:
        """Quarantines logs that are not read at all. Call it under the exclusive lock.

        They are no regular files, too large, or others may change them. What is appended to one would be lost.
        """
        for generation in self.generations():
            path = self.path(generation)
            try:
                check_readable(path, MOST_BYTES)
            except CorruptEntry as error:
                move_to_quarantine(self._layout, path)
                _log.warning("%s; moved to quarantine", error)

    def replay(self, snapshot: Snapshot, read: dict[int, int]) -> int:
        """Adds to a snapshot in memory what the logs have beyond the bytes ``read``, and advances ``read``.

        Returns the number of damaged lines, which are skipped.
        """
        damaged = 0
        for generation in self.generations():
            position = read.setdefault(generation, 0)
            if generation < snapshot.generation:
                read[generation] = self.size(generation)  # folded already; its deletion was interrupted
                continue
            try:
                data = read_whole(self.path(generation), MOST_BYTES, position) or b""
            except CorruptEntry as error:
                _log.warning("%s; its content is ignored", error)
                damaged += 1
                continue
            # A process may still be writing a line without its end.
            whole = data.rfind(b"\n") + 1
            read[generation] = position + whole
            for line in read_lines(data[:whole]):
                damaged += line is None
                if line is not None:
                    _add(snapshot, line)
        snapshot.statistics.total_entries = len(snapshot.cache_entries)
        snapshot.statistics.count(corrupt_lines=damaged)
        return damaged

    def lines(self, generation: int) -> list[Line | None]:
        """All whole lines of a log; ``None`` for each that is damaged.

        Raises:
            CorruptEntry: when it is not a regular file, or too large.
            OSError: when it cannot be read.
        """
        data = read_whole(self.path(generation), MOST_BYTES) or b""
        return list(read_lines(data[: data.rfind(b"\n") + 1]))


def log_lines(results: Iterable[NewResult], usage: Usage | None) -> bytes:
    """The log lines for results and usage.

    Raises:
        ValueError: when a result could not be read again: its key has white space, or its text line breaks.
    """
    results = list(results)
    for new in results:
        if not new.key or new.key.split() != [new.key] or b"\n" in new.entry:
            raise ValueError(f"the result {new.key[:80]!r} cannot be one line of a log")
    lines = [_line(b"%b %r %r %b" % (new.key.encode(), new.at, new.search_ms, bytes(new.entry))) for new in results]
    if usage is not None:
        lines.append(_line(_USAGE + b" " + msgspec.json.encode(usage)))
    return b"".join(lines)


def _line(text: bytes) -> bytes:
    return b"\n" + xxh3_64_hexdigest(text).encode() + b" " + text + b"\n"


def read_lines(data: bytes) -> Iterator[Line | None]:
    """The lines of a log; ``None`` for each that is damaged."""
    for line in data.split(b"\n"):
        if line:
            text = line[17:]
            is_whole = xxh3_64_hexdigest(text) == line[:16].decode("ascii", "replace")
            yield _decode_line(text) if is_whole else None


def _decode_line(text: bytes) -> Line | None:
    # A checksum shows that a line is unchanged, not that its values are valid.
    try:
        if text.startswith(_USAGE + b" "):
            return Line(usage=_decode_usage(text[2:]))
        key, at, search_ms, entry = text.split(b" ", 3)
        return Line(key.decode(), _decode_at(at), _decode_ms(search_ms), entry)
    except (*UNREADABLE, ValueError):
        return None


def _add(snapshot: Snapshot, line: Line) -> None:
    """Adds one line of a log to a snapshot."""
    statistics, usage = snapshot.statistics, line.usage
    if usage is not None:
        statistics.count(hits=sum(usage.hits.values()), misses=usage.misses)
        for used in usage.hits:
            snapshot.usage[used] = max(usage.at, snapshot.usage.get(used, 0.0))
        return
    snapshot.cache_entries[line.key] = msgspec.Raw(line.entry)
    statistics.last_updated = max(statistics.last_updated, line.at)
    statistics.count(hours=line.search_ms / 3_600_000)
