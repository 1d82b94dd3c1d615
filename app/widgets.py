"""Pieces that several pages show. Text from the store goes through ``st.text`` or ``st.code``, never Markdown."""

from __future__ import annotations

import time
from typing import Any, Literal

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import context
from app.presenters.kernels import component_table, instruction_figure, kernel_table, occupancy_table, record_facts
from app.presenters.shared import Tile
from cache_engine.errors import GemmCacheError
from cache_engine.model.artifact import Record
from cache_engine.units import human_age

PARTS = ("Summary", "Key", "Source", "PTX", "SASS", "Log")
_LANGUAGES = {"Source": "cpp", "PTX": "asm", "SASS": "asm", "Log": None}
_SHOWN = "kernels shown"
_SMALL = st.column_config.TextColumn(width="small")
_NARROW = ("Target", "Dtype", "m × n × k", "Batch", "Config")
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


def paging(total: int, page_rows: int, *, key: str) -> int:
    """A choice of page where there are several; the number of rows before the chosen one."""
    pages = max(1, -(-total // page_rows))
    if st.session_state.get(key, 1) > pages:
        st.session_state[key] = pages
    number = st.pagination(pages, key=key) if pages > 1 else 1
    return (number - 1) * page_rows


def kernel_list(rows: list[dict[str, Any]], *, key: str) -> None:
    """A table of kernels."""
    table = kernel_table(rows, context.timezone())
    st.dataframe(table, hide_index=True, column_config=_KERNEL_COLUMNS, key=key)


def picked_kernel(current: str | None) -> str | None:
    """The kernel to look into, given the one looked into so far: another if the reader has just picked one, or none.

    What the reader picked is a row of the list as it was shown, which may have changed since; so this is to be asked
    before a new list is drawn.
    """
    shown: tuple[str, list[str], str | None] | None = st.session_state.get(_SHOWN)
    if shown is None or shown[0] not in st.session_state:
        return current
    name, keys, selected = shown
    rows = st.session_state[name]["selection"]["rows"]
    picked = keys[rows[0]] if rows else None
    return current if picked == selected else picked


def kernel_picker(rows: list[dict[str, Any]], current: str | None) -> None:
    """A table of kernels of which one can be picked; see ``picked_kernel``. Beside an inspector it is narrow."""
    keys = [row["key"] for row in rows]
    selected = current if current in keys else None
    name = f"kernels-{hash((tuple(keys), selected))}"
    st.session_state[_SHOWN] = (name, keys, selected)
    height: int | Literal["content"] = min(680, 36 * (len(rows) + 1)) if current else "content"
    st.dataframe(
        kernel_table(rows, context.timezone()),
        hide_index=True,
        column_order=_NARROW if current else None,
        column_config=_KERNEL_COLUMNS,
        height=height,
        key=name,
        on_select="rerun",
        selection_mode="single-row",
        selection_default={"selection": {"rows": [] if selected is None else [keys.index(selected)]}},
    )


def inspector(key: str) -> None:
    """Everything about one kernel."""
    opened = context.cache()
    try:
        record = opened.find(key)
    except GemmCacheError as error:
        problem("This kernel cannot be shown.", str(error))
        return
    st.code(f"{record.name}\n{record.key}", language=None)
    st.page_link(
        "../pages/compare.py", label="Compare with another", icon=":material/compare_arrows:", query_params={"a": key}
    )
    part = st.segmented_control(
        "Show", PARTS, default="Summary", required=True, key="part", label_visibility="collapsed"
    )
    try:
        _part(record, str(part))
    except GemmCacheError as error:
        problem(f"The {part} cannot be shown.", str(error))


def _part(record: Record, part: str) -> None:
    if part == "Summary":
        row = context.ask("kernel", record.key)
        facts = record_facts(record, row, context.timezone())
        st.dataframe(facts, hide_index=True, height="content", column_config={"Fact": _SMALL}, key="facts")
        _inspection(record)
    elif part == "Key":
        st.caption("The key is the SHA-256 of these components. A kernel is found only if every one of them is equal.")
        components = component_table(record)
        st.dataframe(components, hide_index=True, height="content", key="components")
    else:
        text = context.sass(record.key, record.blob.digest) if part == "SASS" else _text(record, part)
        language = "python" if part == "Source" and record.compiler == "triton" else _LANGUAGES[part]
        st.code(text or "(empty)", language=language, line_numbers=True, height=600)
        st.download_button("Download", text, file_name=f"{record.name}.{part.lower()}", icon=":material/download:")


def _inspection(record: Record) -> None:
    """What the kernel's code and resources mean for running it."""
    inspection = context.inspection(record)
    left, right = st.columns(2)
    if inspection.instructions is not None:
        left.subheader("Instructions")
        left.caption(
            f"{inspection.instructions.total:,} in the code, however often each is run. Grey: in no class of its own."
        )
        left.plotly_chart(
            instruction_figure(inspection.instructions), key="instructions", config={"displayModeBar": False}
        )
    if inspection.occupancy is not None:
        right.subheader("Theoretical occupancy")
        right.caption(f"{inspection.occupancy}.")
        right.dataframe(occupancy_table(inspection.occupancy), hide_index=True, key="occupancy")
    for note in inspection.notes:
        st.text(note)


def _text(record: Record, part: str) -> str:
    return context.cache().text(record, part.lower())
