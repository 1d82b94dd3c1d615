"""Fixtures of the tests of the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_engine.store.disk import DiskStore
from cache_engine.store.timings import Timings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a journal, empty."""
    (tmp_path / "journal").mkdir()
    (tmp_path / "temp").mkdir()
    return tmp_path / "journal"


@pytest.fixture
def timings(store: DiskStore) -> Iterator[Timings]:
    """Of the empty store; none yet."""
    opened = Timings(store.layout, durable=False)
    yield opened
    opened.close()
