"""Bytes of blobs and records: what goes in comes out, and nothing else ever does.

``tests/faults/test_damage.py`` flips each bit, and cuts at each byte.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.errors import CorruptEntry
from cache_engine.model.artifact import CUBIN, SECTIONS, SOURCE, Artifact, Blob
from cache_engine.model.key import CacheKey
from cache_engine.store import codec, dictionary
from cache_engine.store.codec import (
    UnknownFormat,
    check_blob,
    check_key,
    components_of,
    decode_record,
    decode_section,
    encode_blob,
    encode_record,
    stored_bytes,
)
from tests.helpers import make_entry, make_store
from tests.store.first_format import encode_first


@given(
    parts=st.lists(st.binary(max_size=2000), min_size=4, max_size=4),
    compress=st.booleans(),
)
def test_a_blob_round_trips(parts: list[bytes], compress: bool) -> None:
    key, artifact, _ = make_entry()
    cubin, ptx, source, log = parts
    artifact = Artifact(cubin, ptx, source, log, artifact.resources)
    data, blob = encode_blob(key, artifact, compress=compress)
    assert blob.stored_bytes == len(data)
    for name, raw in zip(SECTIONS, parts, strict=True):
        assert decode_section(key, blob, name, data) == raw
    check_blob(key, blob, data)


def test_an_entry_takes_the_bytes_of_its_two_files() -> None:
    key, artifact, describe = make_entry()
    data, blob = encode_blob(key, artifact, compress=True)
    record = describe(blob)
    assert stored_bytes(record) == len(data) + len(encode_record(record))


def test_the_components_in_a_record_are_read_without_the_rest() -> None:
    key, artifact, describe = make_entry()
    record = describe(encode_blob(key, artifact, compress=True)[1])
    data = encode_record(record)
    assert components_of(data) == record.components
    assert components_of(data.replace(b'"format":2', b'"format":1', 1)) == record.components
    assert components_of(data.replace(b'"format":2', b'"format":3', 1)) is None
    assert components_of(data[:100]) is None


@given(st.integers(0, 50))
def test_a_record_round_trips(seed: int) -> None:
    key, artifact, describe = make_entry(seed)
    record = describe(encode_blob(key, artifact, compress=True)[1])
    assert decode_record(key, encode_record(record)) == record
    check_key(record)


def test_a_record_of_before_there_were_variants_is_one_of_the_default() -> None:
    """Every kernel was then: n and k constants, compiled at the highest level."""
    key, artifact, describe = make_entry()
    record = describe(encode_blob(key, artifact, compress=True)[1])
    inner = json.loads(encode_record(record))["record"]
    for name in ("specialisation", "opt_level", "epilogue"):
        del inner["problem"][name]
    raw = json.dumps(inner).encode()
    checksum = f"xxh3:{xxhash.xxh3_128_hexdigest(raw)}".encode()
    assert decode_record(key, b'{"format":1,"checksum":"%b","record":%b}\n' % (checksum, raw)) == record


def test_a_record_is_plain_json() -> None:
    """So that jq and other programs can read it."""
    key, artifact, describe = make_entry()
    document = json.loads(encode_record(describe(encode_blob(key, artifact, compress=True)[1])))
    assert document["record"]["key"] == key
    assert document["format"] == 2


def test_the_blob_of_another_key_is_refused() -> None:
    key, artifact, _ = make_entry(1)
    other, _, _ = make_entry(2)
    data, blob = encode_blob(key, artifact, compress=True)
    with pytest.raises(CorruptEntry, match="belongs to"):
        decode_section(other, blob, CUBIN, data)


def test_the_two_keys_of_a_misplaced_blob_differ_in_what_is_said_of_them() -> None:
    key, artifact, _ = make_entry(1)
    data, blob = encode_blob(key, artifact, compress=True)
    damaged = bytearray(data)
    damaged[40] ^= 1  # of the key, near its end
    with pytest.raises(CorruptEntry, match="belongs to") as caught:
        decode_section(key, blob, CUBIN, bytes(damaged))
    named = re.search(r"path of (\w+) belongs to (\w+)$", str(caught.value))
    assert named is not None
    assert named[1] != named[2]


def test_a_record_in_the_place_of_another_is_refused() -> None:
    key, artifact, describe = make_entry(1)
    other, _, _ = make_entry(2)
    data = encode_record(describe(encode_blob(key, artifact, compress=True)[1]))
    with pytest.raises(CorruptEntry, match="at the path of"):
        decode_record(other, data)


def test_components_that_do_not_make_the_key_are_refused() -> None:
    key, artifact, describe = make_entry()
    record = describe(encode_blob(key, artifact, compress=True)[1])
    forged = msgspec.structs.replace(record, components=(*record.components, ("N", "1")))
    with pytest.raises(CorruptEntry, match="another key"):
        check_key(forged)


@pytest.mark.parametrize(
    "path",
    [
        ("resources", "registers"), ("resources", "spill_bytes"), ("blob", "stored_bytes"),
        ("blob", "sections", "cubin", "offset"), ("blob", "sections", "cubin", "stored_bytes"),
        ("problem", "m"), ("config", "block_m"), ("compile_ms",), ("stages_ms", "compile"), ("created_at",),
    ],
    ids=".".join,
)  # fmt: skip
@pytest.mark.parametrize("value", ["-1", "1e400", "100000000000000000000000", '"9"', "null"])
def test_a_number_no_kernel_can_have_is_refused_though_the_checksum_fits(path: tuple[str, ...], value: str) -> None:
    """A reader of a record can compute with its numbers: no buffer of -1 bytes, no date in the year 10 000 000."""
    key, artifact, describe = make_entry()
    fields = json.loads(msgspec.json.encode(describe(encode_blob(key, artifact, compress=True)[1])))
    place = fields
    for name in path[:-1]:
        place = place[name]
    if path == ("created_at",) and value == "-1":
        value = "-1e10"  # the clock of a board without a battery may be before 1970, and not before 1901
    place[path[-1]] = "PLACE"
    inner = json.dumps(fields).replace('"PLACE"', value)
    checksum = xxhash.xxh3_128_hexdigest(inner.encode())
    with pytest.raises(CorruptEntry, match="cannot be read"):
        decode_record(key, f'{{"format": 1, "checksum": "xxh3:{checksum}", "record": {inner}}}'.encode())


def test_a_record_without_compiled_code_is_refused() -> None:
    key, artifact, describe = make_entry()
    blob = encode_blob(key, artifact, compress=True)[1]
    sections = {name: section for name, section in blob.sections.items() if name != CUBIN}
    with pytest.raises(CorruptEntry, match="names no cubin section"):
        decode_record(key, encode_record(describe(msgspec.structs.replace(blob, sections=sections))))


def test_json_nested_beyond_reason_is_refused() -> None:
    with pytest.raises(CorruptEntry):
        decode_record(make_entry()[0], b'{"format":1,"record":' + b"[" * 100_000)


@pytest.mark.parametrize(
    "text", [b'{"format": 3, "anything": []}', b'{"format":7,"checksum":"sha256:0","record":{"key":1}}']
)
def test_a_record_of_another_format_is_no_damage(text: bytes) -> None:
    """It may be a newer version's, and is to be left alone."""
    with pytest.raises(UnknownFormat):
        decode_record(make_entry()[0], text)


def test_a_forged_size_is_refused_before_anything_is_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that declares its size ignores any limit given to the decompressor."""
    key, artifact, _ = make_entry()
    data, blob = encode_blob(key, artifact, compress=True)
    bomb = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(64 * 1024**2))
    forged = _with_cubin(key, blob, data, bomb)
    monkeypatch.setattr(zstandard.ZstdDecompressor, "decompress", _never)
    with pytest.raises(CorruptEntry, match="declares 67,108,864 bytes"):
        decode_section(key, forged[0], CUBIN, forged[1])


def test_a_size_that_record_and_frame_declare_alike_is_refused_above_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both may be forged by the same hand."""
    key, artifact, _ = make_entry()
    data, blob = encode_blob(key, artifact, compress=True)
    monkeypatch.setattr(codec, "MAX_RAW_BYTES", len(artifact.cubin))
    assert decode_section(key, blob, CUBIN, data) == artifact.cubin
    monkeypatch.setattr(codec, "MAX_RAW_BYTES", len(artifact.cubin) - 1)
    monkeypatch.setattr(zstandard.ZstdDecompressor, "decompress", _never)
    with pytest.raises(CorruptEntry, match="declares"):
        decode_section(key, blob, CUBIN, data)


def _never(*_: object) -> bytes:
    raise AssertionError("it was decompressed")


def _with_cubin(key: CacheKey, blob: Blob, data: bytes, stored: bytes) -> tuple[Blob, bytes]:
    """The blob with other stored bytes as its code, digest and all, but the old raw size."""
    old = blob.sections[CUBIN]
    section = msgspec.structs.replace(
        old, stored_bytes=len(stored), checksum=f"xxh3:{xxhash.xxh3_128_hexdigest(stored)}"
    )
    return (
        msgspec.structs.replace(blob, sections={**blob.sections, CUBIN: section}),
        data[: old.offset] + stored,
    )


def test_a_section_too_large_to_be_a_kernel_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_RAW_BYTES", 100)
    key, artifact, _ = make_entry()
    with pytest.raises(ValueError, match="larger than the 100"):
        encode_blob(key, artifact, compress=True)
    monkeypatch.setattr(codec, "MAX_RAW_BYTES", len(artifact.cubin))
    assert encode_blob(key, artifact, compress=True)


@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda text: f'{{"format":1,{text}'.encode()))
def test_no_bytes_crash_the_record_parser(data: bytes) -> None:
    with pytest.raises((CorruptEntry, UnknownFormat)):
        decode_record(make_entry()[0], data)


def test_noise_over_a_blob_is_never_served() -> None:
    key, artifact, _ = make_entry()
    data, blob = encode_blob(key, artifact, compress=True)
    generator = random.Random(7)
    for _ in range(300):
        damaged = bytearray(data)
        start = generator.randrange(len(data))
        length = generator.randrange(1, 64)
        damaged[start : start + length] = generator.randbytes(length)
        if (
            damaged[: blob.sections[CUBIN].offset + blob.sections[CUBIN].stored_bytes]
            == data[: blob.sections[CUBIN].offset + blob.sections[CUBIN].stored_bytes]
        ):
            assert decode_section(key, blob, CUBIN, bytes(damaged)) == artifact.cubin
            continue
        with pytest.raises(CorruptEntry):
            decode_section(key, blob, CUBIN, bytes(damaged))


@pytest.mark.parametrize("compress", [True, False])
def test_the_bytes_of_a_blob_are_those_of_the_format(compress: bool) -> None:
    """As docs/store-files.md describes them, for programs other than this one."""
    key, artifact, _ = make_entry()
    data, blob = encode_blob(key, artifact, compress=compress)
    assert data[:44] == b"GEMMBLOB" + (2).to_bytes(2, "little") + compress.to_bytes(2, "little") + bytes.fromhex(key)
    for section in blob.sections.values():
        if compress:
            frame = zstandard.get_frame_parameters(data[section.offset :])
            assert (frame.content_size, frame.has_checksum) == (section.raw_bytes, True)
        else:
            assert section.stored_bytes == section.raw_bytes


def test_a_thread_decompresses_with_one_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making one takes longer than a small section."""
    made: list[zstandard.ZstdDecompressor] = []

    def counted(**given: Any) -> zstandard.ZstdDecompressor:
        made.append(really(**given))
        return made[-1]

    really = zstandard.ZstdDecompressor
    key, artifact, _ = make_entry()
    data, blob = encode_blob(key, artifact, compress=True)
    for module in (codec, dictionary):
        monkeypatch.setattr(module, "_local", threading.local())
    monkeypatch.setattr(zstandard, "ZstdDecompressor", counted)
    for name in SECTIONS * 2:
        assert decode_section(key, blob, name, data) == artifact.section(name)
    assert len(made) == 2, "one for the code, one with the dictionary for the texts"


def test_a_blob_of_the_first_format_is_read() -> None:
    """There, texts were compressed without a dictionary."""
    key, artifact, _ = make_entry()
    old, described = encode_first(key, artifact)
    assert check_blob(key, described, old) == artifact.cubin
    for name in SECTIONS:
        assert decode_section(key, described, name, old) == artifact.section(name)
    new, described_new = encode_blob(key, artifact, compress=True)
    for data, blob, other in ((old, described, 2), (new, described_new, 1)):
        relabelled = data[:8] + other.to_bytes(2, "little") + data[10:]
        for name in SECTIONS:
            with suppress(CorruptEntry):  # a header of the other format is seen, or harmless: never wrong bytes
                assert decode_section(key, blob, name, relabelled) == artifact.section(name)


def test_the_dictionary_is_the_one_that_was_released() -> None:
    """Blobs in stores, packs and remotes need these very bytes. Another dictionary gets another number and format."""
    file = Path(dictionary.__file__).with_name(dictionary.NAME)
    assert (
        hashlib.sha256(file.read_bytes()).hexdigest()
        == "38aea46d8052e34a46aeb58216fffa102f566df2c6db16b9fccb14b2af580f9d"
    )


def test_texts_of_a_family_take_little_room_beside_its_code(compiled_store: Path) -> None:
    for record in make_store(compiled_store).records():
        stored = {name: section.stored_bytes for name, section in record.blob.sections.items()}
        raw = {name: section.raw_bytes for name, section in record.blob.sections.items()}
        assert stored["source"] < raw["source"] / 50
        assert sum(stored.values()) < 0.75 * raw["cubin"]


@pytest.mark.parametrize("damage", ["missing", "another", "no frame"])
def test_a_damaged_dictionary_is_no_fault_of_an_entry_and_its_code_is_read(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a ``CorruptEntry``, one damaged file of the package would have every entry quarantined."""
    key, artifact, _ = make_entry()
    data, blob = encode_blob(key, artifact, compress=True)
    if damage != "missing":
        other = b"x" * 5000 if damage == "no frame" else zstandard.compress(b"y" * 5000)
        (tmp_path / dictionary.NAME).write_bytes(other)
    monkeypatch.setattr(dictionary, "__file__", str(tmp_path / "dictionary.py"))
    monkeypatch.setattr(dictionary, "_local", threading.local())
    dictionary._dictionary.cache_clear()
    try:
        assert decode_section(key, blob, CUBIN, data) == artifact.cubin
        for attempt in (
            lambda: decode_section(key, blob, SOURCE, data),
            lambda: encode_blob(key, artifact, compress=True),
        ):
            with pytest.raises(OSError, match=r"install gemm-cache again"):
                attempt()
    finally:
        dictionary._dictionary.cache_clear()
