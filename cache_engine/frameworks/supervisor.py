"""Runs a command under a watch: passes signals and the exit code, asks whether it is ready, polls its caches.

The command stays in this process's group and session, so a terminal's Ctrl-C reaches it directly; other signals are
passed on. Processes that it leaves behind become children of this one, so that they can be named at the end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from cache_engine.errors import GemmCacheError
from cache_engine.frameworks.watch import Watch

_POLL_S = 1.0
_MOST_CPU = 0.01
"""The share of one processor that polling may take: after a costly poll the next one is later."""
_ANSWER_S = 2.0
_PASSED = (
    signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR2, signal.SIGCONT, signal.SIGWINCH,
)  # fmt: skip
_REPORT = signal.SIGUSR1
_WAITED = {*_PASSED, _REPORT, signal.SIGCHLD}
_FROM_TERMINAL = 0x80
"""``si_code`` of a signal that the kernel sent, as for Ctrl-C: it went to the whole group, the command included."""
_SET_CHILD_SUBREAPER = 36

Ready = Callable[[], bool]


class CannotStart(GemmCacheError):
    """The command cannot be started; ``exit_code`` is that of a shell: 127 where it is not found, else 126."""

    def __init__(self, command: str, error: OSError) -> None:
        super().__init__(f"{command}: {error.strerror or error}")
        self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126


def answers(url: str) -> Ready:
    """Whether a server answers at an address with a status below 400."""

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=_ANSWER_S):  # noqa: S310  (the user names the address)
                return True
        except (OSError, ValueError, urllib.error.URLError):
            return False

    return is_ready


def exists(path: Path) -> Ready:
    """Whether a file has been written since now; one that is there from before does not count."""

    def stamp() -> tuple[int, int] | None:
        with suppress(OSError):
            status = os.stat(path)
            return status.st_ino, status.st_mtime_ns
        return None

    before = stamp()
    return lambda: stamp() not in {None, before}


class Line:
    """Passes the output of a command on, and notes whether a line of it had a text."""

    def __init__(self, text: str) -> None:
        """Waits for a line that contains ``text``."""
        self._text = text.encode()
        self._seen = threading.Event()
        self._threads: list[threading.Thread] = []

    def __call__(self) -> bool:
        """Whether there was one."""
        return self._seen.is_set()

    def follow(self, source: BinaryIO, target: BinaryIO) -> None:
        """Passes one stream on in a thread of its own."""
        thread = threading.Thread(target=self._pass, args=(source, target), daemon=True)
        thread.start()
        self._threads.append(thread)

    def end(self) -> None:
        """Waits a moment for what is left; a process that was left behind may hold the stream open."""
        for thread in self._threads:
            thread.join(_ANSWER_S)

    def _pass(self, source: BinaryIO, target: BinaryIO) -> None:
        rest = b""
        while data := os.read(source.fileno(), 65536):
            with suppress(OSError, ValueError):  # nobody reads it any more: the command must not stop for that
                target.write(data)
                target.flush()
            if not self._seen.is_set():
                rest += data
                if self._text in rest:
                    self._seen.set()
                rest = rest[rest.rfind(b"\n") + 1 :][-65536:]


class Supervisor:
    """One command, its signals and its watch."""

    def __init__(self, watch: Watch, ready: Ready | None, on_report: Callable[[], None]) -> None:
        """Does nothing yet.

        Args:
            ready: says whether the command is ready; ``None`` where no sign of that is known.
            on_report: writes the report; called for SIGUSR1, with the report as it is then.
        """
        self._watch, self._ready, self._on_report = watch, ready, on_report
        self.left_behind = 0

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Runs the command to its end; returns its exit code, 128 and the number of a signal that ended it.

        Raises:
            CannotStart: when it cannot be started.
        """
        line = self._ready if isinstance(self._ready, Line) else None
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
        try:
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
                line.follow(child.stdout, sys.stdout.buffer)  # type: ignore[arg-type]
                line.follow(child.stderr, sys.stderr.buffer)  # type: ignore[arg-type]
            code = self._follow(child)
            if line:
                line.end()
            self._watch.poll()
            self.left_behind = _children()
            return code if code >= 0 else 128 - code
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _follow(self, child: subprocess.Popen[bytes]) -> int:
        pause = _POLL_S
        while (code := child.poll()) is None:
            got = signal.sigtimedwait(_WAITED, pause)
            if got is not None and got.si_signo in _PASSED:
                if got.si_code != _FROM_TERMINAL:
                    child.send_signal(got.si_signo)
                continue
            run = self._watch.run
            if run.ready_at is None and self._ready is not None and self._ready():
                run.ready_at = time.time()
            pause = max(_POLL_S, self._watch.poll() / _MOST_CPU)
            if got is not None and got.si_signo == _REPORT:
                self._on_report()
        return code


def _children() -> int:
    """The number of processes that the command has left behind; takes note of those that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return len(file.read().split())
    return 0
