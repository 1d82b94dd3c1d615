"""One ordered probe over the tiers, fastest first; what a slower one has is copied to memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cache_engine.errors import CorruptEntry
from cache_engine.model.key import CacheKey
from cache_engine.store.base import Backfilled, Loaded, Tier

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """An entry, and the tier that had it."""

    tier: str
    loaded: Loaded


class Tiers:
    """Memory, then the slower tiers in order."""

    def __init__(
        self, memory: Backfilled, slower: Sequence[Tier], on_failure: Callable[[str], None] = lambda _: None
    ) -> None:
        """Probes ``memory`` first, then ``slower`` one by one.

        Args:
            on_failure: called with the name of each tier that failed and was skipped.
        """
        self.memory = memory
        self._slower = tuple(slower)
        self._on_failure = on_failure
        self._complained: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """The tiers' names in the order of the probe."""
        return (self.memory.name, *(tier.name for tier in self._slower))

    def get(self, key: CacheKey) -> Found | None:
        """The entry from the first tier that has it whole. A tier that fails is skipped, with a warning."""
        loaded = self.memory.get(key)
        if loaded is not None:
            return Found(self.memory.name, loaded)
        for tier in self._slower:
            try:
                loaded = tier.get(key)
            except (CorruptEntry, OSError, MemoryError) as error:
                self.skip(tier.name, key, error)
                continue
            if loaded is not None:
                self.memory.put(key, loaded)
                return Found(tier.name, loaded)
        return None

    def skip(self, tier: str, key: CacheKey, error: Exception) -> None:
        """Counts the failure of a tier and warns of it; once is enough, and a disk that fails fails often."""
        self._on_failure(tier)
        level = logging.DEBUG if tier in self._complained else logging.WARNING
        self._complained.add(tier)
        _log.log(level, "%s tier skipped for %s: %s", tier, key[:12], error)
