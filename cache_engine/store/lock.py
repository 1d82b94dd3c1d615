"""Locks between processes and threads, with a bounded wait.

``portalocker`` over one file per lock. Its polling, every 250 ms, starves waiters; polling faster still serves whoever
asks again at once before those who sleep. So waiters block in the kernel, which is fair, and as blocking knows no
timeout, in a thread that is left behind when the wait is over. A lock ends with its process, whatever becomes of it. On
network file systems such locks are best effort.
"""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from cache_engine.errors import CorruptEntry, LockTimeout
from cache_engine.model.key import CacheKey
from cache_engine.process import OwnFile, renew_after_fork
from cache_engine.store.ownership import own_file

_POLL_S = (0.001, 0.005)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def file_lock(path: Path, timeout_s: float, *, shared: bool = False) -> Iterator[None]:
    """Holds the lock for the body of a ``with``. The file is made when missing and never deleted.

    In a child that is forked in the body the lock stays the parent's, and ends with the parent.

    Raises:
        LockTimeout: when it was not had within ``timeout_s`` (0 asks once).
        OSError: when the lock file cannot be opened, as on a read-only file system.
    """
    file = _open(path, timeout_s)
    try:
        if not try_lock(file.descriptor, shared=shared) and not _wait_in_line(file.descriptor, timeout_s, shared):
            raise LockTimeout(f"lock {path.name} was held by another process for more than {timeout_s:g} s")
        yield
    finally:
        _release(file)


@contextmanager
def file_lock_to_delete(path: Path, timeout_s: float) -> Iterator[None]:
    """As ``file_lock``, also where the disk has no room for a lock file that is not there yet.

    While the folder is locked no process can make that file, so none can hold it. Only for what makes room: other
    processes wait for the folder.
    """
    with ExitStack() as held:
        try:
            held.enter_context(file_lock(path, timeout_s))
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            held.enter_context(_folder_lock(path.parent, timeout_s, shared=False))
            if path.exists():
                raise LockTimeout(f"lock {path.name} was made just now by another process") from error
        yield


def make_lock_file(path: Path) -> None:
    """Makes a lock file, unless it is there.

    Raises:
        OSError: when it cannot be made, or be a lock.
    """
    _open(path, 0).close()


class ThreadLocks:
    """Locks between the threads of this process alone, one for each of 64 groups of keys."""

    def __init__(self) -> None:
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: another thread of the parent may have held one."""
        self._locks = tuple(threading.Lock() for _ in range(64))

    def of(self, key: CacheKey) -> threading.Lock:
        """The lock of a key."""
        return self._locks[int(key[:2], 16) % 64]


def _open(path: Path, timeout_s: float) -> OwnFile:
    try:
        with suppress(FileNotFoundError):
            return own_file(path, os.O_RDWR)
        # Not while a deleter counts on its not being there.
        with _folder_lock(path.parent, timeout_s, shared=True):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        os.close(descriptor)
        return own_file(path, os.O_RDWR)
    except CorruptEntry as error:
        raise PermissionError(errno.EPERM, str(error)) from error


@contextmanager
def _folder_lock(folder: Path, timeout_s: float, *, shared: bool) -> Iterator[None]:
    file = OwnFile.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not try_lock(file.descriptor, shared=shared) and not _wait_in_line(file.descriptor, timeout_s, shared):
            raise LockTimeout(f"{folder.name} was locked by another process for more than {timeout_s:g} s")
        yield
    finally:
        _release(file)


def _release(file: OwnFile) -> None:
    """Unlocks and closes a file, unless this is a forked child, or the program has closed it."""
    try:
        if file.is_ours:
            import portalocker

            # A child forked a moment ago may have the file open still, so closing is not enough. Where the file system
            # refuses this of all things, it is.
            with suppress(portalocker.LockException, OSError):
                portalocker.unlock(file.descriptor)
    finally:
        file.close()  # also where there is no memory to unlock it


def _wait_in_line(descriptor: int, timeout_s: float, shared: bool) -> bool:
    """Waits for a lock until it is had or time is up; whether it was had."""
    if timeout_s <= 0:
        return False
    waiter = _Waiter(descriptor, shared)
    try:
        threading.Thread(target=waiter.wait, daemon=True).start()
    except RuntimeError:  # this process may have no more threads
        waiter.close()
        return _poll(descriptor, timeout_s, shared)
    return waiter.had_within(timeout_s)


class _Waiter:
    """Blocks for a lock in a thread, which may be given up."""

    def __init__(self, descriptor: int, shared: bool) -> None:
        # A descriptor of its own: closing the other one, when the wait is over, must not pull this from under it.
        self._file = OwnFile(os.dup(descriptor))
        self._shared = shared
        self._deciding = threading.Lock()
        self._over = threading.Event()
        self._given_up = self._had = False
        self._trouble: OSError | None = None

    def wait(self) -> None:
        """Body of the thread."""
        try:
            _lock(self._file.descriptor, self._shared, blocking=True)
            with self._deciding:
                self._had = not self._given_up
                if self._given_up:
                    _release(self._file)
        except OSError as error:
            self._trouble = error
        finally:
            self._over.set()
            self.close()

    def had_within(self, timeout_s: float) -> bool:
        """Whether the lock was had in time; else the thread gives it back should it ever come.

        Raises:
            OSError: when locking does not work here.
        """
        try:
            self._over.wait(timeout_s)
        finally:  # also when interrupted
            with self._deciding:
                self._given_up = not self._had
        if self._trouble is not None:
            raise self._trouble
        return self._had

    def close(self) -> None:
        """Closes the thread's descriptor."""
        self._file.close()


def _poll(descriptor: int, timeout_s: float, shared: bool) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        time.sleep(random.uniform(*_POLL_S))  # noqa: S311 (jitter, no secret)
        if try_lock(descriptor, shared=shared):
            return True
    return False


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Locks an open file if no other process holds it; closing it releases it, unless a forked child has it too."""
    return _lock(descriptor, shared, blocking=False)


def is_loading() -> bool:
    """Whether what locks is being imported just now, so that a signal handler may have interrupted that."""
    module = sys.modules.get("portalocker")
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _lock(descriptor: int, shared: bool, *, blocking: bool) -> bool:
    import portalocker  # 45 ms, and no hit needs it

    kind = portalocker.LockFlags.SHARED if shared else portalocker.LockFlags.EXCLUSIVE
    try:
        portalocker.lock(descriptor, kind if blocking else kind | portalocker.LockFlags.NON_BLOCKING)
    except portalocker.AlreadyLocked:
        return False
    except portalocker.LockException as error:
        # Locking itself does not work here (ENOLCK and the like): to be treated as a file system error.
        raise OSError(f"locks do not work on this file system: {error}") from error
    return True
