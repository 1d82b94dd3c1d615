"""Kernels of other frameworks in a store: the files of each kernel are a group, which is one file.

One file, because then a reader gets all files of one writer or none, whatever is deleted or replaced meanwhile. It is a
header (magic, format version, key, SHA-256 of the rest) and a zstd frame of what ``Group`` holds. Every read checks all
of it. The time of the file is that of its last use, to the hour.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import xxhash
import zstandard

from cache_engine.errors import CorruptEntry, Misplaced, Truncated
from cache_engine.model.key import CacheKey
from cache_engine.store.files import read_file
from cache_engine.store.layout import StoreLayout
from cache_engine.store.publish import publish_file

FORMAT = 1
MAX_BYTES = 64 * 1024**2
"""Of a group, also unpacked: hundreds of times the largest seen, and the most that a forged file may allocate."""

_HEADER = struct.Struct("<8sH32s32s")
_MAGIC = b"GEMMGRUP"
_LEVEL = 3
_LONGEST_NAME = 255
_NOTED_S = 3600.0


class UnknownGroup(Exception):
    """A group of a format version that this program does not know. Leave it unchanged."""


class Group(msgspec.Struct, frozen=True):
    """The files of one kernel.

    Attributes:
        framework: whose they are, such as ``triton``.
        name: the framework's own key of the kernel.
        index: the file that names the others.
        files: their bytes, by name.
    """

    framework: str
    name: str
    index: str
    files: dict[str, bytes]

    @property
    def key(self) -> CacheKey:
        """Its key in a store."""
        return group_key(self.framework, self.name, self.index)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Group).decode


def group_key(framework: str, name: str, index: str) -> CacheKey:
    """The key in a store of another framework's kernel. None of ours has it: theirs are digests of JSON."""
    return CacheKey(hashlib.sha256("\0".join((framework, name, index)).encode()).hexdigest())


def is_plain(name: str) -> bool:
    """Whether a name is that of a file in a folder, and leads nowhere else."""
    return 0 < len(os.fsencode(name)) <= _LONGEST_NAME and name not in (".", "..") and not {"/", "\0"} & set(name)


def read_group(layout: StoreLayout, key: CacheKey, *, trust: bool | None = None) -> Group | None:
    """A group, every byte checked; ``None`` if the store has no such group.

    Args:
        trust: as for ``read_file``.

    Raises:
        CorruptEntry: when it is damaged, or ``Untrusted``.
        UnknownGroup: when it is of another format version.
        OSError: when it cannot be read.
    """
    data = read_file(layout.group_path(key), MAX_BYTES + 1, trust=trust)
    return None if data is None else _unpacked(key, data)


def note_use(layout: StoreLayout, key: CacheKey) -> None:
    """Sets the time of a group to now, unless it is of the last hour or cannot be set."""
    path = layout.group_path(key)
    with suppress(OSError):
        if abs(time.time() - os.lstat(path).st_mtime) > _NOTED_S:
            os.utime(path, follow_symlinks=False)


def put_group(layout: StoreLayout, group: Group, *, durable: bool) -> int:
    """Stores a group, in place of the one that there was; returns its bytes on disk.

    Raises:
        ValueError: when it is larger than ``MAX_BYTES``, or a name in it is none of a file.
        OSError: when writing fails; what there was is then unchanged.
    """
    raw = _encode(group)
    if len(raw) > MAX_BYTES or not all(map(is_plain, group.files)) or group.index not in group.files:
        raise ValueError(f"{group.index} of {group.framework} cannot be stored: {len(raw):,} bytes, {[*group.files]}")
    packed = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(raw)
    header = _HEADER.pack(_MAGIC, FORMAT, bytes.fromhex(group.key), hashlib.sha256(packed).digest())
    publish_file(layout.temp, layout.group_path(group.key), header + packed, durable=durable)
    return len(header) + len(packed)


def _unpacked(key: CacheKey, data: bytes) -> Group:
    if len(data) < _HEADER.size:
        raise Truncated(f"group {key[:12]} ends within its header")
    if len(data) > MAX_BYTES:
        raise CorruptEntry(f"group {key[:12]} is larger than {MAX_BYTES:,} bytes")
    magic, version, named, digest = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptEntry(f"group {key[:12]} has no valid header")
    if version != FORMAT:
        raise UnknownGroup(f"group {key[:12]} has format {version}; this program knows {FORMAT}")
    packed = memoryview(data)[_HEADER.size :]
    if hashlib.sha256(packed).digest() != digest:
        raise CorruptEntry(f"group {key[:12]} does not match its checksum")
    try:
        # max_output_size is ignored for frames that declare their size, so the declaration is checked first.
        if not 0 <= zstandard.frame_content_size(packed) <= MAX_BYTES:
            raise CorruptEntry(f"group {key[:12]} declares no size, or one of more than {MAX_BYTES:,} bytes")
        group = _decode(zstandard.ZstdDecompressor().decompress(packed))
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptEntry(f"group {key[:12]} cannot be read: {error}") from error
    if not named.hex() == key == group.key:
        raise Misplaced(f"the group at the path of {key[:12]} is another one")
    if not all(map(is_plain, group.files)) or group.index not in group.files:
        raise CorruptEntry(f"group {key[:12]} has names that are none of its files")
    return group


def write_files(folder: Path, files: dict[str, bytes]) -> dict[str, str]:
    """Writes files into a folder of this process; returns their paths by name. Names must be plain.

    Raises:
        OSError: when writing fails.
    """
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return {name: f"{folder}/{name}" for name in files}


def files_below(folder: Path, files: dict[str, bytes]) -> dict[str, str]:
    """The paths of files by name, in a folder of their own below one of this process.

    It is named by what is in them, so what is asked for again is not written again.

    Raises:
        OSError: when writing fails.
    """
    own = folder / xxhash.xxh3_128_hexdigest(_encode(files))
    paths = {name: f"{own}/{name}" for name in files}
    if not all(map(os.path.exists, paths.values())):
        staged = Path(tempfile.mkdtemp(dir=folder))
        write_files(staged, files)
        try:
            staged.rename(own)
        except OSError:
            if not all(map(os.path.exists, paths.values())):  # else another thread was faster
                raise
    return paths
