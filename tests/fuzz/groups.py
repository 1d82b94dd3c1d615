"""Kernels of other frameworks in a store as a target."""

from __future__ import annotations

import hashlib
import struct
from contextlib import suppress
from pathlib import Path

import msgspec
import zstandard

from cache_engine.errors import CorruptEntry
from cache_engine.frameworks.bundles import Group, UnknownGroup, is_plain, read_group
from cache_engine.store.layout import StoreLayout

_GROUP = Group("triton", "ABC234", "scale.json", {"scale.json": b"{}", "scale.cubin": b"code"})


def seeds(_: Path) -> list[bytes]:
    """What is packed in a file."""
    return [msgspec.msgpack.encode(_GROUP)]


def read(data: bytes, folder: Path) -> None:
    """The input is once packed, with the header that it needs, and once the whole file."""
    layout = StoreLayout(folder)
    layout.groups.mkdir(exist_ok=True)
    packed = zstandard.ZstdCompressor().compress(data)
    header = struct.pack("<8sH32s32s", b"GEMMGRUP", 1, bytes.fromhex(_GROUP.key), hashlib.sha256(packed).digest())
    for content in (header + packed, data):
        Path(layout.group_path(_GROUP.key)).write_bytes(content)
        with suppress(CorruptEntry, UnknownGroup):
            group = read_group(layout, _GROUP.key)
            assert group is not None
            assert group.key == _GROUP.key
            assert all(map(is_plain, group.files))
