"""Jobs in words, as bars, and as a list."""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Sequence
from datetime import tzinfo

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, GREY, Row, Tile, moment
from cache_engine.batch.jobs import CANCELED, DIED, DONE, FAILED, RUNNING, Job, JobStage, LostJob
from cache_engine.units import counted, human_ms

STATES = {
    RUNNING: "▶ running",
    DONE: "✓ done",
    FAILED: "✗ failed",
    DIED: "✗ died",
    CANCELED: "■ canceled",
}
"""States with a sign, so that none is told by a colour."""

_STAGES = {
    "select": "select config",
    "load": "look up",
    "generate": "generate source",
    "start_compiler": "start compiler",
}
_MOST_STAGES = 24
_LONGEST = 120
_ESTIMATE_FROM = 3


def what_of(job: Job) -> str:
    """What a job does, as it would be typed behind ``gemm-cache``, cut off where it is long."""
    text = shlex.join(job.command)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def took_ms(job: Job, now: float) -> float | None:
    """How long a job took, or has taken so far; ``None`` where nobody knows when it ended."""
    end = now if job.state == RUNNING else job.ended_at
    return max(0.0, end - job.started_at) * 1e3 if end else None


def job_table(jobs: Sequence[Job | LostJob], now: float, zone: tzinfo) -> list[Row]:
    """Jobs, a line each."""
    return [
        {
            "Open": f"/compile?job={job.id}",
            "State": "? unreadable",
            "What": job.error[:_LONGEST],
            "Started": None,
            "Took": "–",
            "Process": None,
        }
        if isinstance(job, LostJob)
        else {
            "Open": f"/compile?job={job.id}",
            "State": "▶ canceling" if job.state == RUNNING and job.cancel_asked else STATES[job.state],
            "What": what_of(job),
            "Started": moment(job.started_at, zone),
            "Took": _duration(took_ms(job, now)),
            "Process": job.pid or None,
        }
        for job in jobs
    ]


def stage_times(stages: Sequence[JobStage]) -> dict[str, float | None]:
    """What each stage took, the one under way last and without a time; one that was entered twice adds up."""
    times: dict[str, float | None] = {}
    for stage in stages:
        name = _STAGES.get(stage.name, stage.name.replace("_", " "))[:_LONGEST]
        spent = times.pop(name, 0.0)
        times[name] = None if stage.ms is None or spent is None else spent + stage.ms
        if len(times) >= _MOST_STAGES:
            break
    return times


def stage_lines(job: Job) -> str:
    """A job's stages with their times, a line each."""
    times = stage_times(job.stages)
    return "\n".join(f"{name} — {_spent(job, ms)}" for name, ms in times.items())


def stage_figure(job: Job) -> go.Figure:
    """A job's stages as bars, each where the one before ended."""
    times = stage_times(job.stages)
    begin, begins = 0.0, []
    for ms in times.values():
        begins.append(begin)
        begin += ms or 0.0
    figure = go.Figure()
    figure.add_bar(
        x=[ms or 0.0 for ms in times.values()],
        base=begins,
        y=[html.escape(name) for name in times],
        orientation="h",
        marker_color=[GREY if ms is None else COLOURS[0] for ms in times.values()],
        text=[_spent(job, ms) for ms in times.values()],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    figure.update_layout(
        title="Stages, one after the other",
        margin={"t": 40, "b": 40, "l": 8, "r": 16},
        height=110 + 26 * len(times),
        bargap=0.3,
        showlegend=False,
    )
    # Room for the text behind the last bar.
    figure.update_xaxes(title="ms since the start", range=[0, max(begin, 1e-3) * 1.18])
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def stage_table(job: Job) -> list[Row]:
    """The same as numbers."""
    return [{"Stage": name, "ms": ms} for name, ms in stage_times(job.stages).items()]


# ---- Jobs that get many kernels ----


def progress_share(job: Job) -> float:
    """How far a job is, from 0 to 1."""
    progress = job.progress
    return 0.0 if progress is None or not progress.total else min(1.0, progress.done / progress.total)


def progress_text(job: Job, now: float) -> str:
    """The same in words, with an estimate of the time left once there is something to go by."""
    progress = job.progress
    if progress is None:
        return "Choosing configs…"
    text = f"{progress.done:,} of {counted(progress.total, 'kernel')}"
    left = max(0, progress.total - progress.done)
    if job.state != RUNNING or not left or progress.done < _ESTIMATE_FROM:
        return text
    so_far = took_ms(job, now) or 0.0
    return f"{text}; about {human_ms(so_far / progress.done * left)} left at this rate"


def progress_tiles(job: Job) -> list[Tile]:
    """What became of the kernels so far."""
    progress = job.progress
    if progress is None:
        return []
    return [
        Tile("Compiled", f"{progress.compiled:,}", "Were not in the store, and are now."),
        Tile("Found", f"{progress.found:,}", "Were in the store."),
        Tile("Failed", f"{progress.failed:,}", "Are not in the store; the causes are listed at the end."),
    ]


def table_verdict(job: Job) -> str:
    """What a finished job over a table has done; raises one of ``NO_RESULT``."""
    document = json.loads(job.result)
    problems, kernels = int(document["problems"]), int(document["kernels"])
    return (
        f"{counted(int(document['compiled']), 'kernel')} compiled, {int(document['found']):,} found, "
        f"{len(document['failed']):,} failed: {counted(kernels, 'kernel')} for {counted(problems, 'problem')}, "
        f"in {human_ms(float(document['seconds']) * 1e3)}."
    )


def failure_table(job: Job) -> list[Row]:
    """What could not be made or kept, and why."""
    return [
        {"Problem": str(failure["problem"]), "Cause": str(failure["error"])}
        for failure in json.loads(job.result)["failed"]
    ]


def ended_badly(job: Job) -> tuple[str, str]:
    """Of a job that has not done what it was asked: what happened, and the cause."""
    if job.state == CANCELED:
        kept = "What it had finished is in the store. Started again it goes on from there."
        return "This job was canceled.", kept if job.command[:1] == ["warm"] else "Its kernel can be asked for again."
    if job.state == DIED:
        last = f" The last it printed:\n{job.error}" if job.error else ""
        return "The process of this job ended without saying why.", f"It may have been killed.{last}"
    one_kernel = job.command[:1] in (["compile"], ["time"])
    return "The kernel could not be made." if one_kernel else "The job failed.", job.error


def level_words(job: Job) -> str:
    """How far a failure reaches, in words."""
    return {
        "error": "Level: error. This request has failed; another may succeed.",
        "fatal": "Level: fatal. No such request can succeed until something outside of this program is mended.",
    }.get(job.level, "")


def _spent(job: Job, ms: float | None) -> str:
    """What a stage took; of one without a time, whether there is still hope."""
    if ms is not None:
        return human_ms(ms)
    return "…" if job.state == RUNNING else "not finished"


def _duration(ms: float | None) -> str:
    return "–" if ms is None else human_ms(ms)
