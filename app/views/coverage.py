"""The view of a model's kernels: which are cached for each target, and a job that compiles the missing ones."""

from __future__ import annotations

import streamlit as st

from app import context, guard, job_view, widgets
from app.components import into_view, tables
from app.presenters.coverage import (
    LEGEND,
    cell_colours,
    covered_words,
    estimate_words,
    kernel_columns,
    kernels_of,
    matrix_table,
    missing_archs,
    with_missing,
)
from app.presenters.forms import command_of, model_values, table_form
from cache_engine.batch.jobs import RUNNING
from cache_engine.batch.warm import Estimate, estimate
from cache_engine.cache.selection import Selection
from cache_engine.errors import GemmCacheError, IndexUnavailable, StoreError
from cache_engine.evaluator.catalogue import TOKENS, model_shapes
from cache_engine.gpu.probe import local_arch
from cache_engine.index import queries
from cache_engine.insight.coverage import Cell, coverage, distinct, wanted
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.model.gemm import INPUT_DTYPES, DType
from cache_engine.process import processors
from cache_engine.units import counted

ROW_PX = 35  # of a table of Streamlit's
ESTIMATED_S = 300  # an estimate reads up to 2,000 records


def chosen() -> tuple[str, str, list[str], bool]:
    """Draws the form; returns the model, the dtype, the targets, and whether to show missing kernels only."""
    models = list(dict.fromkeys(shape.model for shape in model_shapes()))
    stored = [row["arch"] for row in context.ask(queries.architectures)]
    here = list(dict.fromkeys([*stored, local_arch() or context.cache().settings.default_arch]))
    columns = st.columns([2, 1, 3, 1], vertical_alignment="bottom")
    model = columns[0].selectbox("Model", models, key="model", bind="query-params")
    dtype = columns[1].selectbox("Dtype", list(INPUT_DTYPES), index=1, key="dtype", bind="query-params")
    archs = columns[2].multiselect(
        "Targets",
        list(ARCHITECTURES),
        default=[arch for arch in here if arch in ARCHITECTURES],
        key="archs",
        bind="query-params",
    )
    only_missing = columns[3].toggle("Missing only", key="missing", bind="query-params")
    return str(model), str(dtype), archs, only_missing


def matrix(model: str, dtype: str, archs: list[str], only_missing: bool) -> None:
    """Draws the number of cached kernels, the job that compiles the missing ones, and the matrix."""
    try:
        generation = context.generation()
    except IndexUnavailable:  # then the last answers are shown
        generation = -1
    cells = covered(str(context.cache().layout.root), generation, model, dtype, tuple(archs))
    needed = distinct([cell] for row in cells for cell in row)
    cached = context.ask(queries.names, [kernel.key for kernel in needed])
    missing = [kernel.selection for kernel in needed if kernel.key not in cached]
    st.text(covered_words(cells, cached))
    compile_missing(model, dtype, missing_archs(cells, cached), missing)
    shown = with_missing(cells, cached) if only_missing else cells
    if not shown:
        st.success("No kernel is missing.", icon=":material/check_circle:")
        return
    colours = cell_colours(shown, cached)
    chips = st.column_config.MultiselectColumn(options=list(colours), color=list(colours.values()))
    picked = st.dataframe(  # the only grid: a cell of it can be chosen
        matrix_table(shown, cached),
        hide_index=True,
        height=ROW_PX * (1 + len(shown)) + 3,  # as its content, but known before it is drawn, so that nothing moves
        column_config={"Operation": st.column_config.TextColumn(pinned=True), **dict.fromkeys(archs, chips)},
        on_select="rerun",
        selection_mode="single-cell",
        key="matrix",
    )
    st.caption(f"{LEGEND}. Click a cell for details.")
    behind([cell for row in shown for cell in row], picked_cell(shown, picked.selection.cells), cached, only_missing)


@st.cache_resource(show_spinner=False, max_entries=8)
def covered(store: str, generation: int, model: str, dtype: str, archs: tuple[str, ...]) -> list[list[Cell]]:  # noqa: ARG001 (timings choose configs)
    """The kernels of a model's shapes on each target; cached, because choosing them takes 50 ms."""
    return coverage(context.cache(), wanted(model_shapes(model), DType(dtype), archs))


def picked_cell(cells: list[list[Cell]], selected: list[tuple[int, str]]) -> Cell | None:
    """The cell of the matrix that the reader selected; ``None`` if none, or not in the column of a target."""
    for number, column in selected:
        return next((cell for cell in cells[number] if cell.arch == column), None) if number < len(cells) else None
    return None


def behind(cells: list[Cell], picked: Cell | None, cached: dict[str, str], only_missing: bool) -> None:
    """Draws the kernels of the selected cell; without one, those of the whole matrix."""
    into_view("cell", "" if picked is None else f"{picked.shape} {picked.arch}")
    with st.expander("All kernels in this matrix", expanded=picked is not None):
        shown = kernels_of(cells if picked is None else [picked], cached, only_missing=only_missing)
        tables.draw(shown, kernel_columns(cached), key="behind")


def compile_missing(model: str, dtype: str, by_arch: dict[str, int], missing: list[Selection]) -> None:
    """Draws the job that compiles missing kernels or, before it starts, its estimated time and a button to start it."""
    running = followed()
    if running or not missing:
        return
    refused = not widgets.may_store()
    label = f"Compile {counted(len(missing), 'missing kernel')}"
    with st.container(horizontal=True, vertical_alignment="center"):
        asked = st.button(label, type="primary", icon=":material/play_circle:", disabled=refused, key="compile-missing")
        words = estimate_words(estimated(str(context.cache().layout.root), tuple(one.key for one in missing), missing))
        st.caption(words, width="content")
    if not asked:
        return
    try:
        form = table_form(context.cache().settings.default_arch)
        values = model_values(form, model=model, dtype=dtype, arch=list(by_arch), tokens=TOKENS)
        st.query_params["job"] = guard.start_job(command_of(job_view.TABLE, form, values), values)
    except (GemmCacheError, OSError) as error:
        widgets.problem("Could not start the job.", str(error))
    else:
        st.rerun()


def followed() -> bool:
    """Draws the job that the address names, with its progress or outcome; returns whether it runs."""
    named = st.query_params.get("job")
    if named is None:
        return False
    try:
        job = context.jobs().load(named)
    except StoreError as error:
        widgets.problem("Job not found.", str(error))
        return False
    with st.container(border=True):
        if job.state == RUNNING:
            job_view.hide_stop()
            job_view.follow(named)
        else:
            job_view.ended(job)
        label = "Open job"
        widgets.page_link("compile", label, "task", job=named)
    return job.state == RUNNING


@st.cache_resource(show_spinner=False, ttl=ESTIMATED_S, max_entries=16)
def estimated(store: str, keys: tuple[str, ...], _missing: list[Selection]) -> Estimate:  # noqa: ARG001 (what it is of)
    """The estimated time of compiling these kernels, from the times of earlier compiles."""
    return estimate(context.cache(), _missing, processors())


def draw() -> None:
    """Draws the form, and the matrix of shapes and targets."""
    model, dtype, archs, only_missing = chosen()
    if not archs:
        st.info("Select at least one target.")
    else:
        try:
            matrix(model, dtype, archs, only_missing)
        except GemmCacheError as error:
            widgets.problem("Could not work out this model's kernels.", str(error))
