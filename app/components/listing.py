"""Lists of kernels: a link to each, and in some of them tick boxes and headers that sort."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import streamlit as st

from app import context, widgets
from app.components import mount
from app.presenters.kernels.listed import COLUMNS, kernel_table
from app.presenters.shared import Row, kernel_address
from cache_engine.model.key import is_key

_CLICKED = "kernel clicked in "
_PICKED = "kernels picked in "
_CLEARED = "times cleared of "


def clicked_kernel(key: str) -> str | None:
    """The kernel that was just clicked in a list, once."""
    clicked: str | None = st.session_state.pop(_CLICKED + key, None)
    return clicked


def picked_kernels(key: str) -> tuple[str, ...]:
    """Keys of the kernels ticked in a list, over all pages of it and searches; asked before the list is drawn.

    It does not return when the reader has just opened a kernel.
    """
    _open_clicked(key)
    reported = (st.session_state.get(_name(key)) or {}).get("picked")
    if reported is not None and reported["generation"] == _cleared(key):
        st.session_state[_PICKED + key] = tuple(key for key in reported["keys"] if is_key(str(key)))
    picked: tuple[str, ...] = st.session_state.get(_PICKED + key, ())
    return picked


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
    on_sort: Callable[[str, bool], None] | None = None,
    address: Callable[[str], str] | None = None,
) -> None:
    """A table of kernels, each a link.

    Args:
        picked: the ticked kernels; ``None`` for a list without tick boxes. See ``picked_kernels``.
        sorted_by: the sort order, and whether it is ascending; ``None`` for a list that has one order only.
        on_sort: called with the same of a header that was clicked.
        address: of what a click leads to, by key; a kernel's page by default. A page that gives it asks
            ``clicked_kernel``.
    """
    if address is None:
        _open_clicked(key)
    table = kernel_table(rows, context.timezone(), time.time())
    mount(
        "kernel_table",
        key=_name(key),
        data={
            "name": key,
            "label": "Kernels",
            "columns": [{"name": one.name, "numeric": one.numeric, "sort": one.sort} for one in COLUMNS],
            "hidden": [one.name for one in COLUMNS if one.hidden],
            "rows": [
                {
                    "key": row["key"],
                    "href": (address or kernel_address)(row["key"]),
                    "cells": list(line.cells.values()),
                    "titles": line.titles,
                }
                for row, line in zip(rows, table, strict=True)
            ],
            "picks": None if picked is None else {"generation": _cleared(key), "keys": list(picked)},
            "sorted": None if sorted_by is None else {"by": sorted_by[0], "ascending": sorted_by[1]},
        },
        on_open_change=partial(_note_click, key),
        on_sort_change=partial(_note_sort, key, on_sort),
        on_picked_change=_nothing,
    )


def _note_click(key: str) -> None:
    """In a callback, where Streamlit cannot go to another page yet."""
    clicked = st.session_state[_name(key)].get("open")
    if is_key(str(clicked)):
        st.session_state[_CLICKED + key] = clicked


def _note_sort(key: str, on_sort: Callable[[str, bool], None] | None) -> None:
    order: dict[str, Any] | None = st.session_state[_name(key)].get("sort")
    if on_sort is not None and order:
        on_sort(str(order["by"]), bool(order["ascending"]))


def _nothing() -> None:
    """A state of a component needs a callback."""


def _open_clicked(key: str) -> None:
    clicked = clicked_kernel(key)
    if clicked is not None:
        widgets.open_kernel(clicked)


def _cleared(key: str) -> int:
    times: int = st.session_state.get(_CLEARED + key, 0)
    return times


def _name(key: str) -> str:
    return f"list of kernels {key}"
