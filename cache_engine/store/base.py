"""What a tier is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cache_engine.model.artifact import Record
from cache_engine.model.key import CacheKey


@dataclass(frozen=True, slots=True)
class Loaded:
    """An entry as a tier hands it out: its record, and compiled code that matches it."""

    record: Record
    cubin: bytes


class Tier(Protocol):
    """A place entries are looked up in.

    ``get`` returns only what has been checked. When an entry is there but must not be served it raises
    ``CorruptEntry``; when the place itself fails, ``OSError``. Both are a miss to whoever asked.
    """

    name: str

    def get(self, key: CacheKey) -> Loaded | None:
        """The entry, or ``None``."""
        ...


class Backfilled(Tier, Protocol):
    """A tier that takes in what a slower one had."""

    def put(self, key: CacheKey, loaded: Loaded) -> None:
        """Keeps the entry."""
        ...

    def discard(self, key: CacheKey) -> None:
        """Forgets the entry, if it is there."""
        ...
