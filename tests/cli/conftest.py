"""Fixtures of the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cache_engine.cli.main import commands

Examine = Callable[..., Result]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Of a store that does not exist yet."""
    return tmp_path / "store"


@pytest.fixture
def examine(without_compilers: None) -> Examine:
    """Runs the doctor in this process, with these options; it must end with this code."""

    def run(*options: object, store: Path, code: int = 0) -> Result:
        done = CliRunner().invoke(commands, ["--store", str(store), "doctor", *map(str, options)])
        assert done.exit_code == code, (done.output, done.exception)
        return done

    return run
