"""Ctrl-C ends a command with one line and code 130, however early it comes."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_RUN = """
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "{name}":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from {module} import {function}
sys.argv = ["gemm-cache", "--store", "/nowhere", "stats"]
{function}()
"""


@pytest.mark.parametrize("name", ["cache_engine.cli.main", "click", "cache_engine.cli.listing"])
def test_ctrl_c_while_the_command_is_loaded_is_one_line(name: str) -> None:
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["gemm-cache"]
    module, _, function = script.partition(":")
    code = _RUN.format(name=name, module=module, function=function)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 130
    assert len(done.stderr.split("\n")) <= 3, done.stderr  # click ends the line that ^C is on
    assert done.stderr.lstrip().startswith("error: interrupted")
