"""The disk tier: one blob and one record per entry. See ``layout`` for where, ``codec`` for what.

Publishing writes the blob, then the record; the record is the commit. Deleting goes the other way. A blob's file name
carries its own digest, so replacing an entry adds a blob and swaps the record: no reader can meet the record of one
writer with the bytes of another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from cache_engine.errors import CorruptEntry, KeyNotFound, LockTimeout, StoreError, StoreUnusable, Untrusted
from cache_engine.model.artifact import CUBIN, Artifact, Blob, Record
from cache_engine.model.key import CacheKey, check_prefix
from cache_engine.store.base import Loaded
from cache_engine.store.codec import (
    FORMAT,
    LIKELY_BYTES,
    MAX_RECORD_BYTES,
    UnknownFormat,
    check_blob,
    check_key,
    decode_record,
    decode_section,
    encode_blob,
    encode_record,
)
from cache_engine.store.files import move_to_quarantine, read_file
from cache_engine.store.layout import SHARDS, StoreLayout, key_of_blob_name, key_of_record_name
from cache_engine.store.lock import make_lock_file
from cache_engine.store.ownership import check_file, open_folder, open_way
from cache_engine.store.publish import publish_file

_KIND = "gemm-cache store"
_ONLY_YOU = (
    "a store is for one user: name a directory that only you and root may write (chmod go-w on what is yours), export "
    "a pack to share kernels, or set GEMM_CACHE_TRUST_STORE=1 to use it as it is"
)


class _Marker(msgspec.Struct):
    kind: str
    format: int


class DiskStore:
    """Entries in a directory."""

    name = "disk"

    def __init__(self, layout: StoreLayout, *, durable: bool = True, compress: bool = True) -> None:
        """Serves a directory that ``open_store`` has checked."""
        self.layout = layout
        self._durable = durable
        self._compress = compress

    def get(self, key: CacheKey) -> Loaded | None:
        """The entry, every byte checked; ``None`` when there is none.

        Raises:
            CorruptEntry: when there is one that must not be served.
            OSError: when the disk fails.
        """
        found = self._read(key, _code_end)
        if found is None:
            return None
        _, record, data = found
        return Loaded(record, decode_section(key, record.blob, CUBIN, data))

    def record(self, key: CacheKey) -> Record | None:
        """The entry's record, checked; ``None`` when there is none, or it is of another format version.

        Raises:
            CorruptEntry: when it is damaged.
        """
        data = self._record_data(key)
        with suppress(UnknownFormat):
            return None if data is None else decode_record(key, data)
        return None

    def stored(self, key: CacheKey) -> tuple[bytes, bytes] | None:
        """The bytes of an entry's record and blob, all of them checked; ``None`` as for ``record``.

        Raises:
            CorruptEntry: when it is damaged.
            OSError: when the disk fails.
        """
        found = self._read(key, _whole_and_more)
        if found is None:
            return None
        record_data, record, blob_data = found
        check_key(record)
        check_blob(key, record.blob, blob_data)
        return record_data, blob_data

    def is_foreign(self, key: CacheKey) -> bool:
        """Whether the entry is of another format version: then it is neither read nor replaced nor deleted."""
        try:
            data = read_file(self.layout.record_path(key), MAX_RECORD_BYTES, trust=self.layout.trust)
            if data is not None:
                decode_record(key, data)
        except UnknownFormat:
            return True
        except (CorruptEntry, OSError):
            return False
        return False

    def section(self, record: Record, name: str) -> bytes:
        """One of the artifact's parts (``ptx``, ``source``, …).

        Raises:
            CorruptEntry: when it is missing or damaged.
        """
        key = CacheKey(record.key)
        path = self.layout.blob_path(key, record.blob.digest)
        data = read_file(path, record.blob.stored_bytes, trust=self.layout.trust)
        if data is None:
            raise CorruptEntry(f"blob of {key[:12]} is missing")
        return decode_section(key, record.blob, name, data)

    def publish(self, key: CacheKey, artifact: Artifact, describe: Callable[[Blob], Record]) -> Record:
        """Makes an entry, or replaces it. To be called under the key's lock.

        Args:
            describe: makes the record, given what to say of the blob.

        Raises:
            OSError: when the disk refuses; then nothing has changed but, at most, an orphan blob left for ``verify``.
                If it refused no more than the last sync, the entry is there but may not outlive a power cut.
            StoreError: when an entry of another format version is in its place.
        """
        if self.is_foreign(key):
            raise StoreError("an entry of another format version is in its place")
        data, blob = encode_blob(key, artifact, compress=self._compress)
        record = describe(blob)
        self.place(record, encode_record(record), data)
        return record

    def place(self, record: Record, record_data: bytes, blob_data: bytes) -> None:
        """Makes an entry of bytes that were checked, or replaces it. To be called under the key's lock.

        Raises:
            OSError: as ``publish``.
        """
        key = CacheKey(record.key)
        path = self.layout.blob_path(key, record.blob.digest)
        publish_file(self.layout.temp, path, blob_data, durable=self._durable)
        publish_file(self.layout.temp, self.layout.record_path(key), record_data, durable=self._durable)
        for replaced in self._blobs(key):
            if replaced != path:
                with suppress(OSError):
                    os.unlink(replaced)

    def delete(self, key: CacheKey) -> int:
        """Removes an entry, the record first; returns the bytes freed. To be called under the key's lock."""
        freed = 0
        for path in (self.layout.record_path(key), *self._blobs(key)):
            with suppress(FileNotFoundError):
                size = os.stat(path).st_size
                os.unlink(path)
                freed += size
        return freed

    def quarantine(self, key: CacheKey) -> None:
        """Sets an entry aside to be looked at, the record first. To be called under the key's lock."""
        for path in (self.layout.record_path(key), *self._blobs(key)):
            self.set_aside(Path(path))

    def set_aside(self, path: Path) -> None:
        """Moves one file into quarantine, under a name that keeps its own and is never taken."""
        move_to_quarantine(self.layout, path)

    def keys(self, start: str = "") -> Iterator[CacheKey]:
        """The keys of all records, in order, without reading any; with ``start``, two digits, of those that have it."""
        for shard in (start,) if start else SHARDS:
            with suppress(FileNotFoundError, NotADirectoryError):
                for name in sorted(os.listdir(self.layout.metadata / shard)):
                    key = key_of_record_name(name, shard)
                    if key is not None:
                        yield key

    def find(self, prefix: str) -> Record:
        """The record whose key starts with ``prefix``.

        Raises:
            UsageError: when it cannot be the start of a key.
            KeyNotFound: when no entry or several have it.
        """
        wanted = check_prefix(prefix)
        keys = [key for key in self.keys(wanted[:2]) if key.startswith(wanted)]
        if not keys:
            raise KeyNotFound(f"no entry has a key that starts with {wanted}")
        if len(keys) > 1:
            raise KeyNotFound(f"{len(keys)} entries have a key that starts with {wanted}; give more digits")
        record = self.record(keys[0])
        if record is None:
            raise KeyNotFound(f"the entry of {wanted} was made by another version of this program")
        return record

    def records(self) -> Iterator[Record]:
        """All readable records, in the order of their keys."""
        for key in self.keys():
            with suppress(CorruptEntry, OSError):
                record = self.record(key)
                if record is not None:
                    yield record

    def _read(self, key: CacheKey, how_much: Callable[[Record], int]) -> tuple[bytes, Record, bytes] | None:
        """A record's bytes, the record, and the first ``how_much`` bytes of its blob; ``None`` as for ``record``."""
        seen = None
        while True:
            data = self._record_data(key)
            if data is None:
                return None
            try:
                record = decode_record(key, data)
            except UnknownFormat:
                return None
            wanted = how_much(record)
            path = self.layout.blob_path(key, record.blob.digest)
            blob_data = read_file(path, wanted, min(wanted, LIKELY_BYTES), trust=self.layout.trust)
            if blob_data is not None:
                return data, record, blob_data
            # Evicted or replaced between the two reads, maybe again and again. It is missing only if the same record
            # was in its place all the while.
            earlier, seen = seen, self._stamp(key)
            if seen is not None and seen == earlier:
                raise CorruptEntry(f"blob of {key[:12]} is missing")

    def _record_data(self, key: CacheKey) -> bytes | None:
        data = read_file(self.layout.record_path(key), MAX_RECORD_BYTES + 1, trust=self.layout.trust)
        if data is not None and len(data) > MAX_RECORD_BYTES:
            raise CorruptEntry(f"record of {key[:12]} is larger than {MAX_RECORD_BYTES:,} bytes")
        return data

    def _stamp(self, key: CacheKey) -> tuple[int, int] | None:
        """What tells a record's file from any other in its place; ``None`` when there is none."""
        with suppress(FileNotFoundError):
            status = os.lstat(self.layout.record_path(key))
            return status.st_ino, status.st_mtime_ns
        return None

    def _blobs(self, key: CacheKey) -> list[str]:
        """All blobs of a key: the one its record names, and any that a kill left behind."""
        folder = self.layout.kernels / key[:2]
        with suppress(FileNotFoundError, NotADirectoryError):
            return [f"{folder}/{name}" for name in os.listdir(folder) if key_of_blob_name(name, key[:2]) == key]
        return []


def _code_end(record: Record) -> int:
    code = record.blob.sections[CUBIN]
    return code.offset + code.stored_bytes


def _whole_and_more(record: Record) -> int:
    # One byte more, to see whether there is any.
    return record.blob.stored_bytes + 1


def open_store(directory: Path, *, trust: bool = False, create: bool = True) -> StoreLayout:
    """Checks that a directory is a store, making it one when it does not exist or is empty.

    Args:
        trust: accept a store that anyone but you and root can change.
        create: make it when there is none.

    Raises:
        StoreUnusable: naming what is wrong and what would do.
    """
    layout = StoreLayout(directory.absolute(), trust=trust)
    try:
        str(layout.root).encode()
    except UnicodeEncodeError as error:
        raise StoreUnusable(f"the path {os.fsencode(layout.root)!r} is not UTF-8; give another directory") from error
    try:
        if not _has_marker(layout):
            _check_free(layout)
            if not create:
                raise StoreUnusable(f"there is no store in {layout.root}; gemm-cache compile or sample would make one")
            _make(layout)
        _check_folders(layout)
        _check_marker(layout)
    except Untrusted as error:
        raise StoreUnusable(f"{error}; {_ONLY_YOU}") from error
    except OSError as error:
        raise StoreUnusable(
            f"cannot use {layout.root} as a store: {error.strerror or error}; name a directory that you may write with "
            "--store or GEMM_CACHE_DIR"
        ) from error
    return layout


def _check_free(layout: StoreLayout) -> None:
    if not layout.root.exists():
        return
    if not layout.root.is_dir():
        raise StoreUnusable(f"{layout.root} is a file; a store is a directory")
    # What a store may hold is no stranger: its making may have been cut short, its marker lost, or another process be
    # making it just now.
    own = {path.name for path in (*layout.folders, layout.timings, *layout.single_files)}
    strangers = sorted({path.name for path in layout.root.iterdir()} - own)
    if strangers:
        raise StoreUnusable(f"{layout.root} holds {strangers[0]!r} and is not a store; give an empty or new directory")


def _has_marker(layout: StoreLayout) -> bool:
    """Whether there is one; a directory without it is checked first, as whose it is may be why."""
    try:
        if layout.marker.exists():
            return True
    except PermissionError:
        os.close(_open_root(layout))
        raise
    if layout.root.is_dir():
        os.close(_open_root(layout))
    return False


def _make(layout: StoreLayout) -> None:
    if layout.trust:
        layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    root = _open_root(layout, make=True)
    try:
        for folder in layout.folders:
            with suppress(FileExistsError):
                os.mkdir(folder.name, 0o700, dir_fd=root)
    finally:
        os.close(root)
    _check_folders(layout)
    publish_file(layout.temp, str(layout.marker), msgspec.json.encode(_Marker(_KIND, FORMAT)), durable=True)


def _open_root(layout: StoreLayout, *, make: bool = False) -> int:
    """A descriptor of the store's directory, which is checked with every folder on the way to it."""
    if layout.trust:
        return os.open(layout.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    root = open_way(layout.root, make=make)
    try:
        status = os.fstat(root)
        check_file(layout.root, status)
        if status.st_uid != os.geteuid():
            raise Untrusted(f"{layout.root} belongs to user {status.st_uid}, not to you")
    except BaseException:
        os.close(root)
        raise
    return root


def _check_folders(layout: StoreLayout) -> None:
    """Checks the folders, and makes those that were lost, as empty ones are by some ways of copying."""
    root = _open_root(layout)
    try:
        for folder in (*layout.folders, layout.timings):
            try:
                os.close(open_folder(folder, within=root, trust=layout.trust))
            except FileNotFoundError:
                if folder != layout.timings:
                    with suppress(OSError):  # a read-only store serves what it has
                        os.mkdir(folder.name, 0o700, dir_fd=root)
    finally:
        os.close(root)
    for lock in (layout.maintenance_lock, layout.jobs_lock, layout.mirror_lock):
        # Cleaning must need no new file on a disk that has no room for one.
        if not os.path.exists(lock):
            with suppress(OSError, LockTimeout):
                make_lock_file(lock)


def _check_marker(layout: StoreLayout) -> None:
    try:
        data = read_file(layout.marker, MAX_RECORD_BYTES, trust=layout.trust)
        marker = msgspec.json.decode(data or b"", type=_Marker)
    except Untrusted:
        raise
    except (CorruptEntry, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreUnusable(f"{layout.marker} cannot be read as the marker of a store: {error}") from error
    if marker.kind != _KIND:
        raise StoreUnusable(f"{layout.root} is a {marker.kind!r}, not a {_KIND}; give another directory")
    if marker.format != FORMAT:
        raise StoreUnusable(
            f"{layout.root} is a store of format {marker.format}; this program knows {FORMAT}. "
            "Give another directory, or use the version that made it"
        )
