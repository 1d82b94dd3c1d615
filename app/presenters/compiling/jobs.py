"""Jobs in words, as bars, and as a list."""

from __future__ import annotations

import html
import shlex
from collections.abc import Sequence
from datetime import tzinfo

import msgspec
import plotly.graph_objects as go

from app.presenters.shared import COLOURS, GREY, Row, Tile, moment
from cache_engine.batch.jobs import CANCELED, DIED, DONE, FAILED, RUNNING, Job, JobStage, LostJob
from cache_engine.batch.results import Warmed
from cache_engine.units import counted, human_ms

STATES = {
    RUNNING: "▶ running",
    DONE: "✓ done",
    FAILED: "✗ failed",
    DIED: "✗ died",
    CANCELED: "■ canceled",
}
"""States with a sign each, so that none depends on a colour."""

_STAGES = {
    "select": "select config",
    "load": "look up",
    "queue": "wait for a slot",
    "generate": "generate source",
    "start_compiler": "start compiler",
}
_MOST_STAGES = 24
_LONGEST = 120
_ESTIMATE_FROM = 3


def what_of(job: Job) -> str:
    """A job's arguments of ``gemm-cache``, cut off where they are long."""
    text = shlex.join(job.command)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def in_store(command: str, root: str) -> str:
    """A command of ``gemm-cache`` with the store that it uses, behind any variables that it sets."""
    return command.replace("gemm-cache compile", f"gemm-cache --store {shlex.quote(root)} compile", 1)


def took_ms(job: Job, now: float) -> float | None:
    """How long a job took, or has taken so far; ``None`` where its end is unknown."""
    end = now if job.state == RUNNING else job.ended_at
    return max(0.0, end - job.started_at) * 1e3 if end else None


def job_table(jobs: Sequence[Job | LostJob], now: float, zone: tzinfo) -> list[Row]:
    """Jobs, a row each."""
    return [
        {
            "Open": f"/compile?job={job.id}",
            "State": "? unreadable",
            "Command": job.error[:_LONGEST],
            "Started": None,
            "Duration": "–",
            "Process": None,
        }
        if isinstance(job, LostJob)
        else {
            "Open": f"/compile?job={job.id}",
            "State": "▶ canceling" if job.state == RUNNING and job.cancel_asked else STATES[job.state],
            "Command": what_of(job),
            "Started": moment(job.started_at, zone),
            "Duration": _duration(took_ms(job, now)),
            "Process": job.pid or None,
        }
        for job in jobs
    ]


def stage_times(stages: Sequence[JobStage]) -> dict[str, float | None]:
    """The time of each stage, the running one last and without a time; a stage entered twice adds up."""
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
        title="Stage timeline",
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


# ---- Jobs over a whole model ----


def progress_share(job: Job) -> float:
    """The progress of a job, from 0 to 1."""
    progress = job.progress
    return 0.0 if progress is None or not progress.total else min(1.0, progress.done / progress.total)


def progress_text(job: Job, now: float) -> str:
    """The progress in words, with an estimate of the time left once a few kernels are done."""
    progress = job.progress
    if progress is None:
        return "Selecting configs…"
    text = f"{progress.done:,} of {counted(progress.total, 'step' if job.command[:1] == ['tune'] else 'kernel')}"
    left = max(0, progress.total - progress.done)
    if job.state != RUNNING or not left or progress.done < _ESTIMATE_FROM:
        return text
    so_far = took_ms(job, now) or 0.0
    return f"{text}; about {human_ms(so_far / progress.done * left)} left"


def progress_tiles(job: Job) -> list[Tile]:
    """How many kernels were compiled, cached or failed so far."""
    progress = job.progress
    if progress is None:
        return []
    return [
        Tile("Compiled", f"{progress.compiled:,}", "Newly compiled."),
        Tile("Cached", f"{progress.found:,}", "Already cached."),
        Tile("Failed", f"{progress.failed:,}", "Failed; the job lists the causes when it ends."),
    ]


def table_verdict(job: Job) -> str:
    """What a finished job over a whole model has done; raises one of ``NO_RESULT``."""
    done = _warmed(job)
    return (
        f"{counted(done.compiled, 'kernel')} compiled, {done.found:,} cached, {len(done.failed):,} failed: "
        f"{counted(done.kernels, 'kernel')} for {counted(done.problems, 'problem')}, in {human_ms(done.seconds * 1e3)}."
    )


def failure_table(job: Job) -> list[Row]:
    """The problems that failed, and why."""
    return [{"Problem": failure.problem, "Cause": failure.error} for failure in _warmed(job).failed]


def _warmed(job: Job) -> Warmed:
    return msgspec.json.decode(job.result, type=Warmed)


def ended_badly(job: Job) -> tuple[str, str]:
    """Why a job did not finish: what happened, and the cause."""
    if job.state == CANCELED:
        stored = "Finished kernels are stored; run the job again to resume."
        return "This job was canceled.", stored if job.command[:1] == ["warm"] else "You can start it again."
    if job.state == DIED:
        last = f" Last output:\n{job.error}" if job.error else ""
        return "The job process died unexpectedly.", f"The system may have killed it.{last}"
    one_kernel = job.command[:1] in (["compile"], ["time"])
    return "Compilation failed." if one_kernel else "The job failed.", job.error


def level_words(job: Job) -> str:
    """The level of a failure, and what to do."""
    return {
        "error": "Error: this request failed. Others can succeed.",
        "fatal": "Fatal: fix the environment first (compiler, disk, permissions).",
    }.get(job.level, "")


def _spent(job: Job, ms: float | None) -> str:
    """The time of a stage; for one without a time, whether it still runs."""
    if ms is not None:
        return human_ms(ms)
    return "…" if job.state == RUNNING else "not finished"


def _duration(ms: float | None) -> str:
    return "–" if ms is None else human_ms(ms)
