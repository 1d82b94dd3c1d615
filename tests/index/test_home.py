"""Whose files an index may be."""

from __future__ import annotations

import os

import msgspec
import pytest

from cache_engine import inputs
from cache_engine.index.connection import is_own
from cache_engine.index.sync import Index
from cache_engine.store.disk import DiskStore
from tests.helpers import fill


def test_an_index_that_its_group_may_write_is_read_where_the_store_is_trusted(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_is_private_group", lambda _: False)
    fill(store, 1)
    Index(store).sync()
    store.layout.index.chmod(0o660)
    assert not is_own(msgspec.structs.replace(store.layout, trust=False))
    assert is_own(msgspec.structs.replace(store.layout, trust=True))
    store.layout.index.unlink()
    os.mkfifo(store.layout.index)
    assert not is_own(msgspec.structs.replace(store.layout, trust=True)), "a pipe is none, whoever is trusted"
