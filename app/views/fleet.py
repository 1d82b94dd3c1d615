"""Several stores in one dashboard: the switch above each page, and what they have together."""

from __future__ import annotations

import time

import streamlit as st

from app import context, widgets
from app.presenters.palette import plain
from app.presenters.store.fleet import Node
from app.presenters.store.remote import remote_check
from cache_engine.errors import GemmCacheError
from cache_engine.index import queries

_EVENTS = 500
_SWITCH = "store chosen by the switch"


def is_one() -> bool:
    """Whether this dashboard shows several stores."""
    try:
        return len(context.stores()) > 1
    except GemmCacheError:  # the first cannot be opened, which the page says
        return False


def switch() -> None:
    """The choice of the store that a page shows, where there are several; it is part of the address."""
    known, asked = list(context.stores()), st.query_params.get(context.STORE)
    if asked is not None and asked not in known:
        st.warning("The link asks for a store that this dashboard does not show.", icon=":material/link_off:")
    if len(known) < 2:
        return
    context.choose_store(asked)
    st.session_state[_SWITCH] = st.session_state.get(context.STORE, known[0])
    st.selectbox("Store", known, key=_SWITCH, on_change=_switched, width=320)


def _switched() -> None:
    chosen = st.session_state[_SWITCH]
    st.session_state[context.STORE] = chosen
    if chosen == next(iter(context.stores())):
        st.query_params.pop(context.STORE, None)
    else:
        st.query_params[context.STORE] = chosen


def link(node: Node) -> None:
    """A link to the pages of a store."""
    widgets.page_link(
        "../pages/overview.py",
        label=plain(f"Open {node.name}"),
        icon=":material/inventory_2:",
        query_params={context.STORE: node.name},
    )


def nodes() -> list[Node]:
    """Each store, or why it cannot be read."""
    return [_node(name) for name in context.stores()]


def _node(name: str) -> Node:
    path = str(context.stores()[name])
    try:
        opened = context.cache_of(name)
        opened.mirror.sync()
        row, events = opened.mirror.query(queries.overview), opened.mirror.query(queries.events, limit=_EVENTS)
    except (GemmCacheError, OSError) as error:
        return Node(name, path, None, str(error))
    return Node(name, path, row, remote=remote_check(row, events, opened.settings, time.time()))
