"""Tables: plain ones with links, grids of Streamlit's, and files of both that no spreadsheet runs as formulas.

Streamlit's grid takes 300 kB of programs and more than half a second of the browser, which the first page of all is not
to wait for; and pandas on the server. Its links open new tabs.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import streamlit as st

from app import context
from app.components import mount
from app.presenters.columns import Column, cells, csv_text, rows_of
from app.presenters.shared import Row
from cache_engine.units import bytes_unit, defused, ms_unit

COUNT = st.column_config.NumberColumn(format="localized")
AGE = st.column_config.DatetimeColumn(format="distance")
PERCENT = st.column_config.NumberColumn(format="%,.1f%%")  # of shares: 0.5 is shown as 50.0%
TIME = st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm:ss")
DECIMAL = st.column_config.NumberColumn(format="%,.1f")
_TIMED = re.compile(r"(?:^|(?<=, ))(µs|ms|s)\b")
_MS = {"µs": 1e-3, "ms": 1.0, "s": 1e3}
_MOST_DIGITS = 4


def draw(
    values: Iterable[Any], columns: Sequence[Column], *, column_config: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """Draws a table of declared columns, with a row for each value: a plain one where a column has links.

    Args:
        column_config: of columns that no kind describes.
        options: of ``show``; of a plain table only its key.
    """
    if any(column.kind == "link" for column in columns):
        key = str(options["key"])
        return plain(values, columns, key=key, label=key.replace("-", " ").capitalize())
    return show(
        rows_of(values, columns, context.timezone()),
        sizes=[column.name for column in columns if column.kind == "bytes"],
        times=[column.name for column in columns if column.kind == "ms"],
        column_config={
            **{column.name: config for column in columns if (config := _config(column))},
            **(column_config or {}),
        },
        **options,
    )


def plain(
    values: Iterable[Any], columns: Sequence[Column], *, key: str, label: str, only: Collection[str] | None = None
) -> None:
    """Draws a table as HTML, with a button that saves all of it as CSV. A click on a link opens its page in this tab.

    Args:
        label: the content of the table in words, for screen readers and as the name of the file.
        only: the columns to draw; by default all. The file has all.
    """
    values = list(values)
    drawn = [column for column in columns if only is None or column.name in only]
    shown = cells(values, drawn, context.timezone(), time.time())
    for at in (at for at, column in enumerate(drawn) if column.bar):
        most = max((row[at].get("value", 0) for row in shown), default=0)
        for row in shown:
            row[at]["bar"] = row[at].get("value", 0) / most if most else 0
    links = [cell for row in shown for cell in row if "href" in cell]
    for cell in links:
        cell["href"] = context.here(cell["href"])
    told = mount(
        "table",
        key=key,
        data={
            "label": label,
            "columns": [{"name": column.name, "numeric": column.is_numeric} for column in drawn] if values else [],
            "cells": shown,
            "file": csv_text(rows_of(values, columns, context.timezone())),
        },
        on_open_change=lambda: None,  # a trigger needs a callback
    )
    if told.open in [cell["href"] for cell in links]:
        page, _, asked = told.open.partition("?")
        st.switch_page(f"../pages/{page.strip('./') or 'overview'}.py", query_params=parse_qs(asked))


def properties(
    words: Mapping[str, Any], *, key: str, head: str = "Property", width: Any = None, **options: Any
) -> None:
    """Draws a table of names and values."""
    rows = [{head: name, "Value": value} for name, value in words.items()]
    show(rows, height="content", column_config={head: st.column_config.TextColumn(width=width)}, key=key, **options)


def _config(column: Column) -> Any:
    """The grid's own description of a column; ``None`` where its kind needs none."""
    if column.kind == "count":
        return st.column_config.NumberColumn(format="localized", help=column.help)
    if column.width is not None:
        return st.column_config.TextColumn(width=column.width)
    return {"decimal": DECIMAL, "share": PERCENT, "age": AGE}.get(column.kind)


def show(
    rows: Sequence[Row],
    *,
    sizes: Iterable[str] = (),
    times: Iterable[str] = (),
    column_config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Draws a grid. Every grid of the dashboard is drawn here, so that what its toolbar saves as CSV is safe.

    A column whose name ends in a unit of time gets the unit that suits its values, in the name too. Columns of the same
    unit stay comparable.

    Args:
        sizes: columns in bytes.
        times: columns in milliseconds, whose names have no unit.
        options: of ``st.dataframe``.
    """
    shown, columns = in_units(rows, sizes=sizes, times=times)
    for name, column in (column_config or {}).items():
        if column is PERCENT:  # Streamlit's own percentages have no digit after the point here and two there
            for row in shown:
                row[name] = None if row.get(name) is None else row[name] * 100
    options.setdefault("placeholder", "–")
    times_of_day = {name: TIME for row in shown for name, value in row.items() if isinstance(value, datetime)}
    formats = {**times_of_day, **columns, **(column_config or {})}
    return st.dataframe(_defused(shown), hide_index=True, column_config=formats, **options)


def in_units(
    rows: Sequence[Row], *, sizes: Iterable[str] = (), times: Iterable[str] = ()
) -> tuple[list[Row], dict[str, Any]]:
    """The rows with these columns in the unit that suits the largest value of each, and how to show them.

    They stay numbers, so that a column sorts by value. See ``show`` for the arguments.
    """
    shown, columns = [dict(row) for row in rows], {}
    units: list[tuple[str, Callable[[float], tuple[str, float]]]] = [
        *((name, bytes_unit) for name in sizes),
        *((name, ms_unit) for name in times),
    ]
    for name, unit_of in units:
        unit, length = unit_of(max((row[name] for row in rows if row[name] is not None), default=0.0))
        least = min((row[name] for row in rows if row[name] is not None and row[name] > 0), default=length) / length
        digits = 0 if unit == "B" else 1 if least >= 0.05 else 2
        columns[name] = st.column_config.NumberColumn(format=f"%,.{digits}f {unit}")
        for row in shown:
            row[name] = None if row[name] is None else row[name] / length
    return _in_suitable_units(shown, columns)


def _in_suitable_units(rows: list[Row], columns: dict[str, Any]) -> tuple[list[Row], dict[str, Any]]:
    """The rows with columns named after a unit of time in the unit that suits the largest value of all such columns."""
    units = {name: found[1] for name in (rows[0] if rows else ()) if (found := _TIMED.search(name))}
    names: dict[str, tuple[str, float]] = {}
    for unit in dict.fromkeys(units.values()):
        named = [name for name in units if units[name] == unit]
        values = [row[name] * _MS[unit] for row in rows for name in named if row[name] is not None]
        new, length = ms_unit(max(values, default=0.0))
        least = min((value for value in values if value > 0), default=length) / length
        digits = min(_MOST_DIGITS, max(2, 1 - math.floor(math.log10(least))))  # the smallest one has two digits
        for name in named:
            names[name] = _TIMED.sub(new, name), _MS[unit] / length
            columns[names[name][0]] = st.column_config.NumberColumn(format=f"%,.{digits}f")
    shown = []
    for row in rows:
        changed: Row = {}
        for name, value in row.items():
            label, factor = names.get(name, (name, 1.0))
            changed[label] = value if name not in names or value is None else value * factor
        shown.append(changed)
    return shown, columns


def _defused(rows: list[Row]) -> Any:
    """The rows, with an apostrophe before texts that a spreadsheet would run as formulas: saved, but not shown.

    The browser saves the values of cells, and shows what a style says of them.
    """
    risky: dict[str, dict[str, str]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, str) and defused(value) != value:
                row[name] = defused(value)
                risky.setdefault(name, {})[row[name]] = value
    if not risky:
        return rows
    import pandas

    formats = {name: partial(_as_it_is, texts) for name, texts in risky.items()}
    return pandas.DataFrame(rows).style.format(formats)


def _as_it_is(texts: Mapping[str, str], value: Any) -> Any:
    return texts.get(value, value) if isinstance(value, str) else value
