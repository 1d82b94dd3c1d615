"""Runs nvcc for a miss: prints and returns its output, passes signals on to it, and ends it with this process."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress

from cache_engine.frameworks.nvcc.results import ERR, OUT
from cache_engine.process import write_all

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def run(words: list[str]) -> tuple[int, dict[str, bytes]]:
    """Runs a program to its end; returns its exit code, and its output by stream. Raises ``OSError`` if none starts.

    If a signal ended the program, this process ends itself by the same signal.
    """
    # A separate process group, so that a signal reaches the programs that nvcc runs: they keep our pipe open. This
    # process has no other thread, so a fork copies no lock that is held.
    child = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        preexec_fn=_end_with_parent(),  # noqa: PLW1509
    )
    before = {number: signal.signal(number, lambda sent, _: _send(child, sent)) for number in _PASSED_ON}
    try:
        printed = _pass_on(child)
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code, printed


def _send(child: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def _pass_on(child: subprocess.Popen[bytes]) -> dict[str, bytes]:
    """Copies a process's output to our own, each stream in its order; returns the output by stream."""
    if child.stdout is None or child.stderr is None:
        return {}
    printed = {OUT: b"", ERR: b""}
    with selectors.DefaultSelector() as waiting, child.stdout, child.stderr:
        waiting.register(child.stdout, selectors.EVENT_READ, (OUT, 1))
        waiting.register(child.stderr, selectors.EVENT_READ, (ERR, 2))
        while waiting.get_map():
            for key, _ in waiting.select():
                name, target = key.data
                data = os.read(key.fd, 65536)
                if not data:
                    waiting.unregister(key.fileobj)
                printed[name] += data
                with suppress(BrokenPipeError):  # if its reader has ended, the text is dropped and nvcc continues
                    write_all(target, data)
    return printed


def _end_with_parent() -> Callable[[], None]:
    """A function to call in the child before nvcc starts: it makes the Linux kernel end nvcc if this process is killed.

    The function is made before the fork, because after a fork only a prepared call is safe.
    """
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
