"""Shares of the demand, the m of one shape, the model most like the demand, and kernels evicted too early."""

from __future__ import annotations

import math
import time

import streamlit as st

from app import context, widgets
from app.addresses import OF_A_MODEL
from app.components import figure, tables
from app.components.figure import draw_tiles
from app.presenters import demand
from app.search_limit import SHORTER_RANGE, advice
from cache_engine.cache.demand.report import MODEL, SHAPE, DemandReport
from cache_engine.errors import GemmCacheError, SearchStopped
from cache_engine.evaluator.catalogue import model_shapes
from cache_engine.index import queries, summaries
from cache_engine.insight.coverage import coverage, wanted
from cache_engine.model.gemm import DType
from cache_engine.units import counted, human_age
from cache_engine.usage.demand import HALF_LIFE_S, Ledger

STEP_S = 60  # answers are cached for as long
MOST_AGAIN = 50
MOST_SHARES = 1000
Span = tuple[float, float, float | None]
"""A time range: the seconds after which a launch counts half; its end; its start, ``None`` for the first launch.

Start and end are in seconds since 1970.
"""


def chosen() -> Span:
    """Draws the choice of the time range; returns that range."""
    back_s = demand.SPANS[widgets.choose_one("Time range", list(demand.SPANS), demand.NOW, key="span")]
    at = time.time() // STEP_S * STEP_S + STEP_S
    half_life_s = HALF_LIFE_S if back_s is None else math.inf
    return half_life_s, at, None if back_s is None else at - back_s


def counted_since(ledger: Ledger, span: Span) -> None:
    """Draws since when requests are counted, and after how many hours a launch counts half."""
    half_life_s, at, _ = span
    since = f"Counting began {human_age(at - ledger.since)}."
    decay = "" if half_life_s == math.inf else f"A launch counts half as much after {half_life_s / 3600:g} hours."
    st.caption(f"{since} {decay}".strip())


def shares(span: Span) -> None:
    """Draws the shares of the demand in a time range, by shape, kernel, model or target."""
    by = demand.BY[widgets.choose_one("Shares of", list(demand.BY), "Shape", key="by")]
    try:
        report = context.ask(context.demand_report, by, *span, limit_s=context.cache().settings.page_limit_s)
    except SearchStopped as error:
        widgets.problem("It took too long to add up the shares.", f"{error}. {advice(SHORTER_RANGE)}")
        return
    st.text(demand.source_words(report))
    if not report.shares:
        st.info("What was asked for belongs to no model of the catalogue.", icon=":material/search_off:")
        return
    tables.draw(report.shares, demand.share_columns(by), key="share-table")
    if by == MODEL:
        st.caption("Models may share shapes, so their shares overlap.")


def sizes(ledger: Ledger, report: DemandReport) -> None:
    """Draws the histogram of m of one shape, and the kernels that serve each m."""
    st.header("Sizes of one shape")
    linked = st.query_params.get("shape")
    kernels = context.cache().demand
    names = {
        share.name: share.shape
        for number, share in enumerate(report.shares)
        if share.shape is not None and (number < MOST_SHARES or share.name == linked)
    }
    chosen = st.selectbox("Shape", list(names), key="shape", bind="query-params")
    shape = names.get(str(chosen))
    if shape is None:
        return
    figure.draw(demand.m_figure(ledger, shape), key="sizes")
    keys = [key for m in ledger.sketches[shape].counters if (key := kernels.kernel_of(shape, m)[1])]
    cached = context.ask(queries.names, sorted(set(keys)))
    rows = demand.m_table(ledger, shape, kernels.times(), kernels.kernel_of, cached)
    tables.draw(rows, demand.SIZES, key="sizes-table")
    st.caption("The most frequent m, and the kernel that serves each today.")


def looks_like(span: Span, report: DemandReport) -> None:
    """Draws the model of the catalogue that the demand is most like, and the number of its missing kernels."""
    st.header("Model")
    models = context.ask(context.demand_report, MODEL, *span).shares
    if not models:
        st.caption("What was asked for is like no model of the catalogue.")
        return
    best = models[0]
    of_all = f"{best.asked_shapes} of its {counted(best.all_shapes, 'shape')}"
    st.text(f"Most like {best.name}: {of_all} were asked for, which take {best.launch_share:.1%} of all launches.")
    shapes = model_shapes(best.name)
    kind = demand.main_kind(report, {(one.n, one.k) for one in shapes})
    if kind is None:
        return
    try:
        cells = [row[0] for row in coverage(context.cache(), wanted(shapes, DType(kind[0]), [kind[1]]))]
    except (GemmCacheError, ValueError) as error:
        widgets.problem("Could not work out this model's kernels.", str(error))
        return
    keys = [kernel.key for cell in cells for kernel in cell.kernels]
    cached = context.ask(queries.names, sorted(set(keys)))
    missing = len(set(keys) - set(cached))
    st.text(f"Of its {counted(len(set(keys)), 'kernel')} for {kind[0]} on {kind[1]}, {missing:,} are missing.")
    tables.draw(cells, demand.model_columns(report, cached), key="model")
    widgets.page_link(
        "workload",
        "Coverage, and compile what is missing",
        "grid_on",
        part=OF_A_MODEL,
        model=best.name,
        dtype=kind[0],
        archs=kind[1],
    )


def again() -> None:
    """Draws the kernels that were evicted and then requested again."""
    st.header("Evicted and asked for again")
    found = context.cache().admin.early_evictions()
    if not found:
        st.caption("The log of decisions has no kernel that was evicted and asked for again.")
        return
    if len(found) > MOST_AGAIN:
        st.caption(f"{counted(len(found), 'kernel')}; these were asked for last.")
    shown = found[:MOST_AGAIN]
    compile_ms = context.ask(summaries.compile_times, [one.key for one in shown])
    tables.draw(shown, demand.again_columns(compile_ms, context.titles(one.key for one in shown)), key="again")


def draw() -> None:
    """Draws the requests of programs, and the kernels that were evicted too early."""
    span = chosen()
    ledger = context.ask(summaries.ledger, *span)
    if ledger.sketches:
        counted_since(ledger, span)
        by_shape = context.ask(context.demand_report, SHAPE, *span)
        draw_tiles(demand.demand_tiles(by_shape))
        shares(span)
        sizes(ledger, by_shape)
        looks_like(span, by_shape)
    else:
        st.info("Nothing was asked for in this time. Each kernel that a program gets and each launch by matmul count.")
        widgets.page_link("compile", "Compile a kernel", "play_circle")
    again()
