"""The ordered probe: the first valid entry wins, failing tiers are skipped, hits are cached in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.cache.tiers import Tiers
from cache_engine.errors import CorruptEntry
from cache_engine.model.key import CacheKey
from cache_engine.store.base import Loaded, MemoryTier
from cache_engine.store.disk import DiskStore
from tests.helpers import publish


class _Failing:
    name = "failing"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def get(self, key: CacheKey) -> Loaded | None:
        raise self.error


def test_a_disk_hit_is_a_memory_hit_from_then_on(store: DiskStore) -> None:
    tiers = Tiers(MemoryTier(10**6), [store])
    key = publish(store)
    found = [tiers.get(key), tiers.get(key)]
    assert [hit.tier for hit in found if hit is not None] == ["disk", "memory"]


@pytest.mark.parametrize("error", [CorruptEntry("damaged"), OSError(5, "Input/output error")])
def test_a_failing_tier_is_skipped_with_a_warning(
    store: DiskStore, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    tiers = Tiers(MemoryTier(10**6), [_Failing(error), store])
    found = tiers.get(publish(store))
    assert found is not None
    assert found.tier == "disk"
    assert "failing tier skipped" in caplog.text


def test_a_miss_in_every_tier_is_none(store: DiskStore, tmp_path: Path) -> None:
    assert Tiers(MemoryTier(10**6), [store]).get(CacheKey("0" * 64)) is None
