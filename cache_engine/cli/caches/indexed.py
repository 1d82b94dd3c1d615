"""Entries from the store's index, where that is quicker than reading all of them: only what has changed is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING

from cache_engine.cli.support import open_cache
from cache_engine.errors import GemmCacheError
from cache_engine.frameworks.values import Place, Seen
from cache_engine.settings import Settings

if TYPE_CHECKING:
    from cache_engine.frameworks.registry import Sources

PAYS_FROM = 1_000
"""Of fewer names in the directories, reading all is quicker than importing DuckDB and opening the index."""


def from_index(
    settings: Settings, sources: Sources, places: Sequence[Place], progress: Callable[[int, str], None]
) -> list[tuple[Place, Seen]] | None:
    """What is in the places, after a scan that reads what has changed and writes it to the index.

    ``None`` where there is no store or no DuckDB, where the index cannot be written now, or where there is little.
    """
    if not settings.directory_exists or find_spec("duckdb") is None or not _pays(places):
        return None
    from cache_engine.index.foreign import scan
    from cache_engine.index.foreign_queries import entries_of, findings_of

    found: list[tuple[Place, Seen]] = []
    try:
        with open_cache(settings, create=False) as cache:
            scan(cache.mirror, sources, places, progress, others_stay=True)
            for place in places:
                found += [(place, entry) for entry in cache.mirror.query(entries_of, place)]
                found += [(place, finding) for finding in cache.mirror.query(findings_of, place)]
    except GemmCacheError:  # busy, read-only or damaged: the caches themselves are still there
        return None
    return found


def _pays(places: Sequence[Place]) -> bool:
    count = 0
    for place in places:
        try:
            with os.scandir(place.path) as names:
                count += sum(1 for _ in islice(names, PAYS_FROM))
        except OSError:
            continue
    return count >= PAYS_FROM
