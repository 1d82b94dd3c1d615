"""Entries of the first format, as version 0.2 wrote them: texts were compressed without a dictionary."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec
import xxhash
import zstandard

from cache_engine.model.artifact import SECTIONS, Artifact, Blob, Record, Section
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import encode_record, enveloped, signed_part
from cache_engine.store.disk import DiskStore


def encode_first(key: CacheKey, artifact: Artifact) -> tuple[bytes, Blob]:
    """A blob, and its description for the record."""
    parts, sections, offset = [b"GEMMBLOB\x01\x00\x01\x00" + bytes.fromhex(key)], {}, 44
    for name in SECTIONS:
        raw = artifact.section(name)
        frame = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(raw)
        checksum = f"xxh3:{xxhash.xxh3_128_hexdigest(frame)}"
        sections[name] = Section(offset, len(frame), len(raw), checksum)
        parts.append(frame)
        offset += len(frame)
    data = b"".join(parts)
    return data, Blob(hashlib.sha256(data).hexdigest(), len(data), True, sections)


def place_first(store: DiskStore, key: CacheKey, artifact: Artifact, describe: Callable[[Blob], Record]) -> None:
    """Creates or replaces an entry as version 0.2 did."""
    data, blob = encode_first(key, artifact)
    record = describe(blob)
    store.place(record, enveloped(signed_part(encode_record(record))[0], format=1), data)


def as_first_format(store: DiskStore, signature: str = "") -> list[CacheKey]:
    """Writes all entries of a store in the first format; returns their keys."""
    keys = []
    for record in list(store.records()):
        key = CacheKey(record.key)
        cubin, ptx, source, log = (store.section(record, name) for name in SECTIONS_IN_ORDER)
        artifact = Artifact(cubin, ptx, source, log, record.resources)
        data, blob = encode_first(key, artifact)
        older = msgspec.structs.replace(record, blob=blob)
        inner, _ = signed_part(encode_record(older))
        store.place(older, enveloped(inner, format=1, signature=signature), data)
        keys.append(key)
    return sorted(keys)


SECTIONS_IN_ORDER = ("cubin", "ptx", "source", "log")
"""As ``Artifact`` has them."""
