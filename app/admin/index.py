"""The tabs Index and Settings: the state, the update and the rebuild of the index; and the effective settings."""

from __future__ import annotations

import os
import time

import streamlit as st

from app import context, widgets
from app.components import tables
from app.presenters.admin import index_properties, settings_columns
from cache_engine.errors import GemmCacheError
from cache_engine.index import queries
from cache_engine.settings import SETTINGS, Origin
from cache_engine.units import counted, human_ms
from cache_engine.upkeep.admission import READ_ONLY


def draw_index(permitted: bool) -> None:  # noqa: ARG001 (nothing here loses data: only a read-only dashboard has it off)
    """Draws the state of the index, and the buttons that update and rebuild it."""
    index = context.cache().index
    st.caption("This dashboard reads a DuckDB index of the store. It can be rebuilt at any time without data loss.")
    buttons = st.container(horizontal=True)
    if buttons.button("Sync now", icon=":material/sync:"):
        _sync(rebuild=False)
    off = READ_ONLY if context.cache().settings.dashboard_read_only else ""
    help_text = f"Off: {off}." if off else None
    if buttons.button("Rebuild index", icon=":material/refresh:", help=help_text, disabled=bool(off)):
        _sync(rebuild=True)
    try:
        index.sync()
        state = index.query(queries.state)
        size = os.stat(index.path).st_size
    except (GemmCacheError, OSError) as error:
        widgets.problem("The index is unavailable. Rebuild it, or try again.", str(error))
        return
    tables.properties(index_properties(state, size, time.time()), key="mirror-table")
    st.text(f"File: {index.path}")


def _sync(*, rebuild: bool) -> None:
    started = time.perf_counter()
    try:
        with st.spinner("Rebuilding…" if rebuild else "Syncing…"):
            synced = context.cache().index.sync(rebuild=rebuild)
    except GemmCacheError as error:
        trouble = "Rebuild failed." if rebuild else "Sync failed."
        widgets.problem(trouble, str(error))
        return
    took = human_ms((time.perf_counter() - started) * 1e3)
    unreadable = counted(synced.unreadable, "unreadable record")
    if rebuild:
        st.success(f"Rebuilt: {counted(synced.added, 'kernel')}, {unreadable}, in {took}.")
    else:
        changed = f"{counted(synced.added, 'kernel')} added or updated, {synced.removed:,} removed"
        st.success(f"Up to date: {changed}, {counted(synced.events, 'event')}, {unreadable}, in {took}.")


def draw_settings(permitted: bool) -> None:  # noqa: ARG001 (reading needs no permission)
    """Draws a table of the settings, each with its value, its origin and its description."""
    cache = context.cache()
    st.caption(
        "Effective settings of this dashboard process. Set them as environment variables before starting it; "
        "gemm-cache --store DIR dashboard sets the store's directory."
    )
    # Those that differ from the default first.
    listed = sorted(SETTINGS, key=lambda setting: cache.settings.origin(setting.name) == Origin.DEFAULT)
    changed = sum(cache.settings.origin(setting.name) != Origin.DEFAULT for setting in listed)
    st.caption(f"Settings that differ from their default: {changed} of {len(listed)}.")
    shown = settings_columns(cache.settings, cache.layout.root)
    tables.draw(listed, shown, key="settings-table")
