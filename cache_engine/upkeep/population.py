"""The estimated size of a store, shared by all its processes, so that a publish lists no folders.

A file has the result of the last survey, ``<entries> <bytes>``, and a line ``+<bytes>`` for each publish since. It is
only an estimate: a replaced entry counts twice, and an entry deleted since still counts. So the store is surveyed again
from time to time, and before any eviction.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from cache_engine.errors import CorruptEntry
from cache_engine.store.files import read_file
from cache_engine.store.layout import StoreLayout
from cache_engine.store.publish import publish_file

_LARGEST_BYTES = 2**20
_APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Population:
    """Estimated entries and bytes of a store; ``published`` of the entries came after the last survey."""

    entries: int
    stored_bytes: int
    published: int = 0


def add_published(layout: StoreLayout, stored_bytes: int) -> Population | None:
    """Counts a published entry; returns the estimate, or ``None`` when a survey must come first."""
    try:
        descriptor = os.open(layout.population, _APPENDING)
        try:
            os.write(descriptor, b"+%d\n" % stored_bytes)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return read_population(layout)


def read_population(layout: StoreLayout) -> Population | None:
    """The estimate; ``None`` when it cannot be read."""
    try:
        surveyed, *published = (read_file(layout.population, _LARGEST_BYTES) or b"").split(b"\n")
        entries, stored_bytes = map(int, surveyed.split())
        added = [int(line) for line in published if line]
    except (CorruptEntry, OSError, ValueError):
        return None
    return Population(entries + len(added), stored_bytes + sum(added), len(added))


def write_population(layout: StoreLayout, entries: int, stored_bytes: int) -> None:
    """Stores the result of a survey.

    Raises:
        OSError: when writing fails.
    """
    publish_file(layout.temp, str(layout.population), b"%d %d\n" % (entries, stored_bytes), durable=False)
