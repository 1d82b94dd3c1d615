"""Exports entries of a store to a pack, and imports entries from a pack or from Triton's own cache.

Entries include other frameworks' kernels. Import checks more than a hit does: the whole blob, that the components hash
to the key, that the record agrees with them, and that the code is for its target. Only checked bytes are stored, under
names made from the key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from pathlib import Path

from cache_engine.errors import CorruptEntry, StoreError, UsageError
from cache_engine.frameworks.bundle_facts import describe
from cache_engine.frameworks.bundle_packs import NotTaken, is_group, packed_row, triton_kernels, unpacked_row
from cache_engine.frameworks.bundles import (
    Group,
    UnknownGroup,
    group_bytes,
    group_keys,
    put_group,
    read_group,
    read_stored,
)
from cache_engine.frameworks.values import Entry
from cache_engine.model.artifact import SECTIONS, Record
from cache_engine.model.events import IMPORT
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import UnknownFormat, check_blob, decode_record
from cache_engine.store.disk import DiskStore
from cache_engine.store.files import refuse_device
from cache_engine.store.journal import Journal
from cache_engine.store.lock import file_lock
from cache_engine.store.pack import Pack, Row, write_pack
from cache_engine.store.proofs import hints_of, keep_hints, read_hints
from cache_engine.units import counted, printable
from cache_engine.upkeep.parallel import in_processes, in_threads
from cache_engine.upkeep.survey import check_code, check_record

_LOCK_TIMEOUT_S = 30.0
_SYNCING_THREADS, _MANY = 8, 32  # file systems write what several threads sync at once; a few entries start no threads


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry that was refused, and the reason."""

    key: str
    cause: str


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export. ``unknown_format`` counts entries left out, as only another version reads them."""

    entries: int
    refused: tuple[Refused, ...]
    unknown_format: int = 0


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import or its dry run: imported entries, their bytes, and entries already present.

    ``left`` are the files in another framework's cache that are not kernels.
    """

    taken: int
    taken_bytes: int
    present: int
    refused: tuple[Refused, ...]
    left: tuple[Refused, ...] = ()


@dataclass(frozen=True, slots=True)
class Incoming:
    """An entry of a pack, before its import.

    Attributes:
        record: the entry's record; ``None`` if it cannot be read, or if the kernel is another framework's.
        adapted: the facts about another framework's kernel; ``None`` for ours.
        present: whether the store already has an entry with this key, which an import would leave unchanged.
        refused: why an import would refuse the entry; empty if it is sound.
    """

    key: str
    stored_bytes: int
    record: Record | None
    present: bool = False
    refused: str = ""
    adapted: Entry | None = None

    @property
    def name(self) -> str:
        """The name of the kernel's function; empty if unknown."""
        known = self.record or self.adapted
        return (known.name if known else None) or ""

    @property
    def arch(self) -> str:
        """The kernel's target; empty if unknown."""
        known = self.record or self.adapted
        return (known.arch if known else None) or ""


def export_pack(
    store: DiskStore,
    path: Path,
    wanted: Callable[[Record], bool] = lambda _: True,
    *,
    adapted: Callable[[Group], bool] = lambda _: True,
    keys: Iterable[CacheKey] | None = None,
    replace: bool = False,
    sign: Callable[[bytes], bytes] | None = None,
    host_code: bool = False,
    on_entry: Callable[[], None] = lambda: None,
    processes: int = 1,
) -> Exported:
    """Writes entries to a pack, after checking each.

    Entries that are damaged, or that must stay on this machine, are left out and reported.

    Args:
        wanted: selects entries of ours.
        adapted: selects kernels of other frameworks.
        keys: consider only entries with these keys, not the whole store.
        replace: replace an existing file.
        sign: a function that adds a signature to the bytes of a record; only the pack gets the signed bytes. By default
            nothing is signed.
        host_code: also write CPU object files, which nvcc's launcher has stored, if they are signed.
        on_entry: called after each entry of the store.
        processes: the most child processes that read entries; with 1, this process reads all.

    Raises:
        UsageError: when the file exists, or is a device, pipe or socket.
        OSError: when reading or writing fails.
    """
    if os.path.lexists(path) and not replace:
        raise UsageError(f"{path} exists; give another name, or --force to replace it")
    refuse_device(path)
    refused: list[Refused] = []
    unknown: list[CacheKey] = []
    every = list(merge(store.keys(), group_keys(store.layout)) if keys is None else sorted(set(keys)))

    def read(key: CacheKey) -> tuple[bytes, bytes] | str | None:
        """The signed record and the blob; a reason, if the entry is refused; ``None`` if it is not wanted."""
        try:
            stored = store.unchecked(key)
            if stored is None:
                stored = _adapted_row(store, key, adapted, host_code=host_code and sign is not None)
            elif not wanted(checked(key, *stored)[0]):
                return None
            return None if stored is None else (sign(stored[0]) if sign else stored[0], stored[1])
        except (CorruptEntry, UnknownGroup) as error:
            return str(error)

    def entries() -> Iterator[tuple[CacheKey, bytes, bytes]]:
        found = in_processes(read, every, tuple[bytes, bytes] | str | None, processes)
        for key, stored in zip(every, found, strict=True):
            if isinstance(stored, str):
                refused.append(Refused(key, stored))
            elif stored is not None:
                yield key, *stored
            elif store.has_unknown_format(key):
                unknown.append(key)
            on_entry()

    return Exported(write_pack(path, entries(), hints_of(store.layout)), tuple(refused), len(unknown))


def _adapted_row(
    store: DiskStore, key: CacheKey, wanted: Callable[[Group], bool], *, host_code: bool
) -> tuple[bytes, bytes] | None:
    """Another framework's kernel as a row of a pack; ``None`` if it does not exist or is not wanted."""
    found = read_stored(store.layout, key, trust=store.layout.trust)
    if found is None or not wanted(found.group):
        return None
    return packed_row(found, host_code=host_code)


def import_pack(
    store: DiskStore,
    journal: Journal,
    pack: Pack,
    *,
    dry_run: bool = False,
    host_code: bool = False,
    on_entry: Callable[[], None] = lambda: None,
    by: str = "",
) -> Imported:
    """Imports the entries of a pack into a store. Entries already present stay unchanged.

    Args:
        dry_run: check everything and report what would be imported, but change nothing.
        host_code: also import CPU object files, which nvcc's launcher has stored, if the pack was opened with a check
            of signatures.
        on_entry: called after each entry of the pack.
        by: the user who imports, for the audit log.

    Raises:
        PackUnusable: when the pack's index is damaged.
        OSError: when a disk fails; entries imported so far stay, and are sound.
    """
    taken: list[Row] = []
    present = 0
    refused: list[Refused] = []

    def take(row: Row) -> Refused | bool:
        try:
            is_new = _take(store, pack, row, dry_run, host_code)
        except (StoreError, UnknownFormat) as error:
            return Refused(row.key, str(error))
        taken.extend([row] if is_new else ())
        return is_new

    syncs = store.durable and not dry_run and len(pack) >= _MANY
    try:
        for outcome in in_threads(take, _sound_rows(pack), _SYNCING_THREADS if syncs else 1):
            if isinstance(outcome, Refused):
                refused.append(outcome)
            else:
                present += not outcome
            on_entry()
        refused += _take_hints(store, pack, dry_run)
    finally:
        taken_bytes = sum(row.record_bytes + row.blob_bytes for row in taken)
        if taken and not dry_run:
            detail = f"{len(taken)} entries of {pack.path.name}"
            journal.event(IMPORT, stored_bytes=taken_bytes, detail=detail, by=by)
    return Imported(len(taken), taken_bytes, present, tuple(refused))


def _take_hints(store: DiskStore, pack: Pack, dry_run: bool) -> list[Refused]:
    """Stores a pack's proofs of families as hints; returns the reason if they are refused, else an empty list.

    Stores no hints if signers of packs are checked, because hints are not signed.
    """
    try:
        hints = [] if pack.checks_signers else read_hints(pack.hints() or b"[]")
    except CorruptEntry as error:
        return [Refused("proofs", str(error))]
    if not dry_run:
        keep_hints(store.layout, hints, durable=store.durable)
    return []


def import_triton(
    store: DiskStore,
    journal: Journal,
    directory: Path,
    *,
    durable: bool,
    dry_run: bool = False,
    on_entry: Callable[[], None] = lambda: None,
    by: str = "",
) -> Imported:
    """Imports the kernels of Triton's own cache into a store. Kernels already present stay unchanged.

    Args:
        durable: whether to sync written files to disk.
        dry_run: check everything and report what would be imported, but change nothing.
        on_entry: called after each entry of the cache.
        by: the user who imports, for the audit log.

    Raises:
        OSError: when the directory cannot be read, or a disk fails; kernels imported so far stay, and are sound.
    """
    taken = taken_bytes = present = 0
    refused: list[Refused] = []
    left: list[Refused] = []
    try:
        for found in triton_kernels(directory):
            if isinstance(found, NotTaken):
                (refused if found.is_wrong else left).append(Refused(found.name, found.cause))
            elif _is_readable_group(store, found.key):
                present += 1
            else:
                try:
                    taken_bytes += group_bytes(found) if dry_run else put_group(store.layout, found, durable=durable)
                    taken += 1
                except ValueError as error:
                    refused.append(Refused(found.name, str(error)))
            on_entry()
    finally:
        if taken and not dry_run:
            detail = f"{counted(taken, 'kernel')} of Triton from {printable(str(directory))}"
            journal.event(IMPORT, stored_bytes=taken_bytes, detail=detail, by=by)
    return Imported(taken, taken_bytes, present, tuple(refused), tuple(left))


def _is_readable_group(store: DiskStore, key: CacheKey) -> bool:
    """Whether the store has another framework's kernel with this key, sound or of an unknown format version.

    An import does not replace either.
    """
    try:
        return read_group(store.layout, key, trust=store.layout.trust) is not None
    except UnknownGroup:
        return True
    except CorruptEntry:
        return False


def look_into(store: DiskStore, pack: Pack, *, host_code: bool = False) -> Iterator[Incoming]:
    """Yields for each entry of a pack whether an import would store it, skip it or refuse it. Changes nothing.

    Raises as ``import_pack``.
    """
    for row in _sound_rows(pack):
        record, size = None, row.record_bytes + row.blob_bytes
        try:
            record_data = pack.record_data(row)
            if is_group(record_data):
                allowed = host_code and pack.checks_signers
                known = describe(unpacked_row(row.key, record_data, pack.blob_data(row), host_code=allowed))
                pack.prove(record_data)
                yield Incoming(row.key, size, None, _is_readable_group(store, row.key), adapted=known)
            else:
                record, _ = checked(row.key, record_data, pack.blob_data(row))
                pack.prove(record_data)
                yield Incoming(row.key, size, record, present=_is_present(store, row.key))
        except (StoreError, UnknownFormat) as error:
            yield Incoming(row.key, size, record, refused=str(error))


def _sound_rows(pack: Pack) -> Iterable[Row]:
    # The whole index is checked before any entry is imported.
    for _ in pack.rows():
        pass
    return pack.rows()


def _take(store: DiskStore, pack: Pack, row: Row, dry_run: bool, host_code: bool) -> bool:
    """Checks an entry of a pack and, unless ``dry_run``, stores it; returns whether it was new to the store."""
    record_data = pack.record_data(row)
    pack.prove(record_data)
    blob_data = pack.blob_data(row)
    if is_group(record_data):
        allowed = host_code and pack.checks_signers
        return admit_group(store, row.key, record_data, blob_data, dry_run=dry_run, host_code=allowed)
    return admit(store, row.key, record_data, blob_data, dry_run=dry_run)


def admit_group(
    store: DiskStore, key: CacheKey, record_data: bytes, blob_data: bytes, *, dry_run: bool, host_code: bool
) -> bool:
    """Checks and stores another framework's kernel from outside; returns whether it was new to the store.

    With ``dry_run``, only checks. Without ``host_code``, refuses CPU code. Raises as ``admit``.
    """
    group = unpacked_row(key, record_data, blob_data, host_code=host_code)
    is_new = not _is_readable_group(store, key)
    if is_new and not dry_run:
        put_group(store.layout, group, durable=store.durable)
    return is_new


def admit(store: DiskStore, key: CacheKey, record_data: bytes, blob_data: bytes, *, dry_run: bool = False) -> bool:
    """Checks the bytes of an entry from outside and stores them; returns whether the entry was new to the store.

    Does not check signatures: the caller must know who made the entry.

    Raises:
        StoreError, UnknownFormat: when the entry is refused; the text says why.
        OSError: when the disk fails.
    """
    record, _ = checked(key, record_data, blob_data)
    if dry_run:
        return not _is_present(store, key)
    with file_lock(store.layout.key_lock(key), _LOCK_TIMEOUT_S):
        if _is_present(store, key):
            return False
        store.place(record, record_data, blob_data)
    return True


def checked(
    key: CacheKey, record_data: bytes, blob_data: bytes, sections: Sequence[str] = SECTIONS
) -> tuple[Record, bytes]:
    """The record and the compiled code of an entry, after checking its bytes and that its fields agree.

    Args:
        sections: the sections of the blob to decode and check one by one; the digest covers the others.

    Raises:
        CorruptEntry, UnknownFormat: when the entry must not be served; the text says why.
    """
    record = decode_record(key, record_data)
    check_record(record)
    cubin = check_blob(key, record.blob, blob_data, sections)
    check_code(record, cubin)
    return record, cubin


def _is_present(store: DiskStore, key: CacheKey) -> bool:
    """Whether the store has an entry with this key; raises ``StoreError`` if that entry has another format version."""
    if store.has_unknown_format(key):
        raise StoreError("the existing entry has another format version")
    try:
        return store.get(key) is not None
    except CorruptEntry:
        return False  # to be replaced
