"""The end of a process: it waits for the cleaning that its last publish started, but not for long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.layout import StoreLayout
from cache_engine.upkeep import cleanup
from cache_engine.upkeep.cleanup import Housekeeper
from cache_engine.upkeep.plan import Limits
from tests.helpers import fill, make_store
from tests.remote.waiting import until


class SlowStore(DiskStore):
    """A store on a machine that is busy with other things: it deletes when it may."""

    def __init__(self, layout: StoreLayout) -> None:
        super().__init__(layout, durable=False)
        self.may_delete: Callable[[], bool] = lambda: True

    def delete(self, key: CacheKey) -> int:
        """Deletes after a while."""
        until(self.may_delete)
        return super().delete(key)


@pytest.fixture
def store(tmp_path: Path) -> SlowStore:
    """With six entries to evict."""
    store = SlowStore(make_store(tmp_path / "store").layout)
    fill(store, 7)
    return store


@pytest.fixture
def housekeeper(store: SlowStore) -> Housekeeper:
    return Housekeeper(store, Journal(store.layout.journal, 3600.0), Limits(max_entries=1), 3600.0)


def test_an_end_waits_for_cleaning_that_has_had_no_processor_time(
    store: SlowStore, housekeeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes by the clock."""
    waits = threading.Event()

    def none() -> float:
        waits.set()
        return 0.0

    store.may_delete = waits.is_set
    monkeypatch.setattr(cleanup, "_LONGEST_FINISH_S", 600.0)
    monkeypatch.setattr(cleanup, "_FINISH_S", 1e-9)
    monkeypatch.setattr("cache_engine.upkeep.cleanup.time.process_time", none)
    housekeeper.published(1000)
    housekeeper.close()
    assert cleanup.count(store.layout)[0] == 1


@pytest.mark.parametrize("limit", ["_FINISH_S", "_LONGEST_FINISH_S"])
def test_an_end_waits_for_no_longer_than_that(
    store: SlowStore, housekeeper: Housekeeper, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    store.may_delete = lambda: housekeeper._closing
    monkeypatch.setattr(cleanup, limit, 0.0)
    housekeeper.published(1000)
    housekeeper.close()
    assert housekeeper._queue.is_idle, "it ends after the current entry"
    assert cleanup.count(store.layout)[0] >= 6
