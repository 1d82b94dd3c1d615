"""The page Workload: shapes on targets, asked for or of a model, with the kernels that are missing; and runs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import streamlit as st

from app import context, job_view, widgets
from app.addresses import ASKED_FOR, OF_A_MODEL, RUNS, WORKLOADS
from app.components import figure, into_view, tables
from app.presenters import workload as shown
from app.presenters.forms import model_values, request_address, table_form
from app.presenters.shared import Row
from app.views import runs
from app.widgets import SHORTER_RANGE, advice
from cache_engine.batch.jobs import RUNNING
from cache_engine.batch.warm import Estimate, estimate
from cache_engine.cache.demand import DemandReport, in_words, models_like
from cache_engine.cache.selection import Selection
from cache_engine.errors import GemmCacheError, IndexUnavailable, SearchStopped
from cache_engine.evaluator.catalogue import TOKENS, model_shapes
from cache_engine.gpu.probe import local_arch
from cache_engine.index import queries, summaries
from cache_engine.insight.coverage import (
    MOST_SIZES,
    Cell,
    Covering,
    WorkCell,
    asked_cell,
    asked_rows,
    coverage,
    kernel_shares,
    model_rows,
    wanted,
)
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.model.gemm import INPUT_DTYPES, DType
from cache_engine.process import processors
from cache_engine.units import counted, human_age, human_ms
from cache_engine.usage.demand import HALF_LIFE_S, Ledger

STEP_S = 60  # answers about the demand are cached for as long
ESTIMATED_S = 300  # an estimate reads up to 1,000 records
MOST_ROWS, MOST_CHOICES = 60, 1_000  # of shapes that were asked for, and of kernels to choose for them
MOST_AGAIN = 50
MOST_TARGETS = 3  # of the store, chosen at first; each takes 0.1 s for a large model
Demand = tuple[Ledger, DemandReport]


def demanded(span: str) -> Demand | None:
    """All requests in a time range, with their shares; ``None``, with the reason shown, if adding up takes too long."""
    back_s = shown.SPANS[span]
    at = time.time() // STEP_S * STEP_S + STEP_S
    half_life_s = HALF_LIFE_S if back_s is None else math.inf
    since, limit_s = None if back_s is None else at - back_s, context.cache().settings.page_limit_s
    try:
        return context.ask(context.demand, half_life_s, at, since, limit_s=limit_s)
    except SearchStopped as error:
        widgets.problem("It took too long to add up the shares.", f"{error}. {advice(SHORTER_RANGE)}")
        return None


def state() -> tuple[str, int]:
    """The store and its index's generation. Choices of kernels are cached for these, as new timings may change them."""
    try:
        return str(context.cache().layout.root), context.generation()
    except IndexUnavailable:  # then the last answers are shown
        return str(context.cache().layout.root), -1


def asked_for() -> None:
    """Draws the matrix of what programs asked for."""
    left, right = st.columns([4, 1], vertical_alignment="bottom")
    with left:
        span = widgets.choose_one("Time range", list(shown.SPANS), shown.NOW, key="span")
    only_missing = right.toggle("Missing only", key="missing", bind="query-params")
    found = demanded(span)
    if found is None:
        return
    ledger, report = found
    if not ledger.sketches:
        st.info("Nothing was asked for in this time. Each kernel that a program gets and each launch by matmul count.")
        widgets.page_link("compile", "Compile a kernel", "play_circle")
        again()
        return
    st.text(shown.demand_words(report))
    since = f"Counting began {human_age(report.at - ledger.since)}."
    decay = "" if report.half_life_s == math.inf else f"A launch counts half after {report.half_life_s / 3600:g} hours."
    st.caption(f"{since} {decay} {shown.source_words(report)}")
    rows, count = most_asked((*state(), span, report.at), found)
    kept = ({} if span == shown.NOW else {"span": span}) | ({"missing": "true"} if only_missing else {})
    matrix(rows, found, kept, only_missing=only_missing)
    if len(rows) < count:
        st.caption(f"The {len(rows):,} shapes with the most demand, of {count:,}; gemm-cache demand lists all.")
    models = models_like(report)
    if models:
        with st.expander("Models with these shapes"):
            tables.draw(models, shown.MODELS, key="models")
            st.caption("The most similar first. Models may share shapes, so their shares overlap.")
            name = models[0].name
            st.button(f"What {name} needs", icon=":material/grid_on:", on_click=show_model, args=(name,))
    again()


@st.cache_resource(show_spinner=False, max_entries=8)
def most_asked(of: tuple[object, ...], _found: Demand) -> tuple[list[list[WorkCell]], int]:  # noqa: ARG001
    """The cells of the shapes with the most demand, and the number of all; cached: choosing kernels takes 0.1 s."""
    ledger, report = _found
    all_rows, rows, choices = asked_rows(report), list[list[WorkCell]](), 0
    for shares in all_rows[:MOST_ROWS]:
        row = [asked_cell(context.cache(), share, ledger.sketches[share.shape]) for share in shares if share.shape]
        choices += sum(len(kernel.ms) for cell in row for kernel in cell.kernels)
        rows.append(row)
        if choices > MOST_CHOICES:
            break
    return rows, len(all_rows)


def show_model(name: str) -> None:
    """Chooses a model. A link could not, because widgets keep their values while the page stays the same."""
    widgets.renew_address()
    st.session_state["part"] = OF_A_MODEL
    st.session_state["model"] = st.query_params["model"] = name


def of_a_model() -> None:
    """Draws the matrix of a model's shapes, and the job that compiles all that is missing."""
    models = list(dict.fromkeys(shape.model for shape in model_shapes()))
    stored = sorted(context.ask(queries.sizes_of, queries.KernelFilter()), key=lambda row: -row["entries"])
    here = [local_arch() or context.cache().settings.default_arch, *(row["arch"] for row in stored)]
    columns = st.columns([2, 1, 3, 1], vertical_alignment="bottom")
    model = str(columns[0].selectbox("Model", models, key="model", bind="query-params"))
    dtype = str(columns[1].selectbox("Dtype", list(INPUT_DTYPES), index=1, key="dtype", bind="query-params"))
    known = [arch for arch in ARCHITECTURES if arch in here[: 1 + MOST_TARGETS]]
    archs = columns[2].multiselect("Targets", list(ARCHITECTURES), known, key="archs", bind="query-params")
    only_missing = columns[3].toggle("Missing only", key="missing", bind="query-params")
    if not archs:
        st.info("Select at least one target.")
        return
    found = demanded(shown.NOW)
    if found is None:
        return
    try:
        cells = covered(state(), model, dtype, tuple(archs))
    except GemmCacheError as error:
        widgets.problem("Could not work out this model's kernels.", str(error))
        return
    kept = {"part": OF_A_MODEL, "model": model, "dtype": dtype, "archs": archs}
    kept |= {"missing": "true"} if only_missing else {}
    rows = model_rows(cells, found[1])
    matrix(rows, found, kept, only_missing=only_missing, job={"model": model, "dtype": dtype, "tokens": TOKENS})


@st.cache_resource(show_spinner=False, max_entries=8)
def covered(of: tuple[str, int], model: str, dtype: str, archs: tuple[str, ...]) -> list[list[Cell]]:  # noqa: ARG001
    """The kernels of a model's shapes on each target; cached, because choosing them takes 50 ms."""
    return coverage(context.cache(), wanted(model_shapes(model), DType(dtype), archs))


def states_of(rows: Sequence[Sequence[WorkCell]]) -> shown.States:
    """The states of all kernels of these cells."""
    keys: list[str] = sorted({kernel.key for row in rows for cell in row for kernel in cell.kernels})
    stored = context.ask(queries.names, keys)
    missing = [key for key in keys if key not in stored]
    departed = context.ask(queries.departed, missing) if missing else {}
    return shown.States(stored, departed, set(context.cache().admin.pinned()))


def matrix(
    rows: list[list[WorkCell]], found: Demand, kept: dict[str, Any], *, only_missing: bool, job: Row | None = None
) -> None:
    """Draws the matrix, the cell that the address names, and all kernels of the matrix.

    Args:
        kept: the parameters of the address that the links of cells keep.
        job: values of the form of a whole model that compiles all that is missing; by default only cells have a job.
    """
    ledger, report = found
    states = states_of(rows)
    # An address of an older version has the target at the end of the shape.
    name = f"{st.query_params.get('shape', '')} {st.query_params.get('target', '')}".strip()
    cells = [cell for row in rows for cell in row]
    chosen = next((one for one in cells if in_words(one.shape) == name), None)
    if chosen is None and job is None:  # a shape with less demand than those that are drawn
        share = next((one for one in report.shares if one.shape and one.name == name), None)
        chosen = asked_cell(context.cache(), share, ledger.sketches[share.shape]) if share and share.shape else None
        states = states_of([*rows, [chosen]]) if chosen else states
    st.text(shown.stored_words(cells, states.stored))
    is_busy = followed()
    if job is not None and not is_busy:
        missing = {kernel.key: kernel for cell in cells for kernel in cell.missing(states.stored)}
        by_arch = dict.fromkeys(cell.shape.arch for cell in cells if cell.missing(states.stored))
        compile_missing("compile-missing", list(missing.values()), job | {"arch": list(by_arch)})
    drawn = [row for row in rows if not only_missing or any(cell.missing(states.stored) for cell in row)]
    view = shown.Matrix(drawn, states, report.total, kept, chosen)
    if drawn:
        tables.draw(drawn, view.columns(), key="matrix", label="Shapes by target", stays=True)
        st.caption(f"{view.share_words()} {shown.LEGEND}. A cell leads to its kernels.")
    else:
        st.success("No kernel is missing.", icon=":material/check_circle:")
    if chosen is not None:
        one_cell(chosen, found, states, is_busy=is_busy)
    elif name:
        st.info("The link asks for a shape and target that this matrix does not have.", icon=":material/link_off:")
    if st.toggle("List all kernels", key="all", bind="query-params"):  # no expander: what is closed costs as much
        list_kernels(drawn, found, states, key="kernels", missing=only_missing)


def list_kernels(
    rows: Sequence[Sequence[WorkCell]], found: Demand, states: shown.States, *, key: str, missing: bool = False
) -> None:
    """Draws a table of all kernels of these cells, or of those that are missing."""
    ledger, report = found
    times = context.cache().demand.times()
    cells = [cell for row in rows for cell in row]
    sketches = {cell.shape: ledger.sketches[cell.shape] for cell in cells if cell.shape in ledger.sketches}
    times.predict_ahead({shape: [m for m, _ in sketch.spread()] for shape, sketch in sketches.items()})
    kernels = [
        (cell, kernel, share)
        for cell in cells
        for kernel, share in zip(cell.kernels, kernel_shares(cell, ledger, times, report.total), strict=True)
        if not missing or kernel.key not in states.stored
    ]
    tables.draw(kernels, shown.kernel_columns(states, of_one=len(cells) == 1), key=key)


def one_cell(cell: WorkCell, found: Demand, states: shown.States, *, is_busy: bool) -> None:
    """Draws a cell: how often each m was asked for, its kernels, and the job that compiles the missing ones."""
    into_view("cell", in_words(cell.shape))
    st.header("Chosen cell")
    st.code(in_words(cell.shape), language=None, wrap_lines=True)
    missing, sketch = cell.missing(states.stored), found[0].sketches.get(cell.shape)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text(shown.stored_words([cell], states.stored), width="content")
        search = f"n={cell.shape.n} k={cell.shape.k}"
        widgets.page_link("kernels", "Stored kernels of this n and k", "memory", text=search, arch=cell.shape.arch)
        if cell.kernels:
            asked = request_address(cell.kernels[0].selection.problem)
            widgets.page_link("compile", "Open in Compile", "tune", **asked)
    if not is_busy and missing:
        form = table_form(context.cache().settings.default_arch)
        compile_missing("compile-cell", missing, *shown.shape_job(form, missing))
    if sketch is None:
        st.caption("Programs have not asked for it, so no m is known.")
    else:
        figure.draw(shown.m_figure(sketch), key="sizes")
    if cell.kernels:
        list_kernels([[cell]], found, states, key="cell-kernels")
    else:
        st.text(f"No kernel can serve it: {cell.refused}")
    if cell.share is not None and not cell.operation and len(sketch.spread() if sketch else ()) > MOST_SIZES:
        st.caption(f"Kernels of the {MOST_SIZES} m that were asked for most often.")


def compile_missing(key: str, missing: Sequence[Covering], values: Row, table: bytes = b"") -> None:
    """Draws a button that starts the job that compiles these kernels, with its estimated time.

    Args:
        values: values of the form of a whole model; the others are its defaults.
        table: the shapes, if the values name no model of the catalogue.
    """
    if not missing:
        return
    refused = not widgets.may_store()
    label = f"Compile these {len(missing):,}" if table else f"Compile {counted(len(missing), 'missing kernel')}"
    with st.container(horizontal=True, vertical_alignment="center"):
        asked = st.button(label, type="primary", icon=":material/play_circle:", disabled=refused, key=key)
        selections = [kernel.selection for kernel in missing]
        about = estimated(str(context.cache().layout.root), tuple(one.key for one in selections), selections)
        spent = human_ms(about.seconds * 1e3)
        st.caption(f"About {spent} of compiling on this machine, {about.by}.", width="content")
    form = table_form(context.cache().settings.default_arch)
    if asked and job_view.start(job_view.TABLE, form, model_values(form, **values), table):
        st.rerun()


def followed() -> bool:
    """Draws the job that the address names, with its progress or outcome; returns whether it runs."""
    job = job_view.named()
    if job is None:
        return False
    with st.container(border=True):
        job_view.draw(job)
        widgets.page_link("compile", "Open job", "task", job=job.id)
    return job.state == RUNNING


@st.cache_resource(show_spinner=False, ttl=ESTIMATED_S, max_entries=16)
def estimated(store: str, keys: tuple[str, ...], _missing: list[Selection]) -> Estimate:  # noqa: ARG001 (what it is of)
    """The estimated time of compiling these kernels, from the times of earlier compiles."""
    return estimate(context.cache(), _missing, processors())


def again() -> None:
    """Draws the kernels that were evicted and then requested again."""
    st.header("Evicted and asked for again")
    found = context.cache().admin.early_evictions()
    if not found:
        st.caption("The log of decisions has no kernel that was evicted and asked for again.")
        return
    if len(found) > MOST_AGAIN:
        st.caption(f"{counted(len(found), 'kernel')}; these were asked for last.")
    found = found[:MOST_AGAIN]
    compile_ms = context.ask(summaries.compile_times, [one.key for one in found])
    tables.draw(found, shown.again_columns(compile_ms, context.titles(one.key for one in found)), key="again")


st.title("Workload")
context.cache()
part = widgets.choose_one("Part", WORKLOADS, ASKED_FOR, key="part", hidden=True)
{ASKED_FOR: asked_for, OF_A_MODEL: of_a_model, RUNS: runs.draw}[part]()
