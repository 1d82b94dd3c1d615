"""Overview: limits, failures that were seen, causes of misses, and numbers against the period before."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from urllib.parse import parse_qs

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app.presenters import decisions
from app.presenters.columns import cells, rows_of
from app.presenters.decisions import cause_table, miss_table
from app.presenters.history import SPANS
from app.presenters.overview import ShownPeriod, miss_columns, miss_rows, overview_tiles
from cache_engine.cache.cache import open_cache
from cache_engine.model.decision import EVICTED, MISS, NEVER_SEEN, Decision
from cache_engine.model.shapes import Shape
from cache_engine.store.journal import Journal
from cache_engine.units import human_ms
from cache_engine.upkeep.plan import Limits
from tests.conftest import SAMPLE
from tests.helpers import make_store
from tests.pages.opening import Open, sound, tabled, tables


def test_a_failure_that_was_seen_is_not_shown_again_and_a_later_one_is(open_page: Open, compiled_store: Path) -> None:
    journal = make_store(compiled_store).layout.journal
    Journal(journal, 3600.0).event("corrupt", key="gone")
    Journal(journal, 3600.0).event("unpublished", key="full", detail="No space left")
    app = sound(open_page(compiled_store, "overview"))
    assert len(app.warning) == 2
    app.button(key="seen-Integrity").click().run()
    (warning,) = sound(app).warning
    assert "could not be saved" in warning.value
    assert "failures acknowledged" in [row["Event"] for row in tabled(app, "Event")]
    Journal(journal, 3600.0).event("corrupt", key="another")
    app.run()
    assert "1 corrupt entry" in sound(app).warning[1].value


def test_a_store_over_its_limits_says_by_how_much(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not sound(open_page(compiled_store, "overview")).warning
    monkeypatch.setenv("GEMM_CACHE_MAX_ENTRIES", "1")
    st.cache_resource.clear()
    app = sound(open_page(compiled_store, "overview"))
    assert "4 kernels of 1, 400%" in app.warning[0].value
    assert app.get("progress")[0].proto.text == "400.0% of 1, over the limit"
    (link,) = (link.proto for link in app.get("page_link") if link.proto.label == "Review cleanup")
    assert link.page == "storage"


def test_misses_have_their_causes_and_lead_to_the_kernels_decisions(open_page: Open, compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        evicted = next(record for record in cache.records() if record.arch == "sm_75")
        cache.admin.clean(Limits(keys=frozenset({evicted.key})))
        cache.get_or_compile(SAMPLE[3])
    app = sound(open_page(compiled_store, "overview"))
    (again,) = (row for row in tabled(app, "What happened") if row["Why"] == "Evicted before")
    assert again["Kernel"] == f"kernel?key={evicted.key}&part=History"
    assert again["Cost"] != "–"
    p = evicted.problem
    shown = [cell["text"] for table in tables(app) for row in table["cells"] for cell in row]
    assert f"{p.m}×{p.n}×{p.k} {p.dtype} sm_75 · {evicted.config}" in shown, "which the name of a kernel leaves open"
    causes = tabled(app, "Share of cost")
    assert [row["Misses"] for row in causes] == ["4", "1"], "a row for each cause"
    logged = parse_qs(next(row["Why"] for row in causes if row["Misses"] == "1").partition("?")[2])
    app = sound(open_page(compiled_store, "storage", **{name: value for name, (value,) in logged.items()}))
    (only,) = tabled(app, "What")
    assert (only["Kernel"], only["Reason"]) == (f"kernel?key={evicted.key}&part=History", "evicted before")


def test_the_cause_that_cost_most_comes_first() -> None:
    def miss(key: str, reason: str, at: float) -> Decision:
        return Decision(kind=MISS, at=at, key=key, name=f"kernel {key}", reason=reason)

    misses = [miss("c", NEVER_SEEN, 9), miss("a", EVICTED, 8), miss("b", EVICTED, 7), miss("a", EVICTED, 6)]
    columns = decisions.miss_columns({}, {"a": ("near", ["target"]), "c": ("it", [])})
    rows = rows_of(miss_table(misses, {"a": 100.0, "c": 150.0}), columns, UTC)
    assert [(row["Kernel"], row["Misses"], row["Cost"]) for row in rows] == [
        ("kernel a", 2, 200.0),
        ("kernel b", 1, None),
        ("kernel c", 1, 150.0),
    ]
    assert [row["Nearest kernel differs in"] for row in rows] == ["target", "", "m or epilogue"]
    assert [row["Nearest"] for row in rows] == ["compare?a=near&b=a", None, "compare?a=it&b=c"]
    causes = cause_table(misses, {"a": 100.0, "c": 150.0})
    assert [(row["latest"].reason, row["misses"], row["ms"], row["latest"].at) for row in causes] == [
        (EVICTED, 3, 200.0, 8),
        (NEVER_SEEN, 1, 150.0, 9),
    ]
    assert [round(row["share"], 3) for row in causes] == [0.571, 0.429]
    assert cause_table(misses, {})[0]["share"] is None, "where no cost is known, there is no share of it"


def test_misses_by_shape_and_target_lead_to_the_cell_of_workload(open_page: Open, compiled_store: Path) -> None:
    shapes = {"a": Shape(n=8, k=4, arch="sm_90"), "b": Shape(n=8, k=4, arch="sm_80"), "c": Shape(n=16, k=4, arch="x")}
    misses = [Decision(kind=MISS, at=1, key=key) for key in ("a", "a", "b", "c", "gone")]
    rows = miss_rows(misses, {"a": 10.0, "b": 40.0, "c": 90.0}, shapes)
    columns = miss_columns(rows)
    assert [column.name for column in columns] == ["Shape", "sm_80", "sm_90", "x"]
    texts = [[cell["text"] for cell in row] for row in cells(rows, columns, UTC, 0.0)]
    assert texts == [
        ["m × 16 × 4 bf16", "", "", "1 miss, 90 ms"],
        ["m × 8 × 4 bf16", "1 miss, 40 ms", "2 misses, 20 ms", ""],
    ]
    app = sound(open_page(compiled_store, "overview"))
    table = next(one for one in tables(app) if one["label"] == "Misses by shape and target")
    links = [cell["href"] for row in table["cells"] for cell in row if "href" in cell]
    assert len(links) == 4
    for link in links:
        asked = {name: value for name, (value,) in parse_qs(link.partition("?")[2]).items()}
        below = sound(open_page(compiled_store, "workload", **asked))
        assert "Chosen cell" in [header.value for header in below.header]


def test_a_part_of_the_time_range_filters_all_below_it_and_is_in_the_address(
    open_page: Open, compiled_store: Path
) -> None:
    def shown(app: AppTest) -> tuple[str, bool, bool]:
        numbers = {metric.label: metric.value for metric in sound(app).metric}
        labels = [one["label"] for one in tables(app)]
        return numbers["Hit rate"], "Causes of misses" in labels, "Recent activity" in labels

    app = open_page(compiled_store, "overview")
    assert shown(app) == ("20.0%", True, True)
    first, last = app.select_slider[0].value
    two_steps_s = 2 * SPANS["7 days"].step_s  # the store is made before a step may begin
    app.select_slider[0].set_range(first, last - two_steps_s).run()
    assert shown(app) == ("–", False, False)
    assert set(app.query_params) >= {"to"}
    to = "".join(app.query_params["to"])
    assert shown(open_page(compiled_store, "overview", to=to)) == ("–", False, False), "the address is a link"
    assert shown(open_page(compiled_store, "overview", **{"from": to})) == ("20.0%", True, True)
    app.select_slider[0].set_range(first, last).run()
    assert shown(app) == ("20.0%", True, True)
    assert "to" not in app.query_params
    for hostile in ("<b>", "1e9", "9" * 300, "-1"):
        assert shown(open_page(compiled_store, "overview", **{"from": hostile, "to": hostile}))[0] == "20.0%"


STEP = {
    "memory_hits": 0, "pack_hits": 0, "disk_hits": 9, "remote_hits": 0, "misses": 1, "saved_us": 5_000_000,
    "compile_us": 1_000_000, "compiles": 1,
}  # fmt: skip


def test_numbers_change_against_the_period_before() -> None:
    before = {**STEP, "disk_hits": 5, "misses": 5, "saved_us": 2_000_000, "compile_us": 3_000_000}
    made = [{"start": 10, "entries": 3, "stored_bytes": 1024}, {"start": 90, "entries": 1, "stored_bytes": 2048}]
    row, rows = {"entries": 4, "stored_bytes": 3072}, [{**STEP, "start": start} for start in (60, 90)]
    period = ShownPeriod(rows, [before], made, range(50, 100, 10), 50, 100, "7 days")
    tiles = {tile.label: tile for tile in overview_tiles(row, period, 100, 1 << 30)}
    assert {label: tile.change for label, tile in tiles.items()} == {
        "Kernels": "+1 in 7 days",
        "On disk": "+2.0 KiB in 7 days",
        "Hit rate": "+40.0 points",
        "Compile time saved": "+8.0 s",
        "Compile time spent": "-1.0 s",
    }
    kernels = tiles["Kernels"].course
    assert kernels is not None
    assert (kernels.values, kernels.words) == ((3, 3, 3, 3, 4), ["3", "3", "3", "3", "4"])
    assert kernels.title == "Kernels over time: 3 to 4, 4 at the end"
    assert tiles["Compile time spent"].change_is_good is False
    spent = tiles["Compile time spent"].course
    assert spent is not None
    assert spent.values == (0.0, 1e3, 0.0, 0.0, 1e3), "a step in which nothing was compiled has its place"
    assert spent.words[:2] == [human_ms(0.0), "1.0 s"]
    alone = overview_tiles(row, ShownPeriod(rows, None, made, (0, 90), 0, 100, "all time"), 100, 1 << 30)
    assert [tile.change for tile in alone[2:]] == ["", "", ""]
    single = overview_tiles(row, ShownPeriod([rows[1]], None, made[:1], (90,), 90, 100, "7 days"), 100, 1 << 30)
    assert [tile.course for tile in single] == [None] * 5, "one value is no course"


def test_the_range_before_ends_where_this_one_begins() -> None:
    now = 20_000 * 86_400 + 40_000.0
    for name in ("24 hours", "7 days", "90 days"):
        span = SPANS[name]
        step_s, start, end = span.before(now)
        assert end - start == span.back_s
        assert span.since(now) - step_s < end <= span.since(now)
        assert start % step_s == end % step_s == 0
