"""Surveying a store, applying eviction plans, and doing so by itself now and then."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from cache_engine.errors import CompilerMissing, CorruptEntry, LockTimeout, StoreError
from cache_engine.model.artifact import Record
from cache_engine.model.events import AUTOMATIC, CLEAN, EVICT
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, fold_journal, read_journal
from cache_engine.store.layout import (
    SHARDS,
    StoreLayout,
    key_of_blob_name,
    key_of_record_name,
    original_of_quarantined,
)
from cache_engine.store.lock import file_lock, file_lock_to_delete
from cache_engine.upkeep.leftovers import abandoned_temporaries, orphan_blobs, remove_orphan, remove_temporary
from cache_engine.upkeep.plan import (
    DAY_S,
    EVERYTHING,
    SLACK_ENTRIES,
    SLACK_SHARE,
    EntryFacts,
    EvictionPlan,
    Limits,
    is_far_above,
    plan,
)
from cache_engine.upkeep.population import Population, add_published, write_population

_log = logging.getLogger(__name__)

_MAINTENANCE_TIMEOUT_S = 30.0
# An entry being compiled or replaced is left alone after this wait.
_ENTRY_TIMEOUT_S = 0.1
# Automatic cleaning leaves alone what was published or used so recently, as it may be in use, unless that is too much.
_SPARE_S = 600.0
# The entry at hand takes milliseconds; but a signal handler may have interrupted something that the thread waits for.
_END_S = 5.0
# How long a process that ends gives to cleaning that is under way.
_FINISH_S = 1.0
QUARANTINE_S = 30 * DAY_S

NOBODY_STALE: Callable[[Record], bool] = lambda _: False  # noqa: E731 (a default with a name)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file that belongs to no entry and goes with any cleaning: its path in the store, its bytes, and why it goes."""

    path: str
    stored_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What applying a plan came to; ``foreign`` counts those of ``skipped`` that are of another format version."""

    evicted: int
    freed_bytes: int
    skipped: int
    leftovers: int = 0
    foreign: int = 0


def survey(layout: StoreLayout) -> list[EntryFacts]:
    """Facts on every entry, from file sizes, file times and the journal; no record is opened."""
    used = _last_uses(layout)
    return [
        EntryFacts(key, stored_bytes, max(published_at, used.get(key, 0.0)))
        for key, stored_bytes, published_at in _scan(layout)
    ]


def plan_cleaning(
    store: DiskStore, limits: Limits, now: float | None = None, is_stale: Callable[[Record], bool] = NOBODY_STALE
) -> EvictionPlan:
    """What cleaning would evict now. Changes nothing.

    Args:
        is_stale: tells of a record whether its entry can never be hit; asked only if the limits want to know.
    """
    layout = store.layout
    entries = survey(layout)
    if limits.stale_toolchain or limits.archs:
        asked = is_stale if limits.stale_toolchain else NOBODY_STALE
        entries = [_looked_into(store, entry, asked) for entry in entries]
    if limits.max_disk_share is not None:
        limits = replace(limits, free_bytes=shutil.disk_usage(layout.root).free)
    return plan(entries, limits, time.time() if now is None else now)


def find_leftovers(store: DiskStore, now: float | None = None) -> list[Leftover]:
    """What killed writers left behind, and what was set aside long ago. Changes nothing."""
    found = [(path, "temporary of a writer that is gone") for path in abandoned_temporaries(store.layout)]
    found += [(path, "blob without record") for path in orphan_blobs(store)]
    before = (time.time() if now is None else now) - QUARANTINE_S
    with suppress(FileNotFoundError):
        for path in store.layout.quarantine.iterdir():
            _, came_at = original_of_quarantined(path.name)
            if came_at is not None and came_at < before:
                found.append((path, "in quarantine for more than 30 days"))
    leftovers = []
    for path, reason in found:
        with suppress(FileNotFoundError):
            leftovers.append(Leftover(str(path.relative_to(store.layout.root)), path.lstat().st_size, reason))
    return leftovers


def apply(
    store: DiskStore,
    journal: Journal,
    chosen: EvictionPlan,
    on_progress: Callable[[int], None] = lambda _: None,
    *,
    by: str = "",
    wait_s: float = _MAINTENANCE_TIMEOUT_S,
    stopped: Callable[[], bool] = lambda: False,
) -> Cleaned:
    """Evicts what a plan names and removes what was left behind, then folds the journal.

    An entry used or replaced since the plan was made is skipped, unless everything is to go; one being compiled or of
    another format version is skipped always.

    Args:
        on_progress: called with the number of victims looked at so far.
        by: who cleans, for the audit.
        wait_s: how long to wait for other maintenance to end.
        stopped: asked between victims; once it says yes, the rest stays.

    Raises:
        LockTimeout: when other maintenance is under way.
    """
    layout = store.layout
    evicted = foreign = freed = removed = removed_bytes = 0
    with file_lock_to_delete(layout.maintenance_lock, wait_s):
        used = _last_uses(layout)
        try:
            for number, victim in enumerate(chosen.victims, start=1):
                if stopped():
                    break
                key = CacheKey(victim.key)
                with suppress(LockTimeout), file_lock_to_delete(layout.key_lock(key), _ENTRY_TIMEOUT_S):
                    last_used_at = max(_published_at(layout, key), used.get(key, 0.0))
                    unused = victim.reason == EVERYTHING or last_used_at <= victim.last_used_at
                    if store.is_foreign(key):
                        foreign += 1
                    elif unused:
                        bytes_freed = store.delete(key)
                        journal.event(EVICT, key=key, stored_bytes=bytes_freed, detail=victim.reason, by=by)
                        evicted += 1
                        freed += bytes_freed
                on_progress(number)
            removed, removed_bytes = _remove(store, find_leftovers(store))
        finally:
            # Also of a run that was cut short: what has gone has gone.
            if chosen.victims or removed:
                summary = _summary(evicted, chosen, removed)
                journal.event(CLEAN, stored_bytes=freed + removed_bytes, detail=summary, by=by)
        try:
            fold_journal(layout)
        except OSError as error:  # a disk that is still full; what was there still counts
            _log.warning("the journal is not folded: %s", error)
    return Cleaned(evicted, freed, len(chosen.victims) - evicted, removed, foreign)


def _remove(store: DiskStore, leftovers: list[Leftover]) -> tuple[int, int]:
    removed = removed_bytes = 0
    for leftover in leftovers:
        path = store.layout.root / leftover.path
        try:
            if path.is_relative_to(store.layout.kernels):
                done = remove_orphan(store, path)
            elif path.is_relative_to(store.layout.temp):
                done = remove_temporary(path)
            else:
                path.unlink(missing_ok=True)
                done = True
        except OSError as error:
            _log.warning("%s could not be removed: %s", path, error)
            continue
        if done:
            removed += 1
            removed_bytes += leftover.stored_bytes
    return removed, removed_bytes


def _summary(evicted: int, chosen: EvictionPlan, removed: int) -> str:
    done = [f"{evicted} of {len(chosen.victims)} planned entries"] if chosen.victims else []
    if removed:
        done.append(f"{removed} files left behind")
    return " and ".join(done)


def _looked_into(store: DiskStore, entry: EntryFacts, is_stale: Callable[[Record], bool]) -> EntryFacts:
    """The facts with what only the record tells. One that cannot be read is damaged, or another version's."""
    try:
        record = store.record(CacheKey(entry.key))
    except (CorruptEntry, OSError):
        return entry
    return entry if record is None else replace(entry, arch=record.arch, stale=_is_stale(record, is_stale))


def _is_stale(record: Record, is_stale: Callable[[Record], bool]) -> bool:
    """An entry whose compiler is not installed here, as extras may not be, is not stale: who has it may hit it."""
    try:
        return is_stale(record)
    except CompilerMissing:
        return False


class Housekeeper:
    """Cleans a store when that is due, or the store is far above its limits, in a thread of its own.

    Call ``published`` after each publish: only those make a store grow.
    """

    def __init__(self, store: DiskStore, journal: Journal, limits: Limits, interval_s: float) -> None:
        """Does nothing yet.

        Args:
            interval_s: how long after the last automatic cleaning, by any process, the next is due; 0 is never.
        """
        self._store = store
        self._journal = journal
        self._limits = replace(limits, spare_s=_SPARE_S)
        self._interval_s = interval_s
        self._thread: threading.Thread | None = None
        self._closing = False
        self._can_estimate = True
        # With so many entries nothing could be evicted; it is tried again when there are more.
        self._stuck_at = 0

    def published(self, stored_bytes: int) -> None:
        """Starts cleaning if it is due, or the store is far above its limits, and none is under way. Returns at once.

        Args:
            stored_bytes: what the published entry takes.
        """
        held = add_published(self._store.layout, stored_bytes)
        if self._interval_s > 0 and not (self._thread and self._thread.is_alive()):
            is_due = self._is_due()
            if is_due or self._is_to_survey(held):
                self._closing = False
                thread = threading.Thread(target=self._clean, args=(is_due,), daemon=True)
                # This process may have no more threads; some other will clean.
                with suppress(RuntimeError):
                    thread.start()
                    self._thread = thread

    def close(self, *, wait: bool = True) -> None:
        """Ends cleaning: if it takes longer than a second, after the entry at hand.

        Args:
            wait: whether to wait for that, though not for ever: a signal handler may call this.
        """
        thread = self._thread
        if thread is not None and thread.is_alive():
            if wait:
                # A process that publishes one kernel and ends has to do its part.
                thread.join(_FINISH_S)
            self._closing = True
            if wait:
                thread.join(_END_S)

    def _is_due(self) -> bool:
        """Whether the last cleaning is longer ago than the interval, or lies in the future by more than that."""
        stamp = self._store.layout.cleaned
        try:
            return abs(time.time() - stamp.stat().st_mtime) > self._interval_s
        except FileNotFoundError:
            # A new store is not due. One that cannot be stamped would be cleaned all the time, so it never is.
            with suppress(OSError):
                stamp.touch(mode=0o600)
        except OSError as error:
            _log.warning("when the store was last cleaned cannot be told: %s", error)
        return False

    def _is_to_survey(self, held: Population | None) -> bool:
        """Whether the estimate is too old, or far above the limits. Looks into no folder."""
        if held is None:
            return self._can_estimate
        if held.published >= max(SLACK_ENTRIES, SLACK_SHARE * (self._limits.max_entries or 0)):
            return True
        return held.entries > self._stuck_at + SLACK_ENTRIES and self._is_far_above(held.entries, held.stored_bytes)

    def _is_far_above(self, entries: int, stored_bytes: int) -> bool:
        free_bytes = shutil.disk_usage(self._store.layout.root).free
        return is_far_above(replace(self._limits, free_bytes=free_bytes), entries, stored_bytes)

    def _clean(self, is_due: bool) -> None:
        layout = self._store.layout
        try:
            if is_due:
                # First, so that no other process starts as well.
                os.utime(layout.cleaned)
            with file_lock(layout.maintenance_lock, 0):
                pass  # nobody else is at it
            while True:
                # Also after cleaning: other entries were published meanwhile.
                entries, stored_bytes = count(layout)
                write_population(layout, entries, stored_bytes)
                if self._closing or not (is_due or self._is_far_above(entries, stored_bytes)):
                    return
                chosen = plan_cleaning(self._store, self._limits)
                done = apply(self._store, self._journal, chosen, by=AUTOMATIC, wait_s=0, stopped=lambda: self._closing)
                if not is_due and not done.evicted:
                    self._stuck_at = entries
                    return
                is_due = False
        except LockTimeout:
            pass  # others are at it
        except (OSError, StoreError) as error:
            self._can_estimate = False
            _log.warning("the store could not be cleaned: %s", error)


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
