"""The Overview."""

from __future__ import annotations

import time
from pathlib import Path

from cache_engine.store.journal import Journal
from tests.helpers import make_store, record_file
from tests.pages.opening import Open, sound


def test_the_overview_tells_size_hits_and_savings(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "overview"))
    shown = {metric.label: metric.value for metric in app.metric}
    assert shown["Kernels"] == "4"
    assert shown["Hit rate"] == "20.0%"
    assert set(shown) == {"Kernels", "On disk", "Hit rate", "Compiling saved", "Compiling spent"}
    events, busiest = (table.value for table in app.dataframe)
    assert list(events["What"]) == ["compiled"] * 4
    assert list(busiest["Hits"]) == [1]


def test_the_overview_warns_of_troubles(open_page: Open, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    record_file(store, next(iter(store.keys()))).write_text("{")
    app = sound(open_page(compiled_store, "overview"))
    assert "1 record cannot be read now" in app.warning[0].value


def test_troubles_of_long_ago_are_no_longer_shown(open_page: Open, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    Journal(store.layout.journal, 3600.0, now=lambda: time.time() - 8 * 86_400).event("corrupt", key="gone")
    assert not sound(open_page(compiled_store, "overview")).warning
    Journal(store.layout.journal, 3600.0).event("corrupt", key="gone")
    Journal(store.layout.journal, 3600.0).event("unpublished", key="full", detail="No space left")
    shown = [warning.value for warning in sound(open_page(compiled_store, "overview")).warning]
    assert "1 kernel could not be kept" in shown[0]
    assert "1 damaged entry" in shown[1]


def test_deleting_the_mirror_loses_nothing(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "overview"))
    before = [metric.value for metric in app.metric]
    (compiled_store / "mirror.duckdb").unlink()
    assert [metric.value for metric in sound(app.run()).metric] == before
