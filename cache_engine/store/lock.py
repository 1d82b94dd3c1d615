"""Locks between processes and threads, with a bounded wait.

``portalocker`` over one file per lock. Its blocking form ignores timeouts and its own polling (every 250 ms) starves
waiters, so this polls every few milliseconds at random. A lock ends with its process, whatever becomes of it. On
network file systems such locks are best effort.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cache_engine.errors import LockTimeout
from cache_engine.model.key import CacheKey
from cache_engine.process import renew_after_fork

_POLL_S = (0.001, 0.005)


@contextmanager
def file_lock(path: Path, timeout_s: float, *, shared: bool = False) -> Iterator[None]:
    """Holds the lock for the body of a ``with``. The file is made when missing and never deleted.

    Raises:
        LockTimeout: when it was not had within ``timeout_s`` (0 asks once).
        OSError: when the lock file cannot be opened, as on a read-only file system.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    holder = os.getpid()
    try:
        deadline = time.monotonic() + timeout_s
        while not try_lock(descriptor, shared=shared):
            if time.monotonic() >= deadline:
                raise LockTimeout(f"lock {path.name} was held by another process for more than {timeout_s:g} s")
            time.sleep(random.uniform(*_POLL_S))  # noqa: S311 (jitter, no secret)
        yield
    finally:
        # Closing is not enough: a child forked meanwhile has the file open too, and would keep the lock. In that child,
        # in turn, unlocking would take it from its parent.
        if os.getpid() == holder:
            _unlock(descriptor)
        # What the lock was for is done, and a file is closed whatever closing it says.
        with suppress(OSError):
            os.close(descriptor)


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


def _unlock(descriptor: int) -> None:
    import portalocker

    # Should the file system refuse this of all things, closing the file does it, but for children forked meanwhile.
    with suppress(portalocker.LockException, OSError):
        portalocker.unlock(descriptor)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Locks an open file if nobody else holds it; closing the file releases it, unless a forked child has it too."""
    import portalocker  # 45 ms, and no hit needs it

    kind = portalocker.LockFlags.SHARED if shared else portalocker.LockFlags.EXCLUSIVE
    try:
        portalocker.lock(descriptor, kind | portalocker.LockFlags.NON_BLOCKING)
    except portalocker.AlreadyLocked:
        return False
    except portalocker.LockException as error:
        # Locking itself does not work here (ENOLCK and the like): to be treated as a file system error.
        raise OSError(f"locks do not work on this file system: {error}") from error
    return True
