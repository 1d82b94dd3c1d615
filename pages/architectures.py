"""Architectures: kernels by target and by toolchain, and model coverage."""

from __future__ import annotations

import streamlit as st

from app import context, widgets
from app.presenters.compiling.forms import command_of, model_values, table_form
from app.presenters.store.architectures import (
    architecture_table,
    compile_time_figure,
    entries_figure,
    hits_figure,
    stored_bytes_figure,
)
from app.presenters.store.coverage import (
    LEGEND,
    cell_colours,
    covered_words,
    kernel_rows,
    matrix_table,
    missing_archs,
)
from app.presenters.store.toolchains import comparable, figure_table, stale_words, toolchain_table, worse_table
from cache_engine.batch.jobs import DONE, RUNNING
from cache_engine.catalogue import TOKENS, model_shapes
from cache_engine.device.probe import local_arch
from cache_engine.errors import GemmCacheError, StoreError
from cache_engine.insight.coverage import Cell, coverage, wanted
from cache_engine.insight.regressions import regressions
from cache_engine.insight.toolchains import made_by_toolchain
from cache_engine.mirror import queries
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.model.gemm import INPUT_DTYPES, DType
from cache_engine.units import counted

MOST_LINKS = 6
STARTED = "job that compiles missing kernels"
LINK = st.column_config.LinkColumn(display_text="open", width="small")
KIB = st.column_config.NumberColumn(format="%.1f KiB")
SECONDS = st.column_config.NumberColumn(format="%.1f s")
AGE = st.column_config.DatetimeColumn(format="distance")

st.title("Architectures")
cache, zone = context.cache(), context.timezone()
rows = context.ask(queries.architectures)


def targets() -> None:
    """Figures, and their numbers as a table."""
    upper = st.columns(2)
    upper[0].plotly_chart(entries_figure(context.ask(queries.architecture_families)), key="entries")
    upper[1].plotly_chart(compile_time_figure(rows), key="compile-time")
    lower = st.columns(2)
    lower[0].plotly_chart(stored_bytes_figure(rows), key="stored")
    lower[1].plotly_chart(hits_figure(rows), key="hits")
    misses = "Lookups that had to compile, including kernels since evicted. Not recorded by older versions."
    st.dataframe(
        architecture_table(rows, zone),
        hide_index=True,
        column_config={
            "Open": LINK,
            "Cubin size": KIB,
            "On disk": KIB,
            "Total compile time": SECONDS,
            "Median compile time": st.column_config.NumberColumn(format="%.0f ms"),
            "Hits": st.column_config.NumberColumn(help="Hits on kernels still in the store."),
            "Misses": st.column_config.NumberColumn(help=misses),
            "Last used": AGE,
        },
        key="table",
    )


def toolchains() -> None:
    """The toolchains that compiled the kernels."""
    st.subheader("Toolchains")
    found = made_by_toolchain(cache, context.ask(queries.made_with))
    st.text(stale_words(found, zone))
    columns = {"Open": LINK, "On disk": KIB, "Total compile time": SECONDS, "First compiled": AGE, "Last compiled": AGE}
    st.dataframe(toolchain_table(found, zone), hide_index=True, column_config=columns, key="toolchains")
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
    st.dataframe(figure_table(found), hide_index=True, key="figures")
    if found.worse:
        st.dataframe(worse_table(found), hide_index=True, column_config={"Open": LINK}, key="worse")


def covered() -> None:
    """A model's shapes by target, and a job for the missing kernels."""
    st.subheader("Model coverage")
    models = list(dict.fromkeys(shape.model for shape in model_shapes()))
    here = list(dict.fromkeys([*(row["arch"] for row in rows), local_arch() or cache.settings.default_arch]))
    choosing = st.columns([2, 1, 3])
    model = choosing[0].selectbox("Model", models, key="model", bind="query-params")
    dtype = choosing[1].selectbox("Dtype", list(INPUT_DTYPES), index=1, key="dtype", bind="query-params")
    archs = choosing[2].multiselect(
        "Targets",
        list(ARCHITECTURES),
        default=[arch for arch in here if arch in ARCHITECTURES],
        key="archs",
        bind="query-params",
    )
    if not archs:
        st.info("Select at least one target.")
        return
    try:
        cells = coverage(cache, wanted(model_shapes(model), DType(str(dtype)), archs))
    except GemmCacheError as error:
        widgets.problem("Could not work out this model's kernels.", str(error))
        return
    cached = context.ask(queries.names, [kernel.key for row in cells for cell in row for kernel in cell.kernels])
    st.text(covered_words(cells, cached))
    colours = cell_colours(cells, cached)
    chips = st.column_config.MultiselectColumn(options=list(colours), color=list(colours.values()))
    picked = st.dataframe(
        matrix_table(cells, cached),
        hide_index=True,
        height="content",
        column_config={"Operation": st.column_config.TextColumn(pinned=True), **dict.fromkeys(archs, chips)},
        on_select="rerun",
        selection_mode="single-cell",
        key="matrix",
    )
    st.caption(f"{LEGEND}. Click a cell for details.")
    compile_missing(str(model), str(dtype), missing_archs(cells, cached))
    behind([cell for row in cells for cell in row], picked_cell(cells, picked.selection.cells), cached)


def picked_cell(cells: list[list[Cell]], selected: list[tuple[int, str]]) -> Cell | None:
    """The selected cell of the matrix, if it is one of a shape on a target."""
    for number, column in selected:
        return next((cell for cell in cells[number] if cell.arch == column), None) if number < len(cells) else None
    return None


def behind(cells: list[Cell], picked: Cell | None, cached: dict[str, str]) -> None:
    """The kernels of the matrix, or of one cell."""
    if picked is not None:
        linked = [kernel for kernel in picked.kernels if kernel.key in cached]
        with st.container(horizontal=True):
            for kernel in linked[:MOST_LINKS]:
                widgets.kernel_link(f"{picked.shape.operation}, {picked.arch}: {kernel.key[:12]}", kernel.key)
    with st.expander("All kernels in this matrix", expanded=picked is not None):
        shown = kernel_rows(cells if picked is None else [picked], cached)
        st.dataframe(shown, hide_index=True, column_config={"Open": LINK}, key="behind")


def compile_missing(model: str, dtype: str, missing: dict[str, int]) -> None:
    """A job that compiles the missing kernels, and its state."""
    count = sum(missing.values())
    label = f"Compile {counted(count, 'missing kernel')}" if count else "All kernels cached"
    if st.button(label, icon=":material/play_circle:", disabled=not count, key="compile-missing"):
        try:
            form = table_form(cache.settings.default_arch)
            values = model_values(form, model=model, dtype=dtype, arch=list(missing), tokens=TOKENS)
            st.session_state[STARTED] = context.jobs().start(command_of("warm", form, values), values)
        except (GemmCacheError, OSError) as error:
            widgets.problem("Could not start the job.", str(error))
    started = st.session_state.get(STARTED)
    if started is None:
        return
    try:
        state = context.jobs().load(started).state
    except StoreError:
        del st.session_state[STARTED]
        return
    words = {RUNNING: "Compiling…", DONE: "Compiled."}.get(state, f"Compilation ended ({state}).")
    st.page_link(
        "../pages/compile.py",
        label=f"{words} View job",
        icon=":material/sync:" if state == RUNNING else ":material/task:",
        query_params={"job": started},
    )


if rows:
    targets()
    toolchains()
else:
    widgets.empty_store()
covered()
