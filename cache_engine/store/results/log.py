"""Logs of results: what was added to an accelerator's since its snapshot was written.

A line is ``<XXH3 of the rest> <key> <time> <ms> <entry>`` or ``<XXH3 of the rest> ~ <usage>``. Each starts with a
newline, so one that a killed writer left half does no harm to the next. Logs are numbered: those below the snapshot's
generation are in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
from xxhash import xxh3_64_hexdigest

from cache_engine.store.layout import StoreLayout, fingerprint_of_results_name
from cache_engine.store.publish import sync_folder
from cache_engine.store.results.interchange import Snapshot

_USAGE = b"~"


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


_decode_usage = msgspec.json.Decoder(Usage).decode


class ResultLogs:
    """The logs of one accelerator."""

    def __init__(self, layout: StoreLayout, fingerprint: str) -> None:
        """Opens nothing."""
        self._layout, self._fingerprint = layout, fingerprint

    def path(self, generation: int) -> Path:
        """Where a log is."""
        return self._layout.results_log(self._fingerprint, generation)

    def generations(self) -> list[int]:
        """Numbers of the logs there are, in order."""
        found = (fingerprint_of_results_name(name) for name in os.listdir(self._layout.evaluations))
        return sorted(
            name[1] for name in found if name is not None and name[0] == self._fingerprint and name[1] is not None
        )

    def sizes(self) -> dict[int, int]:
        """Bytes of each."""
        return {generation: self.size(generation) for generation in self.generations()}

    def size(self, generation: int) -> int:
        """Bytes of one; none where it is not there."""
        try:
            return self.path(generation).stat().st_size
        except FileNotFoundError:
            return 0

    def make(self, generation: int, *, durable: bool) -> None:
        """An empty log, unless it is there."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        os.close(os.open(self.path(generation), flags, 0o600))
        if durable:
            sync_folder(str(self._layout.evaluations))

    def replay(self, snapshot: Snapshot, read: dict[int, int]) -> int:
        """Puts into a snapshot in memory what logs have beyond the bytes ``read``, which is moved forward.

        Returns how many lines were damaged, and skipped.
        """
        damaged = 0
        for generation in self.generations():
            position = read.setdefault(generation, 0)
            if generation < snapshot.generation:
                read[generation] = self.size(generation)  # folded before; its deletion was cut short
                continue
            data = _read_from(self.path(generation), position)
            # A line without its end may still be being written.
            whole = data.rfind(b"\n") + 1
            read[generation] = position + whole
            damaged += sum(not _take(snapshot, line) for line in data[:whole].split(b"\n") if line)
        snapshot.statistics.total_entries = len(snapshot.cache_entries)
        snapshot.statistics.corrupt_lines += damaged
        return damaged


def log_lines(results: Iterable[NewResult], usage: Usage | None) -> bytes:
    """What is added to a log for results and usage."""
    lines = [_line(b"%b %r %r %b" % (new.key.encode(), new.at, new.search_ms, bytes(new.entry))) for new in results]
    if usage is not None:
        lines.append(_line(_USAGE + b" " + msgspec.json.encode(usage)))
    return b"".join(lines)


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
