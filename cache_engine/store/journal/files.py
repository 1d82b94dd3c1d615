"""The journal's files: their names, and reading them while others rename and delete them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cache_engine.errors import CorruptEntry
from cache_engine.store.files import read_whole
from cache_engine.store.journal.lines import whole_lines
from cache_engine.store.layout import JOURNAL_FOLDING, JOURNAL_OPEN, JOURNAL_SNAPSHOT

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
