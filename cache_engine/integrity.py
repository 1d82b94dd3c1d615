"""Checking a store and mending it. Finding and fixing are apart: ``check`` only reads, ``repair`` only sets aside.

Nothing is deleted unseen: what is damaged goes to ``quarantine/``, except temporaries of writers that have died.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cache_engine.errors import CorruptEntry
from cache_engine.model.key import CacheKey
from cache_engine.stats import CORRUPT, REPAIR
from cache_engine.store.codec import UnknownFormat, check_blob, check_key, decode_record
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.layout import SHARDS, StoreLayout, key_of_blob_name, key_of_record_name
from cache_engine.store.lock import file_lock

# A blob without record, or a temporary, this young may belong to a publish under way.
GRACE_S = 600.0
_LOCK_TIMEOUT_S = 30.0


class Kind(StrEnum):
    """What can be wrong; the value is how people read it."""

    CORRUPT_RECORD = "corrupt record"
    CORRUPT_BLOB = "corrupt blob"
    WRONG_KEY = "components of another key"
    MISSING_BLOB = "record without blob"
    ORPHAN_BLOB = "blob without record"
    STRAY_FILE = "file that belongs to no entry"
    STALE_TEMPORARY = "temporary of a writer that is gone"
    UNKNOWN_FORMAT = "unknown format version"
    UNREADABLE = "unreadable"


REMEDIES = {
    Kind.CORRUPT_RECORD: "quarantine the entry; it is compiled again when next asked for",
    Kind.CORRUPT_BLOB: "quarantine the entry; it is compiled again when next asked for",
    Kind.WRONG_KEY: "quarantine the entry; it is compiled again when next asked for",
    Kind.MISSING_BLOB: "quarantine the record; the kernel is compiled again when next asked for",
    Kind.ORPHAN_BLOB: "quarantine the blob",
    Kind.STRAY_FILE: "quarantine the file",
    Kind.STALE_TEMPORARY: "delete the file",
    Kind.UNKNOWN_FORMAT: "nothing: it may be a newer version's",
    Kind.UNREADABLE: "nothing: look at its permissions and at the disk",
}
_ENTRY_KINDS = frozenset({Kind.CORRUPT_RECORD, Kind.CORRUPT_BLOB, Kind.WRONG_KEY, Kind.MISSING_BLOB})
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
    """Reads every file of a store and yields what is wrong, in the order of the keys. Changes nothing.

    Args:
        on_entry: called after each record.
    """
    layout = store.layout
    now = time.time()
    for shard in SHARDS:
        records = sorted(_names(layout.metadata / shard))
        referenced: set[str] = set()
        for name in records:
            finding = _check_record(layout, shard, name, referenced)
            if finding is not None:
                yield finding
            on_entry()
        # Listed after the records were read, so a blob published meanwhile is young, and skipped below.
        for name in sorted(_names(layout.kernels / shard)):
            path = layout.kernels / shard / name
            if name in referenced or _age_s(path, now) < GRACE_S:
                continue
            key = key_of_blob_name(name, shard)
            if key is None:
                yield _finding(layout, Kind.STRAY_FILE, path, "", "its name is not a blob's in this place")
            elif not os.path.exists(layout.record_path(key)):
                yield _finding(layout, Kind.ORPHAN_BLOB, path, key, "no record names it")
            else:
                yield _finding(layout, Kind.ORPHAN_BLOB, path, key, "the record names another blob")
    for name in sorted(_names(layout.temp)):
        path = layout.temp / name
        if _age_s(path, now) >= GRACE_S:
            yield _finding(layout, Kind.STALE_TEMPORARY, path, "", f"untouched for {_age_s(path, now):.0f} s")


def repair(store: DiskStore, journal: Journal, findings: list[Finding]) -> list[Finding]:
    """Does what each finding's remedy says; returns the findings dealt with.

    Under its key's lock each entry is checked once more, so that one replaced meanwhile is left alone.

    Raises:
        LockTimeout: when other maintenance is under way.
    """
    layout = store.layout
    done: list[Finding] = []
    with file_lock(layout.maintenance_lock, _LOCK_TIMEOUT_S):
        for finding in findings:
            path = layout.root / finding.path
            if not finding.repairable:
                continue
            if finding.kind in _ENTRY_KINDS:
                key = CacheKey(finding.key)
                with file_lock(layout.key_lock(key), _LOCK_TIMEOUT_S):
                    if _check_record(layout, path.parent.name, path.name, set()) is None:
                        continue
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


def _check_record(layout: StoreLayout, shard: str, name: str, referenced: set[str]) -> Finding | None:
    """Checks one record with its blob, whose name it adds to ``referenced``."""
    path = layout.metadata / shard / name
    key = key_of_record_name(name, shard)
    if key is None:
        return _finding(layout, Kind.STRAY_FILE, path, "", "its name is not a record's in this place")
    try:
        data = path.read_bytes()
        record = decode_record(key, data)
    except FileNotFoundError:
        return None  # evicted meanwhile
    except UnknownFormat as error:
        referenced.update(name for name in _names(layout.kernels / shard) if key_of_blob_name(name, shard) == key)
        return _finding(layout, Kind.UNKNOWN_FORMAT, path, key, str(error))
    except CorruptEntry as error:
        referenced.update(name for name in _names(layout.kernels / shard) if key_of_blob_name(name, shard) == key)
        return _finding(layout, Kind.CORRUPT_RECORD, path, key, str(error))
    except OSError as error:
        return _finding(layout, Kind.UNREADABLE, path, key, str(error.strerror))
    try:
        check_key(record)
    except CorruptEntry as error:
        return _finding(layout, Kind.WRONG_KEY, path, key, str(error))
    blob_path = Path(layout.blob_path(key, record.blob.digest))
    referenced.add(blob_path.name)
    try:
        check_blob(key, record.blob, blob_path.read_bytes())
    except FileNotFoundError:
        if not path.exists():
            return None  # evicted meanwhile
        if path.read_bytes() != data:
            return _check_record(layout, shard, name, referenced)  # replaced meanwhile
        return _finding(layout, Kind.MISSING_BLOB, path, key, f"{blob_path.name} is not there")
    except CorruptEntry as error:
        return _finding(layout, Kind.CORRUPT_BLOB, path, key, str(error))
    except OSError as error:
        return _finding(layout, Kind.UNREADABLE, blob_path, key, str(error.strerror))
    return None


def _finding(layout: StoreLayout, kind: Kind, path: Path, key: str, cause: str) -> Finding:
    return Finding(kind, str(path.relative_to(layout.root)), key, cause)


def _names(folder: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return os.listdir(folder)
    return []


def _age_s(path: Path, now: float) -> float:
    """Seconds since the file was written; a time in the future counts as very old, since clocks jump."""
    try:
        age = now - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
    return age if age >= 0 else float("inf")
