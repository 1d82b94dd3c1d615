"""Overview: health, hit rates and compile time, toolchains, and recent activity."""

from __future__ import annotations

import time

import streamlit as st

from app import context, widgets
from app.components import listing
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
    length_table,
    overview_tiles,
    queue_check,
    queue_table,
    rate_words,
    tier_table,
)
from app.presenters.store.toolchains import stale_words, toolchain_table
from cache_engine.device.probe import gpu
from cache_engine.insight.toolchains import STALE, made_by_toolchain
from cache_engine.mirror import queries
from cache_engine.model.events import DAY_S, HOUR_S

ICONS = {FINE: "check_circle", LOOK: "visibility", TROUBLE: "warning", PLAIN: "do_not_disturb_on"}
CHECKS_A_ROW = 4
LINK = st.column_config.LinkColumn(display_text="open", width="small")
AGE = st.column_config.DatetimeColumn(format="distance")
KIB = st.column_config.NumberColumn(format="%.1f KiB")
TENTHS = st.column_config.NumberColumn(format="%.1f s")
MILLISECONDS = st.column_config.NumberColumn(format="%.3f ms")
SECONDS = st.column_config.NumberColumn(format="%.2f s")
COUNT = st.column_config.NumberColumn(format="localized")

st.title("Overview")
cache, now, zone = context.cache(), time.time(), context.timezone()
st.text(f"Store: {cache.layout.root}")
row = context.ask(queries.overview)
events = context.ask(queries.events, limit=500)


def checked() -> None:
    """The store's health, a card for each check."""
    lately = context.ask(queries.history, HOUR_S, since=(int(now) - LATELY_S) // HOUR_S * HOUR_S)
    queue = cache.queue()
    checks = [*health(row, lately, events, now), queue_check(queue), gpu_check(gpu())]
    for first in range(0, len(checks), CHECKS_A_ROW):
        for column, check in zip(st.columns(CHECKS_A_ROW), checks[first : first + CHECKS_A_ROW], strict=False):
            with column, st.container(border=True, height="stretch"):
                card(check)
    if turns := queue_table(queue):
        with st.expander("Compile queue"):
            st.dataframe(turns, hide_index=True, column_config={"Seconds": TENTHS}, key="queue")


def card(check: Check) -> None:
    """One check."""
    st.markdown(f"**{check.about}**")
    icon = f":material/{ICONS[check.state]}:"
    if check.state in (LOOK, TROUBLE):
        st.warning(check.words, icon=icon)
    else:
        st.markdown(f"{icon} {check.words}")
    if check.cause:
        st.text(check.cause)
    if check.state == TROUBLE and check.about == "Integrity":
        st.page_link(
            "../pages/admin.py",
            label="Open integrity check",
            icon=":material/healing:",
            query_params={"tab": "Integrity"},
        )


def followed() -> None:
    """Links to the kernels behind the numbers."""
    with st.container(horizontal=True):
        for label, sort in (
            ("Largest kernels", "size on disk"),
            ("Slowest compiles", "compile time"),
            ("Most-hit kernels", "hits"),
        ):
            st.page_link("../pages/kernels.py", label=label, icon=":material/memory:", query_params={"sort": sort})
        st.page_link("../pages/admin.py", label="Storage limits and cleanup", icon=":material/build:")


def over_time() -> None:
    """Hit rates and compile time: by tier over all time, then step by step."""
    st.subheader("Hit rate and compile time")
    rates, columns = tier_table(row, bool(cache.settings.packs)), dict.fromkeys(("Lookups", "Hits"), COUNT)
    st.dataframe(rates, hide_index=True, height="content", column_config=columns, key="tiers")
    st.caption("Each tier's hit rate counts the lookups that no tier above it served, over all time.")
    day = context.ask(queries.history, HOUR_S, since=(int(now) - DAY_S) // HOUR_S * HOUR_S + HOUR_S)
    st.caption(rate_words(row, day))
    if lengths := length_table(row):
        columns = dict.fromkeys(("Half within", "90 %", "99 %"), MILLISECONDS)
        st.dataframe(lengths, hide_index=True, column_config=columns, key="lengths")
        st.caption("How long lookups and the work of misses took, over all time; at most 9 % off.")
    span = SPANS[widgets.choose_one("Time range", list(SPANS), "7 days", key="span")]
    rows = context.ask(queries.history, span.step_s, since=span.since(now))
    if not rows:
        st.info("No lookups or compiles in this period.", icon=":material/schedule:")
        return
    left, right = st.columns(2)
    left.plotly_chart(hit_figure(rows, span, zone, now), key="hit-figure")
    right.plotly_chart(compile_figure(rows, span, zone, now), key="compile-figure")
    with st.expander("Show data table"):
        columns = {"Hit rate": st.column_config.NumberColumn(format="percent"), "Spent": SECONDS, "Saved": SECONDS}
        st.dataframe(history_table(rows, span, zone), hide_index=True, column_config=columns, key="history")


def toolchains() -> None:
    """The toolchains that compiled the kernels, and which are stale."""
    st.subheader("Toolchains")
    found = made_by_toolchain(cache, context.ask(queries.made_with))
    st.text(stale_words(found, zone))
    st.dataframe(
        toolchain_table(found, zone),
        hide_index=True,
        column_order=("Toolchain", "Build", "State", "Stale because", "Kernels", "On disk", "Last compiled", "Open"),
        column_config={"On disk": KIB, "Last compiled": AGE, "Open": LINK},
        key="toolchains",
    )
    if any(made.state == STALE for made in found):
        st.page_link(
            "../pages/admin.py",
            label="Review stale kernels to delete",
            icon=":material/delete_sweep:",
            query_params={"rule": "stale"},
        )


def activity() -> None:
    """The most-hit kernels, and the last events."""
    busiest = context.ask(queries.busiest, limit=10)
    st.subheader("Most-hit kernels")
    if busiest:
        listing.kernel_list(busiest, key="busiest")
    else:
        st.caption("No cache hits yet.")
    st.subheader("Recent activity")
    if events:
        table = event_table(events[:20], zone)
        st.dataframe(table, hide_index=True, column_config={"When": AGE, "Open": LINK}, key="events")
    else:
        st.caption("No activity yet.")


checked()
widgets.tiles(overview_tiles(row, cache.settings.max_entries, cache.settings.max_bytes))
followed()
if not row["entries"]:
    widgets.empty_store()
over_time()
if row["entries"]:
    toolchains()
activity()
