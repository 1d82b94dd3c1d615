"""The page Storage: cleaning, checks, other frameworks' directories, packs and results, logs, and settings."""

from __future__ import annotations

import os

import streamlit as st

from app import context, guard, widgets
from app.admin import checks, cleanup, index, logs, move
from app.caches import directories
from cache_engine.errors import GemmCacheError

TABS = {
    "This store": cleanup.draw,
    "Other frameworks": directories.draw_cleaning,
    "Integrity": checks.draw_integrity,
    "Quarantine": checks.draw_quarantine,
    "Findings": directories.draw_findings,
    "Index": index.draw_index,
    "Directories": directories.draw,
    "Comparison": directories.draw_comparison,
    "Packs": move.draw_packs,
    "Results": move.draw_results,
    "Log": logs.draw,
    "Settings": index.draw_settings,
}

st.title("Storage")
permitted = guard.door()
if not os.access(context.cache().layout.root, os.W_OK):
    st.info(
        "Read-only store: nothing can be changed here.",
        icon=":material/edit_off:",
    )
    permitted = False

tab = widgets.choose_tab()
try:
    TABS[tab](permitted)
except GemmCacheError as error:
    widgets.problem("Could not load this tab.", str(error))
