"""The entries of other frameworks' caches that match a search, in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import streamlit as st

from app import context, widgets
from app.addresses import KIND, VIEWS
from app.caches import scan
from app.components import listing
from app.presenters.caches import entry_columns
from app.presenters.framework_kernels import Address, address_of
from app.presenters.shared import rows_shown
from cache_engine.frameworks.registry import EntryFilter
from cache_engine.frameworks.values import State
from cache_engine.index import framework_queries as queries

PAGE_ROWS = 100
_LIST = "entries"


def frameworks() -> dict[str, str]:
    """The frameworks of which the last scan found entries: the kind of their cache, by title."""
    asked = [value for value in scan.choices(tuple, "view") if value not in VIEWS]
    kinds = {row["kind"] for row in context.ask(queries.counted, "kind")}
    titles = scan.titles() if kinds or asked else {}  # what reads the caches is imported only for entries
    kinds.update(kind for kind, title in titles.items() if title in asked)
    return {titles.get(kind, kind): kind for kind in sorted(kinds)}


def draw(kind: str | None) -> None:
    """Draws the search and the entries that it finds, each a link to its page; two selected entries can be compared.

    Args:
        kind: the only framework whose entries are listed; ``None`` for all.
    """
    opened = listing.clicked(_LIST)
    if opened is not None:
        widgets.go("kernel", Address.parse(opened).parameters)
    picked = tuple(map(Address.parse, listing.picked(_LIST)))
    wanted = chosen(kind)
    st.session_state[widgets.SEARCHED], st.session_state[KIND] = ("words", wanted.text), kind
    asked = st.query_params
    sort = asked["sort"] if asked.get("sort") in queries.SORTS else next(iter(queries.SORTS))
    ascending = asked.get("asc") == "true"
    total = context.ask(queries.count, wanted)
    widgets.remember_results()
    if not total:
        st.caption("No cache has an entry." if wanted == EntryFilter() else "No entry of any cache matches.")
        return
    offset = widgets.paging(total, PAGE_ROWS, key="page", bind="query-params")
    rows = context.ask(queries.entries, wanted, sort=sort, ascending=ascending, limit=PAGE_ROWS, offset=offset)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f"{rows_shown(offset, len(rows), total)}. Select two to compare them.")
        if len(picked) == 2:
            one, other = picked
            widgets.page_link("compare", "Compare the selected two", "compare_arrows", **one.compared_with(other))
        if picked:
            st.button("Clear selection", on_click=listing.forget_picked, args=(_LIST,))
    listing.linked_list(
        rows,
        [(str(one), one.link) for one in map(address_of, rows)],
        entry_columns(scan.titles()),
        key=_LIST,
        label="Entries",
        ticked=tuple(map(str, picked)),
        sorted_by=(sort, ascending),
    )


def chosen(kind: str | None = None, prefix: str = "") -> EntryFilter:
    """Draws the search field and the lists of choices, which are part of the page's address; returns their filter.

    Args:
        kind: the only framework; the reader then cannot choose one.
        prefix: the beginning of the fields' names in the address. Fields with the same name on two pages share a value,
            and the text of a search must not limit a cleaning.
    """
    asked = st.query_params
    text = st.text_input(
        "Search", asked.get("words", "") if prefix else "", key=f"{prefix}words", bind="query-params", type="search",
        live=True, max_chars=200, placeholder="Words of name, target, version, config or id",
        label_visibility="collapsed",
    )  # fmt: skip
    columns = iter(st.columns(2 if kind else 3))

    def choose(label: str, name: str, find: Callable[[], Iterable[str]]) -> tuple[str, ...]:
        known = scan.choices(find, name, f"{prefix}{name}")
        given = [value for value in asked.get_all(name) if prefix and value in known]  # of an older link
        return tuple(
            next(columns).multiselect(
                label, known, given, key=f"{prefix}{name}", bind="query-params", placeholder=label,
                label_visibility="collapsed",
            )
        )  # fmt: skip

    kinds = (kind,) if kind else choose("Framework", "kind", partial(counted_values, "kind"))
    return EntryFilter(
        text or "",
        kinds,
        choose("Target", "arch", partial(counted_values, "arch")),
        choose("State", "state", partial(map, str, State)),
    )


def counted_values(column: str) -> set[str]:
    """The values of a column that entries in the index have, as text."""
    return {str(row["value"]) for row in context.ask(queries.counted, column)}
