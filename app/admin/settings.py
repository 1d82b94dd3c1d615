"""Settings: the effective value of each, and its origin."""

from __future__ import annotations

import streamlit as st

from app import context, tables
from app.presenters.store.admin import settings_table


def draw(permitted: bool) -> None:  # noqa: ARG001 (reading needs no permission)
    """The table."""
    cache = context.cache()
    st.caption(
        "Effective settings of this dashboard process. Set them as environment variables before starting it; "
        "gemm-cache --store DIR dashboard sets the store's directory."
    )
    table = settings_table(cache.settings, cache.layout.root)
    changed = sum(row["Origin"] != "default" for row in table)
    st.caption(f"Settings that differ from their default: {changed} of {len(table)}.")
    columns = {
        "Setting": st.column_config.TextColumn(pinned=True, width=170),
        "Value": st.column_config.TextColumn(width=180),
        "Description": st.column_config.TextColumn(width=640),
    }
    tables.show(table, height="content", column_config=columns, key="settings-table")
