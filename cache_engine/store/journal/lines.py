"""Lines of files that processes append to: those of the journal and of the log of decisions.

A reader takes whole lines only, because a process may still be writing the last one. It skips lines that it cannot
decode.

Several processes append to the log of decisions. So its lines carry a checksum, ``<XXH3 of the rest> <JSON>``, and
start with a newline: a line that a killed writer left incomplete does not damage the next. A file of the journal has
one writer at a time, which first ends an incomplete line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from xxhash import xxh3_64_hexdigest

from cache_engine.errors import CorruptEntry
from cache_engine.store.files import read_whole
from cache_engine.store.layout import JOURNAL_FOLDING, JOURNAL_OPEN, JOURNAL_SNAPSHOT
from cache_engine.store.lock import try_lock
from cache_engine.store.ownership import open_file

CHECKSUM_BYTES = 17
"""The bytes before the JSON in a line of the log: the newline before the line, the checksum, and a space."""

LONG_BYTES, _LONG_S = 4 * 1024**2, 86_400
"""The size in bytes and the age in seconds at which a journal file that no process writes is folded."""

_T = TypeVar("_T")


def append(descriptor: int, data: bytes) -> None:
    """Writes all of ``data``, or raises ``OSError``."""
    if os.write(descriptor, data) != len(data):
        raise OSError("only a part of the data was written")


def whole_lines(data: bytes) -> bytes:
    """The part of ``data`` up to the last newline, so without an incomplete last line."""
    return data[: data.rfind(b"\n") + 1]


def decoded(decode: Callable[[bytes], _T], lines: Iterable[bytes]) -> Iterator[_T]:
    """The decoded lines; damaged ones are skipped."""
    for line in lines:
        # ``RecursionError`` comes from brackets nested too deep.
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            yield decode(line)


def with_checksum(text: bytes) -> bytes:
    """A line of the log of decisions: ``text`` with its checksum."""
    return b"\n" + xxh3_64_hexdigest(text).encode() + b" " + text + b"\n"


def texts(data: bytes) -> Iterator[bytes | None]:
    """The JSON text of each line of the log of decisions; ``None`` for a line that does not match its checksum."""
    for line in data.split(b"\n"):
        if line:
            text = line[CHECKSUM_BYTES:]
            yield text if xxh3_64_hexdigest(text) == line[:16].decode("ascii", "replace") else None


# ---- The journal's files: their names, and reading them while others rename and delete them ----

OPEN, FOLDING, SNAPSHOT = JOURNAL_OPEN, JOURNAL_FOLDING, JOURNAL_SNAPSHOT
LARGEST_BYTES = 2**28
"""The largest file of lines that is read, in bytes; writers start a new file long before this size."""


class UnknownSnapshot(ValueError):
    """``snapshot.json`` or ``demand.json`` has an unknown format version, and must stay unchanged."""


def file_names(folder: Path, *suffixes: str) -> list[str]:
    """The names of the files with one of these suffixes, oldest first."""
    with suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(folder) if name.endswith(suffixes))
    return []


def stem_of(name: str) -> str:
    """The part of a file's name that does not change when the file is renamed for folding."""
    return name.partition(".")[0]


def read_new(folder: Path, folded: set[str], positions: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    """The stem and the new whole lines of each file that is not folded.

    Args:
        folded: stems of files to skip.
        positions: the number of bytes already read, by stem; reading starts there and updates it.
    """
    for name in file_names(folder, OPEN, FOLDING):
        stem = stem_of(name)
        if stem not in folded:
            data = _read_from(folder, stem, positions.get(stem, 0))
            whole = whole_lines(data)
            positions[stem] = positions.get(stem, 0) + len(whole)
            yield stem, whole


def _read_from(folder: Path, stem: str, position: int) -> bytes:
    """A file's bytes from ``position`` on, even if the file is renamed meanwhile; empty when it cannot be read."""
    for suffix in (OPEN, FOLDING):
        with suppress(OSError, CorruptEntry):
            data = read_whole(folder / f"{stem}{suffix}", LARGEST_BYTES, position)
            if data is not None:
                return data
    return b""


def journal_state(folder: Path) -> tuple[tuple[str, int], ...]:
    """The names and sizes of all files of the journal; if two states are equal, nothing was written between them."""
    with suppress(FileNotFoundError), os.scandir(folder) as files:
        return tuple(sorted((file.name, file.stat().st_size) for file in files))
    return ()


def is_long(folder: Path) -> bool:
    """Whether the journal has a file that no process holds and that is long or old enough to be folded."""
    files = [(name, size) for name, size in journal_state(folder) if name.endswith((OPEN, FOLDING)) and size]
    before = time.time_ns() - _LONG_S * 10**9
    if sum(size for _, size in files) < LONG_BYTES and not any(_made_ns(name) < before for name, _ in files):
        return False
    closed = [(name, size) for name, size in files if _is_closed(folder / name)]
    return sum(size for _, size in closed) >= LONG_BYTES or any(_made_ns(name) < before for name, _ in closed)


def _made_ns(name: str) -> int:
    """The time when a journal file was made (nanoseconds since 1970), from its name; now, for other names."""
    with suppress(ValueError):
        return int(name.partition("-")[0], 16)
    return time.time_ns()


def _is_closed(path: Path) -> bool:
    """Whether no process holds the file open for writing."""
    with suppress(OSError, CorruptEntry), os.fdopen(open_file(path, os.O_RDWR), "r+b") as file:
        return try_lock(file.fileno())
    return False
