"""Overview: how the store is, how well it serves over time, what is stale, and what happened last."""

from __future__ import annotations

import time

import streamlit as st

from app import context, widgets
from app.presenters.store.history import SPANS, compile_figure, history_table, hit_figure
from app.presenters.store.overview import (
    FINE,
    LATELY_S,
    LOOK,
    PLAIN,
    TROUBLE,
    Check,
    event_table,
    gpu_check,
    health,
    overview_tiles,
)
from app.presenters.store.toolchains import stale_words, toolchain_table
from cache_engine.device.probe import gpu
from cache_engine.insight.toolchains import STALE, made_by_toolchain
from cache_engine.mirror import queries
from cache_engine.model.events import HOUR_S

ICONS = {FINE: "check_circle", LOOK: "visibility", TROUBLE: "warning", PLAIN: "do_not_disturb_on"}
CHECKS_A_ROW = 3
LINK = st.column_config.LinkColumn(display_text="open", width="small")
AGE = st.column_config.DatetimeColumn(format="distance")
KIB = st.column_config.NumberColumn(format="%.1f KiB")
SECONDS = st.column_config.NumberColumn(format="%.2f s")

st.title("Overview")
cache, now, zone = context.cache(), time.time(), context.timezone()
st.text(f"Store: {cache.layout.root}")
row = context.ask(queries.overview)
events = context.ask(queries.events, limit=500)


def checked() -> None:
    """The store's health, a card for each side of it."""
    lately = context.ask(queries.history, HOUR_S, since=(int(now) - LATELY_S) // HOUR_S * HOUR_S)
    checks = [*health(row, lately, events, now), gpu_check(gpu())]
    for first in range(0, len(checks), CHECKS_A_ROW):
        for column, check in zip(st.columns(CHECKS_A_ROW), checks[first : first + CHECKS_A_ROW], strict=False):
            with column, st.container(border=True, height="stretch"):
                card(check)


def card(check: Check) -> None:
    """One side of the health."""
    st.markdown(f"**{check.about}**")
    icon = f":material/{ICONS[check.state]}:"
    if check.state in (LOOK, TROUBLE):
        st.warning(check.words, icon=icon)
    else:
        st.markdown(f"{icon} {check.words}")
    if check.cause:
        st.text(check.cause)
    if check.state == TROUBLE and check.about == "Integrity":
        st.page_link("../pages/admin.py", label="Check and repair", icon=":material/healing:")


def followed() -> None:
    """Where the numbers above come from."""
    with st.container(horizontal=True):
        for label, sort in (("Largest", "size on disk"), ("Slowest to compile", "compile time"), ("Busiest", "hits")):
            st.page_link(
                "../pages/kernels.py", label=f"{label} kernels", icon=":material/memory:", query_params={"sort": sort}
            )
        st.page_link("../pages/admin.py", label="Limits and cleanup", icon=":material/build:")


def over_time() -> None:
    """Hit rate and compile time, step by step."""
    st.subheader("Over time")
    name = st.segmented_control(
        "How far back", list(SPANS), default="7 days", required=True, key="span", bind="query-params"
    )
    span = SPANS[str(name)]
    rows = context.ask(queries.history, span.step_s, since=span.since(now))
    if not rows:
        st.info("Nothing was looked up or compiled in this time.", icon=":material/schedule:")
        return
    left, right = st.columns(2)
    left.plotly_chart(hit_figure(rows, span, zone, now), key="hit-figure")
    right.plotly_chart(compile_figure(rows, span, zone, now), key="compile-figure")
    with st.expander("The numbers behind these figures"):
        columns = {"Hit rate": st.column_config.NumberColumn(format="percent"), "Spent": SECONDS, "Saved": SECONDS}
        st.dataframe(history_table(rows, span, zone), hide_index=True, column_config=columns, key="history")


def toolchains() -> None:
    """What the kernels were made with, and what of it is stale."""
    st.subheader("Toolchains")
    found = made_by_toolchain(cache, context.ask(queries.made_with))
    st.text(stale_words(found, zone))
    st.dataframe(
        toolchain_table(found, zone),
        hide_index=True,
        column_order=("Toolchain", "Build", "State", "What has changed", "Kernels", "On disk", "Last made", "List"),
        column_config={"On disk": KIB, "Last made": AGE, "List": LINK},
        key="toolchains",
    )
    if any(made.state == STALE for made in found):
        st.page_link(
            "../pages/admin.py",
            label="Preview the cleanup of what is stale",
            icon=":material/delete_sweep:",
            query_params={"rule": "stale"},
        )


def activity() -> None:
    """The busiest kernels, and what happened last."""
    busiest = context.ask(queries.busiest, limit=10)
    st.subheader("Busiest kernels")
    if busiest:
        widgets.kernel_list(busiest, key="busiest")
    else:
        st.caption("No kernel was asked for again yet.")
    st.subheader("Recent activity")
    if events:
        table = event_table(events[:20], zone)
        st.dataframe(table, hide_index=True, column_config={"When": AGE, "Look into": LINK}, key="events")
    else:
        st.caption("Nothing has happened yet.")


checked()
widgets.tiles(overview_tiles(row, cache.settings.max_entries, cache.settings.max_bytes))
followed()
if not row["entries"]:
    st.info("The store is empty. Compile a kernel on the Compile page, or run `gemm-cache sample`.")
over_time()
if row["entries"]:
    toolchains()
activity()
