"""The entries of other frameworks' caches that match a search, in pages."""

from __future__ import annotations

import streamlit as st

from app import context, widgets
from app.caches import links, looking
from app.presenters.kernels.others import Address, address_of
from app.presenters.shared import rows_shown
from app.presenters.store.caches import entry_table
from cache_engine.foreign.survey import EntryFilter
from cache_engine.foreign.values import State
from cache_engine.mirror import foreign_queries as queries

PAGE_ROWS = 100
_LIST = "entries"
_KIB = st.column_config.NumberColumn(format="%.1f KiB")
_AGE = st.column_config.DatetimeColumn(format="distance")
_COLUMNS = {
    **dict.fromkeys(("Shared", "Code", "On disk"), _KIB),
    **dict.fromkeys(("Created", "Last used"), _AGE),
    "Config": st.column_config.TextColumn(width="medium"),
}


def draw() -> None:
    """The search, and what it finds; a click on an id opens its entry, and two that are selected can be compared."""
    opened = widgets.clicked(_LIST)
    if opened is not None:
        links.open_entry(Address.parse(opened))
    picked = tuple(map(Address.parse, widgets.picked_rows(_LIST)))
    wanted = chosen()
    left, right = st.columns([1, 1], vertical_alignment="bottom")
    sort = left.selectbox("Sort by", list(queries.SORTS), key="sort", bind="query-params")
    ascending = right.toggle("Smallest, oldest or A first", key="asc", bind="query-params")
    total = context.ask(queries.count, wanted)
    links.remember_results()
    if not total:
        st.caption("No cache has an entry." if wanted == EntryFilter() else "No entry of any cache matches.")
        return
    offset = widgets.paging(total, PAGE_ROWS, key="page", bind="query-params")
    rows = context.ask(
        queries.entries, wanted, sort=sort or "created", ascending=ascending, limit=PAGE_ROWS, offset=offset
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(
            f"{rows_shown(offset, len(rows), total)}. Click an id to open its entry; select two to compare them."
        )
        if len(picked) == 2:
            links.compare_link("Compare the selected two", *picked)
        if picked:
            st.button("Clear selection", on_click=widgets.forget_picked, args=(_LIST,))
    table = entry_table(rows, looking.titles(), context.timezone())
    keys = [str(address_of(row)) for row in rows]
    widgets.picker(table, keys, tuple(map(str, picked)), key=_LIST, button="Id", columns=_COLUMNS)


def chosen() -> EntryFilter:
    """What the reader asks for. It is part of the address."""
    text = st.text_input(
        "Search", key="q", bind="query-params", max_chars=200,
        placeholder="Words of name, target, version, config or id",
    )  # fmt: skip
    archs, kinds = (
        sorted({str(row["value"]) for row in context.ask(queries.counted, column)}) for column in ("arch", "kind")
    )
    left, middle, right = st.columns(3)
    return EntryFilter(
        text or "",
        tuple(left.multiselect("Framework", kinds, key="kind", bind="query-params")),
        tuple(middle.multiselect("Target", archs, key="arch", bind="query-params")),
        tuple(right.multiselect("State", [each.value for each in State], key="state", bind="query-params")),
    )
