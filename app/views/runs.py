"""Runs of ``gemm-cache run``: the kernels that a server compiled, before and after it was ready."""

from __future__ import annotations

import shlex
from datetime import tzinfo
from operator import itemgetter

import streamlit as st

from app import context
from app.components import figure, tables
from app.presenters.columns import Column
from app.presenters.figure import Bars, Pattern, Series
from app.presenters.shared import COLOURS, when
from cache_engine.frameworks.watch import AFTER, BEFORE, Run, cause_of, causes_of, kept_runs
from cache_engine.units import counted, human_ms

MOST_LATE = 200
_STEPS = 30
RUN_COLUMNS = (
    Column("Started", "started_at", "when"), Column("Command", lambda run: shlex.join(run.command)[:120]),
    Column("Before ready", "before", "count"), Column("After ready", "after", "count"),
    Column("Kernels", "found", "count"), Column("Exit code", "exit_code"), Column("Root", "root"),
    Column("Ready after", lambda run: None if run.ready_at is None else 1e3 * (run.ready_at - run.started_at), "ms"),
)  # fmt: skip
"""The columns of runs; "before" and "after ready" are numbers of compiles."""
CAUSE_COLUMNS = (
    Column("Cause", itemgetter(0)), Column("Before ready", itemgetter(1), "count"),
    Column("After ready", itemgetter(2), "count"),
)  # fmt: skip
"""The columns of the causes of a run's compiles, with the number before and after the command was ready."""


def draw() -> None:
    """Draws the list of runs, and one of them: its compiles over time and by cause, and what the run could not see."""
    found = kept_runs(context.cache().layout)
    if not found:
        st.caption("gemm-cache run reports here which kernels a server compiled, and whether it was ready.")
        return
    tables.draw(found, RUN_COLUMNS, key="runs")
    names = {f"{number}": run_name(run, context.timezone()) for number, run in enumerate(found)}
    number = int(st.selectbox("Run", list(names), format_func=names.__getitem__, key="run") or 0)
    run, earlier = found[number], found[number + 1 :]
    if run.compiled:
        figure.draw(run_figure(run), key="run-figure")
        tables.draw(causes_of(run, earlier), CAUSE_COLUMNS, key="causes")
        late_first = sorted(run.compiled, key=lambda one: (one.phase, -one.seen_at))[:MOST_LATE]
        tables.draw(late_first, compile_columns(earlier), key="run-compiles")
    else:
        st.text("0 compiles were seen.")
    for text in run.not_watched:
        st.text(f"Not watched: {text}")


def run_name(run: Run, zone: tzinfo) -> str:
    """The name of a run in lists of choices: its start and its command."""
    return f"{when(run.started_at, zone)}: {shlex.join(run.command)[:80]}"


def run_figure(run: Run) -> Bars:
    """The compiles of a run in time, before and after the command was ready."""
    times = [one.seen_at for one in run.compiled]
    end = max([run.started_at + 1.0, *times, *([run.ended_at] if run.ended_at else [])])
    step = (end - run.started_at) / _STEPS
    counts = {phase: [0] * _STEPS for phase in (BEFORE, AFTER)}
    for one in run.compiled:
        at = min(max(int((one.seen_at - run.started_at) / step), 0), _STEPS - 1)
        counts[AFTER if one.phase == AFTER else BEFORE][at] += 1
    groups = [human_ms(step * number * 1e3) if number else "0" for number in range(_STEPS)]
    patterns: dict[str, Pattern] = {BEFORE: "", AFTER: "/"}
    series = [
        Series(
            f"{phase} ready",
            [float(count) if count else None for count in found],
            [f"{counted(count, 'compile')} {phase} ready, from {at}" for count, at in zip(found, groups, strict=True)],
            colour,
            patterns[phase],
        )
        for (phase, found), colour in zip(counts.items(), (COLOURS[1], COLOURS[2]), strict=True)
    ]
    names = [name if number % 5 == 0 else "" for number, name in enumerate(groups)]
    return Bars("Compiles", groups, series, "compiles", "time since the start", stacked=True, names=names)


def compile_columns(earlier: list[Run]) -> tuple[Column, ...]:
    """The columns of the compiles of a run; the cause of each also depends on ``earlier`` runs."""
    return (
        Column("Framework", "framework"),
        Column("Kernel", "name"),
        Column("When", "phase"),
        Column("Seen", "seen_at", "when"),
        Column("Took", lambda one: None if one.seconds is None else one.seconds * 1e3, "ms"),
        Column("Cause", lambda one: cause_of(one, earlier)),
    )
