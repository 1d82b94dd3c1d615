"""Taking entries out of a store into a pack, and in again.

What comes in is checked as a hit would be, and more: the whole blob, that the components hash to the key, that the
record says what they say, and that the code is for its target. Nothing but checked bytes is stored, under names made
from the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cache_engine.errors import CorruptEntry, StoreError, UsageError
from cache_engine.model.artifact import CUBIN, Record
from cache_engine.model.events import IMPORT
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import UnknownFormat, check_blob, decode_record, decode_section
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.lock import file_lock
from cache_engine.store.pack import Pack, Row, write_pack
from cache_engine.upkeep.contents import check_code, check_entry, check_record

_LOCK_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry that was not taken, and why."""

    key: str
    cause: str


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export came to."""

    entries: int
    refused: tuple[Refused, ...]


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import came to, or would come to: entries taken in, with their bytes, and those there before."""

    taken: int
    taken_bytes: int
    present: int
    refused: tuple[Refused, ...]


@dataclass(frozen=True, slots=True)
class Incoming:
    """An entry of a pack, before it is taken in.

    Attributes:
        record: what is told about it; none when that cannot be read.
        present: whether the store has it already, so that it stays as it is.
        refused: why it would not be taken; empty when nothing is wrong.
    """

    key: str
    stored_bytes: int
    record: Record | None
    present: bool = False
    refused: str = ""


def export_pack(
    store: DiskStore,
    path: Path,
    wanted: Callable[[Record], bool] = lambda _: True,
    *,
    keys: Iterable[CacheKey] | None = None,
    replace: bool = False,
    on_entry: Callable[[], None] = lambda: None,
) -> Exported:
    """Writes entries to a pack, each checked. What is damaged is left out, and said.

    Args:
        wanted: tells which entries.
        keys: look at these alone, not at the whole store.
        replace: take the place of a file that is there.
        on_entry: called after each entry of the store.

    Raises:
        UsageError: when the file is there already.
        OSError: when the disk refuses.
    """
    if path.exists() and not replace:
        raise UsageError(f"{path} is there already; give another name, or --force to replace it")
    refused: list[Refused] = []

    def entries() -> Iterator[tuple[CacheKey, bytes, bytes]]:
        for key in store.keys() if keys is None else sorted(set(keys)):
            try:
                stored = store.stored(key)
                if stored is not None and wanted(_coherent(key, *stored)):
                    yield key, *stored
            except CorruptEntry as error:
                refused.append(Refused(key, str(error)))
            on_entry()

    return Exported(write_pack(path, entries()), tuple(refused))


def import_pack(
    store: DiskStore,
    journal: Journal,
    pack: Pack,
    *,
    dry_run: bool = False,
    on_entry: Callable[[], None] = lambda: None,
    by: str = "",
) -> Imported:
    """Takes the entries of a pack into a store. One that is there already stays as it is.

    Args:
        dry_run: check everything and say what would be taken in, and change nothing.
        on_entry: called after each entry of the pack.
        by: who takes them in, for the audit.

    Raises:
        PackUnusable: when its index is damaged.
        OSError: when a disk fails; what was taken in so far stays, and is sound.
    """
    taken = taken_bytes = present = 0
    refused: list[Refused] = []
    try:
        for row in _sound_rows(pack):
            try:
                if _take(store, pack, row, dry_run):
                    taken += 1
                    taken_bytes += row.record_bytes + row.blob_bytes
                else:
                    present += 1
            except (StoreError, UnknownFormat) as error:
                refused.append(Refused(row.key, str(error)))
            on_entry()
    finally:
        if taken and not dry_run:
            detail = f"{taken} entries of {pack.path.name}"
            journal.event(IMPORT, stored_bytes=taken_bytes, detail=detail, by=by)
    return Imported(taken, taken_bytes, present, tuple(refused))


def look_into(store: DiskStore, pack: Pack, on_entry: Callable[[], None] = lambda: None) -> Iterator[Incoming]:
    """What importing a pack would do with each of its entries. Changes nothing; raises as ``import_pack``."""
    for row in _sound_rows(pack):
        record, size = None, row.record_bytes + row.blob_bytes
        try:
            record = _checked(row.key, pack.record_data(row), pack.blob_data(row))
            yield Incoming(row.key, size, record, present=_is_present(store, row.key))
        except (StoreError, UnknownFormat) as error:
            yield Incoming(row.key, size, record, refused=str(error))
        on_entry()


def _sound_rows(pack: Pack) -> Iterable[Row]:
    # All of the index is checked before any entry is taken.
    for _ in pack.rows():
        pass
    return pack.rows()


def _take(store: DiskStore, pack: Pack, row: Row, dry_run: bool) -> bool:
    """Checks an entry and makes it part of the store; returns whether it was new to it."""
    record_data, blob_data = pack.record_data(row), pack.blob_data(row)
    record, key = _checked(row.key, record_data, blob_data), row.key
    if dry_run:
        return not _is_present(store, key)
    with file_lock(store.layout.key_lock(key), _LOCK_TIMEOUT_S):
        if _is_present(store, key):
            return False
        store.place(record, record_data, blob_data)
    return True


def _coherent(key: CacheKey, record_data: bytes, blob_data: bytes) -> Record:
    """The record of an entry whose bytes were checked, once what they say is, too."""
    record = decode_record(key, record_data)
    check_entry(record, decode_section(key, record.blob, CUBIN, blob_data))
    return record


def _checked(key: CacheKey, record_data: bytes, blob_data: bytes) -> Record:
    """The record of an entry whose bytes, and what they say, are all checked."""
    record = decode_record(key, record_data)
    check_record(record)
    check_code(record, check_blob(key, record.blob, blob_data))
    return record


def _is_present(store: DiskStore, key: CacheKey) -> bool:
    """Whether the store has the entry, or one of another format version in its place."""
    if store.is_foreign(key):
        raise StoreError("an entry of another format version is in its place")
    try:
        return store.get(key) is not None
    except CorruptEntry:
        return False  # to be replaced
