"""Plans that are applied late: another has deleted the entries, or another store took the place of this one."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from cache_engine.errors import StoreError
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, read_journal
from cache_engine.upkeep import cleanup as housekeeping
from cache_engine.upkeep.plan import Limits
from tests.helpers import fill


@pytest.mark.parametrize("limits", [Limits(everything=True), Limits(expire_days=0)])
def test_of_two_that_delete_at_once_each_reports_what_it_deleted(
    store: DiskStore, journal: Journal, limits: Limits
) -> None:
    """Both reported all, and the sums of the journal counted them twice."""
    fill(store, 3)
    plans = [housekeeping.plan_cleaning(store, limits, now=time.time() + 1) for _ in range(2)]
    done = [housekeeping.apply(store, journal, plan) for plan in plans]
    assert [(each.evicted, each.skipped) for each in done] == [(3, 0), (0, 3)]
    assert [each.freed_bytes for each in done] == [plans[0].freed_bytes, 0]
    assert read_journal(store.layout.journal).totals.evictions == 3


@pytest.mark.parametrize("swapped", ["", "metadata"])
def test_a_plan_is_not_applied_to_a_store_that_took_the_place_of_its_own(
    store: DiskStore, journal: Journal, tmp_path: Path, swapped: str
) -> None:
    """Such as one that a link leads to, with the same kernels; a store that was only moved is the same."""
    fill(store, 3)
    plan = housekeeping.plan_cleaning(store, Limits(everything=True))
    folder = store.layout.root / swapped
    moved, other = tmp_path / "moved", Path(shutil.copytree(store.layout.root, tmp_path / "other"))
    folder.rename(moved)
    folder.symlink_to(other / swapped)
    with pytest.raises(StoreError, match="took the place"):
        housekeeping.apply(store, journal, plan)
    assert len(list((other / "metadata").rglob("*.json"))) == 3
    folder.unlink()
    folder.symlink_to(moved)
    assert housekeeping.apply(store, journal, plan).evicted == 3
