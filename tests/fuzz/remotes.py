"""What is fuzzed of remotes: an entry's object."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

from cache_engine.cache.remote.base import packed, unpacked
from cache_engine.errors import CorruptEntry
from cache_engine.model.key import CacheKey

_KEY = CacheKey("ab" * 32)


def seeds(_: Path) -> list[bytes]:
    """An object."""
    return [packed(b'{"format":1}', b"GEMMBLOB")]


def read(data: bytes, _: Path) -> None:
    """Reads it, as it is and with sizes that fit."""
    with suppress(CorruptEntry):
        assert packed(*unpacked(_KEY, data)) == data
    if len(data) >= 24:
        size = struct.unpack_from("<I", data, 12)[0] % (len(data) - 23)
        fitting = b"GEMMRMTE" + struct.pack("<HHIQ", 1, 0, size, len(data) - 24 - size) + data[24:]
        assert packed(*unpacked(_KEY, fitting)) == fitting
