"""Commands to copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages.opening import Open, sound


@pytest.mark.parametrize("page", ["overview", "kernels", "compare"])
def test_a_command_to_copy_names_the_store(open_page: Open, tmp_path: Path, page: str) -> None:
    """Else it would fill another one."""
    app = sound(open_page(tmp_path / "a store", page))
    commands = [code.value for code in app.code]
    assert commands
    assert all(command.startswith(f"gemm-cache --store '{tmp_path}/a store' ") for command in commands)
