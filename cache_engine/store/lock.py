"""Locks between processes and threads, with a bounded wait.

One file per lock, by ``flock``. To take a free lock takes one system call. If all waiters polled for a held lock, a
process that releases it and asks again at once would always get it. So waiters block in the operating system, which is
fair, with ``portalocker``. A blocking call has no timeout, so it runs in a thread that is abandoned when the wait is
over. The system releases a lock when its process ends, also when it is killed. On some network file systems such locks
do not work between machines.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

from cache_engine.background import Thread
from cache_engine.errors import CorruptEntry, LockTimeout
from cache_engine.model.key import CacheKey
from cache_engine.process import OwnFile, renew_after_fork, unforked
from cache_engine.store.ownership import own_file

_POLL_S = (0.001, 0.005)
ROTATE_BYTES = 1024**2
"""The size in bytes of a file of lines at which its writer begins another file."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_MOST_BLOCKED = 100


class Held:
    """Locks an open file for the body of a ``with``, then closes it."""

    __slots__ = ("_absent", "_file", "_name", "_shared", "_timeout_s")

    def __init__(
        self, file: OwnFile, name: str, timeout_s: float, *, shared: bool = False, absent: Path | None = None
    ) -> None:
        """Takes ownership of an open file.

        Args:
            name: the name of the lock for error texts.
            timeout_s: the longest wait for the lock, in seconds.
            absent: a path that must not exist once the file is locked.
        """
        self._file, self._name, self._timeout_s, self._shared, self._absent = file, name, timeout_s, shared, absent

    def __enter__(self) -> None:
        descriptor = self._file.descriptor
        try:
            if not (
                try_lock(descriptor, shared=self._shared) or _wait_in_line(descriptor, self._timeout_s, self._shared)
            ):
                after = f"for more than {self._timeout_s:g} s"
                raise LockTimeout(f"lock {self._name} was held by another process {after}")
            if self._absent is not None and self._absent.exists():
                raise LockTimeout(f"lock {self._name} was made just now by another process")
        except BaseException:
            _release(self._file)
            raise

    def __exit__(self, *_: object) -> None:
        _release(self._file)


def file_lock(path: Path, timeout_s: float, *, shared: bool = False) -> Held:
    """Holds the lock of a file while the body of a ``with`` runs. Creates the file if it is missing; never deletes it.

    If the body forks, only the parent holds the lock, and the lock ends with the parent.

    Raises:
        LockTimeout: when the wait took longer than ``timeout_s`` (0 tries once).
        OSError: when the lock file cannot be opened, for example on a read-only file system.
    """
    return Held(_open(path, timeout_s), path.name, timeout_s, shared=shared)


def file_lock_to_delete(path: Path, timeout_s: float) -> Held:
    """As ``file_lock``, but works also on a full disk, where a missing lock file cannot be created.

    It then locks the folder instead. Until this lock is released, no process can create the missing lock file and hold
    it. Use this only for deleting, since all other processes wait for the folder.
    """
    try:
        return file_lock(path, timeout_s)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
    return Held(_open_folder(path.parent), path.name, timeout_s, absent=path)


def make_lock_file(path: Path) -> None:
    """Creates a lock file, unless it exists.

    Raises:
        OSError: when it cannot be created, or the path is not a file that can be locked.
    """
    _open(path, 0).close()


class ThreadLocks:
    """Locks between the threads of this process: 64 locks, which all keys share."""

    def __init__(self) -> None:
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: makes new locks, because another thread of the parent may have held an old one."""
        self._locks = tuple(threading.Lock() for _ in range(64))

    def of(self, key: CacheKey) -> threading.Lock:
        """The lock of a key."""
        return self._locks[int(key[:2], 16) % 64]


def _open(path: Path, timeout_s: float) -> OwnFile:
    try:
        with suppress(FileNotFoundError):
            return own_file(path, os.O_RDWR)
        # Not while another process relies on the absence of the file (``file_lock_to_delete``).
        with Held(_open_folder(path.parent), path.parent.name, timeout_s, shared=True):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600))
        return own_file(path, os.O_RDWR)
    except CorruptEntry as error:
        raise PermissionError(errno.EPERM, str(error)) from error


def _open_folder(folder: Path) -> OwnFile:
    return OwnFile.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _release(file: OwnFile) -> None:
    """Unlocks and closes a file. Does nothing in a forked child, or if the program has already closed the file."""
    try:
        if file.is_ours:
            # A child forked a moment ago may still have the file open, so closing alone may not release the lock. If
            # the file system refuses to unlock, closing has to do.
            with suppress(OSError):
                fcntl.flock(file.descriptor, fcntl.LOCK_UN)
    finally:
        file.close()


def _wait_in_line(descriptor: int, timeout_s: float, shared: bool) -> bool:
    """Waits for a lock for at most ``timeout_s`` seconds; returns whether it was acquired."""
    if timeout_s <= 0:
        return False
    deadline = time.monotonic() + timeout_s
    if len(_blocked) >= _MOST_BLOCKED:  # waiters behind a stopped process never end
        return _poll(descriptor, deadline, shared)
    waiter = _Waiter(descriptor, shared)
    try:
        thread = Thread(waiter.wait)
    except RuntimeError:  # this process may have no more threads
        waiter.close()
        return _poll(descriptor, deadline, shared)
    if waiter.acquired_within(thread, timeout_s):
        return True
    if thread.is_alive:
        return False
    waiter.close()
    return _poll(descriptor, deadline, shared)  # the thread had no memory to run


class _Waiter:
    """A thread that blocks until it has a lock. The caller can stop waiting; the thread then releases the lock."""

    def __init__(self, descriptor: int, shared: bool) -> None:
        # A duplicate: the caller closes its descriptor when it stops waiting, and the thread still uses this one.
        self._file = OwnFile(os.dup(descriptor))
        self._shared = shared
        self._deciding = threading.Lock()
        self._abandoned = self._acquired = False
        self._error: OSError | None = None
        _blocked.add(self)
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: stops counting this thread, which exists only in the parent."""
        _blocked.discard(self)

    def wait(self) -> None:
        """Waits for the lock, in the thread; releases it if the caller has stopped waiting."""
        try:
            _wait(self._file.descriptor, self._shared)
            with self._deciding:
                self._acquired = not self._abandoned
                if self._abandoned:
                    _release(self._file)
        except OSError as error:
            self._error = error
        finally:
            self.close()

    def acquired_within(self, thread: Thread, timeout_s: float) -> bool:
        """Whether the lock was acquired in time; if not, the thread releases the lock as soon as it gets it.

        Raises:
            OSError: when the file system has no locks.
        """
        try:
            thread.join(timeout_s)
        finally:  # also when interrupted
            with self._deciding:
                self._abandoned = not self._acquired
        if self._error is not None:
            raise self._error
        return self._acquired

    def close(self) -> None:
        """Closes the thread's descriptor."""
        _blocked.discard(self)
        self._file.close()


# The waiters whose threads still wait, each with a descriptor; some have no caller any more.
_blocked: set[_Waiter] = set()


def _poll(descriptor: int, deadline: float, shared: bool) -> bool:
    while time.monotonic() < deadline:
        time.sleep(random.uniform(*_POLL_S))  # noqa: S311 (jitter, not a secret)
        if try_lock(descriptor, shared=shared):
            return True
    return False


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Locks an open file if no other process holds its lock; returns whether the file is now locked.

    Closing the file releases the lock, unless a forked child still has the file open.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _no_locks(error.strerror or error) from error
    return True


def open_to_append(folder: Path, ending: str) -> tuple[OwnFile, os.stat_result]:
    """Opens a file to which only this process appends lines: the oldest that is free and has room, or a new one.

    Returns the open file and its status.

    Raises:
        OSError: when there is no such file, and none can be created.
    """
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            # A file that cannot be opened belongs to another user or is gone.
            if name.endswith(ending):
                with suppress(OSError, CorruptEntry):
                    taken = _reuse(folder / name)
                    if taken is not None:
                        return taken
    while True:
        path = folder / f"{time.time_ns():016x}-{os.getpid()}-{os.urandom(4).hex()}{ending}"
        file = OwnFile.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        try:
            if _lock_in_place(file.descriptor, path):
                return file, os.fstat(file.descriptor)
        except BaseException:
            file.close()
            raise
        # Between opening and locking, another writer has locked it, or it was folded.
        file.close()


def _reuse(path: Path) -> tuple[OwnFile, os.stat_result] | None:
    """Opens and locks an existing file if no process holds it and it has room for lines; else returns ``None``.

    If a killed process left the last line incomplete, this ends the line.
    """
    file = own_file(path, os.O_RDWR | os.O_APPEND)
    descriptor = file.descriptor
    try:
        if os.fstat(descriptor).st_size < ROTATE_BYTES and _lock_in_place(descriptor, path):
            status = os.fstat(descriptor)
            if status.st_size and os.pread(descriptor, 1, status.st_size - 1) != b"\n":
                os.write(descriptor, b"\n")
            return file, status
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def _lock_in_place(descriptor: int, path: Path) -> bool:
    """Locks an open file; returns whether it is locked and still at its path, since folding may rename it."""
    if not try_lock(descriptor):
        return False
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def _wait(descriptor: int, shared: bool) -> None:
    """Locks an open file; waits without a limit."""
    portalocker = _imported()  # 45 ms, and only a process that has to wait needs it
    try:
        portalocker.lock(descriptor, portalocker.LockFlags.SHARED if shared else portalocker.LockFlags.EXCLUSIVE)
    except portalocker.LockException as error:
        raise _no_locks(error) from error


def _no_locks(why: object) -> OSError:
    return OSError(f"locks do not work on this file system: {why}")  # for example ENOLCK


def _imported() -> ModuleType:
    """The module ``portalocker``, imported without its lock in Redis.

    Where ``redis`` is installed, importing that part takes longer than the rest. The program can still import it from
    ``portalocker.redis``.
    """
    if "portalocker" in sys.modules:
        return import_module("portalocker")
    with unforked():
        if "redis" in sys.modules:
            return import_module("portalocker")
        sys.modules["portalocker.redis"] = None  # type: ignore[assignment]  # no module: importing it fails
        try:
            return import_module("portalocker")
        finally:
            sys.modules.pop("portalocker.redis", None)
