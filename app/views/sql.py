"""The view SQL: one query on the index, with its answer as a table and as files. The query is part of the address."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import streamlit as st

from app import context, widgets
from app.addresses import SQL
from app.components import tables
from app.presenters.columns import Column
from cache_engine.errors import GemmCacheError
from cache_engine.index.sql import EXAMPLES, MOST_TEXT, TABLES, Answer, as_csv, ask
from cache_engine.model.documents import to_json
from cache_engine.units import counted

MOST_ROWS, _MOST_CHARACTERS = 2000, 2 * 2**20
_LONGEST_LINK = 4000
_TEXTS = ("VARCHAR", "BOOLEAN")


def link(query: str) -> None:
    """Draws a button that opens a list's query in the view SQL; nothing if the query is too long for an address.

    It is a button because a link to the page that is already shown would not change the address.
    """
    if len(query) <= _LONGEST_LINK:
        st.button("as SQL", icon=":material/database:", on_click=_open, args=(query,), type="tertiary")


def draw() -> None:
    """Draws the field of the query, examples, the index's tables and their columns, and the answer."""
    first = next(iter(EXAMPLES.values())).strip()
    left, right = st.columns([3, 1])
    # The address decides. A parameter that is bound to the field would be missing after a click on "as SQL".
    st.session_state["sql"] = st.query_params.get("sql", first)[:MOST_TEXT]
    query = left.text_area(
        "Query", height=150, max_chars=MOST_TEXT, key="sql", on_change=_typed, label_visibility="collapsed"
    )
    with right, st.popover("Examples", icon=":material/lightbulb:", width="stretch"):
        for title, text in EXAMPLES.items():
            st.button(title, on_click=_open, args=(text.strip(),), type="tertiary")
    right.caption("One query in DuckDB's SQL, read only. Ctrl+Enter runs it.")
    listed = st.expander("Tables and columns", on_change="rerun", key="sql_tables")
    if listed.open:
        with listed:
            _draw_table(_asked(TABLES), "sql-tables")
    try:
        answer = _asked(query or "")
    except GemmCacheError as error:
        widgets.problem("The query has no answer.", str(error))
        return
    _draw_answer(query or "", answer)


def _open(query: str) -> None:
    widgets.renew_address()
    st.session_state["view"] = SQL
    st.query_params["sql"] = query


def _typed() -> None:
    widgets.renew_address()
    if "sql" in st.session_state:  # not where a quick reader has left the page
        st.query_params["sql"] = st.session_state["sql"] or ""


def _draw_answer(query: str, answer: Answer) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        count = counted(len(answer.rows), "row")
        st.caption(f"The first {count}; the command below prints more." if answer.is_cut else count, width="content")
        for kind, mime, make in (("CSV", "text/csv", as_csv), ("JSON", "application/json", to_json)):
            widgets.download(kind, partial(make, answer), f"answer.{kind.lower()}", mime, type="tertiary")
    if answer.columns and answer.rows:
        _draw_table(answer, "sql-answer")
    with st.expander("Command"):
        widgets.command("sql", query, *(("--limit", "100000") if answer.is_cut else ()))


def _draw_table(answer: Answer, key: str) -> None:
    """Draws an answer as a table in the query's order, without a button for its file."""
    columns = [
        Column(column.name or " ", partial(_cell, at=at), "" if column.type in _TEXTS else "decimal", help=column.type)
        for at, column in enumerate(answer.columns)
    ]
    tables.draw(answer.rows, columns, key=key, label="Answer", saved=False)


def _cell(row: Sequence[Any], *, at: int) -> Any:
    """The value of a row at a position; a truth value as text."""
    return str(row[at]).lower() if isinstance(row[at], bool) else row[at]


def _asked(query: str) -> Answer:
    return _answer(str(context.cache().layout.root), context.generation(), query)


@st.cache_resource(show_spinner="Asking…", max_entries=8)
def _answer(root: str, generation: int, query: str) -> Answer:  # noqa: ARG001 (of which store, and when)
    opened = context.cache()
    limit_s = opened.settings.page_limit_s
    return ask(opened.index, query, limit_s=limit_s, most_rows=MOST_ROWS, most_characters=_MOST_CHARACTERS)
