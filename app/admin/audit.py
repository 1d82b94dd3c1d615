"""Audit log: who did what to the store, when, and how much."""

from __future__ import annotations

import streamlit as st

from app import context, tables, widgets
from app.presenters.admin import AUDIT, AUDITED
from app.presenters.overview import EVENTS
from app.presenters.shared import rows_shown
from cache_engine.index import queries
from cache_engine.model.events import ACTS, RECENT, RECENT_ACTS

SHOWN = 50


def draw(permitted: bool) -> None:  # noqa: ARG001 (reading needs no permission)
    """One page of the log."""
    counts = context.ask(queries.events_by_kind)
    st.caption(
        f"From the journal: store-wide actions (last {RECENT_ACTS:,}) and single-kernel events (last {RECENT:,})."
    )

    def label(kind: str) -> str:
        return f"{EVENTS.get(kind, kind).capitalize()} ({counts.get(kind, 0):,})"

    chosen = st.multiselect("Show", list(AUDITED), format_func=label, key="kinds", placeholder="All actions")
    kinds = tuple(chosen) or ACTS
    total = sum(counts.get(kind, 0) for kind in kinds)
    if not total:
        st.info("No matching events.", icon=":material/history:")
        return
    offset = widgets.paging(total, SHOWN, key="audit-page")
    rows = context.ask(queries.acts, kinds, limit=SHOWN, offset=offset)
    st.caption(f"{rows_shown(offset, len(rows), total)}, newest first.")
    tables.draw(rows, AUDIT, height="content", key="audit")
