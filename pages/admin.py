"""Admin: clean up, check and repair, quarantine, packs, the mirror, the settings in force, and who did what."""

from __future__ import annotations

import os

import streamlit as st

from app import context, guard, widgets
from app.admin import audit, cleanup, integrity, mirror, packs, quarantine, settings
from cache_engine.errors import GemmCacheError

ROOMS = {
    "Cleanup": cleanup.draw,
    "Integrity": integrity.draw,
    "Quarantine": quarantine.draw,
    "Packs": packs.draw,
    "Mirror": mirror.draw,
    "Settings": settings.draw,
    "Audit log": audit.draw,
}

st.title("Admin")
permitted = guard.door()
if not os.access(context.cache().layout.root, os.W_OK):
    st.info(
        "The store cannot be written from here: you can look at it, and nothing can be changed.",
        icon=":material/edit_off:",
    )
    permitted = False

for tab, draw in zip(st.tabs(list(ROOMS), key="tab", bind="query-params"), ROOMS.values(), strict=True):
    if tab.open:
        with tab:
            try:
                draw(permitted)
            except GemmCacheError as error:
                widgets.problem("This could not be shown.", str(error))
