"""Lists of kernels and of entries, drawn as HTML by a script of our own.

Each row of a list is a link; some lists have tick boxes, and headers that sort. ``tables`` draws tables without links
for rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import streamlit as st

from app import context, widgets
from app.components import mount
from app.presenters.columns import Column, cells
from app.presenters.kernel_list import kernel_columns
from app.presenters.shared import Row, kernel_address
from cache_engine.model.key import is_key

_CLICKED = "clicked in "
_PICKED = "picked in "
_CLEARED = "times cleared of "
_WANTED = "columns wanted in "


def clicked(key: str) -> str | None:
    """The row that the reader just clicked in a list, else ``None``. The browser sent it, so check it."""
    row: str | None = st.session_state.pop(_CLICKED + key, None)
    return row


def picked(key: str) -> tuple[str, ...]:
    """The rows ticked in a list, on all its pages and in all searches. Call this before drawing; check the rows."""
    reported = (st.session_state.get(_name(key)) or {}).get("picked")
    if reported is not None and reported["generation"] == _cleared(key):
        st.session_state[_PICKED + key] = tuple(map(str, reported["keys"]))
    rows: tuple[str, ...] = st.session_state.get(_PICKED + key, ())
    return rows


def picked_kernels(key: str) -> tuple[str, ...]:
    """Keys of the kernels ticked in a list. If the reader has just clicked a kernel, goes to its page instead."""
    _open_clicked(key)
    return tuple(filter(is_key, picked(key)))


def columns_of(key: str) -> tuple[str, ...]:
    """The columns that the reader chose for a list, or that ``show_columns`` did; empty for the usual ones."""
    chosen = (st.session_state.get(_name(key)) or {}).get("columns")
    return tuple(map(str, chosen or ()))


def show_columns(key: str, names: Sequence[str]) -> None:
    """Makes a list show these columns; without names, those that the reader chose last."""
    before = st.session_state.get(_WANTED + key, {"generation": 0})
    st.session_state[_WANTED + key] = {"generation": before["generation"] + 1, "names": list(names)}


def forget_picked(key: str) -> None:
    """Clears the ticks of a list."""
    st.session_state[_PICKED + key] = ()
    st.session_state[_CLEARED + key] = _cleared(key) + 1


def kernel_list(
    rows: list[Row],
    *,
    key: str,
    picked: tuple[str, ...] | None = None,
    sorted_by: tuple[str, bool] | None = None,
    address: Callable[[str], str] | None = None,
) -> None:
    """A table of kernels, each a link.

    Args:
        picked: the ticked kernels, from ``picked_kernels``; ``None`` for a list without tick boxes.
        sorted_by: the sort order, and whether it is ascending. A click on a header changes both, as ``sort`` and
            ``asc`` in the address; ``None`` for a list that has only one order.
        address: a function from a kernel's key to the address that a click opens; by default the kernel's page. A page
            that passes this function must call ``clicked``.
    """
    if address is None:
        _open_clicked(key)
    linked_list(
        rows,
        [(row["key"], context.here((address or kernel_address)(row["key"]))) for row in rows],
        kernel_columns(rows),
        key=key,
        label="Kernels",
        ticked=picked,
        sorted_by=sorted_by,
    )


def linked_list(
    values: Sequence[Any],
    links: Sequence[tuple[str, str]],
    columns: Sequence[Column],
    *,
    key: str,
    label: str,
    ticked: tuple[str, ...] | None = None,
    sorted_by: tuple[str, bool] | None = None,
) -> None:
    """A table whose rows are links.

    Args:
        links: for each value, the text that names it, and the address that its row opens.
        label: what the rows are, for screen readers.
        ticked: the ticked rows, from ``picked``; ``None`` for a list without tick boxes.
        sorted_by: as for ``kernel_list``.
    """
    made = cells(values, columns, context.timezone(), time.time())
    mount(
        "kernel_table",
        key=_name(key),
        data={
            "name": key,
            "label": label,
            "columns": [{"name": one.name, "numeric": one.is_numeric, "sort": one.sort} for one in columns],
            "hidden": [one.name for one in columns if one.hidden],
            "wanted": st.session_state.get(_WANTED + key),
            "rows": [
                {"key": named, "href": href, "cells": line} for line, (named, href) in zip(made, links, strict=True)
            ],
            "picks": None if ticked is None else {"generation": _cleared(key), "keys": list(ticked)},
            "sorted": None if sorted_by is None else {"by": sorted_by[0], "ascending": sorted_by[1]},
        },
        on_open_change=partial(_note_click, key),
        on_sort_change=partial(_sort, key),
        on_picked_change=_nothing,
        on_columns_change=_nothing,
    )


def _note_click(key: str) -> None:
    """Remembers the clicked row: in a callback, Streamlit cannot go to another page yet."""
    row = st.session_state.get(_name(key), {}).get("open")
    if row:
        st.session_state[_CLICKED + key] = str(row)


def _sort(key: str) -> None:
    """Puts a sort order into the address. The sorted list starts at its first page."""
    widgets.renew_address()
    widgets.unbind("page")
    if order := st.session_state.get(_name(key), {}).get("sort"):
        st.session_state["page"] = 1
        st.query_params.pop("page", None)
        st.query_params.update({"sort": str(order["by"]), "asc": str(order["ascending"]).lower()})


def _nothing() -> None:
    """Does nothing: the callback without which a component has no state."""


def _open_clicked(key: str) -> None:
    row = clicked(key)
    if row is not None and is_key(row):
        widgets.open_kernel(row)


def _cleared(key: str) -> int:
    times: int = st.session_state.get(_CLEARED + key, 0)
    return times


def _name(key: str) -> str:
    return f"list of {key}"
