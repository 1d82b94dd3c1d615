"""Settings: the effective value of each, and its origin."""

from __future__ import annotations

import streamlit as st

from app import context, tables
from app.presenters.admin import settings_columns
from cache_engine.settings import SETTINGS, Origin


def draw(permitted: bool) -> None:  # noqa: ARG001 (reading needs no permission)
    """The table."""
    cache = context.cache()
    st.caption(
        "Effective settings of this dashboard process. Set them as environment variables before starting it; "
        "gemm-cache --store DIR dashboard sets the store's directory."
    )
    # Those that differ from the default first.
    listed = sorted(SETTINGS, key=lambda setting: cache.settings.origin(setting.name) == Origin.DEFAULT)
    changed = sum(cache.settings.origin(setting.name) != Origin.DEFAULT for setting in listed)
    st.caption(f"Settings that differ from their default: {changed} of {len(listed)}.")
    columns = {
        "Setting": st.column_config.TextColumn(pinned=True, width=170),
        "Value": st.column_config.TextColumn(width=180),
        "Description": st.column_config.TextColumn(width=640),
    }
    shown = settings_columns(cache.settings, cache.layout.root)
    tables.draw(listed, shown, height="content", column_config=columns, key="settings-table")
