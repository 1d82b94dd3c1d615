"""To all who look, a forked command is one that was started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import forked


@pytest.mark.parametrize(
    "arguments",
    ["", "--version", "ls --sort name --json", "search no-such-thing", "verify --json", "compile 0 5 5 --json"],
)
def test_it_prints_and_ends_as_one_that_was_started(arguments: str, compiled_store: Path, tmp_path: Path) -> None:
    asked = ["--store", str(compiled_store), *arguments.split()] if arguments else []
    there = forked.run(asked, cwd=tmp_path, timeout=60)
    command = [sys.executable, "-m", "cache_engine", *asked]
    started = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (there.returncode, there.stdout, there.stderr) == (started.returncode, started.stdout, started.stderr)
    assert there.stdout + there.stderr


def test_it_has_a_folder_and_an_environment_of_its_own(
    compiled_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("GEMM_CACHE_DIR", "../compiled")
    assert "1–4 of 4" in forked.run(["ls"], cwd=other, timeout=60).stdout
    monkeypatch.delenv("GEMM_CACHE_DIR")
    assert "there is no store" in forked.run(["--store", "compiled", "ls"], cwd=other, timeout=60).stderr


def test_it_is_started_where_python_would_read_other_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    assert "import time:" in forked.run(["--version"], cwd=None, timeout=60).stderr


def test_it_is_killed_when_its_time_is_over(compiled_store: Path) -> None:
    following = ["--store", str(compiled_store), "log", "--follow"]
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run(following, cwd=None, timeout=0.5)
    assert forked.run(["--version"], cwd=None, timeout=60).returncode == 0
