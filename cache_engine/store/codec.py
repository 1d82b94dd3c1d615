"""Encodes and decodes blobs and records.

A **blob** is a 44-byte header (magic, format version, flags, the entry's key) followed by its sections, the compiled
code first, each a zstd frame with a checksum. The other sections are texts and are compressed with the dictionary of
the blob's format. A **record** is one JSON object ``{"format", "checksum", "record"}``, with ``"signature"`` if it is
signed. Checksum and signature cover the inner object's exact bytes in the file, so ``jq .record`` reads it and a
flipped bit is noticed.

A checksum is XXH3 of 128 bits and finds accidental damage; every hit computes it. The digest of a whole blob is
SHA-256. It is part of the blob's file name; ``verify``, export and import compute it.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence

import msgspec
import xxhash
import zstandard

from cache_engine.errors import CorruptEntry, Misplaced, Truncated
from cache_engine.model.artifact import CUBIN, SECTIONS, Artifact, Blob, Record, Section
from cache_engine.model.key import CacheKey, Components, key_of

FORMAT = 2
"""The format version of new blobs. Format 1, which compresses the texts without a dictionary, can still be read."""
_FORMATS = (1, 2)
MAX_RAW_BYTES = (
    64 * 1024**2
)  # bytes of one section; hundreds of times the largest seen, and the most that a forged frame may allocate
MAX_RECORD_BYTES = 1024**2
MAX_BLOB_BYTES = 5 * MAX_RAW_BYTES  # four sections of that size, and the bytes that compression may add

_HEADER = struct.Struct("<8sHH32s")
_MAGIC = b"GEMMBLOB"
_COMPRESSED = 1
_LEVEL = 3  # higher levels take milliseconds to save a tenth


class UnknownFormat(Exception):
    """A record has a format version that this program does not know; its file must stay unchanged."""

    def __init__(self, key: CacheKey, version: int) -> None:
        super().__init__(f"record of {key[:12]} has format {version}; this program knows formats up to {FORMAT}")
        self.version = version


class _Envelope(msgspec.Struct, omit_defaults=True):
    format: int
    checksum: str
    record: msgspec.Raw
    signature: str = ""


class _Version(msgspec.Struct):
    format: int


class _RecordOutline(msgspec.Struct):
    components: Components


class _Outline(msgspec.Struct):
    format: int
    record: _RecordOutline


# The errors of decoding bytes that are not a record; the last is for brackets nested too deep.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_encode_json = msgspec.json.Encoder().encode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_version = msgspec.json.Decoder(_Version).decode
_decode_record = msgspec.json.Decoder(Record).decode
_decode_outline = msgspec.json.Decoder(_Outline).decode
_local = threading.local()  # zstd contexts serve one thread at a time


def encode_blob(key: CacheKey, artifact: Artifact, *, compress: bool) -> tuple[bytes, Blob]:
    """The bytes of a blob, and its description for the record."""
    parts = [_header(key, compress)]
    offset = len(parts[0])
    sections = {}
    for name in SECTIONS:
        raw = artifact.section(name)
        if len(raw) > MAX_RAW_BYTES:
            raise ValueError(f"{name} of {len(raw):,} bytes is larger than the {MAX_RAW_BYTES:,} a blob may hold")
        stored = _compress(raw, name) if compress else raw
        sections[name] = Section(offset, len(stored), len(raw), _checksum(stored))
        parts.append(stored)
        offset += len(stored)
    data = b"".join(parts)
    return data, Blob(_digest(data), len(data), compress, sections)


def decode_section(key: CacheKey, blob: Blob, name: str, data: bytes) -> bytes:
    """The decompressed bytes of one section of a blob; ``data`` is the blob's start, at least to the section's end.

    Raises:
        CorruptEntry: when the header is not this entry's, or the bytes do not match the record.
    """
    check_header(key, blob, data)
    return _section(key, blob, name, data)


def _section(key: CacheKey, blob: Blob, name: str, data: bytes) -> bytes:
    section = blob.sections.get(name)
    if section is None:
        raise CorruptEntry(f"record of {key[:12]} names no {name} section")
    if len(data) < section.offset + section.stored_bytes:
        raise Truncated(f"blob of {key[:12]} ends within its {name}")
    stored = memoryview(data)[section.offset : section.offset + section.stored_bytes]
    if _checksum(stored) != section.checksum:
        raise CorruptEntry(f"{name} of {key[:12]} does not match the checksum in its record")
    if not blob.compressed:
        return bytes(stored)
    has_dictionary = name != CUBIN and _format_of_blob(data) != 1
    return _decompress(stored, section, name, key, has_dictionary=has_dictionary)


def check_header(key: CacheKey, blob: Blob, data: bytes) -> None:
    """Checks that a blob has the header of ``key``.

    Raises:
        Misplaced: when the header is another entry's.
        CorruptEntry: when the bytes are not a blob.
    """
    expected = _header(key, blob.compressed)
    # Most headers have this format, and a hit checks one.
    if data[: _HEADER.size] == expected:
        return
    if len(data) >= _HEADER.size and _format_of_blob(data) in _FORMATS:
        expected = expected[:8] + data[8:10] + expected[10:]
        if data[: _HEADER.size] == expected:
            return
    if len(data) < _HEADER.size:
        raise Truncated(f"blob of {key[:12]} ends within its header")
    if data.startswith(_MAGIC) and data[12 : _HEADER.size] != expected[12:]:
        raise Misplaced(_misplaced("blob", key, data[12 : _HEADER.size].hex()))
    raise CorruptEntry(f"blob of {key[:12]} has no valid header")


def check_blob(key: CacheKey, blob: Blob, data: bytes, sections: Sequence[str] = SECTIONS) -> bytes:
    """Checks a whole blob file against its record; returns the compiled code.

    Args:
        sections: the sections to decode and check one by one; the first must be the code. The digest of the whole blob
            is checked in any case, and covers the sections that are not decoded.

    Raises:
        CorruptEntry: when a part does not match; the text names the part.
    """
    check_header(key, blob, data)
    if len(data) != blob.stored_bytes:
        kind = Truncated if len(data) < blob.stored_bytes else CorruptEntry
        raise kind(f"blob of {key[:12]} has {len(data):,} bytes where its record says {blob.stored_bytes:,}")
    cubin, *_ = [_section(key, blob, name, data) for name in sections]
    if _digest(data) != blob.digest:
        raise CorruptEntry(f"blob of {key[:12]} does not match the digest in its record")
    return cubin


def encode_record(record: Record) -> bytes:
    """The bytes of a record file."""
    return enveloped(_encode_json(record))


def signed_part(data: bytes) -> tuple[bytes, str]:
    """The bytes of a record file that its signature covers, and the signature; the signature is empty if there is none.

    The covered bytes are exactly those of the inner object. So a signature covers the key with all its components, the
    digest of the blob, and the name of the maker.

    Raises:
        CorruptEntry: when the bytes are not a record file.
    """
    try:
        envelope = _decode_envelope(data)
    except _UNREADABLE as error:
        raise CorruptEntry(f"the record cannot be read: {error}") from error
    return bytes(envelope.record), envelope.signature


def with_signature(data: bytes, signature: str) -> bytes:
    """A record file that carries ``signature`` in place of any other. Older programs can read it as well.

    Raises:
        CorruptEntry: as ``signed_part``.
    """
    inner, _ = signed_part(data)
    return enveloped(inner, format=_decode_version(data).format, signature=signature)


def enveloped(inner: bytes, *, format: int | None = None, signature: str = "") -> bytes:
    """The bytes of the record file whose record is the JSON object ``inner``; by default in this program's format."""
    return (
        _encode_json(_Envelope(FORMAT if format is None else format, _checksum(inner), msgspec.Raw(inner), signature))
        + b"\n"
    )


def format_of(data: bytes) -> int | None:
    """The format version that a record file states; ``None`` if it cannot be read."""
    try:
        return _decode_version(data).format
    except _UNREADABLE:
        return None


def stored_bytes(record: Record) -> int:
    """The bytes of an entry on disk: its blob and its record, without a signature."""
    return record.blob.stored_bytes + len(encode_record(record))


def decode_record(key: CacheKey, data: bytes) -> Record:
    """Decodes the record of ``key``.

    Raises:
        UnknownFormat: when it has another format version.
        CorruptEntry: when it does not match its checksum, or belongs to another key.
    """
    try:
        envelope = _decode_envelope(data)
    except _UNREADABLE as error:
        raise _foreign_or_corrupt(key, data, error) from error
    inner = memoryview(envelope.record)
    if envelope.format not in _FORMATS:
        raise UnknownFormat(key, envelope.format)
    if envelope.checksum != _checksum(inner):
        raise CorruptEntry(f"record of {key[:12]} does not match its checksum")
    try:
        record = _decode_record(inner)
    except _UNREADABLE as error:
        raise CorruptEntry(f"record of {key[:12]} cannot be read: {error}") from error
    code = record.blob.sections.get(CUBIN)
    if code is None:
        raise CorruptEntry(f"record of {key[:12]} names no {CUBIN} section")
    # The file may really have its stated size if it is sparse: it then fits on the disk, but not in memory.
    if not code.offset + code.stored_bytes <= record.blob.stored_bytes <= MAX_BLOB_BYTES:
        raise CorruptEntry(f"record of {key[:12]} names a blob of {record.blob.stored_bytes:,} bytes, which none has")
    if record.key != key:
        raise Misplaced(_misplaced("record", key, record.key))
    return record


def components_of(data: bytes) -> Components | None:
    """The components that a record file's key was made from, as the file says; ``None`` if they cannot be read.

    The file is not checked: use the components only to find an entry, and check that entry.
    """
    try:
        outline = _decode_outline(data)
    except _UNREADABLE:
        return None
    return outline.record.components if outline.format in _FORMATS else None


def check_key(record: Record) -> None:
    """Checks that the record's components hash to its key.

    Raises:
        CorruptEntry: when they hash to another key, or to none.
    """
    try:
        key = key_of(record.components)
    except ValueError as error:
        raise CorruptEntry(f"components in the record of {record.key[:12]} do not form a key: {error}") from error
    if key != record.key:
        raise CorruptEntry(f"components in the record of {record.key[:12]} belong to another key")


def _foreign_or_corrupt(key: CacheKey, data: bytes, error: Exception) -> Exception:
    """The error for a record that cannot be decoded: ``UnknownFormat`` for another version, else ``CorruptEntry``.

    In a later format, only the position of the version number is known.
    """
    try:
        version = _decode_version(data).format
    except _UNREADABLE:
        version = FORMAT
    if version not in _FORMATS:
        return UnknownFormat(key, version)
    kind = CorruptEntry if data.endswith(b"}\n") else Truncated
    return kind(f"record of {key[:12]} cannot be read: {error}")


def _digest(data: bytes) -> str:
    from hashlib import sha256  # no hit computes it

    return sha256(data).hexdigest()


def _checksum(data: bytes | memoryview) -> str:
    return f"xxh3:{xxhash.xxh3_128_hexdigest(data)}"


def _compress(raw: bytes, name: str) -> bytes:
    if name != CUBIN:
        from cache_engine.store import dictionary  # a hit reads only the code

        return dictionary.compress(raw)
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True).compress(raw)


def _misplaced(what: str, key: str, found: str) -> str:
    """The text of the error ``Misplaced``, with enough digits of both keys to show their difference."""
    digits = next((length for length in (12, 24, 40) if key[:length] != found[:length]), 64)
    return f"the {what} at the path of {key[:digits]} belongs to {found[:digits]}"


def _header(key: CacheKey, compressed: bool) -> bytes:
    return _HEADER.pack(_MAGIC, FORMAT, _COMPRESSED if compressed else 0, bytes.fromhex(key))


def _format_of_blob(data: bytes) -> int:
    return int.from_bytes(data[8:10], "little")


def _decompress(stored: memoryview, section: Section, name: str, key: CacheKey, *, has_dictionary: bool) -> bytes:
    # max_output_size is ignored for frames that declare their size, so the declaration is checked first.
    try:
        declared = zstandard.frame_content_size(stored)
        if declared != section.raw_bytes or not 0 <= declared <= MAX_RAW_BYTES:
            raise CorruptEntry(
                f"{name} of {key[:12]} declares {declared:,} bytes where its record says {section.raw_bytes:,}"
            )
        if has_dictionary:
            from cache_engine.store import dictionary  # a hit reads only the code

            return dictionary.decompress(stored)
        decompressor = getattr(_local, "decompressor", None)
        if decompressor is None:
            decompressor = _local.decompressor = zstandard.ZstdDecompressor()
        return bytes(decompressor.decompress(stored))
    except zstandard.ZstdError as error:
        raise CorruptEntry(f"{name} of {key[:12]} cannot be decompressed: {error}") from error
