"""The interface of a tier, and the simplest tier: memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import msgspec

from cache_engine.model.artifact import Record
from cache_engine.model.key import CacheKey
from cache_engine.process import Locked


class Loaded(msgspec.Struct, frozen=True):
    """An entry that a tier returns: its record, and the compiled code that matches it."""

    record: Record
    cubin: bytes

    def __repr__(self) -> str:
        return f"<Loaded {self.record!r}>"


class Tier(Protocol):
    """A place where entries are looked up, such as memory, a pack or a disk.

    ``get`` returns only checked entries. It raises ``CorruptEntry`` when an entry exists but must not be served, and
    ``OSError`` when the tier itself fails. The caller treats both as a miss.
    """

    name: str

    def get(self, key: CacheKey) -> Loaded | None:
        """The entry of ``key``; ``None`` if the tier does not have it."""
        ...


class Backfilled(Tier, Protocol):
    """A tier that also stores entries that were found in a slower tier."""

    def put(self, key: CacheKey, loaded: Loaded) -> None:
        """Stores the entry."""
        ...

    def discard(self, key: CacheKey) -> None:
        """Removes the entry, if the tier has it."""
        ...


# ---- The memory tier: entries that this process has used, limited in bytes, with LRU eviction ----


class MemoryTier(Locked):
    """Entries in the memory of this process. Safe to use from several threads."""

    name = "memory"

    def __init__(self, max_bytes: int) -> None:
        """Stores at most ``max_bytes`` of compiled code; a larger entry is not stored."""
        super().__init__()
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[CacheKey, Loaded] = OrderedDict()

    def get(self, key: CacheKey) -> Loaded | None:
        """The entry of ``key``; ``None`` if it is not in memory."""
        with self._lock:
            loaded = self._entries.get(key)
            if loaded is not None:
                self._entries.move_to_end(key)
            return loaded

    def put(self, key: CacheKey, loaded: Loaded) -> None:
        """Stores the entry in place of an older one with the same key."""
        with self._lock:
            self._remove(key)
            if len(loaded.cubin) > self._max_bytes:
                return
            self._entries[key] = loaded
            self._bytes += len(loaded.cubin)
            while self._bytes > self._max_bytes:
                self._remove(next(iter(self._entries)))

    def discard(self, key: CacheKey) -> None:
        """Removes the entry, if it is in memory."""
        with self._lock:
            self._remove(key)

    def held(self) -> tuple[int, int]:
        """The number of entries in memory, and the bytes of their compiled code together."""
        with self._lock:
            return len(self._entries), self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def _remove(self, key: CacheKey) -> None:
        loaded = self._entries.pop(key, None)
        if loaded is not None:
            self._bytes -= len(loaded.cubin)
