"""A journal's lines of the last seconds, read without reading all of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from cache_engine.errors import CorruptEntry
from cache_engine.model.events import Event
from cache_engine.store.files import read_whole
from cache_engine.store.journal.files import LARGEST_BYTES, OPEN
from cache_engine.store.journal.lines import decoded

_TAIL_BYTES = 2**18
"""Of each file: several minutes of a process that uses, or compiles, as many kernels as it can."""

_decode = msgspec.json.Decoder(Event).decode


def recent_events(folder: Path, kinds: Collection[str], since: float) -> Iterator[Event]:
    """Events of these kinds since a time (seconds since 1970); those of files being folded are not among them."""
    marks = [f'"{kind}"'.encode() for kind in kinds]
    for path, size in _written_since(folder, since):
        data = None
        with suppress(OSError, CorruptEntry):
            data = read_whole(path, LARGEST_BYTES, max(0, size - _TAIL_BYTES))
        if data is None or not any(mark in data for mark in marks):  # to decode all would take a hundred times as long
            continue
        marked = (line for line in data.splitlines() if any(mark in line for mark in marks))
        for event in decoded(_decode, marked):
            if event.kind in kinds and event.at >= since:
                yield event


def _written_since(folder: Path, since: float) -> list[tuple[Path, int]]:
    found: list[tuple[Path, int]] = []
    with suppress(OSError), os.scandir(folder) as files:
        for file in files:
            with suppress(OSError):  # folded meanwhile
                status = file.stat(follow_symlinks=False)
                if file.name.endswith(OPEN) and status.st_mtime >= since:
                    found.append((Path(file.path), status.st_size))
    return found
