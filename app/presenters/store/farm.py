"""What a compile farm does, as tables, tiles and a figure. No Streamlit here."""

from __future__ import annotations

from datetime import tzinfo

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, Row, Tile, moment
from cache_engine.farm.watching import RUNNING, Farm, Hour, SeenRun
from cache_engine.units import counted, human_age, human_ms

COMMANDS = (
    "redis-server",
    "gemm-cache farm worker --broker redis://host:6379/0 --remote s3://bucket/kernels --sign builder_key",
    "gemm-cache farm compile Llama-3.1-8B --arch sm_80 --arch sm_90a --broker redis://host:6379/0 "
    "--remote s3://bucket/kernels",
)
"""Those of docs/team.md; a test compares them."""
_OUTCOMES = (
    ("compiled", "Compiled", COLOURS[0], ""),
    ("found", "Found", COLOURS[1], "/"),
    ("failed", "Failed", COLOURS[2], "x"),
)


def farm_tiles(farm: Farm) -> list[Tile]:
    """The numbers."""
    day, last = farm.hours, farm.hours[-2:]
    return [
        Tile("Waiting", f"{farm.waiting:,}", "Kernels that no worker has taken."),
        Tile("In work", f"{farm.taken:,}", "Kernels that workers have taken and not finished."),
        Tile(
            "Workers",
            f"{len(farm.here):,}",
            f"Heard of in the last half minute; together they compile {counted(farm.processes, 'kernel')} at a time.",
        ),
        Tile(
            "Compiled",
            f"{sum(one.compiled for one in day):,}",
            f"In the last 24 hours; {sum(one.compiled for one in last):,} since the last full hour began.",
            over_time=tuple(float(one.compiled) for one in day),
        ),
        Tile("Failed", f"{sum(one.failed for one in day):,}", "In the last 24 hours."),
    ]


def run_words(seen: SeenRun) -> str:
    """How far a run is, in a sentence."""
    run = seen.run
    done = f"{run.kernels - run.left:,} of {counted(run.kernels, 'kernel')} are in the remote"
    if seen.state == RUNNING:
        return f"{done}; about {human_ms(run.eta_s * 1e3)} left (predicted)."
    return f"{done}; {seen.state}, last heard of {human_age(seen.heard_s)}."


def run_share(seen: SeenRun) -> float:
    """How much of a run is done, from 0 to 1."""
    return min(1.0, max(0.0, (seen.run.kernels - seen.run.left) / max(1, seen.run.kernels)))


def run_name(seen: SeenRun) -> str:
    """What a run compiles, for which targets."""
    return f"{seen.run.table} for {', '.join(filter(None, seen.run.archs)) or 'the default target'}"


def worker_table(farm: Farm) -> list[Row]:
    """Each process that compiles, and each worker that does not, the one last heard of first."""
    rows = []
    for worker in farm.workers:
        of_worker = {
            "Worker": worker.name,
            "Host": worker.present.host,
            "Processes": worker.present.processes,
            "Last heard": human_age(worker.heard_s) if worker.heard_s >= 60 else f"{worker.heard_s:.0f} s ago",
            "State": "here" if worker.is_here else "gone",
        }
        doing = worker.doing if worker.is_here else ()
        rows += [
            {**of_worker, "Compiles": one.kernel, "For": max(0.0, farm.at - one.since) * 1e3} for one in doing
        ] or [{**of_worker, "Compiles": "", "For": None}]
    return rows


def hour_figure(hours: tuple[Hour, ...], zone: tzinfo) -> go.Figure:
    """What workers did in each of the last 24 hours."""
    figure = go.Figure()
    starts = [moment(one.start, zone) for one in hours]
    for field, name, colour, pattern in _OUTCOMES:
        figure.add_bar(
            name=name,
            x=[None if at is None else at.replace(tzinfo=None) for at in starts],
            y=[getattr(one, field) for one in hours],
            hovertemplate="%{x|%H:%M}: %{y:,}",
            marker={"color": colour, "pattern": {"shape": pattern, "fillmode": "overlay", "size": 6, "solidity": 0.3}},
        )
    figure.update_layout(
        title="Kernels per hour",
        barmode="stack",
        height=300,
        margin={"t": 48, "b": 72, "l": 56, "r": 16},
        legend={"orientation": "h", "yref": "container", "yanchor": "bottom", "y": 0, "x": 0},
        showlegend=True,
    )
    figure.update_yaxes(title="Kernels", rangemode="tozero")
    figure.update_xaxes(title=f"1 bar = 1 hour, {zone}", type="date")
    return figure


def hour_table(hours: tuple[Hour, ...], zone: tzinfo) -> list[Row]:
    """The numbers of the figure, newest first."""
    return [
        {"From": moment(one.start, zone), "Compiled": one.compiled, "Found": one.found, "Failed": one.failed}
        for one in reversed(hours)
    ]


def failure_table(farm: Farm, zone: tzinfo) -> list[Row]:
    """The last failures, newest first."""
    return [
        {
            "When": moment(one.at, zone),
            "Kernel": one.kernel,
            "Cause": one.error,
            "Worker": one.worker,
            "Key": one.key[:12],
        }
        for one in farm.failures
    ]
