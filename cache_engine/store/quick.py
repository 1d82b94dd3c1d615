"""Reads a bundle with few imports, for a process that makes one lookup: the launcher of nvcc.

Importing ``store.disk`` takes longer than such a lookup may. So this module reads the file of a bundle, checks it as
``frameworks.bundles`` does, and appends a count to the journal. In every unusual case it raises ``Slow``, and the
caller uses the full modules instead.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from hashlib import sha256

from cache_engine.errors import CorruptEntry, Misplaced, Truncated
from cache_engine.inputs import others_may_change

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FORMAT = 1
MAX_BYTES = 64 * 1024**2
"""The largest bundle, in bytes, also unpacked.

Hundreds of times the largest seen; it bounds what a forged file allocates.
"""
HEADER = struct.Struct("<8sH32s32s")
"""The header of a bundle: magic, format version, key, SHA-256 of the bytes after it."""
MAGIC = b"GEMMGRUP"
# Copies of values in ``store.layout`` and ``settings``, whose import takes longer than a hit may; a test compares them.
MARKER, BUNDLES, JOURNAL, TEMP, DIGESTS = "store.json", "groups", "journal", "temp", "digests.json"
JOURNAL_OPEN = ".jsonl"
SETTINGS_FILE = "gemm-cache.toml"
_LINES_BYTES = 1024**2  # bytes of a file of the journal; a longer one gets no more lines
_DEEPEST = 4


def quick_directory(environment: Mapping[str, str]) -> str | None:
    """The store's directory, as ``Settings.directory`` gives it; ``None`` if only ``Settings`` can decide."""
    if environment.get("GEMM_CACHE_CONFIG") or environment.get("GEMM_CACHE_ENABLE_CACHING"):
        return None
    home = environment.get("HOME", "")
    settings = environment.get("XDG_CONFIG_HOME", "")
    settings = settings if os.path.isabs(settings) else os.path.join(home, ".config")
    if not os.path.isabs(home) or os.path.lexists(os.path.join(settings, "gemm-cache", SETTINGS_FILE)):
        return None
    if given := environment.get("GEMM_CACHE_DIR"):
        return None if given.startswith("~") else os.path.abspath(given)
    caches = environment.get("XDG_CACHE_HOME", "")
    return os.path.join(caches if os.path.isabs(caches) else os.path.join(home, ".cache"), "gemm-cache")


class UnknownGroup(Exception):
    """A bundle has a format version that this program does not know. Leave the file unchanged."""


class Slow(Exception):
    """An unusual case, which the caller must leave to the full modules of the store."""


def bundle_key(framework: str, name: str, index: str) -> str:
    """The key in a store for another framework's kernel.

    It never equals the key of one of our own kernels, which is a digest of JSON.
    """
    return sha256("\0".join((framework, name, index)).encode()).hexdigest()


def checked_body(key: str, data: bytes) -> tuple[bytes, memoryview]:
    """The digest of a bundle and its compressed content; raises ``CorruptEntry`` and ``UnknownGroup``."""
    if len(data) < HEADER.size:
        raise Truncated(f"group {key[:12]} ends within its header")
    if len(data) > MAX_BYTES:
        raise CorruptEntry(f"group {key[:12]} is larger than {MAX_BYTES:,} bytes")
    magic, version, named, digest = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptEntry(f"group {key[:12]} has no valid header")
    if version != FORMAT:
        raise UnknownGroup(f"group {key[:12]} has format {version}; this program knows {FORMAT}")
    packed = memoryview(data)[HEADER.size :]
    if sha256(packed).digest() != digest:
        raise CorruptEntry(f"group {key[:12]} does not match its checksum")
    if named.hex() != key:
        raise Misplaced(f"the group at the path of {key[:12]} is another one")
    return digest, packed


def check_root(root: str) -> None:
    """Raises ``Slow`` unless the directory is a store, and only you and root can change it and the folders above."""
    at = os.path.realpath(root)
    if at != root:
        raise Slow("a link leads to it")
    try:
        if not stat.S_ISREG(os.lstat(f"{at}/{MARKER}").st_mode) or others_may_change(os.lstat(f"{at}/{BUNDLES}")):
            raise Slow("it is no store, or others can change it")
        status = os.lstat(at)
        # In a folder with the sticky bit, such as /tmp, other users cannot rename your files.
        while others_may_change(status) is None or (at != root and not status.st_uid and status.st_mode & stat.S_ISVTX):
            if at == "/":
                return
            at = os.path.dirname(at)
            status = os.lstat(at)
    except OSError as error:
        raise Slow(str(error)) from error
    raise Slow(f"others can change {at}")


def read_bundle(root: str, key: str, *, trust: bool = False) -> dict[str, Any] | None:
    """The fields of a bundle by name, with every byte checked; ``None`` if the store does not have it.

    Raises:
        CorruptEntry, UnknownGroup: as ``checked_body``.
        Slow: when the file cannot be read, or other users can change it.
    """
    try:
        descriptor = os.open(f"{root}/{BUNDLES}/{key}", os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Slow(str(error)) from error
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or (not trust and others_may_change(status)):
            raise Slow("it is no file, or others can change it")
        data = file.read(MAX_BYTES + 1) or b""
    import zstandard

    _, packed = checked_body(key, data)
    try:
        if not 0 <= zstandard.frame_content_size(packed) <= MAX_BYTES:
            raise CorruptEntry(f"group {key[:12]} declares no size, or one of more than {MAX_BYTES:,} bytes")
        found, end = _value(zstandard.ZstdDecompressor().decompress(packed), 0, 0)
    except (zstandard.ZstdError, struct.error, ValueError, LookupError, TypeError) as error:
        raise CorruptEntry(f"group {key[:12]} cannot be read: {error}") from error
    if not isinstance(found, dict) or not end:
        raise CorruptEntry(f"group {key[:12]} is none")
    return found


# The MessagePack formats that a bundle contains: the first byte, the kind, and the number of bytes of the size.
_SIZED = {0xC4: (bytes, 1), 0xC5: (bytes, 2), 0xC6: (bytes, 4), 0xD9: (str, 1), 0xDA: (str, 2), 0xDB: (str, 4),
          0xDE: (dict, 2), 0xDF: (dict, 4)}  # fmt: skip
_FLOAT = struct.Struct(">d")


def _value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """The value at a position, and the position after it; raises ``ValueError``, ``LookupError``, ``struct.error``."""
    first, at = data[at], at + 1
    if first == 0xCB:
        return _FLOAT.unpack_from(data, at)[0], at + _FLOAT.size
    kind: Any = dict if first < 0x90 else str
    if 0x80 <= first < 0x90 or 0xA0 <= first < 0xC0:
        size = first & (15 if kind is dict else 31)
    else:
        kind, width = _SIZED[first]
        size, at = int.from_bytes(data[at : at + width], "big"), at + width
    if size > len(data) - at or depth > _DEEPEST:
        raise ValueError("it is cut short, or nested too deep")
    if kind is not dict:
        raw = data[at : at + size]
        return raw if kind is bytes else raw.decode(), at + size
    found = {}
    for _ in range(size):
        name, at = _value(data, at, depth + 1)
        found[name], at = _value(data, at, depth + 1)
    return found, at


def append_count(root: str, line: bytes) -> None:
    """Appends a line to a journal file that no process holds, or to a new file. Raises ``OSError``."""
    folder = f"{root}/{JOURNAL}"
    for name in sorted(os.listdir(folder)):
        if name.endswith(JOURNAL_OPEN) and _appended(f"{folder}/{name}", line, 0):
            return
    _appended(f"{folder}/{_stem()}{JOURNAL_OPEN}", line, os.O_CREAT | os.O_EXCL)


def replace_file(root: str, target: str, data: bytes) -> None:
    """Writes a file of the store that the store can do without.

    Raises ``OSError``, and then leaves no temporary file.
    """
    temporary = f"{root}/{TEMP}/{os.getpid()}-{os.urandom(8).hex()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.rename(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _appended(path: str, line: bytes, flags: int) -> bool:
    """Appends a line and returns whether it did: not if another process holds the file, or it is full or renamed."""
    flags |= os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        raise
    except OSError:
        if flags & os.O_CREAT:
            raise
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        if status.st_size >= _LINES_BYTES or not os.path.samestat(status, os.stat(path)) or others_may_change(status):
            return False
        cut = status.st_size and os.pread(descriptor, 1, status.st_size - 1) != b"\n"
        os.write(descriptor, b"\n" + line if cut else line)
        return True
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(descriptor)


def _stem() -> str:
    import time

    return f"{time.time_ns():016x}-{os.getpid()}-{os.urandom(4).hex()}"
