"""Fixtures of the tests of stored results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_engine.evaluator.results import Evaluations
from cache_engine.store.disk import open_store
from cache_engine.store.layout import StoreLayout


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    return open_store(tmp_path / "store")


@pytest.fixture
def kept(layout: StoreLayout) -> Iterator[Evaluations]:
    with Evaluations(layout, durable=False) as opened:
        yield opened
