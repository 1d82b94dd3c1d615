"""Runs of ``gemm-cache run``: which kernels a server compiled, before and after it was ready."""

from __future__ import annotations

import streamlit as st

from app import context
from app.components import figure, tables
from app.presenters import runs
from cache_engine.frameworks.watch import causes_of, kept_runs

MOST_LATE = 200


def draw() -> None:
    """Draws the list of runs, and one of them: its compiles over time and by cause, and what the run could not see."""
    found = kept_runs(context.cache().layout)
    if not found:
        st.caption("gemm-cache run reports here which kernels a server compiled, and whether it was ready.")
        return
    tables.draw(found, runs.RUN_COLUMNS, key="runs")
    names = {f"{number}": runs.run_name(run, context.timezone()) for number, run in enumerate(found)}
    number = int(st.selectbox("Run", list(names), format_func=names.__getitem__, key="run") or 0)
    run, earlier = found[number], found[number + 1 :]
    if run.compiled:
        figure.draw(runs.run_figure(run), key="run-figure")
        tables.draw(causes_of(run, earlier), runs.CAUSE_COLUMNS, key="causes")
        late_first = sorted(run.compiled, key=lambda one: (one.phase, -one.seen_at))[:MOST_LATE]
        tables.draw(late_first, runs.compile_columns(earlier), key="run-compiles")
    else:
        st.text("0 compiles were seen.")
    for text in run.not_watched:
        st.text(f"Not watched: {text}")
