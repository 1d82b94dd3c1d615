"""Numbers in tables: sizes and durations in a unit that suits the column, every number with separators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import streamlit as st

from app.presenters.shared import Row
from cache_engine.units import bytes_unit, ms_unit

COUNT = st.column_config.NumberColumn(format="localized")
AGE = st.column_config.DatetimeColumn(format="distance")
LINK = st.column_config.LinkColumn(display_text="open", width="small")


def in_units(
    rows: Sequence[Row], *, sizes: Iterable[str] = (), times: Iterable[str] = ()
) -> tuple[list[Row], dict[str, Any]]:
    """The rows with these columns in the unit that suits the largest value of each, and how to show them.

    They stay numbers, so that a column sorts by value.

    Args:
        sizes: columns in bytes.
        times: columns in milliseconds.
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
