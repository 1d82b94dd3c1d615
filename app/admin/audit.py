"""Audit log: who did what to the store, when, and how much."""

from __future__ import annotations

import streamlit as st

from app import context, widgets
from app.presenters.store.admin import AUDITED, audit_table, kind_words
from cache_engine.mirror import queries
from cache_engine.model.events import ACTS, RECENT, RECENT_ACTS

SHOWN = 50


def draw(permitted: bool) -> None:  # noqa: ARG001 (looking is free)
    """One page of it."""
    counts: dict[str, int] = context.ask(queries.events_by_kind)
    st.caption(
        f"Read from the journal. What somebody did to the whole store is kept for the last {RECENT_ACTS:,} such acts; "
        f"single kernels evicted, set aside or not kept are among the last {RECENT:,} other events."
    )

    def label(kind: str) -> str:
        return f"{kind_words(kind).capitalize()} ({counts.get(kind, 0):,})"

    chosen = st.multiselect("Show", list(AUDITED), format_func=label, key="kinds", placeholder="Every act")
    kinds = tuple(chosen) or ACTS
    total = sum(counts.get(kind, 0) for kind in kinds)
    if not total:
        st.info("Nothing of this kind has happened yet.", icon=":material/history:")
        return
    offset = widgets.paging(total, SHOWN, key="audit-page")
    rows = context.ask(queries.acts, kinds, limit=SHOWN, offset=offset)
    st.caption(f"{offset + 1:,}–{offset + len(rows):,} of {total:,}, the last first.")
    st.dataframe(audit_table(rows, context.timezone()), hide_index=True, height="content", key="audit")
