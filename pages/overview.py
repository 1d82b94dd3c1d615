"""Overview: how much is in the store, how well it serves, and what happened last."""

from __future__ import annotations

import time

import streamlit as st

from app import context, widgets
from app.presenters.architectures import entries_figure
from app.presenters.overview import event_table, overview_tiles, overview_troubles

st.title("Overview")
cache = context.cache()
st.text(f"Store: {cache.layout.root}")

row = context.ask("overview")
settings = cache.settings
widgets.tiles(overview_tiles(row, settings.max_entries, settings.max_bytes))
events = context.ask("events", limit=500)
for trouble in overview_troubles(row, events, time.time()):
    st.warning(trouble, icon=":material/warning:")

if not row["entries"]:
    st.info("The store is empty. Compile a kernel on the Compile page, or run `gemm-cache sample`.")

left, right = st.columns([3, 2])
with left:
    st.subheader("Recent activity")
    if events:
        when = st.column_config.DatetimeColumn(format="distance")
        table = event_table(events[:20], context.timezone())
        st.dataframe(table, hide_index=True, column_config={"When": when}, key="events")
    else:
        st.caption("Nothing has happened yet.")
with right:
    families = context.ask("architecture_families")
    if families:
        st.plotly_chart(entries_figure(families), key="entries")

busiest = context.ask("busiest", limit=10)
if busiest:
    st.subheader("Busiest kernels")
    widgets.kernel_list(busiest, key="busiest")
