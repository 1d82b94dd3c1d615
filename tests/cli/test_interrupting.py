"""Ctrl-C ends a command with one line and code 130, however early it comes."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_RUN = """
import sys
from _signal import SIGINT, raise_signal

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "{name}":
            sys.meta_path.remove(self)  # once
            try:
                raise_signal(SIGINT)
            except KeyboardInterrupt:
                if {swallows}:
                    return
                raise

sys.meta_path.insert(0, Interrupting())
from {module} import {function}
sys.argv = ["gemm-cache", "--store", "/nowhere", "stats"]
{function}()
"""
_LOADED = ["typing", "cache_engine.errors", "cache_engine.cli.main", "click"]


@pytest.mark.parametrize(
    ("name", "swallows"),
    [("signal", False), *((name, True) for name in _LOADED), ("cache_engine.cli.stats", False)],
)
def test_ctrl_c_while_the_command_is_loaded_is_one_line(name: str, swallows: bool) -> None:
    """Also where the import swallows what a handler raises, as one with callbacks of weak references does."""
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["gemm-cache"]
    module, _, function = script.partition(":")
    code = _RUN.format(name=name, swallows=swallows, module=module, function=function)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 130
    assert len(done.stderr.split("\n")) <= 3, done.stderr  # click ends the line that ^C is on
    assert done.stderr.lstrip().startswith("error: interrupted")


def test_nothing_is_loaded_before_ctrl_c_is_handled() -> None:
    code = "import sys; before = {*sys.modules}; import cache_engine.__main__; print(*sorted({*sys.modules} - before))"
    assert _run(code).stdout.split() == ["cache_engine", "cache_engine.__main__"]


_AT_THE_END = """
import atexit, os, signal, sys
from cache_engine.__main__ import main

atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv = ["gemm-cache", "--version"]
main()
"""
_TWICE = """
import sys
from cache_engine import __main__
from cache_engine.cli import support

class Interrupting:
    def write(self, text):
        sys.stderr = sys.__stderr__
        raise KeyboardInterrupt

def interrupted(*_, **__):
    sys.stderr = Interrupting()
    raise KeyboardInterrupt

support.VerbGroup.main = interrupted
__main__.main()
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)


def test_ctrl_c_in_the_last_moments_of_a_command_prints_nothing() -> None:
    done = _run(_AT_THE_END)
    assert done.returncode == -signal.SIGINT
    assert done.stdout.startswith("gemm-cache, version")
    assert done.stderr == ""


def test_ctrl_c_while_an_interruption_is_reported_is_one_line() -> None:
    done = _run(_TWICE)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")
