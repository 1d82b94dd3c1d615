"""What became of an entry that is no longer in the store, and what compiles it again."""

from __future__ import annotations

import time

from cache_engine.cache.cache import Cache
from cache_engine.cache.selection import Selection
from cache_engine.errors import GemmCacheError
from cache_engine.model.artifact import Record
from cache_engine.model.key import CacheKey


def quarantined_record(cache: Cache, key: CacheKey) -> Record | None:
    """The record of an entry in quarantine; ``None`` if it is not there or cannot be read."""
    item = next((item for item in cache.admin.quarantined() if item.key == key), None)
    return None if item is None else cache.admin.examine(item).record


def asked_for(cache: Cache, key: CacheKey, within_s: float = 1.0) -> Selection | None:
    """What programs ask this store for that makes this very key here and now; ``None`` where nothing does.

    Args:
        within_s: seconds to search for; the most frequent sizes of each shape come first.
    """
    until = time.monotonic() + within_s
    for shape, sketch in cache.demand.ledger().sketches.items():
        for m, _ in sketch.spread():
            if time.monotonic() > until:
                return None
            try:
                selection = cache.select(shape.problem(m))
            except GemmCacheError:
                break  # of a version that knows more, or its compiler is not installed
            if selection.key == key:
                return selection
    return None
