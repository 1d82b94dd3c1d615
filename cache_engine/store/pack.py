"""The pack tier: precompiled entries in one read-only file.

::

    header    64 bytes: magic, format version, number of entries, offset of the index, the index's SHA-256
    entries   each a record and a blob, the same bytes as in a store; or those of ``frameworks.bundle_packs``
    made with how the entries were made: JSON, then its size, its SHA-256 and a magic; older packs have none
    index     48 bytes per entry, sorted by key: key, offset of its bytes, bytes of record and of blob

A pack contains no names and no paths, so importing one cannot write outside the store. A lookup bisects the index in
the file; opening a pack of a million entries reads 64 bytes. An older program skips the part ``made with``, because no
row of the index refers to it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import struct
import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from cache_engine.errors import CorruptEntry, PackUnusable, Untrusted
from cache_engine.model.artifact import CUBIN, Count, Record
from cache_engine.model.fingerprint import Provenance
from cache_engine.model.key import CacheKey
from cache_engine.process import OwnFile
from cache_engine.store.base import Loaded
from cache_engine.store.codec import (
    MAX_RECORD_BYTES,
    UnknownFormat,
    check_blob,
    components_of,
    decode_record,
    decode_section,
)
from cache_engine.store.ownership import check_file, open_way
from cache_engine.store.publish import sync_folder

SUFFIX = ".gemmpack"
FORMAT = 1

_MAGIC = b"GEMMPACK"
_ONLY_YOU = (
    "only you and root may be able to change a pack: run chmod go-w on what is yours, copy the pack to a folder of "
    "your own if you trust it, or set GEMM_CACHE_TRUST_STORE=1 to use it without this check"
)
_HEADER = struct.Struct("<8sHHIQQ32s")
_ROW = struct.Struct("<32sQII")
_MADE_WITH = struct.Struct("<Q32s8s")
_MADE_WITH_MAGIC = b"GEMMMADE"
_MOST_MADE_WITH_BYTES = 1024**2  # enough for a thousand toolchains
_HINTS = struct.Struct("<8sQ32s")
_HINTS_MAGIC = b"GEMMHINT"
_MOST_HINTS_BYTES = 1024**2
_MOST_READ = 10_000  # records of a pack that does not say how they were made

_encode = msgspec.json.Encoder().encode
_decode_made_with = msgspec.json.Decoder(list[tuple[Provenance, Count]]).decode


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a pack's index: a key, and the position and sizes of its record and blob in bytes."""

    key: CacheKey
    offset: int
    record_bytes: int
    blob_bytes: int


class Pack:
    """Entries in a pack file. The file stays open: if it is replaced, this object still reads the old content."""

    name = "pack"

    def __init__(
        self,
        path: Path,
        *,
        trust: bool = False,
        check: Callable[[Record, bytes], None] = lambda _, __: None,
        prove: Callable[[bytes], None] | None = None,
    ) -> None:
        """Opens a pack and reads its header.

        Args:
            trust: accept a pack that users other than you and root can change.
            check: a function called with the record and the code of each entry before ``get`` returns it; raises
                ``CorruptEntry`` for an entry that must not be served. See ``upkeep.survey``.
            prove: a function called with the bytes of each record before its entry is returned by ``get`` or imported;
                raises ``Unproved`` unless a trusted signer signed it. With it, each blob is checked by its digest as
                well. See ``store.signatures.signers``.

        Raises:
            PackUnusable: when the file cannot be used as a pack; the text says why.
        """
        self.path = path
        self._check, self._trust, self._prove = check, trust, prove
        self._open()

    def _open(self) -> None:
        self._file = OwnFile(_open(self.path, self._trust), shared=True)
        weakref.finalize(self, self._file.close)
        self._size = os.fstat(self._file.descriptor).st_size
        self._count, self._index, self._index_digest = self._read_header()

    def __len__(self) -> int:
        return self._count

    def get(self, key: CacheKey) -> Loaded | None:
        """The entry, every byte checked; ``None`` when the pack has none, or one of another format version.

        Raises:
            CorruptEntry: when the entry must not be served.
            OSError: when the disk fails.
        """
        row = self._find(key)
        if row is None:
            return None
        record_data = self.record_data(row)
        try:
            record = decode_record(key, record_data)
        except UnknownFormat:
            return None
        if self._prove is None:
            last = record.blob.sections[CUBIN]
            data = self._read(row.offset + row.record_bytes, min(row.blob_bytes, last.offset + last.stored_bytes))
            cubin = decode_section(key, record.blob, CUBIN, data)
        else:
            # A signature covers the blob's digest, and so all of the blob; a checksum of its parts proves nothing.
            self._prove(record_data)
            cubin = check_blob(key, record.blob, self.blob_data(row))
        self._check(record, cubin)
        return Loaded(record, cubin)

    def has(self, key: CacheKey) -> bool:
        """Whether the index has the key; the entry is not checked. Raises as ``get``."""
        return self._find(key) is not None

    @cached_property
    def made_with(self) -> Mapping[Provenance, int]:
        """The provenance of the entries (compiler, machine), with the number of entries of each, most frequent first.

        The part ``made with`` of the pack says this; it is not compared with the entries. A pack of an older program
        has no such part; then its first 10,000 records are read. Entries are sorted by key, which is a hash, so these
        records are a random sample.

        Raises:
            OSError: when the disk fails.
        """
        self._open_again_if_closed()
        stated = self._read_made_with()
        if stated is not None:
            return dict(_decode_made_with(stated[: -_MADE_WITH.size]))
        counts: Counter[Provenance] = Counter()
        for number in range(min(self._count, _MOST_READ)):
            with suppress(CorruptEntry):
                _count(counts, self.record_data(self.row(number)))
        return dict(counts.most_common())

    def row(self, number: int) -> Row:
        """The row of the index with this number.

        Raises:
            CorruptEntry: when the row points outside the pack, its record is too large, or the pack is cut short.
        """
        key, offset, record_bytes, blob_bytes = _ROW.unpack(self._read(self._index + number * _ROW.size, _ROW.size))
        if record_bytes > MAX_RECORD_BYTES or not _HEADER.size <= offset <= self._index - record_bytes - blob_bytes:
            raise CorruptEntry(f"row {number:,} of pack {self.path.name} points outside it")
        return Row(CacheKey(key.hex()), offset, record_bytes, blob_bytes)

    def rows(self) -> Iterator[Row]:
        """The rows of the whole index, after checking it.

        Raises:
            PackUnusable: when the index does not match its digest, its keys are not sorted and unique, or the bytes
                before it are neither entries nor the part ``made with``.
            CorruptEntry: as ``row``.
        """
        digest = hashlib.sha256()
        for start in range(self._index, self._size, 2**20):
            digest.update(self._read(start, min(2**20, self._size - start)))
        if digest.digest() != self._index_digest:
            raise PackUnusable(f"the index of pack {self.path} does not match its digest; copy the pack again")
        last, end, first = "", _HEADER.size, self._index
        for number in range(self._count):
            row = self.row(number)
            if row.key <= last:
                raise PackUnusable(f"the keys of pack {self.path} are not sorted and unique; export the pack again")
            last, end, first = row.key, max(end, row.offset + row.record_bytes + row.blob_bytes), min(first, row.offset)
            yield row
        hints = self.hints()
        is_first_right = not self._count or first == _HEADER.size + (_HINTS.size + len(hints) if hints else 0)
        if end != self._index - len(self._read_made_with() or b"") or not is_first_right:
            raise PackUnusable(f"pack {self.path} has damaged bytes between its entries and its index; copy it again")

    def hints(self) -> bytes:
        """The pack's hints: proofs of kernel families from where it was made (``store.proofs``). Empty without any.

        Raises:
            PackUnusable: when they do not match their digest.
            OSError: when the disk fails.
        """
        self._open_again_if_closed()
        if not self._count or self._index < _HEADER.size + _HINTS.size:
            return b""
        magic, size, digest = _HINTS.unpack(self._read(_HEADER.size, _HINTS.size))
        if magic != _HINTS_MAGIC:
            return b""
        data = self._read(_HEADER.size + _HINTS.size, min(size, _MOST_HINTS_BYTES))
        if len(data) != size or hashlib.sha256(data).digest() != digest:
            raise PackUnusable(f"the proofs of pack {self.path} do not match their digest; copy the pack again")
        return data

    def records(self) -> Iterator[Record]:
        """The pack's first 10,000 records, sorted by key, without those that cannot be read; raises ``OSError``."""
        self._open_again_if_closed()
        for number in range(min(self._count, _MOST_READ)):
            with suppress(CorruptEntry, UnknownFormat):
                row = self.row(number)
                yield decode_record(row.key, self.record_data(row))

    @property
    def checks_signers(self) -> bool:
        """Whether ``prove`` refuses entries that no trusted signer signed."""
        return self._prove is not None

    def prove(self, record_data: bytes) -> None:
        """Checks the signature of an entry, if the pack was opened with ``prove``; raises ``Unproved``."""
        if self._prove is not None:
            self._prove(record_data)

    def record_data(self, row: Row) -> bytes:
        """The bytes of a row's record in the pack; raises ``CorruptEntry`` if the pack is cut short."""
        return self._read(row.offset, row.record_bytes)

    def blob_data(self, row: Row) -> bytes:
        """The bytes of a row's blob in the pack; raises ``CorruptEntry`` if the pack is cut short."""
        return self._read(row.offset + row.record_bytes, row.blob_bytes)

    def key_at(self, number: int) -> CacheKey:
        """The key in the row of the index with this number."""
        return CacheKey(self._read(self._index + number * _ROW.size, 32).hex())

    def _find(self, key: CacheKey) -> Row | None:
        self._open_again_if_closed()
        number = bisect_left(_Keys(self), key)
        row = None if number == self._count else self.row(number)
        return row if row is not None and row.key == key else None

    def _read_made_with(self) -> bytes | None:
        """The part ``made with``, which says how the entries were made; ``None`` if it is missing or damaged."""
        end = self._index - _MADE_WITH.size
        if end < _HEADER.size:
            return None
        try:
            tail = self._read(end, _MADE_WITH.size)
            size, digest, magic = _MADE_WITH.unpack(tail)
            if magic != _MADE_WITH_MAGIC or size > min(_MOST_MADE_WITH_BYTES, end - _HEADER.size):
                return None
            stated = self._read(end - size, size)
            if hashlib.sha256(stated).digest() != digest:
                return None
            _decode_made_with(stated)
        except (CorruptEntry, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return stated + tail

    def _open_again_if_closed(self) -> None:
        """Opens the pack again if the program has closed its descriptor; another file may have this descriptor now."""
        if not self._file.is_ours:
            try:
                self._open()
            except PackUnusable as error:
                raise OSError(str(error)) from error

    def _read(self, offset: int, size: int) -> bytes:
        """``size`` bytes of the file from ``offset``; raises ``CorruptEntry`` if the file was cut short meanwhile."""
        data = os.pread(self._file.descriptor, size, offset)
        if len(data) != size:
            raise CorruptEntry(f"pack {self.path.name} is cut short")
        return data

    def _read_header(self) -> tuple[int, int, bytes]:
        header = os.pread(self._file.descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size or header[:8] != _MAGIC:
            raise PackUnusable(f"{self.path} is not a pack; gemm-cache pack export makes one")
        _, version, zero, more_zero, count, index, digest = _HEADER.unpack(header)
        if version != FORMAT:
            raise PackUnusable(f"{self.path} is a pack of format {version}; this program reads format {FORMAT}")
        if zero or more_zero or index < _HEADER.size or index + count * _ROW.size != self._size:
            raise PackUnusable(f"{self.path} is damaged or cut short; copy it again")
        return count, index, digest


class _Keys(Sequence[str]):
    """The keys of a pack's index as a sequence; each key is read from the file when it is used."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack

    def __len__(self) -> int:
        return len(self._pack)

    def __getitem__(self, number: int) -> CacheKey:  # type: ignore[override]  # bisect uses no slices
        return self._pack.key_at(number)


def write_pack(path: Path, entries: Iterable[tuple[CacheKey, bytes, bytes]], hints: bytes = b"") -> int:
    """Writes a pack; returns the number of its entries.

    ``entries`` yields key, record and blob of each entry, sorted by key. Writes atomically: the file is complete or
    does not exist. Others may read it as the umask allows, since packs are shared. Only the owner may write it, with
    any umask: otherwise the pack would be refused.

    Raises:
        OSError: when writing fails; then nothing has changed.
    """
    staged = path.parent / f".{secrets.token_hex(8)}.tmp"
    index = bytearray()
    made_with: Counter[Provenance] = Counter()
    try:
        with open(staged, "xb", opener=_readable) as file:
            file.write(bytes(_HEADER.size))
            for key, record, blob in entries:
                if hints and not index:  # before the first entry, where older programs do not look
                    file.write(_HINTS.pack(_HINTS_MAGIC, len(hints), hashlib.sha256(hints).digest()) + hints)
                index += _ROW.pack(bytes.fromhex(key), file.tell(), len(record), len(blob))
                file.write(record)
                file.write(blob)
                _count(made_with, record)
            file.write(_made_with_bytes(made_with))
            start, count = file.tell(), len(index) // _ROW.size
            file.write(index)
            file.seek(0)
            file.write(_HEADER.pack(_MAGIC, FORMAT, 0, 0, count, start, hashlib.sha256(index).digest()))
            file.flush()
            os.fsync(file.fileno())
        staged.rename(path)
    except BaseException as error:
        with suppress(OSError):
            staged.unlink()
        if isinstance(error, OSError) and error.filename == str(staged):
            error.filename, error.filename2 = str(path), None  # the path that the user gave
        raise
    sync_folder(str(path.absolute().parent))
    return count


def _count(counts: Counter[Provenance], record_data: bytes) -> None:
    components = components_of(record_data)
    if components is not None:
        counts[Provenance.of(components)] += 1


def _made_with_bytes(counts: Counter[Provenance]) -> bytes:
    """The part ``made with`` of a pack, which says how the entries were made; empty if it would be too long."""
    stated = _encode(sorted(counts.items(), key=lambda item: (-item[1], msgspec.structs.astuple(item[0]))))
    if len(stated) > _MOST_MADE_WITH_BYTES:
        return b""
    return stated + _MADE_WITH.pack(len(stated), hashlib.sha256(stated).digest(), _MADE_WITH_MAGIC)


def _readable(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o644)


def find_packs(places: Iterable[Path]) -> list[Path]:
    """The pack files that a setting names: files as they are, and all packs in folders, sorted by name."""
    found: list[Path] = []
    for place in places:
        # A folder that cannot be read is returned as a pack: opening it then reports the error.
        found += sorted(place.glob(f"*{SUFFIX}")) if os.path.isdir(place) else [place]
    return found


def _open(path: Path, trust: bool) -> int:
    """An open descriptor of a pack file.

    Without ``trust``, raises an error if others than you and root can change the file or a folder above it.
    """
    try:
        if not trust:
            os.close(open_way(path))
        # O_NONBLOCK, because opening a pipe would hang.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise PackUnusable(f"cannot open pack {path}: {error.strerror}") from error
    except Untrusted as error:
        raise PackUnusable(f"pack {path}: {error}; {_ONLY_YOU}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PackUnusable(f"{path} is not a regular file, so it is not a pack")
        if not trust:
            check_file(path, status)
    except Untrusted as error:
        os.close(descriptor)
        raise PackUnusable(f"pack {error}; {_ONLY_YOU}") from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
