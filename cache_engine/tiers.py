"""One ordered probe over the tiers, the fastest first; what a slower one has is kept in memory from then on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
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

    def __init__(self, memory: Backfilled, slower: Sequence[Tier]) -> None:
        """Probes ``memory`` first, then ``slower`` one by one."""
        self.memory = memory
        self._slower = tuple(slower)

    def get(self, key: CacheKey) -> Found | None:
        """The entry from the first tier that has it whole. A tier that fails is passed over, with a warning."""
        loaded = self.memory.get(key)
        if loaded is not None:
            return Found(self.memory.name, loaded)
        for tier in self._slower:
            try:
                loaded = tier.get(key)
            except (CorruptEntry, OSError) as error:
                _log.warning("%s tier passed over for %s: %s", tier.name, key[:12], error)
                continue
            if loaded is not None:
                self.memory.put(key, loaded)
                return Found(tier.name, loaded)
        return None
