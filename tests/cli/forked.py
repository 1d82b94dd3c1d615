"""Commands that are forked from a process which has everything imported: Python and the imports take 0.2 to 0.4 s.

A forked command is a process like one that is started: it has arguments, an environment, a folder, pipes and an end of
its own, and imports what its verb imports. Only what Python reads of the environment at its start is not read again, so
a command is started where that differs. ``test_forked.py`` compares both.

Run as ``python -m tests.cli.forked DESCRIPTOR``, this serves the other end of that socket.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from tests import compiled_once

# What Python and libraries read once.
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "OPENBLAS_", "JE_", "MALLOC_")
# What verbs import when they need it.
IMPORTED = (
    "duckdb", "numpy", "pandas", "portalocker", "pyarrow", "xxhash", "zstandard", "rich.table", "rich.progress",
    "cache_engine.cache.cache", "cache_engine.index.sync", "cache_engine.upkeep.integrity",
)  # fmt: skip
# NumPy and Arrow would start threads, and what has threads cannot be forked safely.
WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
_ROOT = Path(__file__).parents[2]


def run(
    arguments: Sequence[str], *, cwd: Path | None, timeout: float, module: str = "cache_engine"
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m cache_engine``, or another module. Raises ``subprocess.TimeoutExpired``."""
    if _start_of(os.environ) == _server().start:
        return _server().run([module, *arguments], cwd, timeout)
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=cwd)


class _Server:
    """The process that forks, and the way to it."""

    def __init__(self) -> None:
        self.start = _start_of(os.environ)
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.cli.forked", str(theirs.fileno())]
        with theirs:
            # Pipes, like those that take their place in a child: Python asks once whether it can seek in its output.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                pass_fds=[theirs.fileno()], cwd=_ROOT, env={**os.environ, **WITHOUT_THREADS},
            )  # fmt: skip
        self._answers = self._socket.makefile("r")
        atexit.register(self._end)

    def run(self, arguments: Sequence[str], cwd: Path | None, timeout: float) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run`` does, one after the other."""
        (out, their_out), (err, their_err) = os.pipe(), os.pipe()
        with self._lock, open(out) as printed, open(err) as errors, ThreadPoolExecutor(2) as readers:
            socket.send_fds(self._socket, [b"."], [their_out, their_err])
            os.close(their_out)
            os.close(their_err)
            asked = {"arguments": arguments, "environment": dict(os.environ), "cwd": str(cwd or Path.cwd())}
            self._socket.sendall(json.dumps(asked).encode() + b"\n")
            pid = self._hear()
            late = threading.Event()
            timer = threading.Timer(timeout, _kill, (pid, late))
            timer.start()
            stdout, stderr = readers.map(TextIOWrapper.read, (printed, errors))
            status = self._hear()
            timer.cancel()
        if late.is_set():
            raise subprocess.TimeoutExpired(list(arguments), timeout, stdout, stderr)
        return subprocess.CompletedProcess(list(arguments), os.waitstatus_to_exitcode(status), stdout, stderr)

    def _hear(self) -> int:
        line = self._answers.readline()
        if not line:
            raise ChildProcessError(f"what forks commands has ended: {self._process.communicate()[0]}")
        return int(line)

    def _end(self) -> None:
        self._answers.close()
        self._socket.close()
        self._process.communicate(timeout=600)


_server = cache(_Server)


def _start_of(environment: Any) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


def _kill(pid: int, late: threading.Event) -> None:
    late.set()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _serve(asking: socket.socket) -> list[str] | None:
    """Forks a child for each order, and says its number and how it ended.

    Returns:
        In the child the module and its arguments; ``None`` when there are no more orders.
    """
    orders = asking.makefile("r")
    while True:
        _, streams, _, _ = socket.recv_fds(asking, 1, 2)
        if not streams:
            return None
        order = json.loads(orders.readline())
        pid = os.fork()
        if pid == 0:
            orders.close()
            asking.close()
            return _become(order, streams)
        for stream in streams:
            os.close(stream)
        asking.sendall(f"{pid}\n".encode())
        asking.sendall(f"{os.waitpid(pid, 0)[1]}\n".encode())


def _become(order: dict[str, Any], streams: list[int]) -> list[str]:
    """Makes the forked process what it would be if it had been started."""
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(order["environment"])
    tempfile.tempdir = None
    time.tzset()
    os.chdir(order["cwd"])
    sys.path[0] = order["cwd"]
    return list(order["arguments"])


def _main(descriptor: int) -> None:
    for name in (*IMPORTED, *_verbs()):
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "what has threads cannot be forked"
    if compiled_once.FOLDER in os.environ:
        compiled_once.install(setattr)
    gc.collect()
    gc.freeze()  # or a collection in a child would copy all that is imported
    arguments = _serve(socket.socket(fileno=descriptor))
    if arguments is None:
        os._exit(0)
    module, *sys.argv[1:] = arguments
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        end(ended.code)


def end(code: Any) -> NoReturn:
    """Ends this process as Python does, but does not free all that is imported, which would take 0.1 s."""
    assert isinstance(code, int), code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _verbs() -> list[str]:
    import cache_engine.cli

    return [module.name for module in pkgutil.walk_packages(cache_engine.cli.__path__, "cache_engine.cli.")]


if __name__ == "__main__":
    _main(int(sys.argv[1]))
