"""Tables: numbers in a unit that suits the column, and files of them that no spreadsheet runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from app.presenters.downloads import FORMULA
from app.presenters.shared import Row
from cache_engine.units import bytes_unit, ms_unit

COUNT = st.column_config.NumberColumn(format="localized")
AGE = st.column_config.DatetimeColumn(format="distance")
LINK = st.column_config.LinkColumn(display_text="open", width="small")
PERCENT = st.column_config.NumberColumn(format="percent")
_FORMULA = re.compile(FORMULA)


def show(
    rows: Sequence[Row],
    *,
    sizes: Iterable[str] = (),
    times: Iterable[str] = (),
    column_config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Draws a table. Every table of the dashboard is drawn here, so that what its toolbar saves as CSV is safe.

    Args:
        sizes: columns in bytes.
        times: columns in milliseconds.
        options: of ``st.dataframe``.
    """
    shown, columns = in_units(rows, sizes=sizes, times=times)
    options.setdefault("placeholder", "–")
    return st.dataframe(_defused(shown), hide_index=True, column_config={**columns, **(column_config or {})}, **options)


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
        digits = 0 if unit == "B" else 1
        columns[name] = st.column_config.NumberColumn(format=f"%,.{digits}f {unit}")
        for row in shown:
            row[name] = None if row[name] is None else row[name] / length
    return shown, columns


def _defused(rows: list[Row]) -> Any:
    """The rows, with an apostrophe before texts that a spreadsheet would run as formulas: saved, but not shown.

    The browser saves the values of cells, and shows what a style says of them.
    """
    risky: dict[str, dict[str, str]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, str) and _FORMULA.match(value):
                row[name] = f"'{value}"
                risky.setdefault(name, {})[row[name]] = value
    if not risky:
        return rows
    import pandas

    formats = {name: partial(_as_it_is, texts) for name, texts in risky.items()}
    return pandas.DataFrame(rows).style.format(formats)


def _as_it_is(texts: Mapping[str, str], value: Any) -> Any:
    return texts.get(value, value) if isinstance(value, str) else value
