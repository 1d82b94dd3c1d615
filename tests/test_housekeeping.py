"""Cleaning: what the plan says and nothing else, never what is in use or was made since."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cache_engine import housekeeping
from cache_engine.policy.plan import DAY_S, Limits
from cache_engine.stats import CLEAN, EVICT
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, read_journal
from cache_engine.store.lock import file_lock
from tests.helpers import blob_file, files_of, fill, publish, record_file


@pytest.fixture
def journal(store: DiskStore) -> Journal:
    return Journal(store.layout.journal, 3600.0)


def _age(path: Path, days: float) -> None:
    then = time.time() - days * DAY_S
    os.utime(path, (then, then))


def test_a_survey_knows_sizes_and_last_uses_without_opening_a_record(store: DiskStore, journal: Journal) -> None:
    keys = fill(store, 3)
    for key in keys:
        _age(record_file(store, key), 30)
        record_file(store, key).write_bytes(b"damaged")
        _age(record_file(store, key), 30)
    journal.hit(keys[1], "disk")
    journal.flush()
    facts = {fact.key: fact for fact in housekeeping.survey(store.layout)}
    ages = {key: (time.time() - facts[key].last_used_at) / DAY_S for key in keys}
    assert ages[keys[0]] == pytest.approx(30, abs=0.1)
    assert ages[keys[1]] == pytest.approx(0, abs=0.1)
    assert sum(fact.stored_bytes for fact in facts.values()) == sum(p.stat().st_size for p in files_of(store))


def test_a_dry_run_changes_nothing(store: DiskStore) -> None:
    fill(store, 5)
    before = sorted(files_of(store))
    assert len(housekeeping.plan_cleaning(store.layout, Limits(everything=True)).victims) == 5
    assert sorted(files_of(store)) == before


def test_applying_a_plan_does_what_it_says_and_notes_why(store: DiskStore, journal: Journal) -> None:
    keys = fill(store, 6)
    for age, key in enumerate(keys):
        _age(record_file(store, key), age)
    plan = housekeeping.plan_cleaning(store.layout, Limits(expire_days=3.5))
    assert [victim.key for victim in plan.victims] == [keys[5], keys[4]]
    cleaned = housekeeping.apply(store, journal, plan)
    assert (cleaned.evicted, cleaned.freed_bytes, cleaned.skipped) == (2, plan.freed_bytes, 0)
    assert sorted(store.keys()) == sorted(keys[:4])
    journal.flush()
    tally = read_journal(store.layout.journal)
    assert (tally.totals.evictions, tally.totals.evicted_bytes) == (2, plan.freed_bytes)
    assert sorted(event.kind for event in tally.recent) == [CLEAN, EVICT, EVICT]
    assert {event.detail for event in tally.recent if event.kind == EVICT} == {"expired"}


def test_an_entry_made_again_since_the_plan_is_spared(store: DiskStore, journal: Journal) -> None:
    key = publish(store)
    _age(record_file(store, key), 30)
    plan = housekeeping.plan_cleaning(store.layout, Limits(expire_days=7))
    publish(store)
    cleaned = housekeeping.apply(store, journal, plan)
    assert (cleaned.evicted, cleaned.skipped) == (0, 1)
    assert store.get(key) is not None


def test_an_entry_used_since_the_plan_is_spared_unless_all_is_to_go(store: DiskStore, journal: Journal) -> None:
    key = publish(store)
    _age(record_file(store, key), 30)
    plan = housekeeping.plan_cleaning(store.layout, Limits(expire_days=7))
    everything = housekeeping.plan_cleaning(store.layout, Limits(everything=True))
    journal.hit(key, "disk")
    journal.flush()
    assert housekeeping.apply(store, journal, plan).skipped == 1
    assert store.get(key) is not None
    assert housekeeping.apply(store, journal, everything).evicted == 1


def test_an_entry_of_another_version_is_spared(store: DiskStore, journal: Journal) -> None:
    key = publish(store)
    record_file(store, key).write_bytes(b'{"format": 99}')
    plan = housekeeping.plan_cleaning(store.layout, Limits(everything=True))
    assert housekeeping.apply(store, journal, plan).skipped == 1
    assert record_file(store, key).exists()
    assert blob_file(store, key).exists()


def test_an_entry_being_compiled_is_spared(store: DiskStore, journal: Journal) -> None:
    key = publish(store)
    plan = housekeeping.plan_cleaning(store.layout, Limits(everything=True))
    with file_lock(store.layout.key_lock(key), 1):
        assert housekeeping.apply(store, journal, plan).skipped == 1
    assert store.get(key) is not None


def test_cleaning_folds_the_journal(store: DiskStore, journal: Journal) -> None:
    earlier = Journal(store.layout.journal, 3600.0)
    earlier.hit(publish(store), "disk")
    earlier.close()
    housekeeping.apply(store, journal, housekeeping.plan_cleaning(store.layout, Limits()))
    assert [path.name for path in store.layout.journal.iterdir()] == ["snapshot.json"]
    assert read_journal(store.layout.journal).totals.hits == {"disk": 1}


def test_counting_agrees_with_the_files(store: DiskStore) -> None:
    fill(store, 7)
    (store.layout.metadata / "00").mkdir(exist_ok=True)
    (store.layout.metadata / "00" / "notes.txt").write_text("not an entry")
    entries, stored_bytes = housekeeping.count(store.layout)
    sizes = sum(path.stat().st_size for path in files_of(store) if path.suffix != ".txt")
    assert (entries, stored_bytes) == (7, sizes)
