"""Reads the sound part of a damaged results file.

A file that is still JSON loses only the invalid fields. In any other file, an entry is sound if it matches its own
checksum; data without a checksum is not trusted there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress

import msgspec

from cache_engine.errors import Misplaced
from cache_engine.store.files import MOST_BYTES
from cache_engine.store.results.interchange import UNREADABLE, Snapshot

Judge = Callable[[str, bytes | msgspec.Raw], str]
"""Returns the key of a sound entry from its name and its bytes; empty for one that is not sound."""

# The start of an entry, of the evaluator or a timing; no entry is nearly as long as the second.
_ENTRY = re.compile(rb'"([^"\\]{1,300})"\s*:\s*(?=\{\s*"(?:shape|checksum)"\s*:)')
_LONGEST_ENTRY = 2**16
_CHECKSUM = re.compile(rb'"checksum"\s*:\s*"[^"]')
_FINGERPRINT = re.compile(rb'"arch_fingerprint"\s*:\s*"([0-9a-f]{32})"')
# Bytes of a frame per step; in a forged frame each step may expand a thousandfold.
_CHUNK = 2**12

_find_end = json.JSONDecoder().raw_decode


def salvage(data: bytes, new: Snapshot, judge: Judge) -> Snapshot:
    """The sound part of a file that ``decode_snapshot`` rejects as damaged, in a copy of ``new``.

    Raises:
        Misplaced: when the file does not name the accelerator of ``new``, so its entries may belong to another.
    """
    snapshot = msgspec.structs.replace(new, cache_entries={}, usage={})
    named = {match[1].decode() for match in _FINGERPRINT.finditer(data)}
    if named != {new.arch_fingerprint}:
        raise Misplaced(f"it does not name {new.arch_fingerprint} as the accelerator of its results")
    fields = _fields(data)
    for field in msgspec.structs.fields(Snapshot):
        if field.name in fields and field.name not in ("arch_fingerprint", "cache_format_version"):
            with suppress(*UNREADABLE):
                setattr(snapshot, field.name, msgspec.json.decode(fields[field.name], type=field.type))
    if "cache_entries" not in fields:
        snapshot.cache_entries = _entries(data, judge)
    return snapshot


def _fields(data: bytes) -> dict[str, msgspec.Raw]:
    """The fields of a JSON file; of any other file only the accelerator, if readable."""
    with suppress(*UNREADABLE):
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    found = re.search(rb'"architecture"\s*:\s*(?=\{)', data)
    architecture = b"" if found is None else _object_at(data, found.end())
    return {"architecture": msgspec.Raw(architecture)} if architecture else {}


def _entries(data: bytes, judge: Judge) -> dict[str, msgspec.Raw]:
    found = {}
    for match in _ENTRY.finditer(data):
        raw = msgspec.Raw(_object_at(data, match.end()))
        key = judge(match[1].decode("utf-8", "replace"), raw) if _CHECKSUM.search(raw) else ""
        if key:
            found[key] = raw
    return found


def _object_at(data: bytes, start: int) -> bytes:
    """The bytes of the JSON object that starts there; empty when it is cut short or longer than any entry."""
    # latin-1 has one character per byte, so offsets in the text are offsets in the data.
    text = data[start : start + _LONGEST_ENTRY].decode("latin-1")
    with suppress(ValueError, RecursionError):
        _, end = _find_end(text)
        return data[start : start + end]
    return b""


def decompressed_part(data: bytes) -> bytes:
    """The content of a damaged zstd frame before the damage."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    size = 0
    with suppress(zstandard.ZstdError):
        for start in range(0, len(data), _CHUNK):
            parts.append(decompressor.decompress(data[start : start + _CHUNK]))
            size += len(parts[-1])
            if size > MOST_BYTES:
                break
    return b"".join(parts)
