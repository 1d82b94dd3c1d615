"""Runs a command under a watch: passes on signals and the exit code, checks whether it is ready, and polls its caches.

The command stays in this process's group and session, so a terminal's Ctrl-C reaches it directly; other signals are
passed on. Processes that the command leaves running become children of this process, so that the report can name them.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from cache_engine.errors import GemmCacheError
from cache_engine.frameworks.watch import Watch
from cache_engine.process import write_all

_POLL_S = 1.0
_MOST_CPU = 0.01
"""The largest share of one processor that polling may take: after a slow poll, the next one comes later."""
_ANSWER_S = 2.0
_QUICK_S = 0.1
_PASSED = (
    signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR2, signal.SIGCONT, signal.SIGWINCH,
)  # fmt: skip
_ENDING = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}
_REPORT = signal.SIGUSR1
_WAITED = {*_PASSED, _REPORT, signal.SIGCHLD}
_FROM_TERMINAL = 0x80
"""The ``si_code`` of a signal that Linux sent, as for Ctrl-C: to the whole group, so the command got it too."""
_SET_CHILD_SUBREAPER = 36

Ready = Callable[[], bool]


class CannotStart(GemmCacheError):
    """The command cannot be started. ``exit_code`` is as in a shell: 127 if the command is not found, else 126."""

    def __init__(self, command: str, error: OSError) -> None:
        super().__init__(f"{command}: {error.strerror or error}")
        self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126


def answers(url: str) -> Ready:
    """A function that says whether a server answers at an address with a status below 400.

    The function does not wait for the server: it returns false if there is no answer yet.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy would answer for the command
    seen, asking = threading.Event(), threading.Thread()

    def ask() -> None:
        # Also what is no HTTP, and an address that is none.
        with suppress(OSError, ValueError, http.client.HTTPException), opener.open(url, timeout=_ANSWER_S):
            seen.set()

    def is_ready() -> bool:
        nonlocal asking
        if not seen.is_set() and not asking.is_alive():
            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            asking.join(_QUICK_S)
        return seen.is_set()

    return is_ready


def exists(path: Path) -> Ready:
    """A function that says whether a file was written after the call of ``exists``: false for an older file."""

    def stamp() -> tuple[int, int] | None:
        with suppress(OSError):
            status = os.stat(path)
            return status.st_ino, status.st_mtime_ns
        return None

    before = stamp()
    return lambda: stamp() not in {None, before}


class Line:
    """Passes the output of a command on, and notes when one of its lines contains a text."""

    def __init__(self, text: str) -> None:
        """Stores the text to look for in lines; copies nothing yet."""
        self._text = os.fsencode(text)  # an argument may hold any bytes
        self._seen = threading.Event()
        self.seen_at = 0.0
        self._writing: set[threading.Thread] = set()
        self._threads: list[threading.Thread] = []

    def __call__(self) -> bool:
        """Whether a line with the text has come."""
        return self._seen.is_set()

    def follow(self, source: BinaryIO, target: int) -> None:
        """Copies one stream to a descriptor, in a new thread."""
        thread = threading.Thread(target=self._pass, args=(source, target), daemon=True)
        thread.start()
        self._threads.append(thread)

    def end(self) -> None:
        """Waits until all output so far is copied.

        It does not wait for the end of the stream, which a process that the command left running may keep open.
        """
        for thread in self._threads:
            thread.join(_ANSWER_S)
            # A reader that is slow gets all of it; a signal ends the wait.
            while thread in self._writing and not signal.sigpending() & _ENDING:
                thread.join(_QUICK_S)

    def _pass(self, source: BinaryIO, target: int) -> None:
        rest = b""
        while data := os.read(source.fileno(), 65536):
            self._writing.add(threading.current_thread())
            with suppress(OSError):  # the reader of our output has ended: the command must not stop for that
                write_all(target, data)
            self._writing.discard(threading.current_thread())
            if not self._seen.is_set():
                rest += data
                if self._text in rest:
                    self.seen_at = time.time()
                    self._seen.set()
                rest = rest[rest.rfind(b"\n") + 1 :][-65536:]


class Supervisor:
    """Runs one command, passes on its signals, and polls its watch."""

    def __init__(self, watch: Watch, ready: Ready | None, on_report: Callable[[], None]) -> None:
        """Stores the arguments; starts nothing yet.

        Args:
            ready: a function that says whether the command is ready; ``None`` if there is no sign of it.
            on_report: writes the report so far; called at SIGUSR1.
        """
        self._watch, self._ready, self._on_report = watch, ready, on_report
        self.left_behind = 0

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Runs the command to its end; returns its exit code, or 128 plus the number of the signal that ended it.

        Raises:
            CannotStart: when the command cannot be started.
        """
        line = self._ready if isinstance(self._ready, Line) else None
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
        try:
            # Inherited as ignored, it would have the system forget the exit code.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            pipe = subprocess.PIPE if line else None
            try:
                child = subprocess.Popen(
                    command,
                    env=dict(environment),
                    stdout=pipe,
                    stderr=pipe,
                    # No thread has been started yet. The command must get the signals that are blocked here.
                    preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),  # noqa: PLW1509
                )
            except OSError as error:
                raise CannotStart(command[0], error) from error
            if line and child.stdout and child.stderr:
                line.follow(child.stdout, sys.stdout.fileno())  # type: ignore[arg-type]
                line.follow(child.stderr, sys.stderr.fileno())  # type: ignore[arg-type]
            code = self._follow(child)
            if line:
                line.end()
            self._note_ready()  # it may have ended at once
            self._watch.poll()
            self.left_behind = _children()
            return code if code >= 0 else 128 - code
        finally:
            # A signal for the whole group, such as Ctrl-C, may come when the command has ended: the report is due yet.
            while signal.sigtimedwait(_WAITED, 0) is not None:
                pass
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _follow(self, child: subprocess.Popen[bytes]) -> int:
        ask_at = poll_at = time.monotonic() + _POLL_S
        while (code := child.poll()) is None:
            got = signal.sigtimedwait(_WAITED, _POLL_S)
            number = None if got is None else got.si_signo
            if got is not None and number in _PASSED and got.si_code != _FROM_TERMINAL:
                child.send_signal(got.si_signo)
            elif number == signal.SIGCHLD:
                _reap(child.pid)
            # On a large cache a poll is rare, but the command is asked each second whether it is ready.
            if number == _REPORT or time.monotonic() >= ask_at:
                self._note_ready()
                ask_at = time.monotonic() + _POLL_S
            if number == _REPORT or time.monotonic() >= poll_at:
                poll_at = time.monotonic() + max(_POLL_S, self._watch.poll() / _MOST_CPU)
            if number == _REPORT:
                self._on_report()
        return code

    def _note_ready(self) -> None:
        run = self._watch.run
        if run.ready_at is None and self._ready is not None and self._ready():
            run.ready_at = (isinstance(self._ready, Line) and self._ready.seen_at) or time.time()


def _reap(command: int) -> None:
    """Waits for the ended processes that the command left to this process, but not for the command itself."""
    with suppress(OSError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != command:
            os.waitpid(ended.si_pid, 0)


def _children() -> int:
    """The number of running processes that the command has left behind; waits for those that have ended."""
    with suppress(OSError):  # it has none, or the system does not list them
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return len(file.read().split())
    return 0
