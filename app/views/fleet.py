"""Several stores in one dashboard: the choice of one above each page, and sums over all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from app import context, widgets
from app.components import tables
from app.presenters.columns import Column
from app.presenters.overview import Check, remote_check
from app.presenters.shared import Row, total
from cache_engine.errors import GemmCacheError
from cache_engine.index import queries
from cache_engine.model.events import REMOTE, TIERS, hit_rate
from cache_engine.units import counted, human_bytes, human_ms, human_rate

_EVENTS = 500
_SWITCH = "store chosen by the switch"


@dataclass(frozen=True, slots=True)
class Node:
    """A store of a fleet.

    Attributes:
        row: the overview from the store's index; ``None`` if it cannot be read.
        trouble: why the overview cannot be read; else empty.
        remote: the state of the store's remote, if it has one.
    """

    name: str
    path: str
    row: Row | None
    trouble: str = ""
    remote: Check | None = None

    @property
    def hits(self) -> int:
        """The number of lookups that a tier served."""
        return sum(self.row[f"{tier}_hits"] for tier in TIERS) if self.row else 0

    @property
    def misses(self) -> int:
        """The number of lookups that no tier served."""
        return int(self.row["misses"]) if self.row else 0


def switch() -> None:
    """Draws the choice of the store that pages show, if there are several; the choice is part of the address."""
    known, asked = list(context.stores()), st.query_params.get(context.STORE)
    if asked is not None and asked not in known:
        st.warning("The link asks for a store that this dashboard does not show.", icon=":material/link_off:")
    if len(known) < 2:
        return
    context.choose_store(asked)
    st.session_state[_SWITCH] = st.session_state.get(context.STORE, known[0])
    st.selectbox("Store", known, key=_SWITCH, on_change=_switched, width=320)


def _switched() -> None:
    widgets.renew_address()
    st.query_params[context.STORE] = st.session_state[_SWITCH]


def draw() -> None:
    """Draws all stores of this dashboard and their sums, if it has several."""
    if len(context.stores()) < 2:
        return
    found = [_node(name) for name in context.stores()]
    tables.draw(found, NODES, key="nodes", label="Stores")
    st.text(sums(found))
    for node in found:
        if node.trouble:
            widgets.problem(
                "A store could not be read.",
                node.trouble if node.path in node.trouble else f"{node.path}: {node.trouble}",
            )
        if node.remote is not None:
            st.text(f"{node.name}: {node.remote.words}")
            if node.remote.cause:
                st.text(node.remote.cause)


def _node(name: str) -> Node:
    """A store of this dashboard, by name; one that cannot be read has the reason in ``trouble``."""
    path = str(context.stores()[name])
    try:
        opened = context.cache_of(name)
        opened.index.sync()
        row, events = opened.index.query(queries.overview), opened.index.query(queries.events, limit=_EVENTS)
    except (GemmCacheError, OSError) as error:
        return Node(name, path, None, str(error))
    return Node(name, path, row, remote=remote_check(row, events, opened.settings, time.time()))


def sums(nodes: Sequence[Node]) -> str:
    """The sums over all stores that can be read, over all time, in words."""
    rows = [node.row for node in nodes if node.row is not None]
    rate = hit_rate(sum(node.hits for node in nodes), sum(node.misses for node in nodes))
    kernels, stored, saved_us = (total(rows, column) for column in ("entries", "stored_bytes", "saved_us"))
    return (
        f"{len(rows):,} of {counted(len(nodes), 'store')} can be read: {counted(kernels, 'kernel')}, "
        f"{human_bytes(stored)}, hit rate {human_rate(rate)}, {human_ms(saved_us / 1e3)} of compile time saved."
    )


def _of_row(value: Callable[[Row], Any]) -> Callable[[Node], Any]:
    """A function that returns ``value`` of a store's overview; ``None`` for a store that cannot be read."""
    return lambda node: None if node.row is None else value(node.row)


NODES = (
    Column("Store", lambda node: f".?{urlencode({'store': node.name})}", "link", attrgetter("name")),
    Column("State", lambda node: "cannot be read" if node.trouble else "fine"),
    Column("Kernels", _of_row(itemgetter("entries")), "count"),
    Column("On disk", _of_row(itemgetter("stored_bytes")), "bytes"),
    Column("Hits", lambda node: node.hits if node.row else None, "count"),
    Column("Misses", lambda node: node.misses if node.row else None, "count"),
    Column("Hit rate", lambda node: hit_rate(node.hits, node.misses) if node.row else None, "share"),
    Column("From the remote", _of_row(itemgetter(f"{REMOTE}_hits")), "count"),
    Column("Sent to it", _of_row(itemgetter("remote_sent")), "count"),
    Column("Folder", "path"),
)
"""The columns of a table with a row for each store."""
