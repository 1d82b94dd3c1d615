"""Bundles: all files of another framework's kernel (an adapted kernel), in one file of the store.

Because it is one file, a reader gets all files of one writer or none, whatever is deleted or replaced meanwhile. The
file is a header (magic, format version, key, SHA-256 of the rest) and a zstd frame with the content of ``Group``. Every
read checks the whole file. ``bundle_facts`` describes the kernel of a bundle; a hit does not need this description.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Annotated

import msgspec
import zstandard

from cache_engine.errors import CorruptEntry, Misplaced, Truncated
from cache_engine.model.key import CacheKey, is_key
from cache_engine.store.files import read_file
from cache_engine.store.layout import StoreLayout
from cache_engine.store.publish import publish_file

_FORMAT = 1
MAX_BYTES = 64 * 1024**2
"""The most bytes of a bundle, packed or not: hundreds of times the largest seen. A forged file allocates no more."""
_HEADER = struct.Struct("<8sH32s32s")
"""The header of a bundle: magic, format version, key, and SHA-256 of all bytes after the header."""
_MAGIC = b"GEMMGRUP"
_LEVEL, _FAST_LEVEL = 3, -1  # the second takes a sixth more bytes, and 2 µs less to read
_BLOCK_BYTES = 4096  # of a disk: a file takes no less
_LONGEST_NAME = 255
MOST_FILES, _MOST_LETTERS = 1_000, 10_000  # of a group: fifty times the usual; and of what is said of it
# As in ``model.artifact``, whose import takes long for a hit of the launcher.
_Ms = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Seconds = Annotated[float, msgspec.Meta(ge=-(2**31), le=1e12)]
_Stages = Annotated[dict[str, _Ms], msgspec.Meta(max_length=100)]


class UnknownGroup(Exception):
    """A bundle of a format version that this program does not know. Leave it unchanged."""


class Group(msgspec.Struct, frozen=True):
    """A bundle: the files of one kernel.

    Attributes:
        framework: the framework that made the files, such as ``triton``.
        name: the framework's own key of the kernel.
        index: the name of the file that names the bundle's other files.
        files: the bytes of each file, by name.
        made_at: the time of the compile, in seconds since 1970, UTC; 0 if unknown.
        stages_ms: the milliseconds of each stage of the compile; empty if unknown.
        version: the framework's version, if the files do not state it.
    """

    framework: str
    name: str
    index: str
    files: Annotated[dict[str, bytes], msgspec.Meta(max_length=MOST_FILES)]
    made_at: _Seconds = 0.0
    stages_ms: _Stages = msgspec.field(default_factory=dict)
    version: str = ""

    @property
    def key(self) -> CacheKey:
        """The kernel's key in our store."""
        return group_key(self.framework, self.name, self.index)

    @property
    def compile_ms(self) -> float | None:
        """The milliseconds of the kernel's compile; ``None`` if unknown."""
        return sum(self.stages_ms.values()) if self.stages_ms else None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Group).decode


@lru_cache(maxsize=16)  # a hit asks twice: for the file, and for what is in it
def group_key(framework: str, name: str, index: str) -> CacheKey:
    """The key in our store for another framework's kernel. It never equals the key of a kernel of ours."""
    return CacheKey(hashlib.sha256("\0".join((framework, name, index)).encode()).hexdigest())


def is_plain(name: str) -> bool:
    """Whether a name is a plain file name, without a path that leads to another folder."""
    is_short = 0 < len(os.fsencode(name)) <= _LONGEST_NAME
    return is_short and name not in (".", "..") and "/" not in name and "\0" not in name


class StoredGroup:
    """A bundle as it is stored, verified by checksum but not unpacked; ``digest`` is the SHA-256 of its content."""

    def __init__(self, key: CacheKey, digest: bytes, packed: memoryview) -> None:
        self.key, self.digest, self.packed = key, digest, packed
        self._group: Group | None = None

    @property
    def data(self) -> bytes:
        """The bytes of the whole file, which ``stored_in`` reads."""
        whole: bytes = self.packed.obj  # type: ignore[assignment]  # of which it is a part
        return whole

    @property
    def group(self) -> Group:
        """The unpacked bundle; raises ``CorruptEntry`` if the bytes are no bundle, or a bundle of another key."""
        if self._group is None:
            self._group = _unpacked(self.key, self.packed)
        return self._group


def read_stored(layout: StoreLayout, key: CacheKey, *, trust: bool | None = None) -> StoredGroup | None:
    """Reads a bundle without unpacking it; ``None`` if the store has none with this key. Raises as ``read_group``."""
    data = read_file(layout.group_path(key), MAX_BYTES + 1, trust=trust)
    return None if data is None else stored_in(key, data)


def read_group(layout: StoreLayout, key: CacheKey, *, trust: bool | None = None) -> Group | None:
    """Reads and unpacks a bundle, verified by checksum; ``None`` if the store has none with this key.

    Args:
        trust: as for ``read_file``.

    Raises:
        CorruptEntry: when the bundle is damaged, or ``Untrusted``.
        UnknownGroup: when the bundle has another format version.
        OSError: when its file cannot be read.
    """
    stored = read_stored(layout, key, trust=trust)
    return None if stored is None else stored.group


def is_unknown_group(layout: StoreLayout, key: CacheKey) -> bool:
    """Whether the store has a bundle with this key in an unknown format version. Such a bundle is never used."""
    try:
        read_group(layout, key, trust=True)  # which decides only on who may change it
    except UnknownGroup:
        return True
    except (CorruptEntry, OSError):
        return False
    return False


def group_keys(layout: StoreLayout, start: str = "") -> Iterator[CacheKey]:
    """All bundle keys that begin with ``start``, sorted. Reads no bundle."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(layout.groups)):
            if name.startswith(start) and is_key(name):
                yield CacheKey(name)


def put_group(layout: StoreLayout, group: Group, *, durable: bool) -> int:
    """Stores a bundle, replacing one with the same key; returns its bytes on disk.

    Raises:
        ValueError: when it is larger than ``MAX_BYTES``, or one of its names cannot be that of a file.
        OSError: when writing fails; an old bundle is then unchanged.
    """
    data = _packed(group)
    publish_file(layout.temp, layout.group_path(group.key), data, durable=durable)
    return len(data)


def _is_sound(group: Group) -> bool:
    """Whether the bundle's file names are valid, and neither too many nor too long."""
    said = len(group.framework) + len(group.name) + len(group.version)
    is_named = group.index in group.files and all(map(is_plain, group.files))
    return is_named and len(group.files) <= MOST_FILES and said <= _MOST_LETTERS


def group_bytes(group: Group) -> int:
    """The bytes that a bundle would take on disk; raises ``ValueError`` as ``put_group``."""
    return len(_packed(group))


def _packed(group: Group) -> bytes:
    raw = _encode(group)
    if len(raw) > MAX_BYTES or not _is_sound(group):
        raise ValueError(f"{group.index} of {group.framework} cannot be stored: {len(raw):,} bytes, {[*group.files]}")
    for level in (_FAST_LEVEL, _LEVEL):
        packed = zstandard.ZstdCompressor(level=level, write_content_size=True).compress(raw)
        if _HEADER.size + len(packed) <= _BLOCK_BYTES:
            break
    return _HEADER.pack(_MAGIC, _FORMAT, bytes.fromhex(group.key), hashlib.sha256(packed).digest()) + packed


_of_thread = threading.local()


def _decompressor() -> zstandard.ZstdDecompressor:
    """The decompressor of this thread, made once, because making it takes longer than unpacking a kernel."""
    found: zstandard.ZstdDecompressor | None = getattr(_of_thread, "decompressor", None)
    if found is None:
        found = _of_thread.decompressor = zstandard.ZstdDecompressor()
    return found


def stored_in(key: CacheKey, data: bytes) -> StoredGroup:
    """The bundle in the bytes of a file, not unpacked; raises ``CorruptEntry`` and ``UnknownGroup``."""
    if len(data) < _HEADER.size:
        raise Truncated(f"group {key[:12]} ends within its header")
    if len(data) > MAX_BYTES:
        raise CorruptEntry(f"group {key[:12]} is larger than {MAX_BYTES:,} bytes")
    magic, version, named, digest = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptEntry(f"group {key[:12]} has no valid header")
    if version != _FORMAT:
        raise UnknownGroup(f"group {key[:12]} has format {version}; this program knows {_FORMAT}")
    packed = memoryview(data)[_HEADER.size :]
    if hashlib.sha256(packed).digest() != digest:
        raise CorruptEntry(f"group {key[:12]} does not match its checksum")
    if named.hex() != key:
        raise Misplaced(f"the group at the path of {key[:12]} is another one")
    return StoredGroup(key, digest, packed)


def _unpacked(key: CacheKey, packed: memoryview) -> Group:
    try:
        # max_output_size is ignored for frames that declare their size, so the declaration is checked first.
        if not 0 <= zstandard.frame_content_size(packed) <= MAX_BYTES:
            raise CorruptEntry(f"group {key[:12]} declares no size, or one of more than {MAX_BYTES:,} bytes")
        group = _decode(_decompressor().decompress(packed))
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptEntry(f"group {key[:12]} cannot be read: {error}") from error
    if key != group.key:
        raise Misplaced(f"the group at the path of {key[:12]} is another one")
    if not _is_sound(group):
        raise CorruptEntry(f"group {key[:12]} has names that are none of its files")
    return group
