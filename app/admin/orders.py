"""What other orders of eviction and other sizes would cost, by the store's own requests."""

from __future__ import annotations

import time

import streamlit as st

from app import context, tables
from app.presenters.store.evictions import orders_figure, orders_table
from cache_engine.replay.evictions import Played
from cache_engine.replay.stored import Stored, played, requests_of, sizes_of
from cache_engine.units import counted, human_age


def draw() -> None:
    """A switch, and behind it the figure: playing the requests may take seconds."""
    if not st.toggle("Compare orders of deletion and store sizes", key="orders", bind="query-params"):
        return
    stored, rows = _played(str(context.cache().layout.root))
    if not rows:
        st.info("No request has been counted yet.", icon=":material/hourglass_empty:")
        return
    st.plotly_chart(orders_figure(rows), key="orders-figure", config={"displayModeBar": False})
    requests = counted(round(sum(one.count for one in stored.requests)), "request")
    predicted = f" Sizes and compile times of {stored.predicted:,} kernels that are not stored are predicted."
    st.caption(
        f"{requests} since {human_age(time.time() - stored.since)}, played against an empty store of each size. "
        "They are known by hour and day, so each kernel is compiled at most once in each of these."
        f"{predicted if stored.predicted else ''}"
    )
    with st.expander("Show data table"):
        tables.show(
            orders_table(rows),
            sizes=["Store size"],
            times=["Compile time", "Of it, again"],
            column_config={"Hit rate": tables.PERCENT},
            key="orders-table",
        )


@st.cache_data(ttl=60, max_entries=1, show_spinner="Playing the store's requests…")
def _played(store: str) -> tuple[Stored, list[Played]]:  # noqa: ARG001 (what the answer is kept by)
    cache = context.cache()
    stored = requests_of(cache)
    half_life_s = cache.settings.demand_half_life_h * 3600
    return stored, played(stored, sizes_of(stored), half_life_s) if stored.requests else []
