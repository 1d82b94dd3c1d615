"""Fixtures of the tests of benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Of a store that does not exist yet."""
    return tmp_path / "store"
