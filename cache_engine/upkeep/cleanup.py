"""Applies eviction plans, on request and automatically, and deletes files that killed writers left."""

from __future__ import annotations

import logging
import math
import os
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cache_engine.background import BackgroundQueue
from cache_engine.errors import CorruptEntry, LockTimeout, StoreError
from cache_engine.frameworks.bundles import is_unknown_group
from cache_engine.logs import fields
from cache_engine.model.events import AUTOMATIC, CLEAN, EVICT
from cache_engine.model.key import CacheKey
from cache_engine.settings import Settings
from cache_engine.store.disk import DiskStore
from cache_engine.store.files import read_file, shards_in
from cache_engine.store.journal import Journal, fold_journal
from cache_engine.store.layout import StoreLayout, key_of_blob_name, original_of_quarantined
from cache_engine.store.lock import file_lock, file_lock_to_delete, try_lock
from cache_engine.store.notes import is_pinned
from cache_engine.store.publish import publish_file
from cache_engine.units import counted
from cache_engine.upkeep.findings import names_in
from cache_engine.upkeep.plan import (
    DAY_S,
    EVERYTHING,
    FOREIGN,
    SLACK_ENTRIES,
    SLACK_SHARE,
    EvictionPlan,
    Limits,
    is_far_above,
)
from cache_engine.upkeep.survey import NONE_STALE, count, last_uses, plan_cleaning, survey

__all__ = [
    "NONE_STALE", "QUARANTINE_S", "Cleaned", "Housekeeper", "Leftover", "apply", "count", "find_leftovers",
    "plan_cleaning", "survey",
]  # fmt: skip

# ---- The estimated size of a store, shared by all its processes, so that a publish lists no folders ----
#
# A file has the result of the last survey, ``<entries> <bytes>``, and a line ``+<bytes>`` for each publish since. It is
# only an estimate: a replaced entry counts twice, and an entry deleted since still counts. So the store is surveyed
# again from time to time, and before any eviction.

_LARGEST_BYTES = 2**20
_APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Population:
    """The estimated numbers of entries and bytes in a store.

    ``published`` is the number of entries that were stored after the last survey.
    """

    entries: int
    stored_bytes: int
    published: int


def add_published(layout: StoreLayout, stored_bytes: int) -> Population | None:
    """Adds a published entry to the estimate of the store's size; returns the new estimate.

    ``None`` when there is no usable estimate, so that a survey must count the entries first.
    """
    try:
        descriptor = os.open(layout.population, _APPENDING)
        try:
            os.write(descriptor, b"+%d\n" % stored_bytes)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return read_population(layout)


def read_population(layout: StoreLayout) -> Population | None:
    """The stored estimate of how many entries and bytes the store has; ``None`` when it cannot be read."""
    try:
        surveyed, *published = (read_file(layout.population, _LARGEST_BYTES) or b"").split(b"\n")
        entries, stored_bytes = map(int, surveyed.split())
        added = [int(line) for line in published if line]
    except (CorruptEntry, OSError, ValueError):
        return None
    return Population(entries + len(added), stored_bytes + sum(added), len(added))


def write_population(layout: StoreLayout, entries: int, stored_bytes: int) -> None:
    """Stores the numbers of entries and bytes that a survey has counted, as the new estimate.

    Raises:
        OSError: when writing fails.
    """
    publish_file(layout.temp, str(layout.population), b"%d %d\n" % (entries, stored_bytes), durable=False)


# ---- Cleaning ----

_log = logging.getLogger(__name__)

_MAINTENANCE_TIMEOUT_S = 30.0
# An entry that is still being compiled or replaced after this wait is skipped.
_ENTRY_TIMEOUT_S = 0.1
# Automatic cleaning spares entries published or used this recently, as they may be in use, unless they are too many.
_SPARE_S = 600.0
# The current entry takes milliseconds, but a signal handler may have interrupted what the thread waits for.
_END_S = 5.0
# How long an ending process waits for a running cleaning: by its processor time, since on a busy machine a second may
# pass before any of it is given; and at most.
_FINISH_S = 1.0
_LONGEST_FINISH_S = 4.0
_EVER = math.nextafter(math.inf, 0)
QUARANTINE_S = 30 * DAY_S


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file without an entry, which every cleaning deletes: its path in the store, its size, and the reason."""

    path: str
    stored_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of applying a plan. ``foreign`` is the number of skipped entries that have another format version."""

    evicted: int
    freed_bytes: int
    skipped: int
    leftovers: int = 0
    foreign: int = 0


def find_leftovers(store: DiskStore, now: float | None = None) -> list[Leftover]:
    """Files that killed writers left, and files in quarantine for more than 30 days. Changes nothing."""
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
    store: DiskStore, journal: Journal, chosen: EvictionPlan, on_progress: Callable[[int], None] = lambda _: None, *,
    by: str = "", wait_s: float = _MAINTENANCE_TIMEOUT_S, stopped: Callable[[], bool] = lambda: False,
) -> Cleaned:  # fmt: skip
    """Evicts the entries of a plan, deletes leftovers, then folds the journal.

    Skips an entry used or replaced since the plan was made, unless the plan evicts everything. Always skips an entry
    that is being compiled or is gone. Skips an entry of another format version, unless the plan evicts it for that
    reason.

    Args:
        on_progress: called with the number of victims processed so far.
        by: the user who cleans, for the audit log.
        wait_s: seconds to wait for other maintenance of this store to end, such as another cleaning or a repair.
        stopped: called between victims; once it returns true, no more are evicted.

    Raises:
        LockTimeout: when other maintenance is running.
        StoreError: when another store has replaced the one that the plan was made for.
    """
    layout = store.layout
    evicted = foreign = freed = removed = removed_bytes = 0
    with file_lock_to_delete(layout.maintenance_lock, wait_s):
        layout.check_identities(chosen.store)
        used = last_uses(layout)
        if chosen.victims and by != AUTOMATIC:  # a kill leaves this
            journal.event(CLEAN, detail=f"{counted(len(chosen.victims), 'entry', 'entries')} to delete", by=by)
        try:
            for number, victim in enumerate(chosen.victims, start=1):
                if stopped():
                    break
                key = CacheKey(victim.key)
                with suppress(LockTimeout), file_lock_to_delete(layout.key_lock(key), _ENTRY_TIMEOUT_S):
                    last_used_at = max(_published_at(layout, key), used.get(key, 0.0))  # infinity: it is gone
                    unused = last_used_at <= (_EVER if victim.reason == EVERYTHING else victim.last_used_at)
                    unused &= victim.pinned or not is_pinned(layout, key)  # since the plan was made
                    has_unknown_format = store.has_unknown_format(key) or is_unknown_group(layout, key)
                    evicts_foreign = victim.reason == FOREIGN
                    if has_unknown_format and not evicts_foreign:
                        foreign += 1
                        _log.info("entry %s has another format version and stays", key[:12])
                    elif unused and has_unknown_format == evicts_foreign:
                        bytes_freed = store.delete(key)
                        journal.event(EVICT, key=key, stored_bytes=bytes_freed, detail=victim.reason, by=by)
                        extra = fields("evict", key=key, why=victim.reason, stored_bytes=bytes_freed)
                        _log.debug("evicted: %s, %s", key[:12], victim.reason, extra=extra)
                        evicted += 1
                        freed += bytes_freed
                on_progress(number)
            removed, removed_bytes = _remove(store, find_leftovers(store))
        finally:
            # Also after an interrupted run, which has deleted something.
            if chosen.victims or removed:
                summary = _summary(evicted, chosen, removed)
                journal.event(CLEAN, stored_bytes=freed + removed_bytes, detail=summary, by=by)
                extra = fields("clean", evicted=evicted, freed_bytes=freed + removed_bytes)
                _log.info("evicted %s, %s bytes freed", summary, freed + removed_bytes, extra=extra)
        try:
            fold_journal(layout)
        except OSError as error:  # a disk that is still full; the unfolded journal still counts
            _log.warning("could not fold the journal: %s", error)
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
            _log.warning("could not delete %s: %s", path, error)
            continue
        if done:
            removed += 1
            removed_bytes += leftover.stored_bytes
    return removed, removed_bytes


def _summary(evicted: int, chosen: EvictionPlan, removed: int) -> str:
    done = [f"{evicted} of {len(chosen.victims)} planned entries"] if chosen.victims else []
    if removed:
        done.append(f"{removed} leftover files")
    return " and ".join(done)


class Housekeeper:
    """Cleans a store in the background when cleaning is due or the store is far above its limits.

    Call ``published`` after each publish, because only a publish makes a store grow, and ``result_stored`` after
    storing a result of the evaluator.
    """

    def __init__(
        self,
        store: DiskStore,
        journal: Journal,
        limits: Limits,
        interval_s: float,
        prune_results: Callable[[], object] = lambda: None,
    ) -> None:
        """Stores the arguments; starts no thread and no cleaning yet.

        Args:
            interval_s: seconds between automatic cleanings, of all processes together; 0 means never.
            prune_results: deletes old results of the evaluator; called whenever cleaning is due.
        """
        self._prune_results = prune_results
        self._store = store
        self._journal = journal
        self._limits = replace(limits, spare_s=_SPARE_S)
        self._interval_s = interval_s
        self._queue = BackgroundQueue(most=1)
        self._closing = False
        self._can_estimate = True
        # The number of entries at which nothing could be evicted; the next try needs more.
        self._stuck_at = 0

    def published(self, stored_bytes: int) -> None:
        """Starts cleaning if it is due or the store is far above its limits, unless one is running. Returns at once.

        Args:
            stored_bytes: the size of the published entry.
        """
        held = add_published(self._store.layout, stored_bytes)
        self._start(lambda: self._is_to_survey(held))

    def result_stored(self) -> None:
        """Starts cleaning if it is due, unless one is running. Returns at once."""
        self._start(lambda: False)

    def _start(self, is_needed: Callable[[], bool]) -> None:
        if self._interval_s > 0 and self._queue.is_idle:
            is_due = self._is_due()
            if is_due or is_needed():
                self._closing = False
                # This process may be unable to start a thread; another process will clean.
                self._queue.put(partial(self._clean, is_due))

    def close(self, *, wait: bool = True) -> None:
        """Ends a running cleaning; one that needs over a second of processor time stops after the current entry.

        Args:
            wait: whether to wait for the cleaning to end. The wait is bounded, because a signal handler may call this.
        """
        if wait:
            # A process that publishes one kernel and ends must clean too.
            latest, used = time.monotonic() + _LONGEST_FINISH_S, time.process_time() + _FINISH_S
            while not self._queue.settle(0.02) and time.monotonic() < latest and time.process_time() < used:
                pass
        self._closing = True
        if wait:
            self._queue.settle(_END_S)

    def _is_due(self) -> bool:
        """Whether the last cleaning is longer ago than the interval.

        Also true if the time of the last cleaning lies more than the interval in the future, because a clock was wrong.
        """
        stamp = self._store.layout.cleaned
        try:
            return abs(time.time() - stamp.stat().st_mtime) > self._interval_s
        except FileNotFoundError:
            # A new store is not due. Nor is one without a writable stamp, which would be cleaned all the time.
            with suppress(OSError):
                stamp.touch(mode=0o600)
        except OSError as error:
            _log.warning("cannot read the time of the last cleaning: %s", error)
        return False

    def _is_to_survey(self, held: Population | None) -> bool:
        """Whether to count the store's entries now: the estimate of them is too old, or far above the limits.

        Lists no folder.
        """
        if held is None:
            return self._can_estimate
        if held.published >= max(SLACK_ENTRIES, SLACK_SHARE * (self._limits.max_entries or 0)):
            return True
        return held.entries > self._stuck_at + SLACK_ENTRIES and self._is_far_above(held.entries, held.stored_bytes)

    def _is_far_above(self, entries: int, stored_bytes: int) -> bool:
        free_bytes = shutil.disk_usage(self._store.layout.root).free
        return is_far_above(replace(self._limits, free_bytes=free_bytes), entries, stored_bytes)

    def _clean(self, is_due: bool) -> None:
        self._evict(is_due)
        if is_due and not self._closing:
            try:
                self._prune_results()
            except (OSError, StoreError, ImportError) as error:
                _log.warning("could not prune results of the evaluator: %s", error)

    def _evict(self, is_due: bool) -> None:
        layout = self._store.layout
        try:
            if is_due:
                # First, so that no other process starts too.
                os.utime(layout.cleaned)
            with file_lock(layout.maintenance_lock, 0):
                pass  # no other process is cleaning
            while True:
                # Also after cleaning: other entries may have been published meanwhile.
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
            pass  # another process is cleaning
        except (OSError, StoreError) as error:
            self._can_estimate = False
            _log.warning("could not clean the store: %s", error)


def prune_results(store: DiskStore, settings: Settings, journal: Journal) -> int:
    """Removes results of the evaluator that are unused or exceed the limit; returns their number.

    Raises:
        OSError, StoreError: when the results cannot be read or written.
    """
    from cache_engine.evaluator.results import Evaluations  # rarely needed

    def acted(kind: str, detail: str, by: str) -> None:
        journal.event(kind, detail=detail, by=by)

    with Evaluations(store.layout, durable=settings.is_durable, acted=acted) as kept:
        gone = kept.prune(kept.plan_pruning(), by=AUTOMATIC)
    if gone:
        _log.info("pruned: %s results of the evaluator", f"{gone:,}")
    return gone


def _published_at(layout: StoreLayout, key: CacheKey) -> float:
    """The time, in seconds since 1970, when a record or another framework's kernel was published.

    Infinity if it is gone.
    """
    for path in (layout.record_path(key), layout.group_path(key)):
        with suppress(FileNotFoundError):
            return os.lstat(path).st_mtime
    return math.inf


# ---- Files that killed writers leave: temporaries without a writer, and blobs that no record names ----
#
# The writer of a temporary holds its lock, and the publisher of an entry holds its key's lock; both end with the
# process. So a free lock identifies a leftover, independent of the clock. Where locks do not work, as in a read-only
# store, the file's age decides.

# Where age decides: a younger file may belong to a running publish.
GRACE_S = 600.0


def abandoned_temporaries(layout: StoreLayout) -> Iterator[Path]:
    """Yields the temporary files whose writing processes have ended."""
    for path in map(layout.temp.joinpath, sorted(names_in(layout.temp))):
        # A folder here is not ours; ``integrity`` reports it.
        if (path.is_symlink() or not path.is_dir()) and is_abandoned(path):
            yield path


def is_abandoned(path: Path) -> bool:
    """Whether the process that wrote a temporary file has ended; true for anything but a regular file."""
    with _abandoned(path) as abandoned:
        return abandoned


def remove_temporary(path: Path) -> bool:
    """Deletes a temporary file if its writer has ended; returns whether the file was deleted.

    Raises:
        OSError: when deleting fails.
    """
    with _abandoned(path) as abandoned:
        if abandoned:
            path.unlink(missing_ok=True)
        return abandoned


@contextmanager
def _abandoned(path: Path) -> Iterator[bool]:
    """Yields whether the writer of a temporary file has ended.

    This process holds the file's lock during the body of the ``with``, so no writer can start.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield False
        return
    except OSError:
        yield not _is_young(path)
        return
    try:
        yield _is_free(descriptor, path)
    finally:
        os.close(descriptor)


def _is_free(descriptor: int, path: Path) -> bool:
    """Whether no process holds the lock of an open file, and the file is still at ``path``."""
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return try_lock(descriptor) and os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False
    except OSError:
        pass  # locks do not work here
    return not _is_young(path)


def orphan_blobs(store: DiskStore) -> Iterator[Path]:
    """Blobs that no record names or will name, because a publish, replacement or eviction was interrupted.

    A record whose own blob is missing is damage, not an orphan; ``integrity`` reports that.
    """
    layout = store.layout
    for shard in shards_in(layout.kernels, links=layout.trust):
        folder = layout.kernels / shard
        blobs = [(key_of_blob_name(name, shard), name) for name in sorted(names_in(folder))]
        records = set(names_in(layout.metadata / shard))  # after the blobs, as a publish writes its record last
        copies = Counter(key for key, _ in blobs)
        for key, name in blobs:
            if key is not None and (copies[key] > 1 or f"{key}.json" not in records):
                path = folder / name
                if is_orphan(store, key, path):
                    yield path


def is_orphan(store: DiskStore, key: CacheKey, path: Path) -> bool:
    """Whether a blob is an orphan: nobody is publishing its key, and the key's record, if any, names another blob."""
    if _named(store, key) in (path.name, None):
        return False
    try:
        with file_lock_to_delete(store.layout.key_lock(key), 0):
            # Again: its publish may have ended in between.
            return os.path.lexists(path) and _named(store, key) not in (path.name, None)
    except LockTimeout:
        return False
    except OSError:
        return not _is_young(path)


def remove_orphan(store: DiskStore, path: Path) -> bool:
    """Deletes a blob if it is still an orphan; returns whether the blob was deleted.

    The same blob may have been published meanwhile under the same name, so that a record names it now.

    Raises:
        OSError: when deleting fails.
    """
    key = key_of_blob_name(path.name, path.parent.name)
    if key is None:
        return False
    with suppress(LockTimeout), file_lock_to_delete(store.layout.key_lock(key), 0):
        if _named(store, key) not in (path.name, None):
            path.unlink(missing_ok=True)
            return True
    return False


def _named(store: DiskStore, key: CacheKey) -> str | None:
    """The name of the blob in a key's record; empty if there is no record, ``None`` if the record cannot be read."""
    try:
        record = store.record(key)
    except (CorruptEntry, OSError):
        return None
    if record is not None:
        return Path(store.layout.blob_path(key, record.blob.digest)).name
    return None if os.path.lexists(store.layout.record_path(key)) else ""


def _is_young(path: Path) -> bool:
    """Whether a file was changed in the last ``GRACE_S`` seconds, or is gone.

    A time in the future, from a clock that was set back, counts if it is less than ``GRACE_S`` seconds ahead.
    """
    try:
        return abs(time.time() - os.lstat(path).st_mtime) < GRACE_S
    except FileNotFoundError:
        return True
