"""What became of an entry that the store has no longer: when it went, why, and what compiles it again."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cache_engine.engine.cache import Cache
from cache_engine.engine.selection import Selection
from cache_engine.errors import GemmCacheError
from cache_engine.model.artifact import Record
from cache_engine.model.decision import EVICTION, QUARANTINE
from cache_engine.model.events import CORRUPT, EVICT, PUBLISH, SET_ASIDE
from cache_engine.model.key import CacheKey
from cache_engine.store.journal import read_journal

# The last of these events says whether an entry should be in the store.
_ENDS = frozenset({PUBLISH, EVICT, CORRUPT, SET_ASIDE})


@dataclass(frozen=True, slots=True)
class Departure:
    """How an entry went.

    Attributes:
        at: seconds since 1970, UTC.
        is_evicted: whether it was evicted; else it was damaged and quarantined.
        why: in words, as the journal or the log has it.
        by: who did it; empty where unknown.
    """

    at: float
    is_evicted: bool
    why: str
    by: str


def departure(cache: Cache, key: CacheKey) -> Departure | None:
    """How the entry of a key went, by the journal, or by the log, which goes back further; ``None`` if unknown."""
    recent = read_journal(cache.layout.journal).recent  # newest first
    last = next((event for event in recent if event.key == key and event.kind in _ENDS), None)
    if last is not None:
        return None if last.kind == PUBLISH else Departure(last.at, last.kind == EVICT, last.detail, last.by)
    logged = [one for one in cache.decisions(key) if one.kind in (EVICTION, QUARANTINE)]
    if not logged:
        return None
    return Departure(logged[-1].at, logged[-1].kind == EVICTION, logged[-1].reason, logged[-1].by)


def quarantined_record(cache: Cache, key: CacheKey) -> Record | None:
    """The record of an entry in quarantine; ``None`` if it is not there or cannot be read."""
    item = next((item for item in cache.quarantined() if item.key == key), None)
    return None if item is None else cache.examine(item).record


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
