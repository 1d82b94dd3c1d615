"""The end of a process: it waits for the cleaning that its last publish started, but not for long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.upkeep import cleaning
from cache_engine.upkeep.cleaning import Housekeeper
from cache_engine.upkeep.plan import Limits
from tests.helpers import fill, make_store


class SlowStore(DiskStore):
    """A store on a machine that is busy with other things: deleting takes long, and no processor time."""

    seconds = 0.3

    def delete(self, key: CacheKey) -> int:
        """Deletes after a while."""
        time.sleep(self.seconds)
        return super().delete(key)


@pytest.fixture
def housekeeper(tmp_path: Path) -> Housekeeper:
    """With six entries to evict, which takes almost two seconds."""
    store = SlowStore(make_store(tmp_path / "store").layout, durable=False)
    fill(store, 7)
    return Housekeeper(store, Journal(store.layout.journal, 3600.0), Limits(max_entries=1), 3600.0)


def test_an_end_waits_for_cleaning_that_has_had_no_processor_time(housekeeper: Housekeeper) -> None:
    housekeeper.published(1000)
    housekeeper.close()
    assert cleaning.count(housekeeper._store.layout)[0] == 1


@pytest.mark.parametrize("limit", ["_FINISH_S", "_LONGEST_FINISH_S"])
def test_an_end_waits_for_no_longer_than_that(
    housekeeper: Housekeeper, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(cleaning, limit, 0.0)
    housekeeper.published(1000)
    housekeeper.close()
    assert housekeeper._thread is not None
    assert not housekeeper._thread.is_alive, "it ends after the current entry"
    assert cleaning.count(housekeeper._store.layout)[0] >= 6
