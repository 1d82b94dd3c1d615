"""A remote whose client runs in a separate process with bounded memory, so that no server can end the caller's process.

The clients of object stores read answers into memory, including the bodies of errors, and obstore aborts its process
when memory runs out. Its runtime does not survive a fork either. So each process that uses a remote starts one process
for the client (``client_program``): at the first request, and again if that process has ended. The client's process
ends with its parent, also when the parent is killed.

Threads send their requests over socket pairs, one pair for each thread. A frame is the length of a JSON text, the
length of the bytes, the text, and the bytes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, NoReturn

from cache_engine.cache.remote.base import COMMAND, Timeouts, without_query
from cache_engine.cache.remote.clients import KEY_VALUE_STORES, OBJECT_STORES
from cache_engine.errors import CorruptEntry, ExtraMissing, GemmCacheError, RemoteError, UsageError
from cache_engine.process import renew_after_fork, unforked
from cache_engine.units import human_bytes, printable

KINDS = (*OBJECT_STORES, *KEY_VALUE_STORES)
"""The first parts of the URLs of remotes, such as ``s3``."""
MEMORY_BYTES = 256 * 2**20
"""The bytes of memory that the client may use: 24 MB at its start, and three copies of what eight threads transfer.
"""
QUIET_S, LIST_S, MOST_LISTED = 60, 600, 1_000_000
"""The limits of a listing: seconds without a new name, seconds in all, and the number of names."""
START_S, STUCK_S = 30.0, 30.0
"""Seconds for the client to start; seconds without an answer after which a client with a late request is replaced."""
_END_S = 1.0  # seconds for a killed process to end; one that waits for a network file system may take longer
_MOST_TEXT = 8 * 2**20
_AT_ONCE = 2**16  # bytes sent with one call
_HEAD = struct.Struct("<IQ")
_ERRORS: dict[str, type[GemmCacheError]] = {
    kind.__name__: kind for kind in (CorruptEntry, ExtraMissing, RemoteError, UsageError)
}
_PROGRAM = """
import sys
sys.path[:] = sys.argv[2:]
from cache_engine.cache.remote.client_program import main
main(int(sys.argv[1]))
"""


class Frames:
    """One end of a socket pair, which sends and receives frames."""

    def __init__(self, ours: socket.socket) -> None:
        """Takes ownership of the socket."""
        self._socket, self._rest = ours, bytearray()
        self._limit = -1.0

    def limit(self, seconds: float) -> None:
        """Limits the seconds of each ``send`` and ``receive``; they raise ``BlockingIOError`` if they take longer.

        The operating system measures the time, because Python's own timeout adds a system call to each.
        """
        if seconds != self._limit:
            self._limit, microseconds = seconds, max(1, round(seconds * 1e6))
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._socket.setsockopt(
                    socket.SOL_SOCKET, option, struct.pack("@ll", microseconds // 10**6, microseconds % 10**6)
                )

    def send(self, text: object, data: bytes = b"") -> None:
        """Sends a frame: a JSON value and bytes."""
        encoded = json.dumps(text).encode()
        head = _HEAD.pack(len(encoded), len(data)) + encoded
        if len(data) > _AT_ONCE:
            self._socket.sendall(head)
            self._socket.sendall(data)
        else:
            self._socket.sendall(head + data)

    def receive(self, most_bytes: int) -> tuple[Any, bytes]:
        """The text and the bytes of the next frame.

        Raises ``EOFError`` at the end of the stream, or if the frame is too long.
        """
        self._fill(_HEAD.size)
        text_bytes, data_bytes = _HEAD.unpack_from(self._rest)
        if text_bytes > _MOST_TEXT or data_bytes > most_bytes:
            raise EOFError
        data_at = _HEAD.size + text_bytes
        end = data_at + data_bytes
        self._fill(end)
        text, data = json.loads(self._rest[_HEAD.size : data_at]), bytes(self._rest[data_at:end])
        del self._rest[:end]
        return text, data

    def _fill(self, size: int) -> None:
        while len(self._rest) < size:
            some = self._socket.recv(_AT_ONCE)
            if not some:
                raise EOFError
            self._rest += some

    def send_end(self, theirs: socket.socket) -> None:
        """Sends a socket to the other process, which serves one more thread over it."""
        socket.send_fds(self._socket, [b"\0"], [theirs.fileno()])

    def receive_end(self) -> socket.socket | None:
        """The next socket that the other process sends; ``None`` at the end."""
        descriptors = socket.recv_fds(self._socket, 1, 1)[1]
        return socket.socket(fileno=descriptors[0]) if descriptors else None

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


class ClientProcess:
    """A remote, used through another process.

    Safe to use from several threads; a forked child starts its own process.
    """

    def __init__(self, url: str, patience: Timeouts = COMMAND, **options: Any) -> None:
        """Starts the process; makes no request to the remote yet.

        Args:
            url: the URL of the remote, as for ``open_remote``.
            patience: the time limits of a request.
            options: options of ``Objects``; they must be JSON values.

        Raises:
            UsageError: when ``url`` is not the URL of a remote.
            ExtraMissing: when the package for this kind of remote is not installed.
        """
        self.url, self._name = url, printable(without_query(url))
        self._limit_s = patience.limit_s
        self._setup = {"url": url, "patience": asdict(patience), "options": options}
        self._lock = threading.RLock()
        self._running: _Running | None = None
        renew_after_fork(self)
        with suppress(RemoteError):  # the first request raises the error
            self._started()

    def renew_after_fork(self) -> None:
        """In a forked child: forgets the process, because it belongs to the parent."""
        self._lock = threading.RLock()
        if self._running is not None:
            self._running.end()  # closes sockets that would keep it alive after the parent; only a parent can kill it
            self._running = None

    def get(self, name: str, most_bytes: int) -> bytes | None:
        """As ``Remote.get``."""
        is_there, data = self._ask({"do": "get", "name": name, "most": most_bytes}, most_bytes=most_bytes)
        return data if is_there else None

    def create(self, name: str, data: bytes) -> bool:
        """As ``Remote.create``."""
        return bool(self._ask({"do": "create", "name": name}, data)[0])

    def delete(self, name: str) -> None:
        """As ``Remote.delete``."""
        self._ask({"do": "delete", "name": name})

    def sizes(self, folder: str, on_some: Callable[[int], None] = lambda _: None) -> Iterator[tuple[str, int]]:
        """As ``Remote.sizes``; also raises ``RemoteError`` when a list takes too long, is too long, or begins again."""
        return ((name, size) for name, size in self._listed({"do": "sizes", "name": folder}, on_some))

    def ages(self, folder: str, on_some: Callable[[int], None] = lambda _: None) -> Iterator[tuple[str, int, float]]:
        """As ``Remote.ages``."""
        return ((name, size, age) for name, size, age in self._listed({"do": "ages", "name": folder}, on_some))

    def close(self) -> None:
        """Ends the process, even during a request. A later request starts a new one."""
        with self._lock:
            if self._running is not None:
                self._end(self._running)

    def _ask(self, question: dict[str, Any], data: bytes = b"", *, most_bytes: int = 0) -> tuple[Any, bytes]:
        running = self._ready()
        with self._failures(running), running.connection() as connection:
            connection.limit(self._limit_s)
            connection.send(question, data)
            answer, found = connection.receive(most_bytes)
            running.answered_at = time.monotonic()
        if isinstance(answer, dict):
            _raise(answer)
        return answer, found

    def _listed(self, question: dict[str, Any], on_some: Callable[[int], None]) -> Iterator[list[Any]]:
        left, first, endless = MOST_LISTED, None, f"{self._name} does not come to an end of its list"
        for batch in self._batches(question, endless):
            left -= len(batch)
            if left < 0:
                raise RemoteError(
                    f"{self._name} lists more than {MOST_LISTED:,} objects; split it into several remotes"
                )
            for item in batch:
                if item[0] == first:
                    raise RemoteError(f"{endless}: it begins again")
                first = first or item[0]
                yield item
            on_some(len(batch))

    def _batches(self, question: dict[str, Any], endless: str) -> Iterator[list[Any]]:
        running, until = self._ready(), time.monotonic() + LIST_S
        with self._failures(running, endless), running.connection() as connection:
            connection.limit(QUIET_S)
            connection.send(question)
            while batch := connection.receive(0)[0]:
                if isinstance(batch, dict):
                    _raise(batch)
                yield batch
                if time.monotonic() > until:
                    raise BlockingIOError

    @contextmanager
    def _failures(self, running: _Running, late: str = "") -> Iterator[None]:
        """A context manager that turns errors into ``RemoteError``, and ends the client process if it is unusable."""
        try:
            yield
        except BlockingIOError:
            # A late request goes on in the process: it may be getting credentials, which the next request will use.
            if late or time.monotonic() - running.answered_at > STUCK_S:
                self._end(running)
            raise RemoteError(late or f"{self._name} has not answered within {self._limit_s:g} s") from None
        except (OSError, EOFError, ValueError) as error:
            raise RemoteError(
                f"the process that asked {self._name} ended with status {self._end(running)}; it may have been "
                f"answered with more than the {human_bytes(MEMORY_BYTES)} of memory that it may take"
            ) from error

    def _ready(self) -> _Running:
        try:
            return self._started()
        except (UsageError, ExtraMissing) as error:  # the environment has changed since the remote was opened
            raise RemoteError(str(error)) from error

    def _started(self) -> _Running:
        with self._lock:
            if self._running is None:
                try:
                    self._running = _Running(self._setup)
                except (OSError, EOFError, ValueError, RuntimeError) as error:
                    raise RemoteError(f"no process can be started to ask {self._name}: {error!r}") from error
            return self._running

    def _end(self, running: _Running) -> int:
        with self._lock:
            if self._running is running:
                self._running = None
            return running.end()


class _Running:
    """A running process with a client."""

    def __init__(self, setup: dict[str, Any]) -> None:
        """Starts the process, and waits until it is ready."""
        ours, theirs = socket.socketpair()
        self._control, self._idle = Frames(ours), list[Frames]()
        try:
            with theirs:
                self.number = _spawned(theirs.fileno())
        except BaseException:
            self._control.close()
            raise
        self._status = 0
        self._ending = weakref.finalize(self, _end, self.number, self._control, self._idle)
        self._ending.atexit = False  # sends at the end of this process still need it; the system closes its socket
        try:
            self._control.limit(START_S)
            self._control.send(setup)
            if answer := self._control.receive(0)[0]:
                _raise(answer)
        except BaseException:
            self.end()
            raise
        self.answered_at = time.monotonic()

    @contextmanager
    def connection(self) -> Iterator[Frames]:
        """A context manager with a connection to the process for one thread.

        After an error the connection is closed, because a late answer may still arrive over it.
        """
        theirs = None
        try:
            connection = self._idle.pop()
        except IndexError:
            ours, theirs = socket.socketpair()
            connection = Frames(ours)
        try:
            if theirs is not None:
                with theirs:
                    self._control.send_end(theirs)
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    def end(self) -> int:
        """Ends the process; returns its exit status, as ``subprocess`` does."""
        if self._ending.alive:
            self._status = self._ending() or 0
        return self._status


def _spawned(number: int) -> int:
    """Starts a process that serves the descriptor ``number``; returns its process id. ``_end`` waits for its end."""
    bytecode = ["-B"] if sys.dont_write_bytecode else []
    command = [sys.executable, "-I", *bytecode, "-c", _PROGRAM, str(number), *filter(os.path.isabs, sys.path)]
    environment = {**os.environ, "TOKIO_WORKER_THREADS": "2"}  # not one for each core: their stacks need memory
    nothing = subprocess.DEVNULL
    # In its own process group, so that Ctrl-C reaches only the caller. Not in its own session: Linux schedules each
    # session apart, and a hit on a busy machine then waits several times as long.
    with unforked():
        process = subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=nothing, pass_fds=(number,), env=environment,
            process_group=0,
        )  # fmt: skip
    process.returncode = 0  # otherwise Popen warns that nobody waits for it
    return process.pid


def _end(process: int, control: Frames, idle: list[Frames]) -> int:
    """Ends a process; returns its exit status: the process's own if it was already ending."""
    control.close()
    while idle:
        idle.pop().close()
    until = time.monotonic() + _END_S
    with suppress(ChildProcessError):  # the process belongs to the parent, or the program itself waits for all children
        ended, status = os.waitpid(process, os.WNOHANG)
        if not ended:
            os.kill(process, signal.SIGKILL)
        while not ended and time.monotonic() < until:
            time.sleep(0.001)
            ended, status = os.waitpid(process, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else -signal.SIGKILL
    return 0


def _raise(answer: dict[str, str]) -> NoReturn:
    raise _ERRORS.get(answer["error"], RemoteError)(answer["text"])


def open_remote(url: str, patience: Timeouts = COMMAND) -> ClientProcess:
    """The remote with this URL; makes no request yet.

    Raises:
        UsageError: when ``url`` is not the URL of a remote.
        ExtraMissing: when the package for this kind of remote is not installed.
    """
    if url.startswith(KINDS):
        return ClientProcess(url, patience)
    raise UsageError(f"{printable(url[:200])!r} is not a remote; it starts with one of: {', '.join(KINDS)}")
