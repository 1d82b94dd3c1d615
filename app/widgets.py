"""Pieces that several pages show. Text from the store goes through ``st.text`` or ``st.code``, never Markdown."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import context, presenters
from cache_engine.errors import GemmCacheError
from cache_engine.model.artifact import Record

PARTS = ("Summary", "Key", "Source", "PTX", "SASS", "Log")
_LANGUAGES = {"Source": "cpp", "PTX": "asm", "SASS": "asm", "Log": None}
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


def tiles(shown: list[presenters.Tile]) -> None:
    """Numbers side by side."""
    for column, tile in zip(st.columns(len(shown)), shown, strict=True):
        with column, st.container(border=True, height="stretch"):
            st.metric(tile.label, tile.value, help=tile.help)
            if tile.share is not None:
                st.progress(tile.share, text=f"{tile.share:.1%} {tile.share_text}")


def kernel_list(rows: list[dict[str, Any]], *, key: str) -> None:
    """A table of kernels."""
    table = presenters.kernel_table(rows, context.timezone())
    st.dataframe(table, hide_index=True, column_config=_KERNEL_COLUMNS, key=key)


def kernel_picker(rows: list[dict[str, Any]], *, narrow: bool) -> str | None:
    """A table of kernels of which one can be selected; returns its key. ``narrow`` leaves most columns out."""
    # A selection is of row numbers: with other rows, it must not carry over.
    listed = hash(tuple(row["key"] for row in rows))
    event = st.dataframe(
        presenters.kernel_table(rows, context.timezone()),
        hide_index=True,
        column_order=_NARROW if narrow else None,
        column_config=_KERNEL_COLUMNS,
        height=680 if narrow else "auto",
        key=f"kernels-{listed}",
        on_select="rerun",
        selection_mode="single-row",
    )
    chosen = event["selection"]["rows"]
    return rows[chosen[0]]["key"] if chosen and chosen[0] < len(rows) else None


def inspector(key: str) -> None:
    """Everything about one kernel."""
    opened = context.cache()
    try:
        record = opened.find(key)
    except GemmCacheError as error:
        problem("This kernel cannot be shown.", str(error))
        return
    st.code(f"{record.name}\n{record.key}", language=None)
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
        facts = presenters.record_facts(record, row, context.timezone())
        st.dataframe(facts, hide_index=True, height="content", column_config={"Fact": _SMALL}, key="facts")
    elif part == "Key":
        st.caption("The key is the SHA-256 of these components. A kernel is found only if every one of them is equal.")
        components = presenters.component_table(record)
        st.dataframe(components, hide_index=True, height="content", key="components")
    else:
        text = context.sass(record.key, record.blob.digest) if part == "SASS" else _text(record, part)
        st.code(text or "(empty)", language=_LANGUAGES[part], line_numbers=True, height=600)
        st.download_button("Download", text, file_name=f"{record.name}.{part.lower()}", icon=":material/download:")


def _text(record: Record, part: str) -> str:
    return context.cache().text(record, part.lower())
