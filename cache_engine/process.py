"""Handles forks, closed files, signals and the end of a process.

A forked child inherits locks that other threads of its parent held, and no thread will ever release them; an object
with such a lock registers with ``renew_after_fork``, which calls its method in the child. A worker of
``multiprocessing`` ends without calling the functions registered with ``atexit``, so ``run_at_end`` registers with
``atexit`` and ``multiprocessing``.

A signal handler runs in the main thread between any two of its instructions, also while that thread holds a lock. A
handler that then asks for the lock, or waits for a thread that asks for it, would wait for ever. So every lock that a
handler can reach is an ``RLock``, code that is to run under it first asks ``holds``, and threads wait on a queue that
has no lock.
"""

from __future__ import annotations

import atexit
import errno
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

# In seconds: the longest wait of a fork for other threads, and the time between two checks.
_FORK_S, _LOOK_S = 30.0, 0.001

T = TypeVar("T")


class Renewable(Protocol):
    """An object that a forked child must reset before use."""

    def renew_after_fork(self) -> None:
        """Resets the object in the child, where no other thread runs."""
        ...


# One registration for all objects, since the interpreter cannot remove one.
_renewables: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_after_fork(thing: Renewable) -> None:
    """Calls ``thing.renew_after_fork`` in every forked child, as long as ``thing`` exists."""
    _renewables.add(thing)


class Locked:
    """An object with a lock. A forked child makes a new lock, as a thread of the parent may have held the old one."""

    def __init__(self) -> None:
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: makes a new lock."""
        self._lock = threading.Lock()


def _renew_all() -> None:
    for thing in list(_renewables):
        thing.renew_after_fork()


os.register_at_fork(after_in_child=_renew_all)


class _Unforked:
    """A context manager: while its body runs, no other thread forks. A fork waits until the body ends, at most 30 s.

    Use it for code with locks that no child can renew: NVRTC, and the first use of imports and of ``tempfile``. A child
    forked while such a lock is held would wait for it for ever. Use it also to start a program: a child forked
    meanwhile would hold the program's pipes open, and this process would wait for that child.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(before=self._take, after_in_parent=self._give, after_in_child=self._renew)

    def _renew(self) -> None:
        self._forking = threading.RLock()  # so that no body begins while a fork waits
        self._inside: list[int] = []  # ids of the threads in a body

    def _take(self) -> None:
        latest, mine = time.monotonic() + _FORK_S, threading.get_ident()
        self._forking.acquire(timeout=_FORK_S)
        # For a limited time: another thread may wait for an import that this thread does.
        while any(thread != mine for thread in tuple(self._inside)) and time.monotonic() < latest:
            time.sleep(_LOOK_S)

    def _give(self) -> None:
        if holds(self._forking):
            self._forking.release()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        thread = threading.get_ident()
        with self._forking:
            self._inside.append(thread)
        try:
            yield
        finally:
            with suppress(ValueError):  # in a child that was forked inside the body
                self._inside.remove(thread)


unforked = _Unforked()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A context manager: while its body runs, Ctrl-C waits in this thread.

    Use it to start a program that must end with us.

    Without it, an interrupt in ``subprocess.Popen`` leaves the program running, and its id is lost. The program that is
    started inherits the blocked Ctrl-C, so use this only for a program that is ended by SIGKILL.
    """
    import signal  # no hit needs it

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def holds(lock: threading.RLock) -> bool:
    """Whether this thread holds the lock, i.e. a signal handler has interrupted code under the lock.

    ``threading.Condition`` asks its lock in the same way.
    """
    owned = lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001 (there is no public API)
    return bool(owned)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of ``data``; waits for a terminal or pipe that another process has made non-blocking."""
    import select  # no hit needs it

    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select((), (descriptor,), ())


def processors() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def weak(method: Callable[..., T], *arguments: object, **options: object) -> Callable[[], T | None]:
    """A function that calls the method as long as its object exists, and afterwards returns ``None``.

    It does not keep the object alive.
    """
    reference = weakref.WeakMethod(method)

    def call() -> T | None:
        there = reference()
        return None if there is None else there(*arguments, **options)

    return call


def run_at_end(call: Callable[[], object]) -> Callable[[], None]:
    """Has ``call`` called when this process ends; returns a function that cancels this."""
    atexit.register(call)
    # Only a worker of ``multiprocessing`` needs this, and it has imported the module already.
    util = sys.modules.get("multiprocessing.util")
    finalizer = None if util is None else util.Finalize(None, call, exitpriority=0)

    def forget() -> None:
        atexit.unregister(call)
        if finalizer is not None:
            finalizer.cancel()

    return forget


class OwnFile:
    """An open file that is identified by its inode, not only by its descriptor; SQLite does the same.

    A program may close descriptors that it did not open, as daemons do with ``os.closerange``. The next file that the
    program opens then gets the same number. So call ``status`` before every write.
    """

    def __init__(self, descriptor: int, *, shared: bool = False) -> None:
        """Takes ownership of an open descriptor.

        Args:
            shared: whether a forked child keeps using the file. Otherwise the child closes its copy. That does not
                release the parent's lock, and the lock ends with the parent even if the child lives on.
        """
        self.descriptor = descriptor
        try:
            self._inode = _inode(os.fstat(descriptor))
            self._is_open = True
            if not shared:
                renew_after_fork(self)
        except BaseException:
            self._is_open = False
            os.close(descriptor)
            raise

    @classmethod
    def open(cls, path: str | bytes | os.PathLike[str], flags: int, mode: int = 0o600) -> OwnFile:
        """Opens a file; raises the errors of ``os.open``."""
        return cls(os.open(path, flags, mode))

    def renew_after_fork(self) -> None:
        """In a forked child: closes the child's copy, because the file is the parent's."""
        self.close()

    def __del__(self) -> None:
        """Closes the file when no reference to this object is left, because an open file may still hold a lock."""
        if getattr(self, "_is_open", False):
            self.close()

    def status(self) -> os.stat_result | None:
        """The status of the file if the descriptor still refers to the file that was opened; else ``None``.

        Raises:
            OSError: when the status cannot be read.
        """
        try:
            status = os.fstat(self.descriptor)
        except OSError as error:
            if error.errno == errno.EBADF:
                return None
            raise
        return status if self._is_open and _inode(status) == self._inode else None

    @property
    def is_ours(self) -> bool:
        """Whether the descriptor still refers to the file that was opened; true if a disk error hides the answer."""
        try:
            return self.status() is not None
        except OSError:
            return self._is_open

    def close(self, *, check: bool = False) -> None:
        """Closes the file, unless the program has already closed its descriptor. Calling it again does no harm.

        Args:
            check: whether to raise the error of closing: a network file system may report a full disk only then.
        """
        ours = self.is_ours
        self._is_open = False
        if ours:
            try:
                os.close(self.descriptor)
            except OSError:
                if check:
                    raise


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
