"""Architectures: what there is for each target, as plots and as a table."""

from __future__ import annotations

import streamlit as st

from app import context
from app.presenters.architectures import (
    architecture_table,
    compile_time_figure,
    entries_figure,
    hits_figure,
    stored_bytes_figure,
)

st.title("Architectures")
rows = context.ask("architectures")
if not rows:
    st.info("The store is empty. Compile a kernel on the Compile page, or run `gemm-cache sample`.")
    st.stop()

upper = st.columns(2)
upper[0].plotly_chart(entries_figure(context.ask("architecture_families")), key="entries")
upper[1].plotly_chart(compile_time_figure(rows), key="compile-time")
lower = st.columns(2)
lower[0].plotly_chart(stored_bytes_figure(rows), key="stored")
lower[1].plotly_chart(hits_figure(rows), key="hits")

st.dataframe(
    architecture_table(rows, context.timezone()),
    hide_index=True,
    column_config={
        "Code": st.column_config.NumberColumn(format="%.1f KiB"),
        "On disk": st.column_config.NumberColumn(format="%.1f KiB"),
        "Compiling took": st.column_config.NumberColumn(format="%.1f s"),
        "Median": st.column_config.NumberColumn(format="%.0f ms", help="Median compile time."),
        "Last used": st.column_config.DatetimeColumn(format="distance"),
    },
    key="table",
)
