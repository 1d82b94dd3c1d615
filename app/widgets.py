"""Pieces that several pages show. Text from the store goes through ``st.text`` or ``st.code``, never Markdown."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NoReturn

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import context
from app.presenters.kernels.listed import kernel_table, picked_keys
from app.presenters.shared import Tile
from cache_engine.mirror.queries import FACETS
from cache_engine.units import human_age

_KERNELS, _KERNEL, _COMPARE = "../pages/kernels.py", "../pages/kernel.py", "../pages/compare.py"
LIST_PARAMETERS = ("q", "text", *FACETS, "sort", "asc", "page")
_RESULTS, _LISTS = "results last seen", "lists of kernels shown"
_KERNEL_COLUMNS = {
    "Code": st.column_config.NumberColumn(format="%.1f KiB", help="Size of the compiled code."),
    "Compiled in": st.column_config.NumberColumn(format="%.0f ms"),
    "Spilled": st.column_config.NumberColumn(format="%d B", help="Bytes of registers spilled to local memory."),
    "Last used": st.column_config.DatetimeColumn(format="distance"),
}


def problem(what: str, cause: str) -> None:
    """Something went wrong: what, in our words, and the cause, as plain text."""
    with st.container(border=True):
        st.error(what, icon=":material/error:")
        st.text(cause)


def age_notice(place: DeltaGenerator) -> None:
    """Says so when a page shows how things were, because the mirror cannot be read just now."""
    old = context.age_of_answers()
    if old is not None:
        answered_at, cause = old
        with place.container():
            age = human_age(time.time() - answered_at)
            st.warning(f"The mirror cannot be read just now. Shown is what was there {age}.", icon=":material/history:")
            st.text(cause)


def tiles(shown: list[Tile]) -> None:
    """Numbers side by side."""
    for column, tile in zip(st.columns(len(shown)), shown, strict=True):
        with column, st.container(border=True, height="stretch"):
            st.metric(tile.label, tile.value, help=tile.help)
            if tile.share is not None:
                st.progress(tile.share, text=f"{tile.share:.1%} {tile.share_text}")


def kernel_link(label: str, key: str) -> None:
    """A link to a kernel's page. Every way to one kernel is here, or in ``open_kernel``."""
    st.page_link(_KERNEL, label=label, icon=":material/memory:", query_params={"key": key})


def paging(total: int, page_rows: int, *, key: str) -> int:
    """A choice of page where there are several; the number of rows before the chosen one."""
    pages = max(1, -(-total // page_rows))
    if st.session_state.get(key, 1) > pages:
        st.session_state[key] = pages
    number = st.pagination(pages, key=key) if pages > 1 else 1
    return (number - 1) * page_rows


def open_kernel(key: str) -> NoReturn:
    """Goes to a kernel's page at once, and has its address say what list it was picked from.

    Streamlit notes the page that is left once more, with the new address's parameters: so whoever goes back finds the
    list as it was.
    """
    st.switch_page(_KERNEL, query_params={"key": key, **_list_address()})


def follow_old_link() -> None:
    """Goes to the kernel that the list's address names, as it did when both were one page; not when coming back."""
    if "key" in st.query_params and _RESULTS not in st.session_state:
        remember_results()
        open_kernel(st.query_params["key"])


def compare_link(label: str, first: str, second: str | None = None) -> None:
    """A link to one kernel beside another, or beside one to be chosen there."""
    keys = {"a": first} if second is None else {"a": first, "b": second}
    st.page_link(_COMPARE, label=label, icon=":material/compare_arrows:", query_params=keys)


def remember_results() -> None:
    """Keeps the address of a list of kernels, for ``results_link``."""
    st.session_state[_RESULTS] = _list_address()


def results_link() -> None:
    """A link to the list of kernels as it was last seen."""
    seen: dict[str, list[str]] = st.session_state.get(_RESULTS, _list_address())
    label = "Back to the results" if seen else "All kernels"
    st.page_link(_KERNELS, label=label, icon=":material/arrow_back:", query_params=seen)


def _list_address() -> dict[str, list[str]]:
    """What the address says of a list. The search may be bound to its field, and goes under another name."""
    names = {name: "text" if name == "q" else name for name in st.query_params if name in LIST_PARAMETERS}
    if "q" in names:
        names.pop("text", None)
    return {new: st.query_params.get_all(name) for name, new in names.items()}


def clicked_kernel(key: str) -> str | None:
    """The kernel whose key's digits were just clicked in a list, as it was shown then."""
    shown = _shown(key)
    click = None if shown is None else st.session_state.get(f"{shown.name}-open")
    return None if shown is None or click is None else shown.keys[click["row"]]


def kernel_list(rows: list[dict[str, Any]], *, key: str, opens: bool = True) -> None:
    """A table of kernels; the digits of a key open its kernel, unless the page asks ``clicked_kernel`` itself."""
    if opens:
        _open_clicked(key)
    shown = _show(key, [row["key"] for row in rows], ())
    table = kernel_table(rows, context.timezone())
    st.dataframe(table, hide_index=True, column_config=_columns(shown), key=shown.name)


def picked_kernels(key: str) -> tuple[str, ...]:
    """Keys of the kernels picked in a ``kernel_picker``, whatever it listed when they were.

    What the reader ticks is a row of the list as it was shown, which may have changed since; so this is to be asked
    before a new list is drawn. Nor does it return when the reader has just opened a kernel.
    """
    _open_clicked(key)
    shown = _shown(key)
    picked: tuple[str, ...] = st.session_state.get(f"{key} picked", ())
    if shown is not None and shown.name in st.session_state:
        picked = picked_keys(picked, shown.keys, st.session_state[shown.name]["selection"]["rows"])
        st.session_state[f"{key} picked"] = picked
    return picked


def forget_picked(key: str) -> None:
    """Unticks everything in a ``kernel_picker``."""
    st.session_state.pop(f"{key} picked", None)
    st.session_state.pop(f"{key} shown", None)


def kernel_picker(rows: list[dict[str, Any]], picked: tuple[str, ...], *, key: str) -> None:
    """A table of kernels of which several can be ticked, and any opened; see ``picked_kernels``."""
    keys = [row["key"] for row in rows]
    shown = _show(key, keys, tuple(index for index, shown in enumerate(keys) if shown in picked))
    st.dataframe(
        kernel_table(rows, context.timezone()),
        hide_index=True,
        column_config=_columns(shown),
        height="content",
        key=shown.name,
        on_select="rerun",
        selection_mode="multi-row",
        selection_default={"selection": {"rows": list(shown.ticked)}},
    )


@dataclass(frozen=True, slots=True)
class _Shown:
    """A list of kernels as the reader has it, under a name of its own: no answer to another is taken for one to it."""

    name: str
    keys: tuple[str, ...]
    ticked: tuple[int, ...]


def _shown(key: str) -> _Shown | None:
    shown: _Shown | None = st.session_state.get(f"{key} shown")
    return shown


def _show(key: str, keys: list[str], ticked: tuple[int, ...]) -> _Shown:
    """The list as it stands, if it is the one that is shown; else a new one."""
    shown = _shown(key)
    if shown is None or shown.keys != tuple(keys) or shown.name not in st.session_state:
        number = st.session_state[_LISTS] = st.session_state.get(_LISTS, 0) + 1
        shown = _Shown(f"{key}-{number}", tuple(keys), ticked)
        st.session_state[f"{key} shown"] = shown
    return shown


def _open_clicked(key: str) -> None:
    clicked = clicked_kernel(key)
    if clicked is not None:
        open_kernel(clicked)


def _columns(shown: _Shown) -> dict[str, Any]:
    button = st.column_config.ButtonColumn(type="tertiary", key=f"{shown.name}-open")
    return {"Key": button, **_KERNEL_COLUMNS}
