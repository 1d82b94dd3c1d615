"""Architectures: kernels by target and by toolchain."""

from __future__ import annotations

import streamlit as st

from app import context, tables, widgets
from app.components import figure
from app.presenters.kernels.speed import all_timings_table
from app.presenters.store.architectures import (
    architecture_table,
    compile_time_figure,
    entries_figure,
    hits_figure,
    speed_table,
    stored_bytes_figure,
)
from app.presenters.store.toolchains import comparable, figure_table, stale_words, toolchain_table, worse_table
from cache_engine.errors import GemmCacheError
from cache_engine.index import queries, summaries
from cache_engine.insight.toolchains import made_by_toolchain, regressions, timing_row, timings_csv
from cache_engine.model.measurement import Measurement
from cache_engine.units import counted

MOST_TIMINGS = 1000
if {"model", "dtype", "archs"} & set(st.query_params):  # a link from when coverage was a part of this page
    st.switch_page(
        "../pages/coverage.py", query_params={name: st.query_params.get_all(name) for name in st.query_params}
    )
st.title("Architectures")
cache, zone = context.cache(), context.timezone()
rows = context.ask(queries.architectures)


def targets() -> None:
    """Figures, and their numbers as a table."""
    for place, key, shown in zip(
        st.container(key="figures").columns(4),  # on a phone, one line each
        ("entries", "compile-time", "stored", "hits"),
        (
            entries_figure(context.ask(queries.architecture_families)),
            compile_time_figure(rows),
            stored_bytes_figure(rows),
            hits_figure(rows),
        ),
        strict=True,
    ):
        with place:
            figure.draw(shown, key=key)
    misses = "Lookups that had to compile, including kernels since evicted. Not recorded by older versions."
    tables.show(
        architecture_table(rows, zone),
        sizes=["Cubin size", "On disk"],
        times=["Total compile time", "Median compile time"],
        column_config={
            "Open": tables.LINK,
            "Kernels": tables.COUNT,
            "Hits": st.column_config.NumberColumn(format="localized", help="Hits on kernels still in the store."),
            "Misses": st.column_config.NumberColumn(format="localized", help=misses),
            "Last used": tables.AGE,
        },
        height="content",
        key="table",
    )


def speed() -> None:
    """What was measured on GPUs."""
    st.header("Measured speed")
    measured = context.ask(summaries.speed_by_arch)
    if not measured:
        st.text("Nothing was timed in this store. With a GPU, gemm-cache time, tune and the Compile page time kernels.")
        return
    columns = {
        **dict.fromkeys(("Median TFLOP/s", "Best TFLOP/s"), st.column_config.NumberColumn(format="%,.1f")),
        "Median speed, % of the library's": tables.PERCENT,
        **dict.fromkeys(("Kernels timed", "Timings", "Compared with a library"), tables.COUNT),
        "Last timed": tables.AGE,
    }
    tables.show(speed_table(measured, zone), column_config=columns, key="speed")


def timings() -> None:
    """All timings of the store, also those of evicted kernels: configs are chosen by them."""
    listed = st.expander("All timings", on_change="rerun", key="all_timings", bind="query-params")
    if listed.open:
        with listed:
            timing_list(list(cache.timings))


def timing_list(found: list[Measurement]) -> None:
    """Timings as a table, and as a file."""
    if len(found) > MOST_TIMINGS:
        st.caption(f"The newest {MOST_TIMINGS:,} of {len(found):,}; the file has all.")
    shown = all_timings_table(found[:MOST_TIMINGS], zone)
    columns = {
        "Kernel": tables.LINK,
        "Measured": tables.AGE,
        "TFLOP/s": st.column_config.NumberColumn(format="%,.1f"),
    }
    tables.show(shown, column_config=columns, key="timings")
    st.download_button(
        "CSV",
        lambda: timings_csv([timing_row(one) for one in found]),
        "timings.csv",
        "text/csv",
        icon=":material/download:",
        on_click="ignore",
    )


def toolchains() -> None:
    """The toolchains that compiled the kernels."""
    st.header("Toolchains")
    found = made_by_toolchain(cache, context.ask(queries.made_with))
    st.text(stale_words(found, zone))
    columns = {"Open": tables.LINK, **dict.fromkeys(("First compiled", "Last compiled"), tables.AGE)}
    columns |= dict.fromkeys(("Kernels", "Hits"), tables.COUNT)
    tables.show(
        toolchain_table(found, zone),
        sizes=["On disk"],
        times=["Total compile time"],
        column_config=columns,
        key="toolchains",
    )
    if several := comparable(found):
        with st.expander("Compare toolchains"):
            compared(several)


def compared(toolchains: list[str]) -> None:
    """What two toolchains made of the same kernels. It reads every record, so it waits for a button."""
    with st.form("compare-toolchains", border=False):
        before = st.selectbox("From", toolchains, index=1, key="from-toolchain")
        after = st.selectbox("To", toolchains, key="to-toolchain")
        percent = st.number_input("Threshold (%)", 0.0, 1000.0, 10.0, key="threshold")
        asked = st.form_submit_button("Compare", icon=":material/compare_arrows:")
    if not asked:
        return
    try:
        found = regressions(cache.records(), cache.timings, before, after, percent / 100)
    except GemmCacheError as error:
        widgets.problem("Could not compare.", str(error))
        return
    st.text(f"{counted(found.kernels, 'kernel')} made by both; {counted(len(found.worse), 'figure')} worse.")
    tables.show(figure_table(found), key="figures")
    if found.worse:
        tables.show(worse_table(found), column_config={"Open": tables.LINK}, key="worse")


if rows:
    targets()
    speed()
    timings()
    toolchains()
else:
    widgets.empty_store()
widgets.page_link("../pages/coverage.py", label="Coverage of a model by target", icon=":material/grid_on:")
