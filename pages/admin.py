"""Admin: cleanup, integrity, quarantine, packs, results, the index, the effective settings, and two logs."""

from __future__ import annotations

import os

import streamlit as st

from app import context, guard, widgets
from app.admin import cleanup, index, integrity, logs, packs, quarantine, results
from cache_engine.errors import GemmCacheError

TABS = {
    "Cleanup": cleanup.draw,
    "Integrity": integrity.draw,
    "Quarantine": quarantine.draw,
    "Packs": packs.draw,
    "Results": results.draw,
    "Index": index.draw_index,
    "Settings": index.draw_settings,
    "Audit log": logs.draw_audit,
    "Decisions": logs.draw_decisions,
}

st.title("Admin")
permitted = guard.door()
if not os.access(context.cache().layout.root, os.W_OK):
    st.info(
        "Read-only store: nothing can be changed here.",
        icon=":material/edit_off:",
    )
    permitted = False

widgets.accept_old_link("tab", {"Mirror": "Index"})
for tab, draw in zip(st.tabs(list(TABS), key="tab", bind="query-params"), TABS.values(), strict=True):
    if tab.open:
        with tab:
            try:
                draw(permitted)
            except GemmCacheError as error:
                widgets.problem("Could not load this tab.", str(error))
