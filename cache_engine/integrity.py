"""Checking a store and mending it. Finding and fixing are apart: ``check`` only reads, ``repair`` only sets aside.

Nothing is deleted unseen: what is damaged goes to ``quarantine/``, except temporaries of writers that have died.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cache_engine.errors import CorruptEntry
from cache_engine.model.key import CacheKey
from cache_engine.stats import CORRUPT, REPAIR
from cache_engine.store.codec import MAX_RECORD_BYTES, UnknownFormat, check_blob, check_key, decode_record
from cache_engine.store.disk import DiskStore
from cache_engine.store.files import read_file
from cache_engine.store.journal import SNAPSHOT, Journal, UnknownSnapshot, load_snapshot
from cache_engine.store.layout import SHARDS, StoreLayout, key_of_blob_name, key_of_record_name
from cache_engine.store.lock import file_lock

# A blob without record, or a temporary, this young may belong to a publish under way.
GRACE_S = 600.0
_LOCK_TIMEOUT_S = 30.0


class Kind(StrEnum):
    """What can be wrong; the value is how people read it."""

    CORRUPT_RECORD = "corrupt record"
    CORRUPT_BLOB = "corrupt blob"
    MISSING_BLOB = "record without blob"
    ORPHAN_BLOB = "blob without record"
    STRAY_FILE = "file that belongs to no entry"
    STALE_TEMPORARY = "temporary of a writer that is gone"
    CORRUPT_SNAPSHOT = "corrupt sums of the journal"
    UNKNOWN_FORMAT = "unknown format version"
    UNREADABLE = "unreadable"


REMEDIES = {
    Kind.CORRUPT_RECORD: "quarantine the entry; it is compiled again when next asked for",
    Kind.CORRUPT_BLOB: "quarantine the entry; it is compiled again when next asked for",
    Kind.MISSING_BLOB: "quarantine the record; the kernel is compiled again when next asked for",
    Kind.ORPHAN_BLOB: "quarantine the blob",
    Kind.STRAY_FILE: "quarantine the file",
    Kind.STALE_TEMPORARY: "delete the file",
    Kind.CORRUPT_SNAPSHOT: "quarantine the file; counts from before it was last written are lost",
    Kind.UNKNOWN_FORMAT: "nothing: it may be a newer version's",
    Kind.UNREADABLE: "nothing: look at its permissions and at the disk",
}
_ENTRY_KINDS = frozenset({Kind.CORRUPT_RECORD, Kind.CORRUPT_BLOB, Kind.MISSING_BLOB})
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
    def repairable(self) -> bool:
        """Whether repair would do anything."""
        return self.kind not in _UNREPAIRED


def check(store: DiskStore, on_entry: Callable[[], None] = lambda: None) -> Iterator[Finding]:
    """Reads every record and blob of a store and yields what is wrong, in the order of the keys. Changes nothing.

    Args:
        on_entry: called after each record.
    """
    layout = store.layout
    for folder in (layout.metadata, layout.kernels):
        for name in sorted(set(_names(folder)) - set(SHARDS)):
            yield _finding(layout, Kind.STRAY_FILE, folder / name, "", "it is not one of the 256 folders of a store")
    for shard in SHARDS:
        referenced: set[str] = set()
        for name in sorted(_names(layout.metadata / shard)):
            finding = _check_record(layout, shard, name, referenced)
            if finding is not None:
                yield finding
            on_entry()
        for name in sorted(_names(layout.kernels / shard)):
            if name not in referenced:
                finding = _check_blob_name(layout, shard, name)
                if finding is not None:
                    yield finding
    for name in sorted(_names(layout.temp)):
        finding = _check_temporary(layout, name)
        if finding is not None:
            yield finding
    finding = _check_snapshot(layout)
    if finding is not None:
        yield finding


def repair(store: DiskStore, journal: Journal, findings: Iterable[Finding]) -> list[Finding]:
    """Does what each finding's remedy says; returns the findings dealt with.

    Findings may be old: each is looked at once more, under its key's lock, and left alone if it holds no longer.

    Raises:
        LockTimeout: when other maintenance is under way.
        OSError: when the disk refuses.
    """
    layout = store.layout
    findings = list(findings)
    done: list[Finding] = []
    with file_lock(layout.maintenance_lock, _LOCK_TIMEOUT_S):
        for finding in findings:
            path = layout.root / finding.path
            if not finding.repairable:
                continue
            key = CacheKey(finding.key)
            with file_lock(layout.key_lock(key), _LOCK_TIMEOUT_S) if key else nullcontext():
                if not _still_holds(layout, finding):
                    continue
                if finding.kind in _ENTRY_KINDS:
                    store.quarantine(key)
                    journal.event(CORRUPT, key=key, detail=f"{finding.kind}: {finding.cause}")
                elif finding.kind is Kind.STALE_TEMPORARY:
                    path.unlink(missing_ok=True)
                else:
                    store.set_aside(path)
            done.append(finding)
        if done:
            journal.event(REPAIR, detail=f"{len(done)} of {len(findings)} findings")
    return done


def _still_holds(layout: StoreLayout, finding: Finding) -> bool:
    path = layout.root / finding.path
    if finding.kind in _ENTRY_KINDS:
        key = CacheKey(finding.key)
        again = _check_record(layout, key[:2], Path(layout.record_path(key)).name, set())
        return again is not None and again.kind in _ENTRY_KINDS
    if finding.kind is Kind.ORPHAN_BLOB:
        # The record may name it by now.
        referenced: set[str] = set()
        _check_record(layout, path.parent.name, f"{finding.key}.json", referenced)
        return path.name not in referenced and _check_blob_name(layout, path.parent.name, path.name) is not None
    if finding.kind is Kind.STALE_TEMPORARY:
        return _check_temporary(layout, path.name) is not None
    if finding.kind is Kind.CORRUPT_SNAPSHOT:
        return _check_snapshot(layout) is not None
    return os.path.lexists(path)


def _check_record(layout: StoreLayout, shard: str, name: str, referenced: set[str]) -> Finding | None:
    """Checks one record with its blob. Names of blobs that are not to be taken for orphans go into ``referenced``."""
    path = layout.metadata / shard / name
    key = key_of_record_name(name, shard)
    if key is None:
        return _finding(layout, Kind.STRAY_FILE, path, "", "its name is not a record's in this place")

    def found(kind: Kind, at: Path, cause: object) -> Finding:
        # Whatever is wrong with a record, its blobs are dealt with together with it.
        referenced.update(blob for blob in _names(layout.kernels / shard) if key_of_blob_name(blob, shard) == key)
        return _finding(layout, kind, at, key, str(cause))

    try:
        data = read_file(path, MAX_RECORD_BYTES + 1)
        if data is None:
            return None  # evicted meanwhile
        if len(data) > MAX_RECORD_BYTES:
            return found(Kind.CORRUPT_RECORD, path, f"it is larger than {MAX_RECORD_BYTES:,} bytes")
        record = decode_record(key, data)
        check_key(record)
    except UnknownFormat as error:
        return found(Kind.UNKNOWN_FORMAT, path, error)
    except CorruptEntry as error:
        return found(Kind.CORRUPT_RECORD, path, error)
    except OSError as error:
        return found(Kind.UNREADABLE, path, error.strerror)
    blob_path = Path(layout.blob_path(key, record.blob.digest))
    referenced.add(blob_path.name)
    try:
        blob = read_file(blob_path, record.blob.stored_bytes + 1)
        if blob is not None:
            check_blob(key, record.blob, blob)
            return None
        if read_file(path, MAX_RECORD_BYTES + 1) != data:
            return _check_record(layout, shard, name, referenced)  # replaced or evicted meanwhile
        return found(Kind.MISSING_BLOB, path, f"{blob_path.name} is not there")
    except CorruptEntry as error:
        return found(Kind.CORRUPT_BLOB, blob_path, error)
    except OSError as error:
        return found(Kind.UNREADABLE, blob_path, error.strerror)


def _check_blob_name(layout: StoreLayout, shard: str, name: str) -> Finding | None:
    """Checks a blob that no record was seen to name."""
    path = layout.kernels / shard / name
    if _is_young(path):
        return None
    key = key_of_blob_name(name, shard)
    if key is None:
        return _finding(layout, Kind.STRAY_FILE, path, "", "its name is not a blob's in this place")
    named = "the record names another blob" if os.path.lexists(layout.record_path(key)) else "no record names it"
    return _finding(layout, Kind.ORPHAN_BLOB, path, key, named)


def _check_temporary(layout: StoreLayout, name: str) -> Finding | None:
    path = layout.temp / name
    if _is_young(path):
        return None
    if path.is_dir() and not path.is_symlink():
        return _finding(layout, Kind.STRAY_FILE, path, "", "nothing here makes folders")
    return _finding(layout, Kind.STALE_TEMPORARY, path, "", f"untouched for more than {GRACE_S:.0f} s")


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


def _finding(layout: StoreLayout, kind: Kind, path: Path, key: str, cause: str) -> Finding:
    return Finding(kind, str(path.relative_to(layout.root)), key, cause)


def _names(folder: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(folder)
    return []


def _is_young(path: Path) -> bool:
    """Whether a file may belong to a publish under way. The clock may have been set back by a little, or by a year."""
    try:
        return abs(time.time() - os.lstat(path).st_mtime) < GRACE_S
    except FileNotFoundError:
        return True
