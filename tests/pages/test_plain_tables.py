"""Plain tables: what each cell shows, and the file of all of it."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path

import pytest

from app.components import tables
from app.presenters.columns import Column, cells, csv_of, rows_of
from app.server.imports import imported_by
from cache_engine.assets import assets_root
from tests.pages.opening import Open, frames, openings, sound

AT = datetime(2026, 11, 23, 6, 30, 5, tzinfo=UTC)
ROW = {
    "Name": "=1+1", "Size": 2048, "Time": 1500.0, "Rate": 0.25, "Count": 12345, "Ratio": 1.23456, "When": AT,
    "From": AT, "Open": "kernel?key=a", "Nearest": None, "None": None,
}  # fmt: skip

COLUMNS = [
    Column("Name", "Name"),
    Column("Size", "Size", "bytes"),
    Column("Time", "Time", "ms"),
    Column("Rate", "Rate", "share"),
    Column("Count", "Count", "count"),
    Column("Ratio", "Ratio", "count"),
    Column("When", "When", "age"),
    Column("From", lambda row: row["From"].timestamp(), "when"),
    Column("Open", "Open", "link"),
    Column("Nearest", "Nearest", "link", words="compare"),
    Column("None", "None"),
    Column("Kernel", "Open", "link", itemgetter("Name")),
    Column("Gone", "Nearest", "link", itemgetter("Name")),
]


def test_each_cell_is_in_the_unit_of_its_column() -> None:
    (row,) = cells([ROW], COLUMNS, UTC, AT.timestamp() + 7200)
    exactly = {"title": "2026-11-23 06:30:05 UTC", "value": AT.timestamp()}
    assert dict(zip([column.name for column in COLUMNS], row, strict=True)) == {
        "Name": {"text": "=1+1"},
        "Size": {"text": "2.0 KiB", "value": 2048},
        "Time": {"text": "1.5 s", "value": 1500.0},
        "Rate": {"text": "25.0%", "value": 0.25},
        "Count": {"text": "12,345", "value": 12345},
        "Ratio": {"text": "1.235", "value": 1.23456},
        "When": {"text": "2 h ago", **exactly},
        "From": {"text": "2026-11-23 06:30", **exactly},
        "Open": {"text": "open", "href": "kernel?key=a"},
        "Nearest": {"text": ""},
        "None": {"text": "–"},
        "Kernel": {"text": "=1+1", "href": "kernel?key=a"},
        "Gone": {"text": "=1+1"},
    }
    (saved,) = rows_of([ROW], COLUMNS, UTC)
    assert (saved["Open"], saved["Kernel"]) == ("kernel?key=a", "=1+1"), "a file has no links, but what they say"


def test_numbers_and_moments_are_on_the_right() -> None:
    on_the_right = [column.name for column in COLUMNS if column.is_numeric]
    assert on_the_right == ["Size", "Time", "Rate", "Count", "Ratio", "When", "From"]


def test_the_file_has_the_values_and_no_formula() -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\tx", "plain", 'a "quoted", one\nof two lines']
    columns = [Column("Name", "name"), Column("Size", "size", "bytes")]
    file = csv_of([{"name": text, "size": -2048} for text in texts], columns, UTC)
    head, *lines = csv.reader(io.StringIO(file, newline=""))
    assert head == ["Name", "Size"]
    assert [line[0] for line in lines] == [f"'{text}" if text[0] in "=+-@\t" else text for text in texts]
    assert {line[1] for line in lines} == {"-2048"}, "a number is no formula, and stays in bytes"


def test_the_first_page_opens_the_index_once_and_draws_no_grid(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streamlit's grid would have it import pandas, and the browser load 300 kB."""
    opened = openings(monkeypatch)
    app = sound(open_page(compiled_store, "overview"))
    assert not app.dataframe
    about_misses = 2  # which kernels those are, the page learns from the log of decisions
    assert len(opened) == 1 + about_misses


def test_the_first_page_is_imported_before_it_is_asked_for() -> None:
    overview = set(imported_by(assets_root() / "pages" / "overview.py"))
    assert {
        "app.components.listing",
        "app.context",
        "cache_engine.index.queries",
        "cache_engine.cache.queue",
    } <= overview
    assert not {"streamlit", "os", "__future__"} & overview


def test_a_long_table_has_pages(open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_ROWS", 2)
    app = sound(open_page(compiled_store, "storage", part="Settings"))
    first = list(frames(app)[-1]["Setting"])
    app.session_state["page of settings-table"] = 2
    second = list(frames(sound(app.run()))[-1]["Setting"])
    assert (len(first), len(second)) == (2, 2)
    assert not set(first) & set(second)
