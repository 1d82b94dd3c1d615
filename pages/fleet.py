"""Fleet: all stores of this dashboard, their sums, and a row for each."""

from __future__ import annotations

import streamlit as st

from app import tables, widgets
from app.components.figure import draw_tiles
from app.views import fleet

st.title("Fleet")
nodes = fleet.nodes()
draw_tiles(fleet.tiles(nodes))
st.header("Stores")
tables.draw(nodes, fleet.NODES, height="content", key="nodes")
with st.container(horizontal=True):  # real links, which a keyboard reaches
    for node in nodes:
        fleet.link(node)
for node in nodes:
    if node.trouble:
        cause = node.trouble if node.path in node.trouble else f"{node.path}: {node.trouble}"
        widgets.problem("A store could not be read.", cause)
st.header("Remote")
for node in nodes:
    if node.remote is not None:
        st.text(f"{node.name}: {node.remote.words}")
        if node.remote.cause:
            st.text(node.remote.cause)
if not any(node.remote for node in nodes):
    st.caption("No remote is set (setting remote).")
