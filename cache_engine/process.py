"""Handles forks, closed files, signals and the end of a process.

A forked child inherits locks that other threads of its parent held, and no thread will ever release them; an object
with such a lock registers here, and is asked in the child to renew it. A worker of ``multiprocessing`` ends without
running what ``atexit`` was given, so what must run at the end is given to both.

A signal handler runs in the main thread between any two of its instructions, also while that thread holds a lock. A
handler that then asks for the lock, or waits for a thread that asks for it, would wait for ever. So locks that a
handler can reach are ``RLock``, what is done under them asks ``holds`` first, and a thread waits on a queue without a
lock.
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

# The longest wait of a fork for other threads, and the time between two looks.
_FORK_S, _LOOK_S = 30.0, 0.001

T = TypeVar("T")


class Renewable(Protocol):
    """An object that a forked child must reset before use."""

    def renew_after_fork(self) -> None:
        """Resets it in the child, where no other thread runs."""
        ...


# One registration for all, since the interpreter cannot unregister one.
_renewables: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_after_fork(thing: Renewable) -> None:
    """Renews ``thing`` in every forked child, as long as it exists."""
    _renewables.add(thing)


def _renew_all() -> None:
    for thing in list(_renewables):
        thing.renew_after_fork()


os.register_at_fork(after_in_child=_renew_all)


class _Unforked:
    """A context manager whose body no other thread forks in: a fork waits for its end, half a minute at most.

    For what has locks that no child can renew: NVRTC, and at their first use imports and ``tempfile``. A child forked
    meanwhile would wait for them for ever. And for starting a program: the child would hold its pipes open, and this
    process would wait for the child.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(before=self._take, after_in_parent=self._give, after_in_child=self._renew)

    def _renew(self) -> None:
        self._forking = threading.RLock()  # no body begins while a fork waits
        self._inside: list[int] = []  # threads

    def _take(self) -> None:
        latest, mine = time.monotonic() + _FORK_S, threading.get_ident()
        self._forking.acquire(timeout=_FORK_S)
        # For a while only: another thread may wait for an import of this one.
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
            with suppress(ValueError):  # in a child that was forked in the body
                self._inside.remove(thread)


unforked = _Unforked()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A body in which this thread's Ctrl-C waits, such as the start of a program that must be ended with its caller.

    Without it, an interrupt in ``subprocess.Popen`` leaves the program running, and its id is lost. The program
    inherits that Ctrl-C waits: only for one that is ended by SIGKILL.
    """
    import signal  # no hit needs it

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def holds(lock: threading.RLock) -> bool:
    """Whether this thread holds the lock, i.e. a signal handler has interrupted code under the lock.

    ``threading.Condition`` asks its lock the same.
    """
    owned = lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001 (there is no public API)
    return bool(owned)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of it; a terminal or pipe that another process has made non-blocking is waited for."""
    import select  # no hit needs it

    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select((), (descriptor,), ())


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def weak(method: Callable[..., T], *arguments: object, **options: object) -> Callable[[], T | None]:
    """Calls a method of an object as long as that exists. It does not keep the object from being freed."""
    reference = weakref.WeakMethod(method)

    def call() -> T | None:
        there = reference()
        return None if there is None else there(*arguments, **options)

    return call


def run_at_end(call: Callable[[], object]) -> Callable[[], None]:
    """Runs ``call`` when this process ends; returns a function that cancels this."""
    atexit.register(call)
    # Only a worker needs this, and a worker has it loaded.
    util = sys.modules.get("multiprocessing.util")
    finalizer = None if util is None else util.Finalize(None, call, exitpriority=0)

    def forget() -> None:
        atexit.unregister(call)
        if finalizer is not None:
            finalizer.cancel()

    return forget


class OwnFile:
    """An open file that is identified by its inode, as in SQLite.

    A program may close descriptors that are not its own, as daemons do with ``os.closerange``, and the number then
    belongs to the next file that the program opens. So look with ``status`` before every write.
    """

    def __init__(self, descriptor: int, *, shared: bool = False) -> None:
        """Owns an open descriptor.

        Args:
            shared: whether a forked child keeps using it. Otherwise the child closes its copy, which ends no lock of
                the parent's; and the parent's lock then ends with the parent, however long the child lives.
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
        """Opens a file. Raises as ``os.open``."""
        return cls(os.open(path, flags, mode))

    def renew_after_fork(self) -> None:
        """In a forked child: the file is the parent's."""
        self.close()

    def __del__(self) -> None:
        """Closes a file that nobody can close any more: it may be locked."""
        if getattr(self, "_is_open", False):
            self.close()

    def status(self) -> os.stat_result | None:
        """The status of the descriptor's file if that is still the file it was opened for; else ``None``.

        Raises:
            OSError: when it cannot be read.
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
        """Whether the descriptor still refers to that file, or may do so, after a disk error."""
        try:
            return self.status() is not None
        except OSError:
            return self._is_open

    def close(self, *, check: bool = False) -> None:
        """Closes the file, unless the program has done so; more often than once does no harm.

        Args:
            check: whether to raise what closing reports, as a network file system may report a full disk only then.
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
