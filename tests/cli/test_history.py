"""``history`` and ``audit``: what happened in a store."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from cache_engine.cli.stats import lengths_document, summed
from cache_engine.model.events import CLEAN, DAY_S, HOUR_S, EventPeriod
from cache_engine.store.journal import Journal
from cache_engine.store.journal.snapshot import fold_journal
from tests.cli.test_cli import SHAPE, document, run
from tests.helpers import make_store

NOW = 1_000 * DAY_S


def test_a_miss_and_a_hit_are_in_the_history(place: Path) -> None:
    began = time.time()
    for _ in range(2):
        document("compile", *SHAPE, store=place)
    found = document("stats", "--by", "time", store=place)
    assert found["step_seconds"] == DAY_S
    (row,) = found["rows"]
    assert (row["hits"], row["misses"], row["compiles"]) == ({"disk": 1}, 1, 1)
    assert row["compile_ms"] == pytest.approx(row["saved_ms"], rel=0.01)
    assert began - DAY_S < row["start"] <= time.time()
    assert row["start"] % DAY_S == 0
    assert "50.0%" in run("stats", "--by", "time", "--by", "hour", store=place).stdout
    assert document("stats", "--by", "time", "--since", "24h", store=place)["step_seconds"] == HOUR_S


def test_the_lengths_of_lookups_have_no_share_of_the_work_of_misses() -> None:
    found = lengths_document({"disk/20": 4, "disk/ns": 2 * 10**9, "compile/30": 3, "compile/ns": 6 * 10**9,
                              "publish/21": 1, "publish/ns": 2 * 10**9})  # fmt: skip
    assert {
        name: (one["count"], one["mean_ms"], one["per_s"], one["total_ms"], one["share"]) for name, one in found.items()
    } == {
        "disk": (4, 500.0, 2.0, 2000.0, None),
        "compile": (3, 2000.0, 0.5, 6000.0, 0.75),
        "publish": (1, 2000.0, 0.5, 2000.0, 0.25),
    }


def test_a_store_without_events_has_no_history(place: Path) -> None:
    make_store(place)
    assert document("stats", "--by", "time", store=place)["rows"] == []
    assert run("stats", "--by", "time", store=place).stdout == "No lookups or compiles in this time.\n"
    assert run("log", "--audit", store=place).stdout == "No action is logged.\n"


def test_an_action_of_a_kind_that_a_newer_version_writes_is_skipped(place: Path) -> None:
    store = make_store(place)
    with closing(Journal(store.layout.journal, 3600.0)) as journal:
        journal.event("moved to the moon", detail="3 entries", by="some user")
        journal.event(CLEAN, detail="1 entry", by="some user")
    fold_journal(store.layout)
    assert [act["kind"] for act in document("log", "--audit", store=place)["rows"]] == [CLEAN]
    assert document("verify", store=place)["findings"] == []
    assert document("store", "sync", store=place)["events"] == 2
    assert document("stats", store=place)["entries"] == 0


def test_sums_are_by_interval_and_nothing_is_lost_or_counted_twice() -> None:
    periods = [EventPeriod(start=NOW + hour * HOUR_S, seconds=HOUR_S, misses=1, hits={"disk": 2}) for hour in range(50)]
    days = summed(periods, DAY_S)
    assert [(day.start, day.misses, day.hits) for day in days] == [
        (NOW, 24, {"disk": 48}),
        (NOW + DAY_S, 24, {"disk": 48}),
        (NOW + 2 * DAY_S, 2, {"disk": 4}),
    ]
    assert summed(periods, HOUR_S) == periods
    assert [day.start for day in summed(periods, DAY_S, NOW + DAY_S)] == [NOW + DAY_S, NOW + 2 * DAY_S]
    assert periods[0].misses == 1


def test_a_longer_sum_stays_a_row_of_its_own() -> None:
    month = EventPeriod(start=NOW // (28 * DAY_S) * 28 * DAY_S, seconds=28 * DAY_S, misses=7)
    hour = EventPeriod(start=NOW, seconds=HOUR_S, misses=1)
    assert [(row.seconds, row.misses) for row in summed([month, hour], DAY_S)] == [(28 * DAY_S, 7), (DAY_S, 1)]


def test_who_cleaned_is_in_the_audit_log(place: Path) -> None:
    document("compile", *SHAPE, store=place)
    document("clean", "--yes", "--all", store=place)
    found = document("log", "--audit", store=place)
    row, planned = found["rows"]
    assert (found["total"], row["kind"], planned["kind"]) == (2, "clean", "clean")
    assert (planned["bytes"], planned["detail"], planned["by"]) == (0, "1 entry to delete", row["by"])
    assert row["by"]
    assert row["bytes"] > 0
    text = run("log", "--audit", store=place).stdout
    assert row["by"] in text
    assert row["detail"] in text
    document("compile", *SHAPE, store=place)
    document("clean", "--yes", "--all", store=place)
    latest = document("log", "--audit", "--limit", "1", store=place)
    assert (latest["total"], len(latest["rows"])) == (4, 1)
    assert latest["rows"][0]["at"] > row["at"]
    assert "The latest 1 of 4 actions." in run("log", "--audit", "--limit", "1", store=place).stdout
