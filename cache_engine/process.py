"""Handles forks, closed files, signals and the end of a process.

A forked child inherits locks that other threads of its parent held, and no thread will ever release them; an object
with such a lock registers here, and is asked in the child to renew it. A worker of ``multiprocessing`` ends without
running what ``atexit`` was given, so what must run at the end is given to both.

A signal handler runs in the main thread between any two of its instructions, also while that thread holds a lock. A
handler that then asks for the lock, or waits for a thread that asks for it, would wait for ever. So locks that a
handler can reach are ``RLock``, what is done under them asks ``holds`` first, and a thread gets its orders by a queue
without a lock.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import sys
import threading
import time
import weakref
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from queue import Empty, SimpleQueue
from typing import Protocol

_log = logging.getLogger(__name__)
# The longest wait for a thread: a signal handler may have interrupted what it waits for.
_END_S = 5.0
# At least so long a thread waits after a step that failed.
_PAUSE_S = 1.0
# The longest wait of a fork for other threads, and the time between two looks.
_FORK_S, _LOOK_S = 30.0, 0.001


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


def holds(lock: threading.RLock) -> bool:
    """Whether this thread holds the lock, i.e. a signal handler has interrupted code under the lock.

    ``threading.Condition`` asks its lock the same.
    """
    owned = lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001 (there is no public API)
    return bool(owned)


def run_at_end(call: Callable[[], None]) -> Callable[[], None]:
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


class _Running:
    """Exists as long as its thread runs."""

    __slots__ = ("__weakref__",)


class Thread:
    """A daemon thread. Its start returns at once, even if the thread has no memory to run.

    ``threading.Thread.start`` waits for the first instruction of the thread without a limit. A thread that has no
    memory for its first frame dies before that, and the wait never ends (CPython 3.11 to 3.13).
    """

    def __init__(self, work: Callable[..., object], *arguments: object) -> None:
        """Starts it.

        Raises:
            RuntimeError: when this process cannot start another thread.
        """
        self._process = os.getpid()
        self._ended: SimpleQueue[object] = SimpleQueue()
        running = _Running()
        # The thread holds the only other reference. No frame of Python runs at its end, as there may be no memory.
        self._running = weakref.ref(running, self._ended.put)
        self._identity = start_new_thread(_run, (running, work, arguments))

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, or is about to."""
        return self._running() is not None and self._process == os.getpid()

    def join(self, timeout_s: float) -> None:
        """Waits for the end of the thread, but no longer than the timeout; not at all in the thread itself."""
        if self.is_alive and self._identity != threading.get_ident():
            with suppress(Empty):
                self._ended.put(self._ended.get(timeout=timeout_s))  # for the next that waits


def _run(running: _Running, work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    try:
        work(*arguments)
    finally:
        # A log handler that keeps an error of this thread keeps this frame too, and with it the sign that it runs.
        del running


class Order(Enum):
    """The order to a background thread."""

    WORK = auto()
    END = auto()


class Worker(Protocol):
    """The owner of a background thread."""

    def work(self, order: Order | None) -> float | None:
        """One step of the thread, on an order or after a wait.

        Returns how many seconds it then waits; ``None`` ends it.
        """
        ...


class Background:
    """A daemon thread that calls ``work`` of its owner until that ends it, or the owner is freed.

    Its methods can be called in a signal handler.
    """

    def __init__(self, owner: Worker, wait_s: float) -> None:
        """Starts the thread, which first waits for an order or ``wait_s``.

        Raises:
            RuntimeError: when this process cannot start another thread.
        """
        self._orders: SimpleQueue[Order] = SimpleQueue()
        # Weak, so that an unused owner can be freed.
        self._thread = Thread(_work, weakref.ref(owner), self._orders, wait_s)

    @property
    def is_alive(self) -> bool:
        """Whether the thread still works."""
        return self._thread.is_alive

    def order_work(self) -> None:
        """Has the owner work soon, once for all orders that the thread has not taken yet."""
        if self._orders.empty():
            self._orders.put(Order.WORK)

    def end(self) -> None:
        """Orders the end. Returns at once."""
        self._orders.put(Order.END)

    def join(self, timeout_s: float = _END_S) -> None:
        """Waits for the end, but not for ever: the thread may wait for what a signal handler has interrupted."""
        self._thread.join(timeout_s)


def _work(reference: weakref.ref[Worker], orders: SimpleQueue[Order], wait_s: float | None) -> None:
    while wait_s is not None:
        pause_s = max(wait_s, _PAUSE_S)  # after a failure; some wait for nothing, and the next step may fail too
        order = None
        with suppress(Empty):
            order = orders.get(timeout=wait_s)
        owner = reference()
        if owner is None:
            return
        try:
            wait_s = owner.work(order)
        except Exception:  # this step is lost, the next ones are not
            _log.exception("a step in the background failed")
            if order is Order.END:
                return
            wait_s = pause_s
        del owner  # do not keep it alive while waiting


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
