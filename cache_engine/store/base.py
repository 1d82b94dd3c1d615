"""The interface of a tier."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from cache_engine.model.artifact import Record
from cache_engine.model.key import CacheKey


@dataclass(frozen=True, slots=True)
class Loaded:
    """An entry that a tier returns: its record, and the compiled code that matches it."""

    record: Record
    cubin: bytes = field(repr=False)


class Tier(Protocol):
    """A place where entries are looked up.

    ``get`` returns only checked entries. It raises ``CorruptEntry`` when an entry exists but must not be served, and
    ``OSError`` when the place itself fails. The caller treats both as a miss.
    """

    name: str

    def get(self, key: CacheKey) -> Loaded | None:
        """The entry, or ``None``."""
        ...


class Backfilled(Tier, Protocol):
    """A tier that stores entries found in a slower one."""

    def put(self, key: CacheKey, loaded: Loaded) -> None:
        """Stores the entry."""
        ...

    def discard(self, key: CacheKey) -> None:
        """Removes the entry, if it is there."""
        ...
