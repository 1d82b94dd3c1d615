"""Cleaning with entries of another format version: they stay, and are promised to nobody, until asked for."""

from __future__ import annotations

import os
import time

from cache_engine.model.events import EVICT
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, read_journal
from cache_engine.upkeep import cleanup as housekeeping
from cache_engine.upkeep.plan import FOREIGN, Limits
from tests.helpers import blob_file, fill, publish, record_file


def test_entries_of_another_version_are_not_promised_and_do_not_take_the_place_of_others(
    store: DiskStore, journal: Journal
) -> None:
    """They are the oldest, so a limit would choose them first."""
    keys = fill(store, 6)
    for key in keys[:3]:
        record_file(store, key).write_bytes(b'{"format": 99}')
        os.utime(record_file(store, key), (time.time() - 1e6,) * 2)
    limited = housekeeping.plan_cleaning(store, Limits(max_entries=5))
    assert (len(limited.victims), limited.foreign) == (1, 3)
    plan = housekeeping.plan_cleaning(store, Limits(everything=True))
    assert sorted(victim.key for victim in plan.victims) == sorted(keys[3:])
    assert (plan.foreign, plan.kept_entries) == (3, 3)
    cleaned = housekeeping.apply(store, journal, plan)
    assert (cleaned.evicted, cleaned.skipped, cleaned.foreign) == (3, 0, 0)
    assert all(record_file(store, key).exists() and blob_file(store, key).exists() for key in keys[:3])


def test_an_entry_that_another_version_wrote_since_the_plan_is_spared(store: DiskStore, journal: Journal) -> None:
    key = publish(store)
    plan = housekeeping.plan_cleaning(store, Limits(everything=True))
    record_file(store, key).write_bytes(b'{"format": 99}')
    cleaned = housekeeping.apply(store, journal, plan)
    assert (cleaned.evicted, cleaned.skipped, cleaned.foreign) == (0, 1, 1)
    assert record_file(store, key).exists()


def test_entries_of_another_version_go_when_asked_for_and_only_they(store: DiskStore, journal: Journal) -> None:
    keys = fill(store, 3)
    path = record_file(store, keys[1])
    own, published_at = path.read_bytes(), path.stat().st_mtime
    for key in keys[:2]:
        record_file(store, key).write_bytes(b'{"format": 99}')
        os.utime(record_file(store, key), (published_at, published_at))
    plan = housekeeping.plan_cleaning(store, Limits(foreign_format=True))
    assert sorted(victim.key for victim in plan.victims) == sorted(keys[:2])
    path.write_bytes(own)  # an entry of this version takes the place of the second
    os.utime(path, (published_at, published_at))
    cleaned = housekeeping.apply(store, journal, plan)
    assert (cleaned.evicted, cleaned.skipped) == (1, 1)
    assert sorted(store.keys()) == sorted(keys[1:])
    assert not list((store.layout.kernels / keys[0][:2]).glob(f"{keys[0]}-*"))
    journal.flush()
    assert {event.detail for event in read_journal(store.layout.journal).recent if event.kind == EVICT} == {FOREIGN}
