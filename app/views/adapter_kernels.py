"""Kernels that other frameworks keep in the store, as the pages Kernels and Kernel show them."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

import streamlit as st

from app import context, widgets
from app.components import tables
from app.components.code_view import component
from app.presenters.columns import Column
from app.presenters.framework_kernels import PARTS, adapted_columns, adapted_facts
from app.presenters.kernel import EVENTS
from app.presenters.shared import kernel_address, rows_shown
from cache_engine.frameworks.bundle_facts import describe
from cache_engine.frameworks.bundles import Group
from cache_engine.index import queries
from cache_engine.index.queries import KernelFilter
from cache_engine.insight.linked.kernel import linked_parts
from cache_engine.insight.linked.marks import Linked

_ROWS = 20


def list_adapted(
    wanted: KernelFilter,
    *,
    sort: str,
    descending: bool,
    address: Callable[[str], str] = kernel_address,
) -> int:
    """Draws one page of other frameworks' kernels that match; returns how many match. Without a match, draws nothing.

    ``address`` returns the address that a kernel's link opens.
    """
    total = context.ask(queries.count, wanted)
    if not total:
        return 0
    st.header("Kernels of other frameworks")
    offset = widgets.paging(total, _ROWS, key="others")
    rows = context.ask(queries.kernels, wanted, sort=sort, descending=descending, limit=_ROWS, offset=offset)
    st.caption(f"{rows_shown(offset, len(rows), total)}. They keep these in this store.")
    tables.draw(rows, adapted_columns(address), key="adapted")
    return total


def show_adapted(group: Group) -> None:
    """Draws all that is known of a kernel that another framework keeps in the store."""
    known = describe(group)
    row = context.ask(queries.adapted_kernel, group.key)
    left, right = st.columns(2)
    with left:
        st.header("Properties")
        tables.properties(adapted_facts(group.framework, known, row, context.timezone()), key="facts")
    with right:
        st.header("Parts")
        tables.draw(known.parts, PARTS[:3], key="parts")
        if group.stages_ms:
            st.header("Stages of the compile")
            columns = (Column("Stage", itemgetter(0)), Column("Time", itemgetter(1), "ms"))
            tables.draw(group.stages_ms.items(), columns, key="stages")
    st.header("Code")
    component.show(_linked(group.key, group.made_at, group), group.key[:12], key="code-of-adapted")
    if events := context.ask(queries.events_of, group.key):
        st.header("History")
        tables.draw(events, EVENTS, key="history")


@st.cache_data(show_spinner="Disassembling…", max_entries=32)
def _linked(key: str, made_at: float, _group: Group) -> Linked:  # noqa: ARG001 (which kernel, and which of its states)
    return linked_parts(describe(_group), lambda part: _group.files[part.file])
