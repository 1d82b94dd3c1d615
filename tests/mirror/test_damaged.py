"""A mirror that is damaged between two questions."""

from __future__ import annotations

import os

import pytest

from cache_engine.errors import MirrorError
from cache_engine.index import queries
from cache_engine.index.sync import Mirror
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
    mirror = Mirror(store)
    mirror.sync()
    assert mirror._seen is not None
    if content is None:
        mirror.path.unlink()
    else:
        mirror.path.write_bytes(content)
    assert mirror.query(queries.overview)["entries"] == 4
    assert mirror.sync().added == 0


def test_a_wrong_question_rebuilds_nothing(store: DiskStore) -> None:
    mirror = Mirror(store)
    before = mirror.sync().generation
    with pytest.raises(MirrorError, match="cannot read the mirror"):
        mirror.query(lambda connection: connection.execute("SELECT no_such_column FROM kernels"))
    assert mirror.sync().generation == before
