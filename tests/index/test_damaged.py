"""An index that is damaged between two questions."""

from __future__ import annotations

import os

import pytest

from cache_engine.errors import IndexUnavailable
from cache_engine.index import queries
from cache_engine.index.sync import Index
from cache_engine.store.disk import DiskStore
from tests.helpers import fill


@pytest.mark.parametrize(
    "content", [b"", b"no database", b"\0" * 100_000, None], ids=["empty", "text", "zeros", "gone"]
)
def test_a_mirror_damaged_since_its_last_sync_is_built_again_by_the_next_question(
    store: DiskStore, content: bytes | None
) -> None:
    """No source has changed, so a sync looks no further."""
    fill(store, 4)
    for shard in store.layout.metadata.iterdir():
        os.utime(shard, (1, 1))
    index = Index(store)
    index.sync()
    assert index._seen is not None
    if content is None:
        index.path.unlink()
    else:
        index.path.write_bytes(content)
    assert index.query(queries.overview)["entries"] == 4
    assert index.sync().added == 0


def test_a_store_that_is_gone_since_the_last_sync_is_an_error_of_ours(store: DiskStore) -> None:
    fill(store, 1)
    index = Index(store)
    index.sync()
    store.layout.root.rename(store.layout.root.with_name("away"))
    with pytest.raises(IndexUnavailable, match="cannot read the index"):
        index.query(queries.overview)
    assert not store.layout.root.exists()


def test_a_wrong_question_rebuilds_nothing(store: DiskStore) -> None:
    index = Index(store)
    before = index.sync().generation
    with pytest.raises(IndexUnavailable, match="cannot read the index"):
        index.query(lambda connection: connection.execute("SELECT no_such_column FROM kernels"))
    assert index.sync().generation == before
