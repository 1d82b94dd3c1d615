"""Which stored results are unused, or too many."""

from __future__ import annotations

from cache_engine.evaluations.kept import last_used
from cache_engine.evaluations.outcomes import Pruned
from cache_engine.store.results.file import Snapshot

MAX_ENTRIES = 10_000
UNUSED_DAYS = 90.0
"""The default limits of pruning, per accelerator."""

_OLDEST_SHARE = 10
"""When there are too many entries, pruning removes one in this many, least recently used first."""


def superfluous(snapshot: Snapshot, max_entries: int, expiry: float) -> list[Pruned]:
    """The results of an accelerator last used before ``expiry``, and if they are too many, those used longest ago."""
    used = sorted((last_used(snapshot, key), key) for key in snapshot.cache_entries)
    too_many = len(used) - max_entries
    count = max(too_many, -(-len(used) // _OLDEST_SHARE)) if too_many > 0 else 0
    return [
        Pruned(
            snapshot.arch_fingerprint, key, at, "unused for long" if at < expiry else "too many results", snapshot.chip
        )
        for index, (at, key) in enumerate(used)
        if at < expiry or index < count
    ]
