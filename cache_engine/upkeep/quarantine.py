"""The quarantine: examines its items, restores sound entries, and deletes items.

The name of a file in quarantine has the time when it was moved there and its original name. All files of one key form
one item; any other file is an item of its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cache_engine.errors import CorruptEntry, StoreError
from cache_engine.model.artifact import Record
from cache_engine.model.events import CORRUPT, DISCARD, RESTORE, SET_ASIDE, Event
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import MAX_RECORD_BYTES, UnknownFormat, check_blob, decode_record
from cache_engine.store.disk import DiskStore
from cache_engine.store.files import read_file
from cache_engine.store.journal import Journal, read_journal
from cache_engine.store.layout import key_of_blob_name, key_of_record_name, original_of_quarantined
from cache_engine.store.lock import file_lock
from cache_engine.upkeep.survey import check_code, check_record

_LOCK_TIMEOUT_S = 30.0
# An event is written right after its files were moved.
_SAME_MOMENT_S = 30.0


@dataclass(frozen=True, slots=True)
class File:
    """One file in quarantine: its present and its original name, the time of the move, and its size in bytes.

    The time is in seconds since 1970.
    """

    name: str
    original: str
    set_aside_at: float
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Item:
    """An item in quarantine: all files of ``key``, or one file without an entry, whose ``key`` is empty.

    ``why`` is the journal's reason why the files were quarantined; empty when the journal no longer has it.
    """

    key: str
    files: tuple[File, ...]
    why: str = ""

    @property
    def name(self) -> str:
        """The item's name for commands: its key, else its file's name in quarantine."""
        return self.key or self.files[0].name

    @property
    def set_aside_at(self) -> float:
        """The time when the item's last file was quarantined, in seconds since 1970."""
        return max(file.set_aside_at for file in self.files)

    @property
    def stored_bytes(self) -> int:
        """The sum of the sizes of the item's files, in bytes."""
        return sum(file.stored_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of examining an item.

    Attributes:
        record: the entry's record; ``None`` when it cannot be read.
        cause: why the item cannot be restored; empty if it can.
    """

    record: Record | None
    cause: str


@dataclass(frozen=True, slots=True)
class Discarded:
    """The result of deleting items from quarantine."""

    items: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class _Sound:
    """A record and its blob, verified by checksum, and the names of their files."""

    record: Record
    record_data: bytes
    blob_data: bytes


def items(store: DiskStore) -> list[Item]:
    """All items in quarantine, newest first. Changes nothing."""
    by_name: dict[tuple[str, str], list[File]] = {}
    for file in _files(store):
        key = _key_of(file.original)
        by_name.setdefault((key, "" if key else file.name), []).append(file)
    events = [event for event in read_journal(store.layout.journal).recent if event.kind in (CORRUPT, SET_ASIDE)]
    found = []
    for (key, _), files in by_name.items():
        files.sort(key=lambda file: (-file.set_aside_at, file.name))
        found.append(Item(key, tuple(files), _why(key, files[0], events)))
    return sorted(found, key=lambda item: (-item.set_aside_at, item.name))


def find(store: DiskStore, names: Iterable[str]) -> list[Item]:
    """The items in quarantine with these names or key prefixes, in the order of ``names``.

    Raises:
        StoreError: for the first name that matches no item, or several.
    """
    there = items(store)
    found = []
    for name in names:
        exact = [item for item in there if item.name == name]
        fitting = exact or [item for item in there if len(name) >= 4 and item.key and item.key.startswith(name)]
        if len(fitting) != 1:
            found_words = "no item" if not fitting else f"{len(fitting)} items"
            raise StoreError(f"{found_words} in quarantine named {name!r}; gemm-cache verify --quarantined lists all")
        found += fitting
    return found


def examine(store: DiskStore, item: Item) -> Examined:
    """Checks an item: what it is, and whether it can be restored. Changes nothing."""
    found = _sound(store, item)
    if isinstance(found, Examined):
        return found
    key = CacheKey(item.key)
    try:
        if store.has_unknown_format(key):
            return Examined(found.record, "the existing entry has another format version")
        if store.get(key) is not None:
            return Examined(found.record, "its kernel was recompiled since, and is in the store")
    except (CorruptEntry, OSError):
        pass  # to be replaced
    return Examined(found.record, "")


def restore(store: DiskStore, journal: Journal, item: Item, *, by: str = "") -> None:
    """Restores an entry after verifying every byte, and deletes its files from quarantine.

    Args:
        by: the user who restores, for the audit log.

    Raises:
        StoreError: when the entry does not verify, or the store already has it again.
        LockTimeout: when the entry is being compiled, or other maintenance is running.
        OSError: when writing fails; the entry is then still in quarantine.
    """
    key = CacheKey(item.key)
    with (
        file_lock(store.layout.maintenance_lock, _LOCK_TIMEOUT_S),
        file_lock(store.layout.key_lock(key), _LOCK_TIMEOUT_S),
    ):
        found = _sound(store, item)
        examined = found if isinstance(found, Examined) else examine(store, item)
        if isinstance(found, Examined) or examined.cause:
            raise StoreError(f"cannot restore {item.name[:12]}: {examined.cause}")
        store.place(found.record, found.record_data, found.blob_data)
        size = len(found.record_data) + len(found.blob_data)
        journal.event(RESTORE, key=key, stored_bytes=size, detail="1 entry restored", by=by)
        _delete(store, item)


def discard(store: DiskStore, journal: Journal, unwanted: Iterable[Item], *, by: str = "") -> Discarded:
    """Deletes items permanently. Skips files that are gone or newer than the items.

    Args:
        by: the user who deletes, for the audit log.

    Raises:
        LockTimeout: when other maintenance is running.
        OSError: when deleting fails; the journal has the items that were deleted until then.
    """
    deleted = deleted_bytes = 0
    items = list(unwanted)
    with file_lock(store.layout.maintenance_lock, _LOCK_TIMEOUT_S):
        if items:  # a kill leaves this
            journal.event(DISCARD, detail=f"{len(items)} items in quarantine to delete", by=by)
        try:
            for item in items:
                size = _delete(store, item)
                deleted += size is not None
                deleted_bytes += size or 0
        finally:
            if deleted:
                detail = f"{deleted} items in quarantine"
                journal.event(DISCARD, stored_bytes=deleted_bytes, detail=detail, by=by)
    return Discarded(deleted, deleted_bytes)


def _files(store: DiskStore) -> Iterator[File]:
    folder = store.layout.quarantine
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                original, at = original_of_quarantined(entry.name)
                yield File(entry.name, original, status.st_mtime if at is None else at, status.st_size)


def _key_of(original: str) -> str:
    shard = original[:2]
    return key_of_record_name(original, shard) or key_of_blob_name(original, shard) or ""


def _why(key: str, file: File, events: list[Event]) -> str:
    """The journal's reason why a file was quarantined; finds the event by the file's key or name, and its time."""
    for event in events:
        about = event.key == key if key else event.kind == SET_ASIDE and f"/{file.original}: " in f"/{event.detail}"
        if about and abs(event.at - file.set_aside_at) < _SAME_MOMENT_S:
            return event.detail
    return ""


def _sound(store: DiskStore, item: Item) -> _Sound | Examined:
    """The newest undamaged record of an item with its undamaged blob; or why the item has no such pair."""
    if not item.key:
        return Examined(None, "it is not part of an entry")
    key, folder = CacheKey(item.key), store.layout.quarantine
    record, cause = None, "its record is missing"
    for file in item.files:
        if not key_of_record_name(file.original, key[:2]):
            continue
        try:
            record_data = read_file(folder / file.name, MAX_RECORD_BYTES + 1) or b""
            read = decode_record(key, record_data)
            check_record(read)
            record, blob_name = read, Path(store.layout.blob_path(key, read.blob.digest)).name
            cause = "its blob is missing"
            for blob in item.files:
                if blob.original == blob_name:
                    blob_data = read_file(folder / blob.name, read.blob.stored_bytes + 1) or b""
                    check_code(read, check_blob(key, read.blob, blob_data))
                    return _Sound(read, record_data, blob_data)
        except (CorruptEntry, UnknownFormat) as error:
            cause = str(error)
        except OSError as error:
            cause = f"it cannot be read: {error.strerror}"
    return Examined(record, cause)


def _delete(store: DiskStore, item: Item) -> int | None:
    """Deletes an item's files; returns the sum of their bytes, or ``None`` when no file existed any more."""
    size = None
    for file in item.files:
        path = store.layout.quarantine / file.name
        with suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)  # a folder at the path of a file, quarantined as a whole
            else:
                path.unlink()
            size = (size or 0) + file.stored_bytes
    return size
