"""Lines of files that processes append to: the journal's, and those of the log of decisions.

A reader takes whole lines only, as a process may still be writing the last one, and skips those that it cannot decode.
A line of the log carries a checksum, ``<XXH3 of the rest> <JSON>``, and starts with a newline, so that a line which a
killed writer left incomplete does not damage the next: several processes append to that file. A file of the journal has
one writer at a time, which ends such a line first.
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
"""Of a line of the log, with the newline before it."""

LONG_BYTES, _LONG_S = 4 * 1024**2, 86_400
"""Files that no process writes are folded when they reach this size or age."""

_T = TypeVar("_T")


def append(descriptor: int, data: bytes) -> None:
    """Writes all of it, or raises ``OSError``."""
    if os.write(descriptor, data) != len(data):
        raise OSError("only a part of the data was written")


def whole_lines(data: bytes) -> bytes:
    """The bytes up to the last newline."""
    return data[: data.rfind(b"\n") + 1]


def decoded(decode: Callable[[bytes], _T], lines: Iterable[bytes]) -> Iterator[_T]:
    """The lines that can be decoded; damaged ones are skipped."""
    for line in lines:
        # The last is for brackets nested too deep.
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            yield decode(line)


def with_checksum(text: bytes) -> bytes:
    """A line of the log."""
    return b"\n" + xxh3_64_hexdigest(text).encode() + b" " + text + b"\n"


def texts(data: bytes) -> Iterator[bytes | None]:
    """The text of each line of the log; ``None`` where it does not match its checksum."""
    for line in data.split(b"\n"):
        if line:
            text = line[CHECKSUM_BYTES:]
            yield text if xxh3_64_hexdigest(text) == line[:16].decode("ascii", "replace") else None


# ---- The journal's files: their names, and reading them while others rename and delete them ----

OPEN, FOLDING, SNAPSHOT = JOURNAL_OPEN, JOURNAL_FOLDING, JOURNAL_SNAPSHOT
LARGEST_BYTES = 2**28
"""Of a file of lines: a hundred times what a writer leaves. A larger one is not read."""


class UnknownSnapshot(ValueError):
    """A file of sums of a format version this program does not know. Leave it unchanged."""


def file_names(folder: Path, *suffixes: str) -> list[str]:
    """Names of the files with one of these suffixes, oldest first."""
    with suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(folder) if name.endswith(suffixes))
    return []


def stem_of(name: str) -> str:
    """The part of a file's name that is the same while it is open and while it is folded."""
    return name.partition(".")[0]


def read_new(folder: Path, folded: set[str], positions: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    """Stem and whole lines of each file that is not folded, from ``positions`` (bytes by stem) on; advances them."""
    for name in file_names(folder, OPEN, FOLDING):
        stem = stem_of(name)
        if stem not in folded:
            data = _read_from(folder, stem, positions.get(stem, 0))
            whole = whole_lines(data)
            positions[stem] = positions.get(stem, 0) + len(whole)
            yield stem, whole


def _read_from(folder: Path, stem: str, position: int) -> bytes:
    """A file's bytes, even if it is renamed meanwhile; empty when it cannot be read."""
    for suffix in (OPEN, FOLDING):
        with suppress(OSError, CorruptEntry):
            data = read_whole(folder / f"{stem}{suffix}", LARGEST_BYTES, position)
            if data is not None:
                return data
    return b""


def journal_state(folder: Path) -> tuple[tuple[str, int], ...]:
    """Names and sizes of all files. Equal states mean that nothing was written in between."""
    with suppress(FileNotFoundError), os.scandir(folder) as files:
        return tuple(sorted((file.name, file.stat().st_size) for file in files))
    return ()


def is_long(folder: Path) -> bool:
    """Whether files that no process holds are long or old."""
    files = [(name, size) for name, size in journal_state(folder) if name.endswith((OPEN, FOLDING)) and size]
    before = time.time_ns() - _LONG_S * 10**9
    if sum(size for _, size in files) < LONG_BYTES and not any(_made_ns(name) < before for name, _ in files):
        return False
    closed = [(name, size) for name, size in files if _is_closed(folder / name)]
    return sum(size for _, size in closed) >= LONG_BYTES or any(_made_ns(name) < before for name, _ in closed)


def _made_ns(name: str) -> int:
    """The time when a file was made, by its name; the current time for a name that is not ours."""
    with suppress(ValueError):
        return int(name.partition("-")[0], 16)
    return time.time_ns()


def _is_closed(path: Path) -> bool:
    """Whether no process holds a file."""
    with suppress(OSError, CorruptEntry), os.fdopen(open_file(path, os.O_RDWR), "r+b") as file:
        return try_lock(file.fileno())
    return False
