"""Checking a store and mending it. Finding and fixing are apart: ``check`` only reads, ``repair`` only sets aside.

Nothing is deleted unseen: what is damaged goes to ``quarantine/``, except temporaries of writers that have died.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cache_engine.errors import CorruptEntry, LockTimeout, Misplaced, Truncated
from cache_engine.model.events import CORRUPT, REPAIR, SET_ASIDE
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import MAX_RECORD_BYTES, UnknownFormat, check_blob, decode_record
from cache_engine.store.disk import DiskStore
from cache_engine.store.files import read_file
from cache_engine.store.journal import SNAPSHOT, Journal, UnknownSnapshot, load_snapshot
from cache_engine.store.layout import (
    SHARDS,
    StoreLayout,
    fingerprint_of_results_name,
    key_of_blob_name,
    key_of_record_name,
)
from cache_engine.store.lock import file_lock
from cache_engine.store.results.file import UnknownResults
from cache_engine.store.timings import Timings
from cache_engine.upkeep.contents import check_code, check_record
from cache_engine.upkeep.leftovers import is_abandoned, is_orphan, remove_temporary

_LOCK_TIMEOUT_S = 30.0


class Kind(StrEnum):
    """What can be wrong; the value is how people read it."""

    CORRUPT_RECORD = "corrupt record"
    CORRUPT_BLOB = "corrupt blob"
    TRUNCATED = "truncated"
    SWAPPED = "swapped"
    MISSING_BLOB = "record without blob"
    ORPHAN_BLOB = "blob without record"
    MISNAMED = "misnamed file"
    FOREIGN_OWNER = "foreign owner"
    FORBIDDEN = "not permitted to be read"
    UNREADABLE = "unreadable"
    STALE_TEMPORARY = "stale temporary"
    CORRUPT_SNAPSHOT = "corrupt sums of the journal"
    CORRUPT_TIMINGS = "corrupt timings"
    UNKNOWN_FORMAT = "unknown format version"


_AGAIN = "quarantine the entry; it is compiled again when next asked for"
REMEDIES = {
    Kind.CORRUPT_RECORD: _AGAIN,
    Kind.CORRUPT_BLOB: _AGAIN,
    Kind.TRUNCATED: _AGAIN,
    Kind.SWAPPED: _AGAIN,
    Kind.MISSING_BLOB: "quarantine the record; the kernel is compiled again when next asked for",
    Kind.ORPHAN_BLOB: "quarantine the blob",
    Kind.MISNAMED: "quarantine the file",
    Kind.FOREIGN_OWNER: _AGAIN,
    Kind.FORBIDDEN: _AGAIN,
    Kind.UNREADABLE: "nothing: look at the disk",
    Kind.STALE_TEMPORARY: "delete the file: its writer is gone",
    Kind.CORRUPT_SNAPSHOT: "quarantine the file; counts from before it was last written are lost",
    Kind.CORRUPT_TIMINGS: "quarantine the device's files as they are, and go on with the timings that are sound",
    Kind.UNKNOWN_FORMAT: "nothing: it may be a newer version's",
}
_ENTRY_KINDS = frozenset(kind for kind, remedy in REMEDIES.items() if remedy == _AGAIN) | {Kind.MISSING_BLOB}
_UNREPAIRED = frozenset({Kind.UNKNOWN_FORMAT, Kind.UNREADABLE})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: what.
        path: the file, relative to the store.
        key: the entry concerned, empty when none is.
        cause: the details.
    """

    kind: Kind
    path: str
    key: str
    cause: str

    @property
    def remedy(self) -> str:
        """What repair would do."""
        return REMEDIES[self.kind]

    @property
    def is_damage(self) -> bool:
        """Whether it is; an entry of another version beside ours is a note, not damage."""
        return self.kind is not Kind.UNKNOWN_FORMAT

    @property
    def repairable(self) -> bool:
        """Whether repair would do anything."""
        return self.kind not in _UNREPAIRED


@dataclass(frozen=True, slots=True)
class RepairAct:
    """What repair would do about one finding: ``quarantine``, ``delete`` or ``leave``, and to which files.

    ``files`` are paths in the store, each with its bytes.
    """

    finding: Finding
    act: str
    files: tuple[tuple[str, int], ...]

    @property
    def stored_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(size for _, size in self.files)


def check(
    store: DiskStore, on_entry: Callable[[], None] = lambda: None, *, share: float = 1.0, trust: bool = False
) -> Iterator[Finding]:
    """Reads records and blobs of a store and yields what is wrong, in the order of the keys. Changes nothing.

    Args:
        on_entry: called after each entry that was read.
        share: the share of entries to read, chosen at random. Names, owners, leftovers, the journal and timings are
            always looked at.
        trust: take no notice of whom files belong to.
    """
    layout = store.layout
    owner = None if trust else os.stat(layout.root).st_uid
    chance = random.Random()  # noqa: S311 (a sample, no secret)
    for folder in (layout.metadata, layout.kernels):
        for name in sorted(set(_names(folder)) - set(SHARDS)):
            yield _finding(layout, Kind.MISNAMED, folder / name, "", "it is not one of the 256 folders of a store")
    for shard in SHARDS:
        named: set[str] = set()
        for name in sorted(_names(layout.metadata / shard)):
            if share < 1 and chance.random() >= share:
                named.update(_blobs_of(layout, shard, name))
                continue
            finding = _check_record(layout, shard, name, named, owner)
            if finding is not None:
                yield finding
            on_entry()
        for name in sorted(set(_names(layout.kernels / shard)) - named):
            finding = _check_blob_name(store, shard, name)
            if finding is not None:
                yield finding
    for name in sorted(_names(layout.temp)):
        finding = _check_temporary(layout, name)
        if finding is not None:
            yield finding
    finding = _check_snapshot(layout)
    if finding is not None:
        yield finding
    yield from _check_timings(layout)


def plan_repair(store: DiskStore, findings: Iterable[Finding]) -> list[RepairAct]:
    """What ``repair`` would do about each finding, as things are now. Changes nothing."""
    layout = store.layout
    acts = []
    for finding in findings:
        paths = [layout.root / finding.path]
        if finding.kind in _ENTRY_KINDS:
            key = CacheKey(finding.key)
            record = Path(layout.record_path(key))
            paths = [record, *(layout.kernels / key[:2] / blob for blob in _blobs_of(layout, key[:2], record.name))]
        act = "leave" if not finding.repairable else "delete" if finding.kind is Kind.STALE_TEMPORARY else "quarantine"
        files = []
        for path in paths if finding.repairable else ():
            with suppress(OSError):
                files.append((str(path.relative_to(layout.root)), path.lstat().st_size))
        acts.append(RepairAct(finding, act, tuple(files)))
    return acts


def repair(store: DiskStore, journal: Journal, findings: Iterable[Finding], *, by: str = "") -> list[Finding]:
    """Does what each finding's remedy says; returns the findings dealt with.

    Findings may be old: each is looked at once more, under its key's lock, and left alone if it holds no longer.

    Args:
        by: who repairs, for the audit.

    Raises:
        LockTimeout: when other maintenance is under way.
        OSError: when the disk refuses.
    """
    layout = store.layout
    findings = list(findings)
    done: list[Finding] = []
    with file_lock(layout.maintenance_lock, _LOCK_TIMEOUT_S):
        try:
            for finding in findings:
                path = layout.root / finding.path
                if not finding.repairable:
                    continue
                key = CacheKey(finding.key)
                with file_lock(layout.key_lock(key), _LOCK_TIMEOUT_S) if key else nullcontext():
                    if not _still_holds(store, finding):
                        continue
                    if finding.kind in _ENTRY_KINDS:
                        store.quarantine(key)
                        journal.event(CORRUPT, key=key, detail=f"{finding.kind}: {finding.cause}")
                    elif finding.kind is Kind.STALE_TEMPORARY:
                        remove_temporary(path)
                    else:
                        if finding.kind is Kind.CORRUPT_TIMINGS and (named := fingerprint_of_results_name(path.name)):
                            Timings(layout).mend(named[0])
                        else:
                            store.set_aside(path)
                        detail = f"{finding.path}: {finding.kind}: {finding.cause}"
                        journal.event(SET_ASIDE, key=finding.key, detail=detail)
                done.append(finding)
        finally:
            if done:
                journal.event(REPAIR, detail=f"{len(done)} of {len(findings)} findings", by=by)
    return done


def _still_holds(store: DiskStore, finding: Finding) -> bool:
    """Whether a finding is still true. Under the lock of its key, if it has one."""
    layout = store.layout
    path = layout.root / finding.path
    if finding.kind in _ENTRY_KINDS:
        key = CacheKey(finding.key)
        owner = os.stat(layout.root).st_uid if finding.kind is Kind.FOREIGN_OWNER else None
        again = _check_record(layout, key[:2], Path(layout.record_path(key)).name, set(), owner)
        return again is not None and again.kind in _ENTRY_KINDS
    if finding.kind is Kind.ORPHAN_BLOB:
        # The record may name it by now.
        named: set[str] = set()
        _check_record(layout, path.parent.name, f"{finding.key}.json", named, None)
        return path.name not in named and os.path.lexists(path)
    if finding.kind is Kind.STALE_TEMPORARY:
        return _check_temporary(layout, path.name) is not None
    if finding.kind is Kind.CORRUPT_SNAPSHOT:
        return _check_snapshot(layout) is not None
    if finding.kind is Kind.CORRUPT_TIMINGS:
        return any(again.path == finding.path for again in _check_timings(layout))
    return os.path.lexists(path)


def _check_record(layout: StoreLayout, shard: str, name: str, named: set[str], owner: int | None) -> Finding | None:
    """Checks one record with its blob. Names of blobs that are not to be taken for orphans go into ``named``."""
    path = layout.metadata / shard / name
    key = key_of_record_name(name, shard)
    if key is None:
        return _finding(layout, Kind.MISNAMED, path, "", "its name is not a record's in this place")

    def found(kind: Kind, at: Path, cause: object) -> Finding:
        # Whatever is wrong with a record, its blobs are dealt with together with it.
        named.update(_blobs_of(layout, shard, name))
        return _finding(layout, kind, at, key, str(cause))

    try:
        data = read_file(path, MAX_RECORD_BYTES + 1)
        if data is None:
            return None  # evicted meanwhile
        if len(data) > MAX_RECORD_BYTES:
            return found(Kind.CORRUPT_RECORD, path, f"it is larger than {MAX_RECORD_BYTES:,} bytes")
        record = decode_record(key, data)
        check_record(record)
    except UnknownFormat as error:
        return found(Kind.UNKNOWN_FORMAT, path, error)
    except (CorruptEntry, OSError) as error:
        return found(_kind_of(error, Kind.CORRUPT_RECORD), path, _cause(error))
    blob_path = Path(layout.blob_path(key, record.blob.digest))
    named.add(blob_path.name)
    try:
        blob = read_file(blob_path, record.blob.stored_bytes + 1)
        if blob is None:
            if read_file(path, MAX_RECORD_BYTES + 1) != data:
                return _check_record(layout, shard, name, named, owner)  # replaced or evicted meanwhile
            return found(Kind.MISSING_BLOB, path, f"{blob_path.name} is not there")
        check_code(record, check_blob(key, record.blob, blob))
        for file in (path, blob_path):
            if owner is not None and file.lstat().st_uid != owner:
                return found(
                    Kind.FOREIGN_OWNER, file, f"it belongs to user {file.lstat().st_uid}, the store to {owner}"
                )
    except FileNotFoundError:
        return None  # evicted meanwhile
    except (CorruptEntry, OSError) as error:
        return found(_kind_of(error, Kind.CORRUPT_BLOB), blob_path, _cause(error))
    return None


def _kind_of(error: CorruptEntry | OSError, otherwise: Kind) -> Kind:
    match error:
        case Misplaced():
            return Kind.SWAPPED
        case Truncated():
            return Kind.TRUNCATED
        case PermissionError():
            return Kind.FORBIDDEN
        case OSError():
            return Kind.UNREADABLE
    return otherwise


def _cause(error: CorruptEntry | OSError) -> object:
    return error.strerror if isinstance(error, OSError) else error


def _blobs_of(layout: StoreLayout, shard: str, name: str) -> list[str]:
    """The blobs of the key in a record's name."""
    key = key_of_record_name(name, shard)
    return [blob for blob in _names(layout.kernels / shard) if key is not None and key_of_blob_name(blob, shard) == key]


def _check_blob_name(store: DiskStore, shard: str, name: str) -> Finding | None:
    """Checks a blob that no record was seen to name."""
    layout, path = store.layout, store.layout.kernels / shard / name
    key = key_of_blob_name(name, shard)
    if key is None:
        return _finding(layout, Kind.MISNAMED, path, "", "its name is not a blob's in this place")
    if not is_orphan(store, key, path):
        return None
    why = "the record names another blob" if os.path.lexists(layout.record_path(key)) else "no record names it"
    return _finding(layout, Kind.ORPHAN_BLOB, path, key, why)


def _check_temporary(layout: StoreLayout, name: str) -> Finding | None:
    path = layout.temp / name
    if path.is_dir() and not path.is_symlink():
        return _finding(layout, Kind.MISNAMED, path, "", "nothing here makes folders")
    if not is_abandoned(path):
        return None
    return _finding(layout, Kind.STALE_TEMPORARY, path, "", "no process writes it")


def _check_snapshot(layout: StoreLayout) -> Finding | None:
    path = layout.journal / SNAPSHOT
    try:
        load_snapshot(layout.journal)
    except UnknownSnapshot as error:
        return _finding(layout, Kind.UNKNOWN_FORMAT, path, "", str(error))
    except (ValueError, RecursionError) as error:
        return _finding(layout, Kind.CORRUPT_SNAPSHOT, path, "", str(error))
    except OSError as error:
        return _finding(layout, Kind.UNREADABLE, path, "", str(error.strerror))
    return None


def _check_timings(layout: StoreLayout) -> Iterator[Finding]:
    """Checks the timings of every device."""
    for name in sorted(_names(layout.timings)):
        if fingerprint_of_results_name(name) is None:
            why = "its name is not that of a device's timings"
            yield _finding(layout, Kind.MISNAMED, layout.timings / name, "", why)
    timings = Timings(layout)
    for fingerprint in timings.fingerprints():
        path = layout.for_timings().results_file(fingerprint)
        try:
            timings.check(fingerprint)
        except UnknownResults as error:
            yield _finding(layout, Kind.UNKNOWN_FORMAT, path, "", str(error))
        except CorruptEntry as error:
            yield _finding(layout, Kind.CORRUPT_TIMINGS, path, "", str(error))
        except (OSError, LockTimeout) as error:
            cause = error.strerror if isinstance(error, OSError) else error
            yield _finding(layout, Kind.UNREADABLE, path, "", str(cause))


def _finding(layout: StoreLayout, kind: Kind, path: Path, key: str, cause: str) -> Finding:
    return Finding(kind, str(path.relative_to(layout.root)), key, cause)


def _names(folder: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(folder)
    return []
