"""What the decoder refuses: each error says what is wrong with which entry."""

from __future__ import annotations

import msgspec
import pytest
import xxhash

from cache_engine.errors import CorruptEntry, Misplaced, Truncated
from cache_engine.model.artifact import CUBIN, Blob
from cache_engine.store.codec import (
    UnknownFormat,
    check_blob,
    check_key,
    decode_record,
    decode_section,
    encode_blob,
    encode_record,
)
from tests.helpers import make_entry
from tests.store.test_codec import _with_cubin

KEY, ARTIFACT, DESCRIBE = make_entry()
DATA, BLOB = encode_blob(KEY, ARTIFACT, compress=True)
OTHER = make_entry(1)[0]
SHORT = KEY[:12]
THEIRS = encode_blob(OTHER, ARTIFACT, compress=True)[0]
OF_ANOTHER_DIGEST = msgspec.structs.replace(BLOB, digest="0" * 64)
OF_ANOTHER_SIZE = msgspec.structs.replace(
    BLOB, sections={**BLOB.sections, CUBIN: msgspec.structs.replace(BLOB.sections[CUBIN], raw_bytes=7)}
)
CUBIN_SIZE, SIZE = f"{len(ARTIFACT.cubin):,}", f"{len(DATA):,}"


def _without_code(blob: Blob) -> Blob:
    return msgspec.structs.replace(blob, sections={name: it for name, it in blob.sections.items() if name != CUBIN})


@pytest.mark.parametrize(
    ("blob", "data", "error", "said"),
    [
        (_without_code(BLOB), DATA, CorruptEntry, "record of {} names no cubin section"),
        (BLOB, DATA[:100], Truncated, "blob of {} ends within its cubin"),
        (BLOB, DATA[:30], Truncated, "blob of {} ends within its header"),
        (BLOB, DATA[:200] + b"?" + DATA[201:], CorruptEntry, "cubin of {} does not match the checksum in its record"),
        (BLOB, b"?" * len(DATA), CorruptEntry, "blob of {} has no valid header"),
        (msgspec.structs.replace(BLOB, compressed=False), DATA, CorruptEntry, "blob of {} has no valid header"),
        (BLOB, THEIRS, Misplaced, f"the blob at the path of {{}} belongs to {OTHER[:12]}"),
        (OF_ANOTHER_SIZE, DATA, CorruptEntry, f"cubin of {{}} declares {CUBIN_SIZE} bytes where its record says 7"),
    ],
)  # fmt: skip
def test_an_error_of_a_section_names_the_entry_and_what_is_wrong(
    blob: Blob, data: bytes, error: type[CorruptEntry], said: str
) -> None:
    with pytest.raises(CorruptEntry) as raised:
        decode_section(KEY, blob, CUBIN, data)
    assert (raised.type, str(raised.value)) == (error, said.format(SHORT))


def test_an_error_of_a_frame_names_the_entry_and_what_is_wrong() -> None:
    forged, data = _with_cubin(KEY, BLOB, DATA, b"no frame")
    with pytest.raises(CorruptEntry) as raised:
        decode_section(KEY, forged, CUBIN, data)
    assert str(raised.value) == f"cubin of {SHORT} cannot be decompressed: {raised.value.__cause__}"


@pytest.mark.parametrize(
    ("blob", "data", "error", "said"),
    [
        (BLOB, DATA[:-1], Truncated, f"blob of {{}} has {len(DATA) - 1:,} bytes where its record says {SIZE}"),
        (BLOB, DATA + b"?", CorruptEntry, f"blob of {{}} has {len(DATA) + 1:,} bytes where its record says {SIZE}"),
        (OF_ANOTHER_DIGEST, DATA, CorruptEntry, "blob of {} does not match the digest in its record"),
    ],
)  # fmt: skip
def test_an_error_of_a_blob_names_the_entry_and_what_is_wrong(
    blob: Blob, data: bytes, error: type[CorruptEntry], said: str
) -> None:
    with pytest.raises(CorruptEntry) as raised:
        check_blob(KEY, blob, data)
    assert (raised.type, str(raised.value)) == (error, said.format(SHORT))


def _enveloped(record: bytes, version: int = 1) -> bytes:
    return b'{"format":%d,"checksum":"xxh3:%b","record":%b}\n' % (
        version,
        xxhash.xxh3_128_hexdigest(record).encode(),
        record,
    )


RECORD = encode_record(DESCRIBE(BLOB))


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (_enveloped(b"{}", 3), UnknownFormat, "record of {} has format 3; this program knows formats up to 2"),
        (
            b'{"format": 4, "anything": []}',
            UnknownFormat,
            "record of {} has format 4; this program knows formats up to 2",
        ),
        (RECORD.replace(b'"registers":', b'"registerS":'), CorruptEntry, "record of {} does not match its checksum"),
        (_enveloped(b"{}"), CorruptEntry, "record of {} cannot be read: {cause}"),
        (b'{"format": 1}\n', CorruptEntry, "record of {} cannot be read: {cause}"),
        (RECORD[:-20], Truncated, "record of {} cannot be read: {cause}"),
        (encode_record(DESCRIBE(_without_code(BLOB))), CorruptEntry, "record of {} names no cubin section"),
        (encode_record(make_entry(1)[2](BLOB)), Misplaced, f"the record at the path of {{}} belongs to {OTHER[:12]}"),
    ],
)
def test_an_error_of_a_record_names_the_entry_and_what_is_wrong(data: bytes, error: type[Exception], said: str) -> None:
    with pytest.raises((CorruptEntry, UnknownFormat)) as raised:
        decode_record(KEY, data)
    assert raised.type is error
    assert str(raised.value) == said.format(SHORT, cause=raised.value.__cause__)


def test_an_error_of_components_names_the_entry_and_what_is_wrong() -> None:
    record = DESCRIBE(BLOB)
    with pytest.raises(CorruptEntry) as raised:
        check_key(msgspec.structs.replace(record, components=(*record.components, ("N", ""))))
    assert str(raised.value) == f"components in the record of {SHORT} do not form a key: {raised.value.__cause__}"
    with pytest.raises(CorruptEntry) as raised:
        check_key(msgspec.structs.replace(record, components=(*record.components, ("N", "1"))))
    assert str(raised.value) == f"components in the record of {SHORT} belong to another key"
