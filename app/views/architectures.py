"""Kernels by target and by toolchain."""

from __future__ import annotations

import streamlit as st

from app import context, widgets
from app.components import tables
from app.presenters import architectures
from app.presenters.architectures import proof_lines
from app.presenters.speed import ALL_TIMINGS
from cache_engine.errors import GemmCacheError
from cache_engine.index import queries, summaries
from cache_engine.insight.toolchains import made_by_toolchain, regressions
from cache_engine.units import counted


def speed() -> None:
    """Draws the sums over timings, by target and GPU."""
    st.header("Measured speed")
    measured = context.ask(summaries.speed_by_arch)
    if not measured:
        st.text("Nothing was timed in this store. With a GPU, gemm-cache time, tune and the Compile page time kernels.")
        return
    tables.draw(measured, architectures.SPEEDS, key="speed")


def timings() -> None:
    """Draws all timings of the store; those of evicted kernels too, because configs are chosen by them."""
    listed = st.expander("All timings", on_change="rerun", key="all_timings", bind="query-params")
    if listed.open:
        with listed:
            tables.draw(context.cache().timings, ALL_TIMINGS, key="timings")


def toolchains() -> None:
    """Draws the toolchains that compiled the kernels, and a comparison of two of them."""
    st.header("Toolchains")
    found = made_by_toolchain(context.cache(), context.ask(queries.made_with))
    st.text(architectures.stale_words(found, context.timezone()))
    tables.draw(found, architectures.TOOLCHAINS, key="toolchains")
    if several := architectures.comparable(found):
        compared(several)


def compared(toolchains: list[str]) -> None:
    """Draws a comparison of the same kernels by two toolchains, after a click, as it reads every record."""
    st.header("Compare toolchains")
    with st.form("compare-toolchains", border=False):
        before = st.selectbox("From", toolchains, index=1, key="from-toolchain")
        after = st.selectbox("To", toolchains, key="to-toolchain")
        percent = st.number_input("Threshold (%)", 0.0, 1000.0, 10.0, key="threshold")
        asked = st.form_submit_button("Compare", icon=":material/compare_arrows:")
    if not asked:
        return
    try:
        cache = context.cache()
        found = regressions(cache.records(), cache.timings, before, after, percent / 100)
    except GemmCacheError as error:
        widgets.problem("Could not compare.", str(error))
        return
    st.text(f"{counted(found.kernels, 'kernel')} made by both; {counted(len(found.worse), 'figure')} worse.")
    tables.draw(found.summaries, architectures.FIGURE_COLUMNS, key="figures")
    if found.worse:
        titles = context.titles(one.to_key for one in found.worse)
        tables.draw(found.worse, architectures.worse_columns(titles), key="worse")


def draw() -> None:
    """Draws the kernels by target and by toolchain; for an empty store, advice alone."""
    rows = context.ask(queries.architectures)
    if rows:
        tables.draw(rows, architectures.TARGETS, key="targets")
        for line in proof_lines(context.cache().layout):
            st.text(line)
        speed()
        timings()
        toolchains()
    else:
        widgets.empty_store()
