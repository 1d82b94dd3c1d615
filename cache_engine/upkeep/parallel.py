"""Work on many items at once: in forked child processes on all processors, or in threads that wait for the disk.

Checking an entry takes a dozen short system calls, and after each a thread waits for the interpreter's lock again: two
threads are as fast as one. A child process is forked in milliseconds, with all that its parent has imported, but
not with its parent's other threads, so it would wait for ever for a lock that such a thread holds. So only the command
line forks, never the library in another program, and a parent never waits for a child without a limit.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Any, NoReturn, TypeVar

import msgspec

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_ALONE_S = 0.02  # what is done in this time is not worth a fork
_STUCK_S = 30.0  # after so long without a result, the parent makes it
_LENGTH = struct.Struct("<Q")
_PIPE_BYTES = 2**20  # so that a child that is ahead does not wait for the parent at each result


def in_processes(
    work: Callable[[_Item], _Result], items: Sequence[_Item], kind: Any, processes: int
) -> Iterator[_Result]:
    """Yields the result of ``work`` for each item, in the order of the items.

    This process works alone for a moment, and forks children if items are left after that. An item whose child fails is
    done here, so an error of ``work`` is raised in the place of the item's result. No child is left when the iterator
    ends or is closed.

    Args:
        work: a function that changes nothing outside its process.
        kind: the type of the results, which are sent as MessagePack.
        processes: the most child processes; with 1, this process does everything.
    """
    children: list[_Child] = []
    first, until = 0, time.monotonic() + _ALONE_S
    decode = msgspec.msgpack.Decoder(kind).decode
    try:
        for number, item in enumerate(items):
            if not children and processes > 1 and time.monotonic() >= until:
                first, count = number, min(processes, len(items) - number)
                children = [_Child(work, items[at::count]) for at in range(first, first + count)]
            sent = children[(number - first) % len(children)].receive() if children else None
            yield work(item) if sent is None else decode(sent)
    finally:
        for child in children:
            child.end()


def in_threads(
    work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int, *, ahead: int | None = None
) -> Iterator[_Result]:
    """Yields the result of ``work`` for each item, in their order. For work that waits for a disk or a network.

    When ``work`` raises, later items may have been done as well. All work has ended when the iterator ends or is
    closed.

    Args:
        ahead: the most results that wait in memory to be yielded, by default as many as threads. With more, all threads
            stay busy while the first result is late.
    """
    if threads == 1:
        yield from map(work, items)
        return
    left = iter(items)
    with ThreadPoolExecutor(threads, thread_name_prefix="gemm-cache") as pool:
        running = deque(pool.submit(work, item) for item in islice(left, ahead or threads))
        try:
            while running:
                done = running.popleft().result()
                yield done
                del done  # before the next is made
                running.extend(pool.submit(work, item) for item in islice(left, 1))
        finally:
            for future in running:
                future.cancel()


class _Child:
    """A forked process that works on items, one after the other, and sends each result."""

    def __init__(self, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> None:
        """Forks the process. If the fork fails, ``receive`` returns ``None``."""
        self._pid = 0
        self._from, to = os.pipe()
        with suppress(OSError):  # a user's pipes may take so much together
            fcntl.fcntl(to, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            with suppress(OSError), warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of the parent's threads
                self._pid = os.fork() or _serve(work, items, self._from, to)
        finally:
            os.close(to)
            if not self._pid:
                os.close(self._from)

    def receive(self) -> bytes | None:
        """The child's next result, as bytes; ``None`` if the child has no more."""
        size = self._read(_LENGTH.size)
        return None if size is None else self._read(*_LENGTH.unpack(size))

    def _read(self, size: int) -> bytes | None:
        data = bytearray()
        while self._pid and len(data) < size:
            is_ready, *_ = select.select([self._from], [], [], _STUCK_S)
            some = os.read(self._from, size - len(data)) if is_ready else b""
            data += some
            if not some:
                self.end()
        return bytes(data) if self._pid else None

    def end(self) -> None:
        """Kills the child if it still runs."""
        if self._pid:
            with suppress(ProcessLookupError, ChildProcessError):  # the program may ignore its children
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            os.close(self._from)
            self._pid = 0


def _serve(work: Callable[[_Item], _Result], items: Sequence[_Item], parent_s: int, to: int) -> NoReturn:
    """In the child: sends the result for each item until one fails; then ends without the parent's exit handlers."""
    try:
        os.close(parent_s)  # so that sending fails once the parent is gone
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        with open(to, "wb") as out:
            for item in items:
                result = msgspec.msgpack.encode(work(item))
                out.write(_LENGTH.pack(len(result)) + result)
                out.flush()
    finally:
        os._exit(0)
