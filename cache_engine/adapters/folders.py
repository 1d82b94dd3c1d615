"""A private folder in ``TMPDIR`` where this process writes kernel files for a framework that reads them by path.

The folder is deleted at the end of the process. A killed process leaves its folder; its lock is then free, and the next
process that makes such a folder deletes it.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

from cache_engine.errors import CorruptEntry
from cache_engine.frameworks.bundles import StoredGroup
from cache_engine.process import OwnFile, renew_after_fork, run_at_end, unforked
from cache_engine.store.lock import try_lock
from cache_engine.store.ownership import own_file

PREFIX = "gemm-cache-kernels-"
LOCK = ".lock"
"""The name of the lock file in each folder: locked while the folder's process lives, and empty until then. No framework
uses this name.
"""
GRACE_S = 600.0
"""The age, in seconds, up to which a folder without a lock file, or with an empty one, is left alone.

Its process may be about to lock it.
"""


class _Own:
    """The private folder of this process, and the kernel files written to it."""

    def __init__(self) -> None:
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """Called in a forked child: forgets the folder, because it is the parent's, which will delete it."""
        self.lock = threading.RLock()
        self.folder: Path | None = None
        # All that this process made. The folder of a lock that is freed would be deleted while its files are in use.
        self.held: list[OwnFile] = []
        self.written: dict[bytes, dict[str, str]] = {}

    def make(self) -> Path:
        """Makes and locks the private folder of this process; returns its path. Raises ``OSError``."""
        with unforked():
            folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = OwnFile.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        if not try_lock(lock.descriptor):  # this process was stopped for longer than the grace
            raise BlockingIOError(errno.EAGAIN, "another process deletes it", str(folder))
        os.write(lock.descriptor, b"locked\n")
        self.held.append(lock)
        run_at_end(partial(_delete, folder, os.getpid()))
        return folder


_own = _Own()


def own_folder() -> Path:
    """The private folder of this process, made at the first call.

    Raises:
        OSError: when the folder cannot be made.
    """
    with _own.lock:
        # What tidies TMPDIR may have deleted the folder of a process that lives.
        if _own.folder is None or not _own.folder.is_dir():
            delete_abandoned()
            _own.folder = _own.make()
        return _own.folder


def delete_abandoned() -> list[Path]:
    """Deletes the folders of this user's processes that ended without deleting them; returns the folders.

    Raises nothing.
    """
    deleted = []
    with suppress(OSError):
        with unforked():
            temporary = tempfile.gettempdir()
        with os.scandir(temporary) as items:
            for item in items:
                if item.name.startswith(PREFIX) and _is_abandoned(item):
                    shutil.rmtree(item.path, ignore_errors=True)
                    deleted.append(Path(item.path))
    return deleted


def _is_abandoned(item: os.DirEntry[str]) -> bool:
    """Whether a directory entry is a folder of this user whose process has ended.

    False for a folder that other users may write to.
    """
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


def write_files(files: dict[str, bytes]) -> dict[str, str]:
    """Writes files into a new folder below the private folder of this process; returns their paths by name.

    Names must have no directory.

    Raises:
        OSError: when writing fails.
    """
    below = f"{own_folder()}/{next(_numbers)}"
    os.mkdir(below, 0o700)
    return add_files(below, files)


def add_files(folder: str, files: dict[str, bytes]) -> dict[str, str]:
    """Writes files into a folder that ``write_files`` made; returns their paths by name. Raises as ``write_files``."""
    paths = {}
    for name, data in files.items():
        path = paths[name] = f"{folder}/{name}"
        # Without Python's own layers, which take as long as the file system does.
        descriptor = os.open(path, _NEW, 0o600)
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, "only a part of the data was written", path)
        finally:
            os.close(descriptor)
    return paths


def files_of(stored: StoredGroup) -> dict[str, str]:
    """Writes the files of another framework's kernel below this process's folder; returns their paths by name.

    A kernel that was written before is neither unpacked nor written again.

    Raises:
        CorruptEntry: when the bytes are not those of a stored kernel.
        OSError: when writing fails.
    """
    paths = _own.written.get(stored.digest)
    if paths is None or not all(map(os.path.exists, paths.values())):
        # Another thread may write the same meanwhile, into a folder of its own.
        paths = _own.written[stored.digest] = write_files(stored.group.files)
    return paths


def forget_written() -> None:
    """Forgets which kernels ``files_of`` has written, so that it writes them again, as in a new process."""
    _own.written.clear()


_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
_numbers = count()
