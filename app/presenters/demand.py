"""The demand on a store: tables and figures."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import tzinfo
from operator import attrgetter, itemgetter
from typing import Any

from app.presenters.columns import Column
from app.presenters.figure import Bars, Pattern, Series
from app.presenters.shared import COLOURS, Row, Tile, kernel_address, when
from cache_engine.cache.demand.report import KERNEL, MODEL, DemandReport, KernelOf
from cache_engine.cache.demand.times import UNKNOWN, LaunchTimes
from cache_engine.frameworks.runs import cause_of
from cache_engine.frameworks.watch import AFTER, BEFORE, Run
from cache_engine.model.events import DAY_S
from cache_engine.model.shape_counts import Shape
from cache_engine.units import counted, human_ms, human_rate
from cache_engine.usage.demand import Ledger

NOW = "Now"
SPANS = {NOW: None, "24 hours": DAY_S, "7 days": 7 * DAY_S, "28 days": 28 * DAY_S}
"""Time ranges by name: the last so many seconds or, for ``None``, all time, where older launches count less."""
BY = {"Shape": "shape", "Kernel": "kernel", "Model": "model", "Target": "arch"}
MOST_BARS = 12
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


def demand_tiles(report: DemandReport) -> list[Tile]:
    """The sums of a report on demand, as tiles."""
    total, known = report.total, report.total.timed > 0
    parts = {
        "measured": total.measured,
        "predicted": total.timed - total.measured,
        UNKNOWN: total.launches - total.timed,
    }
    sources = ", ".join(f"{human_rate(part / total.launches)} {name}" for name, part in parts.items() if part > 0)
    ages = "Launches long ago count less" if report.half_life_s < math.inf else "Each launch counts the same"
    return [
        Tile("Launches an hour", f"{total.per_hour:,.0f}", f"Requests, and launches of loaded kernels. {ages}."),
        Tile("GPU time", human_ms(total.gpu_s * 1e3) if known else "–", f"Of these launches: {sources}."),
        Tile("TFLOP", f"{total.flops / 1e12:,.1f}", "Floating-point operations; a multiply-add counts as two."),
        Tile("Dropped", f"{report.dropped:,.0f}", "Launches of rare shapes that there was no room to list."),
    ]


def source_words(report: DemandReport) -> str:
    """The GPUs on which a report's times were measured, or for which they were predicted, in words."""
    ways = {"measured": "measured on", "predicted": "predicted for"}
    parts = [
        f"{arch}: {', '.join(f'{ways[how]} {gpu}' for how, gpu in sorted(gpus.items()))}"
        for arch, gpus in sorted(report.gpus.items())
    ]
    said = f"GPU times of {'; '.join(parts)}." if parts else "No time is known of any launch."
    return f"{said} Times are not predicted: {report.unpredicted}" if report.unpredicted else said


def share_columns(by: str) -> list[Column]:
    """The columns of shares of the demand, by shape, kernel, model or target."""

    def address(share: Any) -> str | None:
        return kernel_address(share.key) if by == KERNEL and share.key else None

    shapes = Column("Shapes", lambda share: f"{share.asked_shapes} of {share.all_shapes}")
    return [
        Column(
            "Name",
            lambda one: kernel_address(one.key) if by == KERNEL and one.key else None,
            "link",
            attrgetter("name"),
        ),
        Column("Launches/h", lambda share: _rounded(share.per_hour), "count"),
        Column("Launches", "launch_share", "share", bar=True),
        Column("GPU time", lambda share: share.time_share if share.timed else None, "share", bar=True),
        Column("Bytes", "bytes_share", "share"),
        Column("FLOPs", "flops_share", "share"),
        Column("Time from", "time_from"),
        *([shapes] if by == MODEL else []),
    ]


# ---- The m of one shape ----


def m_figure(ledger: Ledger, shape: Shape) -> Bars:
    """The number of launches of a shape, by power of two of m; the ledger's histogram has these numbers exactly."""
    weights = ledger.sketches[shape].by_power()
    last = max((power for power, weight in enumerate(weights) if weight), default=0)
    names = [power_words(power) for power in range(last + 1)]
    words = [f"m = {name}: {weight:,.0f} launches" for name, weight in zip(names, weights, strict=False)]
    series = Series("", weights[: last + 1], words, COLOURS[0])
    return Bars("Launches by m", names, [series], "Launches", "m", height=340)


def power_words(power: int) -> str:
    """The m that belong to a power of two, as text: ``"5–8"`` for power 3."""
    first, last = (1 << power) // 2 + 1, 1 << power
    return f"{last:,}" if power < 2 else f"{first:,}–{last:,}"


def m_table(
    ledger: Ledger, shape: Shape, times: LaunchTimes, kernel_of: KernelOf, cached: Collection[str]
) -> list[Row]:
    """The most frequent m, each with its time and the kernel that serves it today."""
    sketch = ledger.sketches[shape]
    sizes = sorted(sketch.counters, key=lambda m: (-sketch.counters[m].certain, m))[:MOST_BARS]
    total = sketch.total or 1.0
    rows = []
    for m, time in zip(sizes, times.of(shape, sizes), strict=True):
        name, key = kernel_of(shape, m)
        rows.append(
            {
                "m": m,
                "Launches": _rounded(sketch.counters[m].certain),
                "Share": sketch.counters[m].certain / total,
                "Time": time.us / 1e3 if time.source != UNKNOWN else None,
                "Time from": time.source,
                "Kernel": name,
                "Stored": ("yes" if key in cached else "no") if key else "",
                "Open": kernel_address(key) if key in cached else None,
            }
        )
    return rows


SIZES = (
    Column("m", "m", "count"),
    Column("Launches", "Launches", "count"),
    Column("Share", "Share", "share"),
    Column("Time", "Time", "ms"),
    Column("Time from", "Time from"),
    Column("Kernel", "Open", "link", itemgetter("Kernel")),
    Column("Stored", "Stored"),
)
"""The columns of the rows of ``m_table``."""


def again_columns(compile_ms: Mapping[str, float], titles: Mapping[str, str]) -> list[Column]:
    """The columns of kernels that were evicted and asked for again.

    Args:
        compile_ms, titles: compile times and titles, by key, of the kernels that are stored now.
    """
    return [
        Column("Kernel", lambda one: kernel_address(one.key), "link", lambda one: titles.get(one.key) or one.name),
        Column("Times", "times", "count"),
        Column("Evicted", "evicted_at", "age"),
        Column("Because", "rule"),
        Column("Asked for again", "asked_at", "age"),
        Column("Compile time", lambda one: compile_ms.get(one.key), "ms"),
    ]


# ---- The model that it looks like ----


def main_kind(report: DemandReport, shapes: Collection[tuple[int, int]]) -> tuple[str, str] | None:
    """The dtype and target with the most FLOPs of shapes with these (n, k), by a report of shares by shape.

    Launches would mislead: a router in fp32 may be launched most often, and yet computes next to nothing.
    """
    weights: dict[tuple[str, str], float] = {}
    for share in report.shares:
        if share.shape is not None and (share.shape.n, share.shape.k) in shapes:
            kind = (share.shape.dtype, share.shape.arch)
            weights[kind] = weights.get(kind, 0.0) + share.flops
    return max(weights, key=lambda kind: (weights[kind], kind)) if weights else None


def model_columns(report: DemandReport, cached: Mapping[str, str]) -> list[Column]:
    """The columns of a model's shapes: their shares of the launches, and the number of their missing kernels."""
    launches: dict[tuple[int, int], float] = defaultdict(float)
    for share in report.shares:
        if share.shape is not None:
            launches[share.shape.n, share.shape.k] += share.launch_share
    return [
        Column("Operation", "shape.operation"),
        Column("n", "shape.n"),
        Column("k", "shape.k"),
        Column("Launches", lambda cell: launches[cell.shape.n, cell.shape.k], "share"),
        Column("Kernels", lambda cell: len(cell.kernels)),
        Column("Missing", lambda cell: cell.missing(cached)),
    ]


def _rounded(launches: float) -> float:
    """A count of launches, rounded for display: it is no whole number, because older launches count less."""
    return round(launches) if launches >= 10 else round(launches, 1)


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
