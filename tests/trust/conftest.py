"""Builders with keys of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trust.keys import Builder


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path / "builder")


@pytest.fixture
def stranger(tmp_path: Path) -> Builder:
    """Its key is in no file of signers, unless a test writes it there."""
    return Builder(tmp_path / "stranger")
