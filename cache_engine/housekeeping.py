"""Surveying a store and applying eviction plans."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from cache_engine.errors import LockTimeout
from cache_engine.model.key import CacheKey
from cache_engine.policy.plan import EVERYTHING, EntryFacts, EvictionPlan, Limits, plan
from cache_engine.stats import CLEAN, EVICT
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, fold, read_journal
from cache_engine.store.layout import SHARDS, StoreLayout, key_of_blob_name, key_of_record_name
from cache_engine.store.lock import file_lock

_MAINTENANCE_TIMEOUT_S = 30.0
# An entry being compiled or replaced is left alone after this wait.
_ENTRY_TIMEOUT_S = 0.1


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What applying a plan came to."""

    evicted: int
    freed_bytes: int
    skipped: int


def survey(layout: StoreLayout) -> list[EntryFacts]:
    """Facts on every entry, from file sizes, file times and the journal; no record is opened."""
    used = _last_uses(layout)
    return [
        EntryFacts(key, stored_bytes, max(published_at, used.get(key, 0.0)))
        for key, stored_bytes, published_at in _scan(layout)
    ]


def plan_cleaning(layout: StoreLayout, limits: Limits, now: float | None = None) -> EvictionPlan:
    """What cleaning would evict now. Changes nothing."""
    return plan(survey(layout), limits, time.time() if now is None else now)


def apply(
    store: DiskStore, journal: Journal, chosen: EvictionPlan, on_progress: Callable[[int], None] = lambda _: None
) -> Cleaned:
    """Evicts what a plan names, then folds the journal.

    An entry used or replaced since the plan was made is skipped, unless everything is to go; one being compiled or of
    another format version is skipped always.

    Args:
        on_progress: called with the number of victims looked at so far.

    Raises:
        LockTimeout: when other maintenance is under way.
    """
    layout = store.layout
    evicted = freed = 0
    with file_lock(layout.maintenance_lock, _MAINTENANCE_TIMEOUT_S):
        used = _last_uses(layout)
        for number, victim in enumerate(chosen.victims, start=1):
            key = CacheKey(victim.key)
            with suppress(LockTimeout), file_lock(layout.key_lock(key), _ENTRY_TIMEOUT_S):
                last_used_at = max(_published_at(layout, key), used.get(key, 0.0))
                stale = victim.reason == EVERYTHING or last_used_at <= victim.last_used_at
                if stale and not store.is_foreign(key):
                    bytes_freed = store.delete(key)
                    journal.event(EVICT, key=key, stored_bytes=bytes_freed, detail=victim.reason)
                    evicted += 1
                    freed += bytes_freed
            on_progress(number)
        if chosen.victims:
            journal.event(CLEAN, stored_bytes=freed, detail=f"{evicted} of {len(chosen.victims)} planned entries")
        fold(layout.journal, layout.temp, keep=lambda key: _may_exist(layout, CacheKey(key)))
    return Cleaned(evicted, freed, len(chosen.victims) - evicted)


def count(layout: StoreLayout) -> tuple[int, int]:
    """Entries, and the bytes they take on disk."""
    sizes = [stored_bytes for _, stored_bytes, _ in _scan(layout)]
    return len(sizes), sum(sizes)


def _scan(layout: StoreLayout) -> Iterator[tuple[str, int, float]]:
    """Key, bytes on disk (record and blob) and time of publishing of every entry."""
    for shard in SHARDS:
        blob_bytes: dict[str, int] = {}
        for name, status in _files(layout.kernels / shard):
            key = key_of_blob_name(name, shard)
            if key is not None:
                blob_bytes[key] = blob_bytes.get(key, 0) + status.st_size
        for name, status in _files(layout.metadata / shard):
            key = key_of_record_name(name, shard)
            if key is not None:
                yield key, status.st_size + blob_bytes.get(key, 0), status.st_mtime


def _files(folder: os.PathLike[str]) -> Iterator[tuple[str, os.stat_result]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                yield entry.name, entry.stat(follow_symlinks=False)


def _last_uses(layout: StoreLayout) -> dict[str, float]:
    """When each key was last used, by the journal."""
    last: dict[str, float] = {}
    for used in read_journal(layout.journal).usage:
        last[used.key] = max(last.get(used.key, 0.0), used.last_used_at)
    return last


def _published_at(layout: StoreLayout, key: CacheKey) -> float:
    """When the record got its place; never, when it has gone."""
    try:
        return os.lstat(layout.record_path(key)).st_mtime
    except FileNotFoundError:
        return float("inf")


def _may_exist(layout: StoreLayout, key: CacheKey) -> bool:
    """Whether there is an entry; also when the disk refuses to say: nobody's usage is forgotten for that."""
    try:
        os.lstat(layout.record_path(key))
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return True
