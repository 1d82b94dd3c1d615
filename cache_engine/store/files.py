"""Reads untrusted files, and moves damaged ones to quarantine."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from cache_engine.errors import CorruptEntry, UsageError
from cache_engine.store.layout import SHARDS, StoreLayout
from cache_engine.store.ownership import check_opened, name_what_is_no_file, open_file
from cache_engine.store.publish import publish_file

_AT_ONCE = 2**26  # bytes that one call reads at most
MOST_BYTES = 2**31
"""The largest file of results or sums that is read, in bytes."""

_LOOK_AT = stat.S_IFMT(0o177777) | stat.S_IWGRP | stat.S_IWOTH
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


def read_file(path: str | os.PathLike[str], limit: int, *, trust: bool | None = None) -> bytes | None:
    """The first ``limit`` bytes of a file; ``None`` when it does not exist.

    Args:
        trust: as for ``open_file``.

    Raises:
        CorruptEntry: when it is not a regular file, or ``Untrusted``.
        OSError: when it cannot be read.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None
    except OSError as error:
        name_what_is_no_file(path, error)
        raise
    try:
        status = os.fstat(descriptor)
        # Every hit calls this twice. A regular file that belongs to you needs no further check.
        if status.st_mode & _LOOK_AT != stat.S_IFREG or status.st_uid != os.geteuid():
            check_opened(path, status, trust)
        # Asks for a byte more than the file has, because the buffer is allocated before reading. A regular file returns
        # all it has.
        wanted = min(limit, status.st_size + 1, _AT_ONCE)
        data = os.read(descriptor, wanted)
        while len(data) == wanted < limit:
            wanted = min(limit, wanted + _AT_ONCE)
            data += os.read(descriptor, wanted - len(data))
        return data
    finally:
        os.close(descriptor)


def read_whole(
    path: str | os.PathLike[str], most_bytes: int, start: int = 0, *, trust: bool | None = None
) -> bytes | None:
    """A file from ``start`` to its end; ``None`` when it does not exist.

    Args:
        most_bytes: a larger file is refused before it is read: a sparse file can be huge and take no room on the disk.
        trust: as for ``open_file``.

    Raises:
        CorruptEntry: when it is larger than ``most_bytes``, not a regular file, or ``Untrusted``.
        OSError: when it cannot be read.
    """
    try:
        descriptor = open_file(path, trust=trust)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        _check_size(path, descriptor, most_bytes)
        file.seek(start)
        return file.readall()


def check_readable(path: str | os.PathLike[str], most_bytes: int) -> None:
    """Raises the error of ``read_whole`` for a file that it would refuse, and an error if the file does not exist."""
    descriptor = open_file(path)
    try:
        _check_size(path, descriptor, most_bytes)
    finally:
        os.close(descriptor)


def _check_size(path: str | os.PathLike[str], descriptor: int, most_bytes: int) -> None:
    size_bytes = os.fstat(descriptor).st_size
    if size_bytes > most_bytes:
        raise CorruptEntry(f"{os.fspath(path)} has {size_bytes:,} bytes; at most {most_bytes:,} are read")


def shards_in(*folders: Path, links: bool) -> list[str]:
    """The sorted names of the subfolders that exist in any of these folders (``kernels``, ``metadata``).

    Args:
        links: whether to list symbolic links too; they may lead out of the store.

    Raises:
        OSError: when a folder exists and cannot be listed.
    """
    names: set[str] = set()
    for folder in folders:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            names.update(entry.name for entry in entries if links or not entry.is_symlink())
    return sorted(names.intersection(SHARDS))


def refuse_link(folder: str) -> None:
    """Raises an error if a subfolder of entries is a symbolic link: writing to it may lead out of the store.

    Raises:
        PermissionError: when it is a link.
    """
    if os.path.islink(folder):
        reason = f"{folder} is a link, not a folder; gemm-cache verify --repair moves it to quarantine"
        raise PermissionError(errno.EPERM, reason)


def refuse_device(path: str | os.PathLike[str]) -> None:
    """Raises an error if a path is a device, pipe or socket: root could replace ``/dev/null`` for all programs.

    Raises:
        UsageError: when the path is one of these.
    """
    with suppress(OSError):
        kind = stat.S_IFMT(os.lstat(path).st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR):
            raise UsageError(f"{os.fspath(path)} is a device, pipe or socket, not a file; give another name")


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file completely or not at all: on a full disk, the old file stays. Replaces the file that a link names.

    Raises:
        UsageError: when the path is a device, pipe or socket.
        OSError: when it cannot be written.
    """
    target = os.path.realpath(path)
    refuse_device(target)
    # A name that no other user can know, as the folder may be /tmp, and short, as the file's may be as long as can be.
    temporary = os.path.join(os.path.dirname(target), f".{os.urandom(8).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        os.replace(temporary, target)
    except OSError as error:
        error.filename, error.filename2 = os.fspath(path), None  # the path that the user gave
        raise
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def move_to_quarantine(layout: StoreLayout, path: Path) -> None:
    """Moves one file into quarantine, under a unique name that contains the original name.

    Raises:
        OSError: when moving fails; the file then stays where it was.
    """
    layout.quarantine.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileNotFoundError):
        path.rename(layout.quarantined(path.name, time.time_ns()))


def copy_to_quarantine(layout: StoreLayout, path: Path, *, durable: bool, most_bytes: int = MOST_BYTES) -> Path | None:
    """Copies a damaged file into quarantine; the caller then writes the original again with its sound entries.

    A file that ``read_whole`` refuses (not regular, larger than ``most_bytes``, or open to changes by others) is moved.

    Returns:
        The path in quarantine; ``None`` when the file is gone.

    Raises:
        OSError: when copying or moving fails; then nothing has changed.
    """
    layout.quarantine.mkdir(mode=0o700, exist_ok=True)
    target = layout.quarantined(path.name, time.time_ns())
    try:
        data = read_whole(path, most_bytes)
    except CorruptEntry:
        path.rename(target)
        return target
    if data is None:
        return None
    publish_file(layout.temp, str(target), data, durable=durable)
    return target
