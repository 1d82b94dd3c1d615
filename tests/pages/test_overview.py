"""The Overview."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from app.presenters.overview import (
    FINE,
    LOOK,
    PLAIN,
    TROUBLE,
    disk_check,
    gpu_check,
    health,
    queue_check,
    rate_words,
    tier_table,
)
from cache_engine.batch.jobs import DONE, Job, Jobs, LostJob
from cache_engine.cache.queue import Priority, QueueState, State, Turn
from cache_engine.cache.queue.slots import Slots
from cache_engine.gpu import memory_pool
from cache_engine.gpu.memory_pool import DeviceMemory
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.key import CacheKey
from cache_engine.store.journal import Journal
from tests.helpers import damage_record, fill, make_store
from tests.pages.opening import Open, drawn, listed, sound, tabled, tables

NOW = 1_800_000_000.0
ROW = {"last_publish_at": NOW - 120, "unreadable": 0, "synced_at": NOW - 5}
QUIET = {"publish_failures": 0, "corruptions": 0, "lock_waits": 0, "lock_timeouts": 0, "lock_wait_us": 0}
WEEK = {**QUIET, "tier_failures": 0}


def test_rates_are_of_the_last_day() -> None:
    day = [{"compiles": 5, "promotions": 2, "demotions": 0}, {"compiles": 7, "promotions": 0, "demotions": 1}]
    words = rate_words({"promotions": 30, "demotions": 4}, day)
    assert "12 compiles (0.5 an hour), 2 promotions, 1 demotion." in words
    assert words.endswith("30 promotions, 4 demotions.")


def test_the_overview_shows_size_hits_and_savings(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "overview"))
    shown = {metric.label: metric.value for metric in app.metric}
    assert shown["Kernels"] == "4"
    assert shown["Hit rate"] == "20.0%"
    assert set(shown) == {"Kernels", "On disk", "Hit rate", "Compile time saved", "Compile time spent"}
    assert [row["Event"] for row in tabled(app, "Event")] == ["compiled"] * 4
    assert [row["Hits"] for row in listed(app)] == ["1"]


def test_the_figures_over_time_have_a_table_behind_them_that_adds_up(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "overview"))
    for span in ("24 hours", "7 days", "90 days", "All time"):
        app.segmented_control[0].set_value(span).run()
        sound(app)
        kinds = [one["kind"] for one in drawn(app)]
        assert kinds == ["Sparkline"] * (len(kinds) - 4) + ["Bars"] * 4
        assert len(kinds) > 4 or span == "All time", "under numbers, how they went"
        table = tabled(app, "Compiles")
        assert [sum(int(row[name]) for row in table) for name in ("Memory", "Miss", "Compiles")] == [1, 4, 4]
        assert all(row["From"][:2] == "20" for row in table), "a moment, not an age"


def test_a_disk_that_never_hits_shows_behind_a_memory_that_does(open_page: Open, compiled_store: Path) -> None:
    """Five lookups: the memory served one, and four had to compile."""
    tiers = tabled(sound(open_page(compiled_store, "overview")), "Tier")
    assert [list(row.values()) for row in tiers] == [["Memory", "5", "1", "20.0%"], ["Disk", "4", "0", "0.0%"]]


def test_a_remote_has_a_hit_rate_where_lookups_ask_it_or_it_has_hit() -> None:
    row = {"memory_hits": 5, "pack_hits": 0, "disk_hits": 3, "remote_hits": 0, "misses": 2}
    assert [line["Hit rate"] for line in tier_table(row, packs=False, remote=True)] == [0.5, 0.6, 0.0]
    (*_, last) = tier_table({**row, "remote_hits": 2}, packs=False, remote=False)
    assert last == {"Tier": "Remote", "Lookups": 4, "Hits": 2, "Hit rate": 0.5}


def test_packs_have_a_hit_rate_where_they_are_mounted_or_have_hit() -> None:
    row = {"memory_hits": 5, "pack_hits": 0, "disk_hits": 3, "remote_hits": 0, "misses": 2}
    assert [line["Tier"] for line in tier_table(row, packs=True, remote=False)] == ["Memory", "Pack", "Disk"]
    assert [line["Lookups"] for line in tier_table(row, packs=False, remote=False)] == [10, 5]
    assert [line["Hit rate"] for line in tier_table({**row, "pack_hits": 5}, packs=False, remote=False)] == [
        1 / 3,
        0.5,
        0.6,
    ]


def test_an_empty_store_shows_the_command_that_fills_this_store(open_page: Open, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "a store", "overview"))
    assert f"gemm-cache --store '{tmp_path / 'a store'}' warm --sample" in [code.value for code in app.code]


def test_a_store_unused_in_that_time_reports_that(open_page: Open, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    fill(store, 2)
    long_ago = Journal(store.layout.journal, 3600.0, now=lambda: time.time() - 30 * 86_400)
    long_ago.event("publish", key="a")
    long_ago.close()
    app = sound(open_page(store.layout.root, "overview"))
    assert "No lookups or compiles in this period" in app.info[0].value
    assert "Bars" not in [one["kind"] for one in drawn(app)]
    app.segmented_control[0].set_value("90 days").run()
    assert [one["kind"] for one in drawn(sound(app))].count("Bars") == 4


def test_stale_kernels_are_reported_with_a_link_to_their_cleanup(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "overview"))
    assert any("No stale kernels" in text.value for text in app.text)
    assert not any("stale" in link.proto.label for link in app.get("page_link"))
    fill(make_store(compiled_store), 3)
    app = sound(open_page(compiled_store, "overview"))
    assert any("3 stale kernels" in text.value and "which no lookup can hit" in text.value for text in app.text)
    (link,) = (link.proto for link in app.get("page_link") if "stale" in link.proto.label)
    assert (link.page, link.query_string) == ("storage", "rule=stale")


def test_the_overview_warns_of_troubles(open_page: Open, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    damage_record(store, next(iter(store.keys())))
    app = sound(open_page(compiled_store, "overview"))
    assert "1 unreadable item" in app.warning[0].value


def test_troubles_of_long_ago_are_no_longer_shown(open_page: Open, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    Journal(store.layout.journal, 3600.0, now=lambda: time.time() - 8 * 86_400).event("corrupt", key="gone")
    assert not sound(open_page(compiled_store, "overview")).warning
    Journal(store.layout.journal, 3600.0).event("corrupt", key="gone")
    Journal(store.layout.journal, 3600.0).event("unpublished", key="full", detail="**No space left**")
    app = sound(open_page(compiled_store, "overview"))
    shown = [warning.value for warning in app.warning]
    assert "1 compiled kernel could not be saved" in shown[0]
    assert "1 corrupt entry" in shown[1]
    assert "**No space left**" in [text.value for text in app.text]


def test_deleting_the_mirror_loses_nothing(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "overview"))
    before = [metric.value for metric in app.metric]
    (compiled_store / "mirror.duckdb").unlink()
    assert [metric.value for metric in sound(app.run()).metric] == before


def test_a_store_in_good_health_has_nothing_to_look_at() -> None:
    checks = health(ROW, WEEK, [], NOW)
    assert [check.about for check in checks] == ["Writes", "Integrity", "Locks", "Reads of tiers", "Search index"]
    assert {check.state for check in checks} == {FINE}
    assert "2 min ago" in checks[0].words


@pytest.mark.parametrize(
    ("trouble", "about", "state", "words"),
    [
        ({"publish_failures": 2}, "Writes", TROUBLE, "2 compiled kernels could not be saved"),
        ({"corruptions": 1}, "Integrity", TROUBLE, "1 corrupt entry"),
        (
            {"lock_waits": 3, "lock_wait_us": 4_500_000},
            "Locks",
            LOOK,
            "3 lock waits over 1 s in the last 7 days, 4.5 s in total",
        ),
        ({"lock_waits": 3, "lock_timeouts": 1}, "Locks", TROUBLE, "1 timed out"),
        ({"tier_failures": 5}, "Reads of tiers", TROUBLE, "5 failed reads"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_error_is_shown_where_it_belongs(trouble: dict[str, int], about: str, state: str, words: str) -> None:
    week = {**WEEK, **trouble}
    events = [{"kind": "publish", "detail": ""}, {"kind": "unpublished", "detail": "disk full"}]
    (found,) = (check for check in health(ROW, week, events, NOW) if check.state != FINE)
    assert (found.about, found.state) == (about, state)
    assert words in found.words
    assert found.cause == ("disk full" if about == "Writes" else "")


@pytest.mark.parametrize(
    ("free", "state"),
    [(0, TROUBLE), ((16 << 20) - 1, TROUBLE), (16 << 20, LOOK), ((1 << 30) - 1, LOOK), (1 << 30, FINE)],
)
def test_a_full_disk_is_no_good_health(free: int, state: str) -> None:
    check = disk_check(free)
    assert (check.state, " free." in check.words) == (state, True)
    assert (" free" in check.about) == (state == FINE), "the line of health says how much is free"


def test_a_page_on_a_full_disk_says_so(open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(compiled_store)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    shown = sound(open_page(compiled_store, "overview"))
    assert any("0 B free. Kernels that do not fit" in warning.value for warning in shown.warning)


def test_jobs_that_run_are_shown_and_lead_to_their_page(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Job(id="a" * 8, command=["warm", "a model"], pid=1), Job(id="b" * 8, command=["warm"], state=DONE)]
    monkeypatch.setattr(Jobs, "recent", lambda _: [*found, LostJob("c" * 8, "damaged")])
    app = sound(open_page(compiled_store, "overview"))
    assert "Running jobs" in [header.value for header in app.header]
    (row,) = tabled(app, "Command")
    assert row["Command"] == f"/compile?job={'a' * 8}"
    monkeypatch.setattr(Jobs, "recent", lambda _: found[1:])
    assert "Running jobs" not in [header.value for header in sound(open_page(compiled_store, "overview")).header]


def test_device_memory_is_shown_where_there_is_a_gpu(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gib = 2**30
    found = DeviceMemory(60 * gib, 20 * gib, 80 * gib, gib, 2 * gib, None)
    for memory, expected in (
        (found, {"Free": "60.0 GiB", "Pool in use": "1.0 GiB", "Pool limit": "none"}),
        (replace(found, free_bytes=None, used_bytes=None, limit_bytes=3 * gib), {"Pool limit": "3.0 GiB"}),
        (None, {}),
    ):
        monkeypatch.setattr(memory_pool, "device_memory", lambda memory=memory: memory)
        app = sound(open_page(compiled_store, "overview"))
        told = [row for table in tables(app) for row in table["cells"] if table["label"] == "Of the first GPU"]
        shown = {name["text"]: value["text"] for name, value in told}
        assert ("Free" in shown) == (memory is found)
        assert {name: shown[name] for name in expected} == expected
        assert ("Device memory" in [header.value for header in app.header]) == (memory is not None)


def test_without_a_gpu_the_reason_is_shown_and_is_not_an_error() -> None:
    check = gpu_check("no NVIDIA driver is installed")
    assert (check.state, check.words) == (
        PLAIN,
        "No GPU found (no NVIDIA driver is installed). Only running and timing kernels needs one.",
    )
    here = gpu_check(DeviceFingerprint("<b>H100</b>", "sm_90", 132, 80 * 2**30, 50 * 2**20, 1_980_000, "13.0"))
    assert (here.state, here.cause) == (FINE, "<b>H100</b>")
    assert "<b>" not in here.words


def test_the_compile_queue_is_shown_with_who_waits(open_page: Open, compiled_store: Path) -> None:
    assert not any("Process" in str(table["columns"]) for table in tables(sound(open_page(compiled_store, "overview"))))
    layout, key = make_store(compiled_store).layout, CacheKey(64 * "a")
    slots = Slots(layout, 1, 60.0)
    with slots.turn(key, Priority.WARM):
        texts = [text.value for text in sound(open_page(compiled_store, "overview")).text]
        assert any(text.startswith("Compile queue: 1 of ") and "in use; none waits" in text for text in texts)
    with slots.turn(key, Priority.WARM), slots.waiting(key, Priority.CALLER):
        app = sound(open_page(compiled_store, "overview"))
        assert [(row["State"], row["Kernel"], row["For"]) for row in tabled(app, "Process")] == [
            ("compiles", "a" * 12, "warm"),
            ("waits", "a" * 12, "caller"),
        ]
        assert any("1 waiting, 1 caller among them" in warning.value for warning in app.warning)
        assert not any("1 waiting" in text.value for text in app.text)  # once is enough


def test_a_queue_without_callers_is_fine() -> None:
    warm = Turn(State.QUEUED, Priority.WARM, CacheKey(64 * "a"), 1, 2.0)
    assert queue_check(QueueState(2)).words == "0 of 2 slots in use; none waits."
    assert queue_check(QueueState(2, queued=(warm,))).state == FINE
    assert queue_check(QueueState(2, queued=(msgspec.structs.replace(warm, priority=Priority.CALLER),))).state == LOOK
