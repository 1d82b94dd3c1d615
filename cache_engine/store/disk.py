"""The disk tier: one blob and one record per entry. ``layout`` has the paths, ``codec`` the bytes.

Publishing writes the blob, then the record, which commits the entry. Deleting goes in the opposite order. A blob's file
name contains its digest, so replacing an entry adds a blob and swaps the record: no reader can combine the record of
one writer with the bytes of another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from cache_engine.errors import CorruptEntry, KeyNotFound, StoreError
from cache_engine.model.artifact import CUBIN, Artifact, Blob, Record
from cache_engine.model.key import CacheKey, check_prefix
from cache_engine.store import codec
from cache_engine.store.base import Loaded
from cache_engine.store.files import move_to_quarantine, read_file, refuse_link, shards_in
from cache_engine.store.layout import StoreLayout, key_of_blob_name, key_of_record_name
from cache_engine.store.opening import open_store as open_store  # noqa: PLC0414 -- who has a store looks here
from cache_engine.store.publish import publish_file


class DiskStore:
    """A disk tier: the entries of one store."""

    name = "disk"

    def __init__(self, layout: StoreLayout, *, durable: bool = True, compress: bool = True) -> None:
        """Uses a directory that ``open_store`` has checked.

        Args:
            durable: whether to sync files to disk before they count as published.
            compress: whether to compress new blobs.
        """
        self.layout = layout
        self.durable = durable
        self._compress = compress

    def get(self, key: CacheKey) -> Loaded | None:
        """The entry, every byte checked; ``None`` when the store has none.

        Raises:
            CorruptEntry: when the entry must not be served.
            OSError: when the disk fails.
        """
        found = self._read(key, _code_end)
        if found is None:
            return None
        _, record, data = found
        return Loaded(record, codec.decode_section(key, record.blob, CUBIN, data))

    def record(self, key: CacheKey) -> Record | None:
        """The entry's record, checked; ``None`` when the store has none, or one of another format version.

        Raises:
            CorruptEntry: when the record is damaged.
        """
        data = self._record_data(key)
        with suppress(codec.UnknownFormat):
            return None if data is None else codec.decode_record(key, data)
        return None

    def stored(self, key: CacheKey) -> tuple[bytes, bytes] | None:
        """The bytes of an entry's record and of its blob, both checked; ``None`` as for ``record``.

        Raises:
            CorruptEntry: when the entry is damaged.
            OSError: when the disk fails.
        """
        found = self._read(key, _whole_and_more)
        if found is None:
            return None
        record_data, record, blob_data = found
        codec.check_key(record)
        codec.check_blob(key, record.blob, blob_data)
        return record_data, blob_data

    def unchecked(self, key: CacheKey) -> tuple[bytes, bytes] | None:
        """The bytes of an entry's record and of its blob; only the record's checksum is checked, not the blob."""
        found = self._read(key, _whole_and_more)
        return None if found is None else (found[0], found[2])

    def has_unknown_format(self, key: CacheKey) -> bool:
        """Whether the entry has a format version that this program does not know.

        Such an entry is not read or replaced.
        """
        return self.foreign_format(key) is not None

    def foreign_format(self, key: CacheKey) -> int | None:
        """The entry's format version if this program does not know it; else ``None``."""
        try:
            data = read_file(self.layout.record_path(key), codec.MAX_RECORD_BYTES, trust=self.layout.trust)
            if data is not None:
                codec.decode_record(key, data)
        except codec.UnknownFormat as error:
            return error.version
        except (CorruptEntry, OSError):
            return None
        return None

    def format(self, key: CacheKey) -> int | None:
        """The format version that an entry's record states; ``None`` if it cannot be read."""
        with suppress(OSError):
            data = self._record_data(key)
            return None if data is None else codec.format_of(data)
        return None

    def section(self, record: Record, name: str) -> bytes:
        """The content of one section of an entry's blob: ``ptx``, ``source``, ….

        Raises:
            CorruptEntry: when the section is missing or damaged.
        """
        key = CacheKey(record.key)
        path = self.layout.blob_path(key, record.blob.digest)
        data = read_file(path, record.blob.stored_bytes, trust=self.layout.trust)
        if data is None:
            raise CorruptEntry(f"blob of {key[:12]} is missing")
        return codec.decode_section(key, record.blob, name, data)

    def publish(self, key: CacheKey, artifact: Artifact, describe: Callable[[Blob], Record]) -> Record:
        """Creates or replaces an entry. The caller must hold the key's lock.

        Args:
            describe: a function that makes the record from the description of the blob.

        Raises:
            OSError: when writing fails; then nothing has changed, except that a blob without a record may be left,
                which ``verify`` finds. If only the last sync failed, the entry exists but may not survive a power cut.
            StoreError: when the existing entry has another format version.
        """
        if self.has_unknown_format(key):
            raise StoreError("the existing entry has another format version")
        data, blob = codec.encode_blob(key, artifact, compress=self._compress)
        record = describe(blob)
        self.place(record, codec.encode_record(record), data)
        return record

    def place(self, record: Record, record_data: bytes, blob_data: bytes) -> None:
        """Creates or replaces an entry from bytes that the caller has checked. The caller must hold the key's lock."""
        key = CacheKey(record.key)
        path, record_path = self.layout.blob_path(key, record.blob.digest), self.layout.record_path(key)
        if not self.layout.trust:
            refuse_link(os.path.dirname(path))
            refuse_link(os.path.dirname(record_path))
        publish_file(self.layout.temp, path, blob_data, durable=self.durable)
        publish_file(self.layout.temp, record_path, record_data, durable=self.durable)
        for replaced in self._blobs(key):
            if replaced != path:
                with suppress(OSError):
                    os.unlink(replaced)

    def delete(self, key: CacheKey) -> int:
        """Deletes an entry, its record first, or a bundle of another framework. Returns the bytes freed.

        The caller must hold the key's lock.
        """
        freed = 0
        for path in (self.layout.record_path(key), *self._blobs(key), self.layout.group_path(key)):
            with suppress(FileNotFoundError):
                size = os.stat(path).st_size
                os.unlink(path)
                freed += size
        return freed

    def quarantine(self, key: CacheKey) -> None:
        """Moves an entry to quarantine, its record first. The caller must hold the key's lock."""
        for path in (self.layout.record_path(key), *self._blobs(key)):
            self.quarantine_file(Path(path))

    def quarantine_file(self, path: Path) -> None:
        """Moves one file to quarantine, under a unique name that contains the original name."""
        move_to_quarantine(self.layout, path)

    def keys(self, start: str = "") -> Iterator[CacheKey]:
        """The keys of all records, sorted.

        Reads only file names. With ``start``, two digits, only keys that begin with these.
        """
        for shard in [start] if start else shards_in(self.layout.metadata, links=self.layout.trust):
            with suppress(FileNotFoundError, NotADirectoryError):
                for name in sorted(os.listdir(self.layout.metadata / shard)):
                    key = key_of_record_name(name, shard)
                    if key is not None:
                        yield key

    def find(self, prefix: str) -> Record:
        """The record whose key starts with ``prefix``.

        Raises:
            UsageError: when it cannot be the start of a key.
            KeyNotFound: when no entry or several match.
        """
        wanted = check_prefix(prefix)
        keys = [key for key in self.keys(wanted[:2]) if key.startswith(wanted)]
        if not keys:
            raise KeyNotFound(f"no kernel has key prefix {wanted}")
        if len(keys) > 1:
            raise KeyNotFound(f"{len(keys)} kernels have key prefix {wanted}; give more digits")
        record = self.record(keys[0])
        if record is None:
            raise KeyNotFound(f"kernel {wanted} was written by an incompatible version of this program")
        return record

    def records(self) -> Iterator[Record]:
        """All readable records, in the order of their keys."""
        for key in self.keys():
            with suppress(CorruptEntry, OSError):
                record = self.record(key)
                if record is not None:
                    yield record

    def _read(self, key: CacheKey, how_much: Callable[[Record], int]) -> tuple[bytes, Record, bytes] | None:
        """The bytes of an entry's record, the record, and the first bytes of its blob; ``None`` as for ``record``.

        Args:
            how_much: returns, given the record, the number of bytes of the blob to read.
        """
        seen = None
        while True:
            data = self._record_data(key)
            if data is None:
                return None
            try:
                record = codec.decode_record(key, data)
            except codec.UnknownFormat:
                return None
            path = self.layout.blob_path(key, record.blob.digest)
            blob_data = read_file(path, how_much(record), trust=self.layout.trust)
            if blob_data is not None:
                return data, record, blob_data
            # Evicted or replaced between the two reads, maybe repeatedly. The blob is missing only if the record did
            # not change in between.
            earlier, seen = seen, self._stamp(key)
            if seen is not None and seen == earlier:
                raise CorruptEntry(f"blob of {key[:12]} is missing")

    def _record_data(self, key: CacheKey) -> bytes | None:
        data = read_file(self.layout.record_path(key), codec.MAX_RECORD_BYTES + 1, trust=self.layout.trust)
        if data is not None and len(data) > codec.MAX_RECORD_BYTES:
            raise CorruptEntry(f"record of {key[:12]} is larger than {codec.MAX_RECORD_BYTES:,} bytes")
        return data

    def _stamp(self, key: CacheKey) -> tuple[int, int] | None:
        """The identity of a record's file, which changes when the file is replaced; ``None`` if there is no file."""
        with suppress(FileNotFoundError):
            status = os.lstat(self.layout.record_path(key))
            return status.st_ino, status.st_mtime_ns
        return None

    def _blobs(self, key: CacheKey) -> list[str]:
        """The paths of all blobs of a key: the one that its record names, and those that a killed process left."""
        folder = self.layout.kernels / key[:2]
        with suppress(FileNotFoundError, NotADirectoryError):
            return [f"{folder}/{name}" for name in os.listdir(folder) if key_of_blob_name(name, key[:2]) == key]
        return []


def _code_end(record: Record) -> int:
    code = record.blob.sections[CUBIN]
    return code.offset + code.stored_bytes


def _whole_and_more(record: Record) -> int:
    # One byte more, to see whether the file is longer.
    return record.blob.stored_bytes + 1
