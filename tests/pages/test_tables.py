"""Sizes and durations in tables, and axes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import streamlit as st

from app import tables
from app.presenters import architectures


@pytest.mark.parametrize(
    ("sizes", "shown", "unit"),
    [
        ([512, None], [512, None], "%,.0f B"),
        ([1024, 2048], [1, 2], "%,.1f KiB"),
        ([1024, 1977719.5 * 1024], [1 / 1024**2, 1977719.5 / 1024**2], "%,.2f GiB"),
        ([20 * 1024, 1024**2], [20 / 1024, 1], "%,.2f MiB"),
        ([], [], "%,.0f B"),
    ],
    ids=["bytes", "KiB", "GiB", "small", "none"],
)
def test_a_column_of_sizes_has_one_unit_that_suits_its_largest(sizes: list[Any], shown: list[Any], unit: str) -> None:
    rows = [{"Kernel": "a", "On disk": size} for size in sizes]
    changed, columns = tables.in_units(rows, sizes=["On disk"])
    assert [row["On disk"] for row in changed] == shown
    assert columns["On disk"]["type_config"]["format"] == unit
    assert [row["On disk"] for row in rows] == sizes, "the rows given are left as they are"


def test_shares_are_rounded_to_one_digit_and_times_of_day_have_no_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(st, "dataframe", lambda rows, **options: drawn.update(options, rows=rows))
    rows: list[dict[str, Any]] = [
        {"Hit rate": 0.99654, "When": datetime(2026, 11, 23, tzinfo=UTC)},
        {"Hit rate": None, "When": None},
    ]
    tables.show(rows, column_config={"Hit rate": tables.PERCENT})
    assert [row["Hit rate"] for row in drawn["rows"]] == [pytest.approx(99.654), None]
    assert drawn["column_config"]["Hit rate"]["type_config"]["format"] == "%,.1f%%"
    assert drawn["column_config"]["When"]["type_config"]["format"] == "YYYY-MM-DD HH:mm:ss"
    assert rows[0]["Hit rate"] == 0.99654, "the rows given are left as they are"


@pytest.mark.parametrize(("ms", "unit"), [(0.5, "µs"), (999, "ms"), (19_940, "s"), (19_940_000, "min"), (1e8, "h")])
def test_durations_too(ms: float, unit: str) -> None:
    (row,), columns = tables.in_units([{"Cost": ms}], times=["Cost"])
    assert columns["Cost"]["type_config"]["format"] == f"%,.1f {unit}"
    assert 1 <= row["Cost"] < 1000


def test_a_unit_in_a_columns_name_suits_its_values_and_columns_of_one_unit_stay_comparable() -> None:
    rows: list[dict[str, Any]] = [
        {"Chip": "s", "Median, µs": 12_500.0, "10th, µs": 2.0, "Search, ms": None, "A, ms per pass": 0.25},
        {"Chip": "µs", "Median, µs": None, "10th, µs": 0.0, "Search, ms": None, "A, ms per pass": 0.5},
    ]
    (first, last), columns = tables.in_units(rows)
    assert first == pytest.approx(
        {"Chip": "s", "Median, ms": 12.5, "10th, ms": 0.002, "Search, µs": None, "A, µs per pass": 250.0}
    )
    assert (last["Chip"], last["Median, ms"]) == ("µs", None)
    assert columns["Median, ms"]["type_config"]["format"] == "%,.4f", "the smallest can be read"
    assert columns["A, µs per pass"]["type_config"]["format"] == "%,.2f"
    assert list(rows[0])[1] == "Median, µs", "the rows given are left as they are"


def test_what_the_toolbar_saves_is_no_formula_and_what_is_shown_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser saves values, and shows what a style says of them."""
    drawn: list[Any] = []
    monkeypatch.setattr(st, "dataframe", lambda data, **_: drawn.append(data))
    names = ['=HYPERLINK("http://x")', "+1", "-q", "@x", "plain", "'+1 of its own"]
    rows = [{"Name": name, "Size": -2.0} for name in names]
    tables.show(rows)
    shown = next(iter(drawn))
    assert list(shown.data["Name"]) == [f"'{name}" if name[0] in "=+-@" else name for name in names]
    assert list(shown.data["Size"]) == [-2.0] * len(names), "a number is no formula"
    shown._compute()
    texts = [shown._display_funcs[row, 0](value) for row, value in enumerate(shown.data["Name"])]
    assert texts == names
    tables.show([{"Name": "plain"}])
    assert drawn[1] == [{"Name": "plain"}], "other tables stay as they are"
    assert [row["Name"] for row in rows] == names, "the rows given too"


def test_every_table_is_drawn_where_formulas_are_defused() -> None:
    root = Path(tables.__file__).parent.parent
    others = {
        str(path.relative_to(root))
        for folder in ("app", "pages")
        for path in (root / folder).rglob("*.py")
        if re.search(r"\.(dataframe|table|data_editor)\(", path.read_text())
    }
    assert others == {"app/tables.py"}


ROW = {"arch": "sm_90", "hits": 0, "stored_bytes": 400 * 2**20, "median_compile_ms": 2500.0}


def test_axes_have_the_unit_that_suits_them() -> None:
    stored, compiling = architectures.stored_bytes_figure([ROW]), architectures.compile_time_figure([ROW])
    assert (stored.unit, stored.series[0].values, stored.series[0].words) == ("MiB", [400], ["sm_90: 400 MiB"])
    assert (compiling.unit, compiling.series[0].values) == ("s", [2.5])


def test_no_two_series_have_one_colour() -> None:
    families, dtypes = ("simt", "tensor_core", "triton"), ("bf16", "fp16", "fp32", "tf32", "int8", "fp64")
    rows = [
        {"family": family, "dtype": dtype, "arch": "sm_90", "entries": 1} for family in families for dtype in dtypes
    ]
    colours = [bars.colour for bars in architectures.entries_figure(rows).series]
    assert len(set(colours)) == len(colours) == len(rows)
