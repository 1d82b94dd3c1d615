"""Long lists on a terminal go through the pager; all else is printed as it is."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest


def _on_terminal(store: Path, *arguments: str, lines: int, **variables: str) -> str:
    """What a terminal of so many lines shows of ``ls``, where the pager marks each line that it is given."""
    main, side = pty.openpty()
    environment = {**os.environ, "PAGER": "sed s/^/paged:/", "TERM": "xterm", "LINES": str(lines), "COLUMNS": "200"}
    command = [sys.executable, "-m", "cache_engine", "--store", str(store), "ls", *arguments]
    process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env={**environment, **variables})
    os.close(side)
    shown = b""
    try:
        while part := os.read(main, 65_536):
            shown += part
    except OSError:  # Linux says so that the other side is closed
        pass
    os.close(main)
    assert process.wait() == 0
    return shown.decode()


@pytest.mark.parametrize(
    ("arguments", "lines", "variables", "is_paged"),
    [
        ((), 3, {}, True),
        ((), 50, {}, False),
        (("--no-pager",), 3, {}, False),
        (("--json",), 3, {}, False),
        ((), 3, {"TERM": "dumb"}, False),
    ],
    ids=["long", "short", "no pager", "json", "dumb"],
)
def test_what_is_longer_than_the_terminal_is_paged(
    compiled_store: Path, arguments: tuple[str, ...], lines: int, variables: dict[str, str], is_paged: bool
) -> None:
    shown = _on_terminal(compiled_store, *arguments, lines=lines, **variables)
    assert ("paged:" in shown) == is_paged
    assert "tensor_core" in shown
    if is_paged:
        assert shown.count("paged:") == len(shown.splitlines()) == 7
        assert "last used" in shown.splitlines()[0]


def test_a_pipe_is_not_paged(compiled_store: Path) -> None:
    command = [sys.executable, "-m", "cache_engine", "--store", str(compiled_store), "ls"]
    environment = {**os.environ, "PAGER": "sed s/^/paged:/", "TERM": "xterm", "LINES": "2"}
    printed = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    assert printed.count("\n") == 7
    assert "paged:" not in printed
