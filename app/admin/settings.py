"""Settings: what is in force in this process, and where each value is from."""

from __future__ import annotations

import streamlit as st

from app import context
from app.presenters.store.admin import settings_table


def draw(permitted: bool) -> None:  # noqa: ARG001 (looking is free)
    """The table."""
    cache = context.cache()
    st.caption(
        "In force in this process. Each can be set in the environment before the dashboard is started; "
        "gemm-cache dashboard hands its --store on that way."
    )
    table = settings_table(cache.settings, cache.layout.root)
    changed = sum(row["From"] != "default" for row in table)
    st.caption(f"{changed} of {len(table)} are not at their default.")
    st.dataframe(table, hide_index=True, height="content", key="settings-table")
