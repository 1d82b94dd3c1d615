"""Dashboards that are forked from a process which has everything imported: Python and the imports take seconds.

A forked dashboard is a process with arguments, an environment and an end of its own; where the verb would replace its
process by that of the server, it goes on as the server. ``test_wheel.py`` starts one as its users do.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NoReturn

import pytest

from tests.cli.forked import WITHOUT_THREADS, end

_WATCHED = Path(__file__).with_name("watched") / "sitecustomize.py"


class Forked:
    """A dashboard that runs."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Forks it; it writes what it says to ``log``."""
        self._process = _server().Process(target=_become, args=(list(arguments), dict(environment), str(log)))
        self._process.start()

    def poll(self) -> int | None:
        """How it ended; ``None`` while it runs."""
        return self._process.exitcode

    def terminate(self) -> None:
        """Asks it to end."""
        self._process.terminate()

    def wait(self, timeout: float) -> None:
        """Waits for its end. Raises ``TimeoutError``."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError("the dashboard did not end")


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.browser.imports"])
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in WITHOUT_THREADS.items():
            monkeypatch.setenv(name, value)
        forkserver.ensure_running()
    return context


def _become(arguments: list[str], environment: dict[str, str], log: str) -> NoReturn:
    """Makes the forked process what it would be if it had been started."""
    with open(log, "ab") as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    _change_environment(environment)
    os.chdir("/")
    sys.argv[1:] = arguments
    setattr(os, "execve", _go_on)  # noqa: B010 (mypy knows its type)
    runpy.run_path(str(_WATCHED))
    try:
        runpy.run_module("cache_engine", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        end(ended.code)
    os._exit(1)


def _go_on(_: str, command: list[str], variables: dict[str, str]) -> NoReturn:
    """Is the program that would take this one's place: a script of Python, with its arguments."""
    _change_environment(variables)
    sys.argv = command[1:]
    sys.path[:0] = [str(Path(command[1]).parent), *variables["PYTHONPATH"].split(os.pathsep)]
    runpy.run_path(command[1], run_name="__main__")
    sys.exit(0)


def _change_environment(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    time.tzset()
