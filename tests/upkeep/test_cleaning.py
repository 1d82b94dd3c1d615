"""Cleaning: what the plan says and nothing else, never what is in use or was made since."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cache_engine.model.artifact import Record
from cache_engine.model.events import AUTOMATIC, CLEAN, EVICT, Event
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, read_journal
from cache_engine.store.lock import file_lock, try_lock
from cache_engine.upkeep import cleanup as housekeeping
from cache_engine.upkeep import integrity
from cache_engine.upkeep.cleanup import Housekeeper, add_published, count, read_population
from cache_engine.upkeep.plan import DAY_S, LITTLE_SPACE, STALE, Limits
from tests.helpers import blob_file, files_of, fill, make_entry, publish, record_file


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
    assert len(housekeeping.plan_cleaning(store, Limits(everything=True)).victims) == 5
    assert sorted(files_of(store)) == before


def test_a_plan_for_a_target_leaves_unreadable_records(store: DiskStore) -> None:
    keys = fill(store, 6)  # of four targets in turn
    record_file(store, keys[4]).write_bytes(b"{")
    plan = housekeeping.plan_cleaning(store, Limits(archs=frozenset({"sm_80"})))
    assert [victim.key for victim in plan.victims] == [keys[0]]


def test_an_interrupted_run_is_in_the_audit_with_its_result(store: DiskStore, journal: Journal) -> None:
    fill(store, 3)
    plan = housekeeping.plan_cleaning(store, Limits(everything=True))

    def interrupted(number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        housekeeping.apply(store, journal, plan, interrupted, by="somebody")
    planned, event = _cleanings(store)
    assert (planned.by, planned.stored_bytes, planned.detail) == ("somebody", 0, "3 entries to delete")
    assert (event.by, event.detail) == ("somebody", "2 of 3 planned entries")
    assert event.stored_bytes == sum(victim.stored_bytes for victim in plan.victims[:2])
    assert len(list(store.keys())) == 1


def _cleanings(store: DiskStore) -> list[Event]:
    """The events of cleanings, the oldest first."""
    events = [event for event in read_journal(store.layout.journal).recent if event.kind == CLEAN]
    return sorted(events, key=lambda event: event.at)


def test_what_is_to_be_deleted_is_in_the_audit_before_it_goes(store: DiskStore, journal: Journal) -> None:
    """So that a kill leaves it. Automatic cleaning, which goes by the settings, says only what it did."""
    fill(store, 3)
    plan, seen = housekeeping.plan_cleaning(store, Limits(everything=True)), list[str]()
    housekeeping.apply(store, journal, plan, lambda _: seen.extend(event.detail for event in _cleanings(store)))
    assert set(seen) == {"3 entries to delete"}
    fill(store, 3)
    housekeeping.apply(store, journal, housekeeping.plan_cleaning(store, Limits(everything=True)), by=AUTOMATIC)
    assert [event.detail for event in _cleanings(store)][2:] == ["3 of 3 planned entries"]


def test_applying_a_plan_evicts_its_victims_and_records_why(store: DiskStore, journal: Journal) -> None:
    keys = fill(store, 6)
    for age, key in enumerate(keys):
        _age(record_file(store, key), age)
    plan = housekeeping.plan_cleaning(store, Limits(expire_days=3.5))
    assert [victim.key for victim in plan.victims] == [keys[5], keys[4]]
    cleaned = housekeeping.apply(store, journal, plan)
    assert (cleaned.evicted, cleaned.freed_bytes, cleaned.skipped) == (2, plan.freed_bytes, 0)
    assert sorted(store.keys()) == sorted(keys[:4])
    journal.flush()
    tally = read_journal(store.layout.journal)
    assert (tally.totals.evictions, tally.totals.evicted_bytes) == (2, plan.freed_bytes)
    assert sorted(event.kind for event in tally.recent) == [CLEAN, CLEAN, EVICT, EVICT]
    assert {event.detail for event in tally.recent if event.kind == EVICT} == {"expired"}


def test_an_entry_made_again_since_the_plan_is_spared(store: DiskStore, journal: Journal) -> None:
    key = publish(store)
    _age(record_file(store, key), 30)
    plan = housekeeping.plan_cleaning(store, Limits(expire_days=7))
    publish(store)
    cleaned = housekeeping.apply(store, journal, plan)
    assert (cleaned.evicted, cleaned.skipped) == (0, 1)
    assert store.get(key) is not None


def test_an_entry_used_since_the_plan_is_spared_unless_all_is_to_go(store: DiskStore, journal: Journal) -> None:
    key = publish(store)
    _age(record_file(store, key), 30)
    plan = housekeeping.plan_cleaning(store, Limits(expire_days=7))
    everything = housekeeping.plan_cleaning(store, Limits(everything=True))
    journal.hit(key, "disk")
    journal.flush()
    assert housekeeping.apply(store, journal, plan).skipped == 1
    assert store.get(key) is not None
    assert housekeeping.apply(store, journal, everything).evicted == 1


def test_an_entry_being_compiled_is_spared(store: DiskStore, journal: Journal) -> None:
    key = publish(store)
    plan = housekeeping.plan_cleaning(store, Limits(everything=True))
    with file_lock(store.layout.key_lock(key), 1):
        assert housekeeping.apply(store, journal, plan).skipped == 1
    assert store.get(key) is not None


def test_cleaning_folds_the_journal(store: DiskStore, journal: Journal) -> None:
    earlier = Journal(store.layout.journal, 3600.0)
    earlier.hit(publish(store), "disk")
    earlier.close()
    housekeeping.apply(store, journal, housekeeping.plan_cleaning(store, Limits()))
    assert [path.name for path in store.layout.journal.iterdir()] == ["snapshot.json"]
    assert read_journal(store.layout.journal).totals.hits == {"disk": 1}


def test_counting_agrees_with_the_files(store: DiskStore) -> None:
    fill(store, 7)
    (store.layout.metadata / "00").mkdir(exist_ok=True)
    (store.layout.metadata / "00" / "notes.txt").write_text("not an entry")
    entries, stored_bytes = housekeeping.count(store.layout)
    sizes = sum(path.stat().st_size for path in files_of(store) if path.suffix != ".txt")
    assert (entries, stored_bytes) == (7, sizes)


def test_leftovers_of_killed_writers_are_listed_then_deleted_by_any_cleaning(
    store: DiskStore, journal: Journal
) -> None:
    keys = fill(store, 4)
    record_file(store, keys[0]).unlink()
    replaced = blob_file(store, keys[1])
    old = replaced.with_name(f"{keys[1]}-{'0' * 16}")
    old.write_bytes(b"older")
    temporary = store.layout.temp / "123-abc"
    temporary.write_bytes(b"half")
    for days, name in ((31, "old"), (29, "young")):
        (store.layout.quarantine / f"{time.time_ns() - int(days * DAY_S * 1e9)}-{name}").write_bytes(b"bad")
    before = sorted(files_of(store))
    leftovers = housekeeping.find_leftovers(store)
    assert sorted(files_of(store)) == before
    told = {(store.layout.root / leftover.path).name.rpartition("-")[2]: leftover.reason for leftover in leftovers}
    assert told == {
        "abc": "temporary of a writer that is gone",
        blob_file(store, keys[0]).name[-16:]: "blob without record",
        "0" * 16: "blob without record",
        "old": "in quarantine for more than 30 days",
    }
    cleaned = housekeeping.apply(store, journal, housekeeping.plan_cleaning(store, Limits()))
    assert (cleaned.evicted, cleaned.leftovers) == (0, 4)
    assert housekeeping.find_leftovers(store) == []
    assert sorted(store.keys()) == sorted(keys[1:])
    assert all(store.get(key) is not None for key in keys[1:])
    assert [path.name.rpartition("-")[2] for path in store.layout.quarantine.iterdir()] == ["young"]
    (event,) = read_journal(store.layout.journal).recent
    assert (event.kind, event.detail) == (CLEAN, "4 leftover files")


def test_an_orphan_published_again_since_it_was_seen_stays(
    store: DiskStore, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same blob gets the same name."""
    key = publish(store)
    record_file(store, key).unlink()
    seen = housekeeping.find_leftovers(store)
    assert len(seen) == 1
    publish(store)
    monkeypatch.setattr(housekeeping, "find_leftovers", lambda _: seen)
    assert housekeeping.apply(store, journal, housekeeping.plan_cleaning(store, Limits())).leftovers == 0
    assert store.get(key) is not None


def test_a_file_being_written_is_not_a_leftover(store: DiskStore) -> None:
    key = publish(store)
    record_file(store, key).unlink()
    with (store.layout.temp / "1-a").open("xb") as temporary, file_lock(store.layout.key_lock(key), 0):
        assert try_lock(temporary.fileno())
        assert housekeeping.find_leftovers(store) == []
    assert len(housekeeping.find_leftovers(store)) == 2


def test_stale_entries_are_planned_only_when_asked_for(store: DiskStore) -> None:
    keys = fill(store, 3)
    record_file(store, keys[2]).write_bytes(b"damaged")

    def is_stale(record: Record) -> bool:
        return record.key != keys[0]

    assert housekeeping.plan_cleaning(store, Limits(expire_days=7), is_stale=is_stale).victims == ()
    plan = housekeeping.plan_cleaning(store, Limits(stale_toolchain=True), is_stale=is_stale)
    assert [(victim.key, victim.reason) for victim in plan.victims] == [(keys[1], STALE)]


def test_the_free_disk_sets_a_limit(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 4)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6, 0))
    plan = housekeeping.plan_cleaning(store, Limits(max_disk_share=0.5))
    assert {victim.reason for victim in plan.victims} == {LITTLE_SPACE}
    assert plan.kept_bytes <= plan.freed_bytes


class Settled:
    """A store in which everything is old, and a housekeeper for it."""

    def __init__(self, store: DiskStore, journal: Journal, interval_s: float = 3600.0) -> None:
        self.keys = fill(store, 4)
        for key in self.keys:
            _age(record_file(store, key), 30)
        self.fresh = publish(store, 10)
        self.stamp = store.layout.cleaned
        self.housekeeper = Housekeeper(store, journal, Limits(expire_days=7, max_entries=0), interval_s)

    def run(self) -> None:
        """Reports a publish to the housekeeper, and waits for it to finish."""
        self.housekeeper.published(1000)
        assert self.housekeeper._queue.settle(60)


def test_automatic_cleaning_waits_for_its_interval_and_spares_new_entries(store: DiskStore, journal: Journal) -> None:
    settled = Settled(store, journal)
    settled.run()
    assert len(list(store.keys())) == 5, "a new store is not due"
    _age(settled.stamp, 0.5)
    settled.run()
    assert list(store.keys()) == [settled.fresh]
    tally = read_journal(store.layout.journal)
    assert sorted(event.kind for event in tally.recent) == [CLEAN, *[EVICT] * 4]
    publish(store, 1)
    _age(record_file(store, settled.keys[1]), 30)
    settled.run()
    assert len(list(store.keys())) == 2, "it was cleaned a moment ago"


@pytest.mark.parametrize("days", [400, -400])
def test_a_clock_that_jumped_makes_cleaning_due_and_evicts_nothing_fresh(
    store: DiskStore, journal: Journal, days: float
) -> None:
    settled = Settled(store, journal)
    settled.run()
    _age(settled.stamp, days)
    settled.run()
    assert list(store.keys()) == [settled.fresh]


def test_automatic_cleaning_can_be_switched_off(store: DiskStore, journal: Journal) -> None:
    settled = Settled(store, journal, interval_s=0)
    settled.stamp.touch()
    _age(settled.stamp, 400)
    settled.run()
    assert len(list(store.keys())) == 5


def test_automatic_cleaning_leaves_it_to_others_who_are_at_it(store: DiskStore, journal: Journal) -> None:
    settled = Settled(store, journal)
    settled.stamp.touch()
    _age(settled.stamp, 1)
    with file_lock(store.layout.maintenance_lock, 0):
        settled.run()
    assert len(list(store.keys())) == 5


def test_closing_ends_automatic_cleaning_between_entries(store: DiskStore, journal: Journal) -> None:
    Settled(store, journal)
    plan = housekeeping.plan_cleaning(store, Limits(expire_days=7))
    assert len(plan.victims) == 4
    answers = iter([False, False, True])
    cleaned = housekeeping.apply(store, journal, plan, stopped=lambda: next(answers))
    assert (cleaned.evicted, cleaned.skipped) == (2, 2)
    assert len(list(store.keys())) == 3


def _publish_and_wait(store: DiskStore, housekeeper: Housekeeper, seed: int) -> None:
    key = publish(store, seed)
    housekeeper.published(record_file(store, key).stat().st_size + blob_file(store, key).stat().st_size)
    assert housekeeper._queue.settle(60)


def _counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[object]:
    """Grows with each call of a function of the module."""
    calls: list[object] = []
    called = getattr(housekeeping, name)

    def count_call(*given: object) -> object:
        calls.append(given)
        return called(*given)

    monkeypatch.setattr(housekeeping, name, count_call)
    return calls


@pytest.mark.parametrize("limits", [Limits(max_entries=3, down_to=0.8), Limits(max_bytes=10_000, down_to=0.8)])
def test_a_store_that_grows_stays_within_its_limits_and_ten_entries(
    store: DiskStore, journal: Journal, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    """However new they are, and without a look through the folders at each publish."""
    surveys = _counted(monkeypatch, "count")
    housekeeper = Housekeeper(store, journal, limits, 3600.0)
    most = 0
    for seed in range(40):
        _publish_and_wait(store, housekeeper, seed)
        most = max(most, count(store.layout)[0])
    allowed = 3 if limits.max_entries else 10_000 // (count(store.layout)[1] // count(store.layout)[0])
    assert allowed < most <= allowed + 10
    assert len(surveys) <= 40 / 2
    assert store.get(make_entry(39)[0]) is not None, "the newest stays"
    assert read_journal(store.layout.journal).totals.evictions >= 40 - most


def test_a_publish_does_not_search_again_when_nothing_can_be_evicted(
    store: DiskStore, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in fill(store, 20):
        record_file(store, key).write_bytes(b'{"format": 99}')
    plans = _counted(monkeypatch, "plan_cleaning")
    housekeeper = Housekeeper(store, journal, Limits(max_entries=3), 3600.0)
    for _ in range(12):
        housekeeper.published(1000)
        assert housekeeper._queue.settle(60)
    assert 1 <= len(plans) <= 4
    assert len(list(store.keys())) == 20


def test_a_damaged_estimate_is_surveyed(store: DiskStore, journal: Journal) -> None:
    fill(store, 6)
    housekeeper = Housekeeper(store, journal, Limits(max_entries=100), 3600.0)
    for damage in (b"", b"x", b"1 2\n+y\n", b"\xff"):
        store.layout.population.write_bytes(damage)
        assert add_published(store.layout, 5) is None
        housekeeper.published(5)
        assert housekeeper._queue.settle(60)
        held = read_population(store.layout)
        assert held is not None
        assert (held.entries, held.stored_bytes) == count(store.layout)


def test_a_store_whose_estimate_cannot_be_written_is_surveyed_once(
    store: DiskStore, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each publish would list every folder."""
    fill(store, 3)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cache_engine.upkeep.cleanup.write_population", full)
    surveys = _counted(monkeypatch, "count")
    housekeeper = Housekeeper(store, journal, Limits(max_entries=100), 3600.0)
    for _ in range(4):
        store.layout.population.write_bytes(b"x")
        housekeeper.published(5)
        assert housekeeper._queue.settle(60)
    assert len(surveys) == 1


_PUBLISHING = """
import sys
from cache_engine import GemmProblem, open_cache
from cache_engine.cache import miss
from cache_engine.cache.stages import COMPILE
from tests.helpers import make_entry

def compiled(_, stages):
    with stages(COMPILE):
        return make_entry(0)[1]

vars(miss).update(make_artifact=compiled)
first, publishes, openings = map(int, sys.argv[2:])
for number in range(openings):
    with open_cache(sys.argv[1], durability="fast", max_entries=3) as cache:
        for k in range(publishes):
            cache.get_or_compile(GemmProblem(64, 8 * (first + number + 1), 8 * (k + 1), arch="sm_80"))
"""


@pytest.mark.parametrize(("processes", "publishes", "openings"), [(3, 20, 1), (1, 1, 20)], ids=["long", "short"])
def test_processes_that_publish_leave_a_store_within_its_limits_and_ten_entries(
    store: DiskStore, processes: int, publishes: int, openings: int
) -> None:
    """Three at once, and many that publish one entry each."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", _PUBLISHING, str(store.layout.root)]
    running = [
        subprocess.Popen([*command, str(100 * n), str(publishes), str(openings)], cwd=root) for n in range(processes)
    ]
    assert [process.wait(120) for process in running] == [0] * processes
    assert 0 < count(store.layout)[0] <= 13
    assert list(integrity.check(store)) == []
