"""What a compile farm does, as tables, tiles and a figure. No Streamlit here."""

from __future__ import annotations

from datetime import tzinfo

from app.presenters.figure import Bars, Pattern, Series
from app.presenters.shared import COLOURS, Row, Tile, moment, when
from app.presenters.store.history import hour_names
from cache_engine.team.watching import RUNNING, Farm, Hour, SeenRun
from cache_engine.units import counted, human_age, human_ms

COMMANDS = (
    "redis-server",
    "gemm-cache farm worker --broker redis://host:6379/0 --remote s3://bucket/kernels --sign builder_key",
    "gemm-cache farm compile Llama-3.1-8B --arch sm_80 --arch sm_90a --broker redis://host:6379/0 "
    "--remote s3://bucket/kernels",
)
"""Those of docs/team.md; a test compares them."""
_OUTCOMES: tuple[tuple[str, str, str, Pattern], ...] = (
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


def hour_figure(hours: tuple[Hour, ...], zone: tzinfo) -> Bars:
    """What workers did in each of the last 24 hours."""
    starts = [when(one.start, zone) for one in hours]
    series = []
    for field, name, colour, pattern in _OUTCOMES:
        counts = [getattr(one, field) for one in hours]
        words = [f"{start}\n{name}: {count:,}" for start, count in zip(starts, counts, strict=True)]
        series.append(Series(name, counts, words, colour, pattern))
    names = hour_names([moment(one.start, zone) for one in hours])
    return Bars("Kernels per hour", starts, series, "Kernels", f"1 bar = 1 hour, {zone}", stacked=True, names=names)


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
