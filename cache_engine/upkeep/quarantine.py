"""What was set aside: looking into it, putting it back where it is sound after all, and deleting it.

``store.layout`` names a file there by when it came and by its own name. The files of one key make one item,
whenever each of them came; any other file is an item of its own.
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
from cache_engine.upkeep.contents import check_code, check_record

_LOCK_TIMEOUT_S = 30.0
# An event is written right after the files that it is about were moved.
_SAME_MOMENT_S = 30.0


@dataclass(frozen=True, slots=True)
class File:
    """One file in quarantine: its name there and the one it had, when it was set aside (seconds since 1970), bytes."""

    name: str
    original: str
    set_aside_at: float
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Item:
    """What belongs together: all files of ``key``, or one file of no entry, whose ``key`` is empty.

    ``why`` is what the journal says of it; empty where it no longer does.
    """

    key: str
    files: tuple[File, ...]
    why: str = ""

    @property
    def name(self) -> str:
        """What the item is asked for by: its key, else its file's name in quarantine."""
        return self.key or self.files[0].name

    @property
    def set_aside_at(self) -> float:
        """When the last of its files came."""
        return max(file.set_aside_at for file in self.files)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.stored_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Examined:
    """What an item is, looked at again.

    Attributes:
        record: what is told about the entry; none when that cannot be read.
        cause: why it cannot be put back; empty when it can.
    """

    record: Record | None
    cause: str


@dataclass(frozen=True, slots=True)
class Discarded:
    """What deleting came to."""

    items: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class _Sound:
    """A record and its blob, every byte checked, and the names of their files."""

    record: Record
    record_data: bytes
    blob_data: bytes


def items(store: DiskStore) -> list[Item]:
    """All that is in quarantine, the last set aside first. Changes nothing."""
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
    """The items of these names; a key may be shortened to its first digits.

    Raises:
        StoreError: naming the first that is not there, or is short for several.
    """
    there = items(store)
    found = []
    for name in names:
        exact = [item for item in there if item.name == name]
        fitting = exact or [item for item in there if len(name) >= 4 and item.key and item.key.startswith(name)]
        if len(fitting) != 1:
            trouble = "nothing" if not fitting else f"{len(fitting)} items"
            raise StoreError(f"{trouble} in quarantine goes by {name!r}; gemm-cache quarantine ls lists what is there")
        found += fitting
    return found


def examine(store: DiskStore, item: Item) -> Examined:
    """Looks at an item again: what it is, and whether it could be put back. Changes nothing."""
    found = _sound(store, item)
    if isinstance(found, Examined):
        return found
    key = CacheKey(item.key)
    try:
        if store.is_foreign(key):
            return Examined(found.record, "an entry of another format version is in its place")
        if store.get(key) is not None:
            return Examined(found.record, "its kernel has been compiled again since, and is in the store")
    except (CorruptEntry, OSError):
        pass  # to be replaced
    return Examined(found.record, "")


def restore(store: DiskStore, journal: Journal, item: Item, *, by: str = "") -> None:
    """Puts an entry back, every byte of it checked, and takes its files out of quarantine.

    Args:
        by: who does so, for the audit.

    Raises:
        StoreError: when it does not verify, or the store has the entry again.
        LockTimeout: when it is being compiled, or other maintenance is under way.
        OSError: when the disk refuses; then it is still in quarantine.
    """
    key = CacheKey(item.key)
    with (
        file_lock(store.layout.maintenance_lock, _LOCK_TIMEOUT_S),
        file_lock(store.layout.key_lock(key), _LOCK_TIMEOUT_S),
    ):
        found = _sound(store, item)
        examined = found if isinstance(found, Examined) else examine(store, item)
        if isinstance(found, Examined) or examined.cause:
            raise StoreError(f"{item.name[:12]} cannot be put back: {examined.cause}")
        store.place(found.record, found.record_data, found.blob_data)
        size = len(found.record_data) + len(found.blob_data)
        journal.event(RESTORE, key=key, stored_bytes=size, detail="1 entry put back", by=by)
        _delete(store, item)


def discard(store: DiskStore, journal: Journal, unwanted: Iterable[Item], *, by: str = "") -> Discarded:
    """Deletes items, for good. What has gone meanwhile, or came later, is left out.

    Args:
        by: who does so, for the audit.

    Raises:
        LockTimeout: when other maintenance is under way.
        OSError: when the disk refuses; what was deleted by then is told to the journal.
    """
    deleted = deleted_bytes = 0
    with file_lock(store.layout.maintenance_lock, _LOCK_TIMEOUT_S):
        try:
            for item in unwanted:
                size = _delete(store, item)
                deleted += size is not None
                deleted_bytes += size or 0
        finally:
            if deleted:
                detail = f"{deleted} items of the quarantine"
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
    """What the journal says of a file: of its key, or of its name, at the time it was set aside."""
    for event in events:
        about = event.key == key if key else event.kind == SET_ASIDE and f"/{file.original}: " in f"/{event.detail}"
        if about and abs(event.at - file.set_aside_at) < _SAME_MOMENT_S:
            return event.detail
    return ""


def _sound(store: DiskStore, item: Item) -> _Sound | Examined:
    """The newest record of an item that is sound together with a blob of it, or why there is none."""
    if not item.key:
        return Examined(None, "it is no part of an entry")
    key, folder = CacheKey(item.key), store.layout.quarantine
    record, cause = None, "its record is not there"
    for file in item.files:
        if not key_of_record_name(file.original, key[:2]):
            continue
        try:
            record_data = read_file(folder / file.name, MAX_RECORD_BYTES + 1) or b""
            read = decode_record(key, record_data)
            check_record(read)
            record, blob_name = read, Path(store.layout.blob_path(key, read.blob.digest)).name
            cause = "its blob is not there"
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
    """Deletes an item's files; returns their bytes, or ``None`` when none was there any more."""
    size = None
    for file in item.files:
        path = store.layout.quarantine / file.name
        with suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)  # a folder in the place of a file, set aside whole
            else:
                path.unlink()
            size = (size or 0) + file.stored_bytes
    return size
