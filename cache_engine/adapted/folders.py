"""Where a process has files for a framework that reads them by their paths: a private folder in ``TMPDIR``.

It is deleted at the end of the process. A killed process leaves it: its lock is then free, and the next process that
makes such a folder deletes it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import xxhash

from cache_engine.errors import CorruptEntry
from cache_engine.process import OwnFile, run_at_end
from cache_engine.store.lock import try_lock
from cache_engine.store.ownership import own_file

PREFIX = "gemm-cache-kernels-"
LOCK = ".lock"
"""In each folder; locked as long as its process lives, and empty until it is. No framework has a part of this name."""
GRACE_S = 600.0
"""A folder without a lock, or with an empty one, that is younger is that of a process which is about to lock it."""

_folders: dict[int, tuple[Path, OwnFile]] = {}
"""By process: a fork must not use that of its parent, which deletes it."""


def own_folder() -> Path:
    """The folder of this process.

    Raises:
        OSError: when it cannot be made.
    """
    me = os.getpid()
    if me not in _folders:
        delete_abandoned()
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = OwnFile.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        try_lock(lock.descriptor)
        os.write(lock.descriptor, b"locked\n")
        _folders[me] = folder, lock
        run_at_end(partial(_delete, folder, me))
    return _folders[me][0]


def delete_abandoned() -> list[Path]:
    """Deletes the folders of your processes that ended without deleting them; returns these. Raises nothing."""
    deleted = []
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as items:
        for item in items:
            if item.name.startswith(PREFIX) and _is_abandoned(item):
                shutil.rmtree(item.path, ignore_errors=True)
                deleted.append(Path(item.path))
    return deleted


def _is_abandoned(item: os.DirEntry[str]) -> bool:
    """Whether it is a folder of yours whose process is gone. A folder that others may change is not touched."""
    with suppress(OSError, CorruptEntry):
        status = item.stat(follow_symlinks=False)
        if not item.is_dir(follow_symlinks=False) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return False
        is_old = abs(time.time() - status.st_mtime) > GRACE_S
        try:
            lock = own_file(f"{item.path}/{LOCK}", os.O_RDWR)
        except FileNotFoundError:
            return is_old
        try:
            return (is_old or os.fstat(lock.descriptor).st_size > 0) and try_lock(lock.descriptor)
        finally:
            lock.close()
    return False


def _delete(folder: Path, of_process: int) -> None:
    if os.getpid() == of_process:
        shutil.rmtree(folder, ignore_errors=True)


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


_encode = msgspec.msgpack.Encoder().encode
