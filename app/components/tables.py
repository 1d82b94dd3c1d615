"""Tables, drawn as HTML by a script of our own: sorted by their headers, with links that stay in the tab, saved as CSV.

Streamlit's grid is not used: it takes 300 kB of programs and more than half a second of the browser, needs pandas on
the server, and opens links in new tabs.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import streamlit as st

from app import context, widgets
from app.components import mount
from app.presenters.admin import ARCHS
from app.presenters.columns import Column, Kind, cells, csv_of
from app.presenters.shared import Row

MOST_ROWS = 1_000
"""The rows of one page of a table; its CSV file has all."""
_ROW_PX, _BUTTON_PX = 25.2, 21  # for these, room is kept until the script draws the table: else what is below moves
_MOST_RESERVED = 28  # rows; what is below more of them is out of view


def draw(
    values: Iterable[Any],
    columns: Sequence[Column],
    *,
    key: str,
    label: str = "",
    only: Collection[str] | None = None,
    saved: bool = True,
    stays: bool = False,
) -> None:
    """Draws a table with a row for each value. A click on a link opens its page in this tab.

    Args:
        label: the content of the table in words, for screen readers and as the name of the file; by default its key.
        only: the columns to draw; by default all. The file has all.
        saved: whether to draw a button that saves the table as CSV.
        stays: whether links lead to this page with other parameters, none of which belongs to a widget.
    """
    everything, zone = list(values), context.timezone()
    offset = widgets.paging(len(everything), MOST_ROWS, key=f"page of {key}")
    values = everything[offset : offset + MOST_ROWS]
    drawn = [column for column in columns if only is None or column.name in only]
    shown = cells(values, drawn, zone, time.time())
    for at in (at for at, column in enumerate(drawn) if column.bar):
        most = max((row[at].get("value", 0) for row in shown), default=0)
        for row in shown:
            row[at]["bar"] = max(0, row[at].get("value", 0)) / most if most > 0 else 0
    file = csv_of(everything, columns, zone) if saved else ""
    draw_cells(drawn if values else [], shown, key=key, label=label, file=file, stays=stays)


def section(title: str, values: Iterable[Any], columns: Sequence[Column], *, key: str, place: Any = st) -> None:
    """Draws a heading and a table of values at the end of ``place``; nothing if there are none."""
    if listed := list(values):
        with place.container():
            st.header(title)
            draw(listed, columns, key=key)


def draw_cells(
    columns: Sequence[Column],
    shown: list[list[dict[str, Any]]],
    *,
    key: str,
    label: str = "",
    file: str = "",
    even: bool = False,
    stays: bool = False,
) -> None:
    """Draws a table of cells as ``presenters.columns.cells`` makes them; a cell with ``mark`` stands out.

    Args:
        file: the content of the CSV file that a button saves; empty for no button.
        even: whether all columns have the same width, so that two such tables are aligned.
        stays: as for ``draw``.
    """
    links = [cell for row in shown for cell in row if "href" in cell]
    for cell in links:
        cell["href"] = context.here(cell["href"])
    heads = [
        {
            "name": column.name,
            "help": column.help or "",
            "numeric": column.is_numeric or any("value" in row[at] for row in shown),
        }
        for at, column in enumerate(columns)
    ]
    told = mount(
        "table",
        key=key,
        data={
            "label": label or key.replace("-", " ").capitalize(),
            "columns": heads,
            "cells": shown,
            "file": file,
            "even": even,
        },
        height=round((min(len(shown), _MOST_RESERVED) + 1) * _ROW_PX) + (_BUTTON_PX if file else 0),
        on_open_change=partial(_choose, key, {cell["href"] for cell in links} if stays else ()),
    )
    if not stays and told.open in [cell["href"] for cell in links]:
        page, _, asked = told.open.partition("?")
        widgets.go(page.strip("./") or "overview", parse_qs(asked))


def _choose(key: str, links: Collection[str]) -> None:
    """Writes into the address the parameters of a clicked link that no widget has. Called before the page is drawn."""
    widgets.renew_address()
    link = st.session_state[key].open if key in st.session_state else ""  # gone where a quick reader has left the table
    for name, values in parse_qs(link.partition("?")[2]).items() if link in links else ():
        if name not in st.session_state:
            st.query_params[name] = values


def show(rows: Sequence[Row], *, key: str, label: str = "", kinds: Mapping[str, Kind] | None = None) -> None:
    """Draws rows whose names are the columns.

    Args:
        label: as for ``draw``.
        kinds: the kinds of columns that are neither text nor plain numbers, by name.
    """
    given = ((name, (kinds or {}).get(name, "")) for name in (rows[0] if rows else ()))
    draw(rows, [Column(name, name, kind, bar=kind == "share") for name, kind in given], key=key, label=label)


def properties(words: Mapping[str, Any], *, key: str, head: str = "Property") -> None:
    """Draws a table of names and values."""
    columns = (Column(head, lambda pair: pair[0]), Column("Value", lambda pair: str(pair[1])))
    draw(words.items(), columns, key=key, label=head, saved=False)


def arch_sums(rows: list[Row], title: str, *, key: str) -> None:
    """Draws a table of kernels and bytes by target; nothing without rows."""
    if rows:
        st.caption(title)
        draw(rows, ARCHS, key=key, saved=False)
