"""Whose files an index may be."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from cache_engine import inputs
from cache_engine.index.reading import is_own
from cache_engine.index.sync import Mirror
from cache_engine.store.disk import DiskStore
from tests.helpers import fill


def test_an_index_that_its_group_may_write_is_read_where_the_store_is_trusted(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_is_private_group", lambda _: False)
    fill(store, 1)
    Mirror(store).sync()
    store.layout.mirror.chmod(0o660)
    assert not is_own(replace(store.layout, trust=False))
    assert is_own(replace(store.layout, trust=True))
    store.layout.mirror.unlink()
    os.mkfifo(store.layout.mirror)
    assert not is_own(replace(store.layout, trust=True)), "a pipe is none, whoever is trusted"
