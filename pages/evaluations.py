"""Evaluations: how long a shape, or a model's shapes, would take on a chip; two chips side by side; what is kept."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import context, widgets
from app.presenters.evaluations import (
    CHIPS,
    as_json,
    evaluate_on,
    evaluation_tiles,
    heat_map,
    heat_map_figure,
    kept_table,
    model_problems,
    model_table,
    roofline_figure,
)
from cache_engine.catalogue import model_shapes
from cache_engine.errors import GemmCacheError
from cache_engine.evaluator.problem import ITEMSIZE, MAX_DIMENSION, EvaluationProblem

ONE, MODEL = "One shape", "A model's shapes"
ALONE = "no other"
LARGEST = min(MAX_DIMENSION, 2**53 - 1)  # what a browser counts exactly

kept_values: Any = {"persist_state": "session"}


@st.cache_data(show_spinner="Evaluating…", max_entries=64)
def shares_of_peak(problem: EvaluationProblem, chip: str) -> list[list[float]]:
    """Shares of the peak over m and n; a hundred searches."""
    return heat_map(problem, CHIPS[chip])


def one_shape(names: list[str]) -> None:
    """A shape on each chip: its numbers, the roofline plot, the heat-map."""
    sizes = st.columns(6)
    m = sizes[0].number_input("m", 1, LARGEST, 4096, key="e_m", **kept_values)
    n = sizes[1].number_input("n", 1, LARGEST, 7168, key="e_n", **kept_values)
    k = sizes[2].number_input("k", 1, LARGEST, 2048, key="e_k", **kept_values)
    batch = sizes[3].number_input("Batch", 1, LARGEST, 1, key="e_batch", **kept_values)
    dtype = sizes[4].selectbox("Dtype of A and B", list(ITEMSIZE), index=5, key="e_dtype", **kept_values)
    out_dtype = sizes[5].selectbox("Dtype of C", list(ITEMSIZE), index=5, key="e_out_dtype", **kept_values)
    problem = EvaluationProblem(m, n, k, batch, dtype, out_dtype)
    evaluated = [evaluate_on(kept, f"{m} × {n} × {k}", problem, CHIPS[name]) for name in names]
    for one in evaluated:
        st.subheader(one.chip)
        widgets.tiles(evaluation_tiles(one))
    plots = st.columns(len(names) + 1)
    plots[0].plotly_chart(roofline_figure(evaluated), key="roofline")
    for plot, name in zip(plots[1:], names, strict=True):
        figure = heat_map_figure(shares_of_peak(problem, name), problem, name)
        plot.plotly_chart(figure, key=f"heat-{name}")


def model(names: list[str]) -> None:
    """A model's shapes on each chip: a table to take away, and the roofline plot."""
    choices = st.columns(3)
    models = list(dict.fromkeys(shape.model for shape in model_shapes()))
    chosen = choices[0].selectbox("Model", models, key="e_model", **kept_values)
    m = choices[1].number_input("m (tokens)", 1, LARGEST, 4096, key="e_tokens", **kept_values)
    dtype = choices[2].selectbox("Dtype", list(ITEMSIZE), index=5, key="e_model_dtype", **kept_values)
    problems = model_problems(model_shapes(chosen), m, dtype)
    rows = [
        (
            operation,
            layers,
            [evaluate_on(kept, operation, problem, CHIPS[name]) for name in names],
        )
        for operation, layers, problem in problems
    ]
    table = model_table(rows)
    formats = {f"{name}, of peak": st.column_config.NumberColumn(format="percent") for name in names}
    formats |= {f"{name}, µs": st.column_config.NumberColumn(format="%.2f") for name in names}
    formats |= {f"{name}, a pass, ms": st.column_config.NumberColumn(format="%.3f") for name in names}
    st.dataframe(table, hide_index=True, column_config=formats, key="e_table")
    st.download_button("Download as JSON", as_json(table), f"{chosen}-{m}.json", "application/json")
    points = [evaluated for _, _, on in rows for evaluated in on]
    st.plotly_chart(roofline_figure(points), key="model-roofline")


def what_is_kept() -> None:
    """Accelerators with results, and their interchange files."""
    st.subheader("Kept results")
    summaries = kept.summaries()
    if not summaries:
        st.info("No results are kept yet. Those of accelerators are; predicting a GPU takes no search.")
        return
    table = kept_table(summaries, context.timezone())
    st.dataframe(
        table,
        hide_index=True,
        column_config={"Last one": st.column_config.DatetimeColumn(format="distance")},
        key="e_kept",
    )
    there = [row["arch_fingerprint"] for row in summaries if "error" not in row]
    if there:
        labels = {
            row["arch_fingerprint"]: f"{row['chip']} ({row['arch_fingerprint'][:8]})"
            for row in summaries
            if "error" not in row
        }
        chosen = st.selectbox("Export the results of", there, format_func=lambda found: labels[found], key="e_export")
        st.download_button(
            "Export", lambda: kept.export(chosen), f"gemm_cache_{chosen}.json", "application/json", on_click="ignore"
        )


st.title("Evaluations")
kept = context.cache().evaluations
st.caption("Predicted, not measured: accelerators by the core-grid model, GPUs by a model calibrated on measurements.")

first, second, what = st.columns(3)
chip = first.selectbox("Chip", list(CHIPS), index=list(CHIPS).index("SG2262"), key="e_chip", **kept_values)
other = second.selectbox("Beside", [ALONE, *CHIPS], key="e_other", **kept_values)
kind = what.segmented_control("Evaluate", [ONE, MODEL], default=ONE, required=True, key="e_kind")
chosen_chips = list(dict.fromkeys(name for name in (chip, other) if name in CHIPS))
try:
    (one_shape if kind == ONE else model)(chosen_chips)
except GemmCacheError as error:
    widgets.problem("This cannot be evaluated.", str(error))
kept.flush()
what_is_kept()
