"""Architectures: what there is for each target and of each toolchain, and how much of a model is covered."""

from __future__ import annotations

import streamlit as st

from app import context, widgets
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
    warm_command,
)
from app.presenters.store.toolchains import stale_words, toolchain_table
from cache_engine.batch.jobs import DONE, RUNNING
from cache_engine.catalogue import model_shapes
from cache_engine.device.probe import local_arch
from cache_engine.errors import GemmCacheError, StoreError
from cache_engine.insight.coverage import Cell, coverage
from cache_engine.insight.toolchains import made_by_toolchain
from cache_engine.mirror import queries
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.model.gemm import INPUT_DTYPES, DType
from cache_engine.units import counted

MOST_LINKS = 6
STARTED = "job that compiles what is missing"
LINK = st.column_config.LinkColumn(display_text="open", width="small")
KIB = st.column_config.NumberColumn(format="%.1f KiB")
SECONDS = st.column_config.NumberColumn(format="%.1f s")
AGE = st.column_config.DatetimeColumn(format="distance")

st.title("Architectures")
cache, zone = context.cache(), context.timezone()
rows = context.ask(queries.architectures)


def targets() -> None:
    """Figures, and the table behind them."""
    upper = st.columns(2)
    upper[0].plotly_chart(entries_figure(context.ask(queries.architecture_families)), key="entries")
    upper[1].plotly_chart(compile_time_figure(rows), key="compile-time")
    lower = st.columns(2)
    lower[0].plotly_chart(stored_bytes_figure(rows), key="stored")
    lower[1].plotly_chart(hits_figure(rows), key="hits")
    misses = (
        "Lookups that had to compile, also of kernels that are here no more. Journals of older versions do not tell."
    )
    st.dataframe(
        architecture_table(rows, zone),
        hide_index=True,
        column_config={
            "List": LINK,
            "Code": KIB,
            "On disk": KIB,
            "Compiling took": SECONDS,
            "Median": st.column_config.NumberColumn(format="%.0f ms", help="Median compile time."),
            "Hits": st.column_config.NumberColumn(help="Of the kernels that are here now."),
            "Misses": st.column_config.NumberColumn(help=misses),
            "Last used": AGE,
        },
        key="table",
    )


def toolchains() -> None:
    """What made the kernels."""
    st.subheader("Toolchains")
    found = made_by_toolchain(cache, context.ask(queries.made_with))
    st.text(stale_words(found, zone))
    columns = {"List": LINK, "On disk": KIB, "Compiling took": SECONDS, "First made": AGE, "Last made": AGE}
    st.dataframe(toolchain_table(found, zone), hide_index=True, column_config=columns, key="toolchains")


def covered() -> None:
    """A model's shapes by targets, and compiling what is missing."""
    st.subheader("Coverage of a model")
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
        st.info("Choose at least one target.")
        return
    try:
        cells = coverage(cache, model_shapes(model), DType(str(dtype)), archs)
    except GemmCacheError as error:
        widgets.problem("What this model asks for cannot be told.", str(error))
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
    st.caption(f"{LEGEND}. Select a cell to see its kernels.")
    compile_missing(str(model), str(dtype), missing_archs(cells, cached))
    behind([cell for row in cells for cell in row], picked_cell(cells, picked.selection.cells), cached)


def picked_cell(cells: list[list[Cell]], selected: list[tuple[int, str]]) -> Cell | None:
    """The cell of the matrix that is selected, if it is one of a shape on a target."""
    for number, column in selected:
        return next((cell for cell in cells[number] if cell.arch == column), None) if number < len(cells) else None
    return None


def behind(cells: list[Cell], picked: Cell | None, cached: dict[str, str]) -> None:
    """The kernels behind the matrix, or behind one cell."""
    if picked is not None:
        there = [kernel for kernel in picked.kernels if kernel.key in cached]
        with st.container(horizontal=True):
            for kernel in there[:MOST_LINKS]:
                widgets.kernel_link(f"{picked.shape.operation}, {picked.arch}: {kernel.key[:12]}", kernel.key)
    with st.expander("The kernels behind this matrix", expanded=picked is not None):
        shown = kernel_rows(cells if picked is None else [picked], cached)
        st.dataframe(shown, hide_index=True, column_config={"Look into": LINK}, key="behind")


def compile_missing(model: str, dtype: str, missing: dict[str, int]) -> None:
    """A job that compiles what is missing, and how it stands."""
    count = sum(missing.values())
    label = f"Compile {counted(count, 'missing kernel')}" if count else "Nothing is missing"
    if st.button(label, icon=":material/play_circle:", disabled=not count, key="compile-missing"):
        try:
            st.session_state[STARTED] = context.jobs().start(warm_command(model, dtype, missing))
        except (GemmCacheError, OSError) as error:
            widgets.problem("The job cannot be started.", str(error))
    started = st.session_state.get(STARTED)
    if started is None:
        return
    try:
        state = context.jobs().load(started).state
    except StoreError:
        del st.session_state[STARTED]
        return
    words = {RUNNING: "Compiling in the background", DONE: "Compiled"}.get(state, f"Compiling ended ({state})")
    st.page_link(
        "../pages/compile.py",
        label=f"{words}: look at the job",
        icon=":material/sync:" if state == RUNNING else ":material/task:",
        query_params={"job": started},
    )


if rows:
    targets()
    toolchains()
else:
    st.info("The store is empty. Compile a kernel on the Compile page, or run `gemm-cache sample`.")
covered()
