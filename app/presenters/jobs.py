"""Jobs in words, as bars, and as a list; and their results: a kernel, its time, a whole model, a tuning.

A job's file may hold anything: an invalid value raises one of ``NO_RESULT``.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from app.presenters.columns import Column
from app.presenters.shared import Tile
from cache_engine.batch.jobs import CANCELED, DIED, DONE, FAILED, RUNNING, Job, JobStage, LostJob
from cache_engine.batch.results import Compiled, Explained, Timed, Tuning, Warmed
from cache_engine.batch.tuning import Candidate
from cache_engine.model.events import TIERS
from cache_engine.team.progress import SeenRun
from cache_engine.units import counted, human_bytes, human_ms

STATES = {
    RUNNING: "▶ running",
    DONE: "✓ done",
    FAILED: "✗ failed",
    DIED: "✗ died",
    CANCELED: "■ canceled",
}
"""The words for each state, with a sign, so that no reader needs colours."""
_RUN_STATES = {RUNNING: STATES[RUNNING], "canceled": STATES[CANCELED], "ended": STATES[DONE]}
Listed = Job | LostJob | SeenRun
"""A job of the store, or a run of the farm."""

_STAGES = {
    "select": "select config",
    "load": "look up",
    "queue": "wait for a slot",
    "generate": "generate source",
    "start_compiler": "start compiler",
}
_Result = TypeVar("_Result")
_MOST_STAGES = 24
_LONGEST = 120
_ESTIMATE_FROM = 3


def in_store(command: str, root: str) -> str:
    """A command ``gemm-cache compile`` with the option ``--store`` added; variables before it stay in front."""
    return command.replace("gemm-cache compile", f"gemm-cache --store {shlex.quote(root)} compile", 1)


def took_ms(job: Listed, now: float) -> float | None:
    """The milliseconds that a job took, or has taken so far; ``None`` if its end is unknown."""
    end = now if is_running(job) else job.ended_at if isinstance(job, Job) else 0.0
    return max(0.0, end - started_at(job)) * 1e3 if end else None


def started_at(job: Listed) -> float:
    """The time when a job started, in seconds since 1970; 0 if that is unknown."""
    return 0.0 if isinstance(job, LostJob) else job.run.since if isinstance(job, SeenRun) else job.started_at


def is_running(job: Listed) -> bool:
    """Whether a job runs now, as far as is known."""
    return not isinstance(job, LostJob) and job.state == RUNNING


def id_of(job: Listed) -> str:
    """The identifier of a job, or of a run of the farm."""
    return job.job if isinstance(job, SeenRun) else job.id


def job_columns(now: float) -> list[Column]:
    """The columns of a list of jobs; ``now`` in seconds since 1970."""
    return [
        Column("State", _state),
        Column("Command", lambda job: None if isinstance(job, SeenRun) else f"/compile?job={job.id}", "link", called),
        Column("Where", _where),
        Column("Progress", lambda job: _progress(job, now)),
        Column("Started", started_at, "age"),
        Column("Duration", lambda job: "–" if (ms := took_ms(job, now)) is None else human_ms(ms)),
    ]


def called(job: Listed) -> str:
    """The name of a job in a list: its command, cut if it is long."""
    if isinstance(job, SeenRun):
        archs = ", ".join(filter(None, job.run.archs)) or "the default target"
        return f"farm compile {job.run.table} for {archs}"[:_LONGEST]
    if isinstance(job, LostJob):
        return job.error[:_LONGEST]
    text = shlex.join(job.command)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _state(job: Listed) -> str:
    if isinstance(job, SeenRun):
        return _RUN_STATES.get(job.state, f"? {job.state}")
    if isinstance(job, LostJob):
        return "? unreadable"
    return "▶ canceling" if job.state == RUNNING and job.cancel_asked else STATES[job.state]


def _where(job: Listed) -> str:
    if isinstance(job, SeenRun):
        return "farm"
    return (
        f"this store, process {job.pid}" if isinstance(job, Job) and job.state == RUNNING and job.pid else "this store"
    )


def _progress(job: Listed, now: float) -> str:
    if isinstance(job, SeenRun):
        done = f"{job.run.kernels - job.run.left:,} of {counted(job.run.kernels, 'kernel')}"
        return f"{done}; about {human_ms(job.run.eta_s * 1e3)} left (predicted)" if job.state == RUNNING else done
    return progress_text(job, now) if isinstance(job, Job) and job.progress is not None else ""


def stage_times(stages: Sequence[JobStage]) -> dict[str, float | None]:
    """The milliseconds of each stage, ``None`` for the last if it still runs; a stage entered twice has the sum."""
    times: dict[str, float | None] = {}
    for stage in stages:
        name = _STAGES.get(stage.name, stage.name.replace("_", " "))[:_LONGEST]
        spent = times.pop(name, 0.0)
        times[name] = None if stage.ms is None or spent is None else spent + stage.ms
        if len(times) >= _MOST_STAGES:
            break
    return times


STAGE_COLUMNS = (Column("Stage", itemgetter(0)), Column("Time", itemgetter(1), "ms", bar=True))
"""The columns of stages and their times, from ``stage_times``."""


# ---- Jobs over a whole model ----


def progress_share(job: Job) -> float:
    """The share of a job's kernels or, in tuning, of its steps that are done, from 0 to 1."""
    progress = job.progress
    return 0.0 if progress is None or not progress.total else min(1.0, progress.done / progress.total)


def progress_text(job: Job, now: float) -> str:
    """The progress of a job in words, with an estimate of the time left once a few kernels are done."""
    progress = job.progress
    if progress is None:
        return "Selecting configs…"
    text = f"{progress.done:,} of {counted(progress.total, 'step' if job.command[:1] == ['tune'] else 'kernel')}"
    left = max(0, progress.total - progress.done)
    if job.state != RUNNING or not left or progress.done < _ESTIMATE_FROM:
        return text
    so_far = took_ms(job, now) or 0.0
    return f"{text}; about {human_ms(so_far / progress.done * left)} left"


def made_words(compiled: int, found: int, failed: int) -> str:
    """The numbers of a job's kernels that were compiled, were cached already, or failed, in words."""
    return f"{counted(compiled, 'kernel')} compiled, {found:,} cached, {failed:,} failed"


def result_of(job: Job, kind: type[_Result]) -> _Result:
    """The result of a job, of this kind; raises one of ``NO_RESULT``."""
    return msgspec.json.decode(job.result, type=kind)


def warmed_words(done: Warmed) -> str:
    """The outcome of a finished job over a whole model."""
    return (
        f"{made_words(done.compiled, done.found, len(done.failed))}: "
        f"{counted(done.kernels, 'kernel')} for {counted(done.problems, 'problem')}, in {human_ms(done.seconds * 1e3)}."
    )


FAILURES = (Column("Problem", "problem"), Column("Cause", "error"))
"""The columns of the problems that failed in a job, and why."""


def ended_badly(job: Job) -> tuple[str, str]:
    """The reason why a job did not finish: what happened, and the cause."""
    if job.state == CANCELED:
        stored = "Finished kernels are stored; run the job again to resume."
        return "This job was canceled.", stored if job.command[:1] == ["warm"] else "You can start it again."
    if job.state == DIED:
        last = f" Last output:\n{job.error}" if job.error else ""
        return "The job process died unexpectedly.", f"The system may have killed it.{last}"
    one_kernel = job.command[:1] in (["compile"], ["time"])
    return "Compilation failed." if one_kernel else "The job failed.", job.error


def level_words(job: Job) -> str:
    """The level of a job's failure, and what the reader can do, in words."""
    return {
        "error": "Error: this request failed. Others can succeed.",
        "fatal": "Fatal: fix the environment first (compiler, disk, permissions).",
    }.get(job.level, "")


def candidate_columns(found: Sequence[Candidate]) -> list[Column]:
    """The columns of the configs that tuning would time; the configs are sorted by predicted time."""
    best = min((one.predicted_cycles for one in found), default=0.0)
    return [
        Column("Family", "selection.family.name"),
        Column("Config", lambda one: str(one.selection.config)),
        Column("Predicted ÷ best", lambda one: one.predicted_cycles / best),
        Column("Cached", lambda one: one.tier is not None),
        Column("Kernel", "selection.key"),
    ]


def tuned_words(done: Tuning) -> str:
    """The config that lookups use after a tuning, in a sentence."""
    chosen = done.chosen
    timed = counted(len(done.candidates) - done.failed, "config")
    return (
        f"{timed} timed on {done.device} in {human_ms(done.seconds * 1e3)}. Now used: {chosen.family} "
        f"{chosen.config_text} ({chosen.config_from})."
    )


TUNED = (
    Column("Family", "family"),
    Column("Config", lambda one: f"/kernel?{urlencode({'key': one.key})}", "link", attrgetter("config_text")),
    Column("Median, µs", lambda one: one.median_us or None, "decimal"),
    Column("Predicted, µs", "predicted_us", "decimal"),
    Column("Measured ÷ predicted", lambda one: one.ratio or None, "decimal"),
    Column("TFLOP/s", lambda one: one.tflops or None, "decimal"),
    Column("Result", lambda one: one.trouble or "correct"),
)


NO_RESULT = (ValueError, RecursionError)
"""The exceptions that reading an invalid result of a job raises."""


def document_of(job: Job) -> Compiled | Timed:
    """The result of a job about one kernel; raises one of ``NO_RESULT``."""
    return result_of(job, Timed) if job.command[:1] == ["time"] else result_of(job, Compiled)


def verdict(kernel: Compiled, again: bool = False) -> tuple[bool, str]:
    """Whether a job's lookup was a hit, and its outcome in words; ``again`` if the job forced a recompile."""
    spent, tier = human_ms(kernel.compile_ms), kernel.tier
    if tier == "compiled":
        return False, f"Recompiled in {spent}." if again else f"Miss. Compiled in {spent}."
    if tier not in TIERS:
        raise ValueError(f"there is no tier {tier!r}")
    return True, f"Hit ({tier}): loaded in {human_ms(kernel.load_ms)}; saved {spent} of compiling."


DIFFERENCES = (
    Column("Component", "component"),
    Column("Nearest kernel", lambda one: str(one.there)),
    Column("Requested", lambda one: str(one.here)),
    Column("Consequence", "follows"),
)
"""The columns of the key components in which the nearest kernel differs, causes before their consequences."""


def why_lines(why: Explained) -> list[str]:
    """The reasons why the lookup missed, a sentence a line."""
    if why.nearest is None:
        return why.notes or ["No other kernels to compare with."]
    texts = [one.text for one in why.nearest.differences if not one.follows]
    found = f"Closest of {counted(why.compared, 'cached kernel')}: {why.nearest.name}"
    return [found, *texts, *why.notes] if texts else [found, "It uses a different key format.", *why.notes]


def resource_tiles(kernel: Compiled) -> list[Tile]:
    """The resources of a kernel as tiles."""
    return [
        Tile("Registers", f"{kernel.registers:,}", "Per thread."),
        Tile("Spills", human_bytes(kernel.spill_bytes), "Register spills to local memory, bytes per thread."),
        Tile("Shared memory", human_bytes(kernel.shared_bytes), "Per block."),
        Tile("Cubin size", human_bytes(kernel.size_bytes), "Size of the cubin."),
    ]


def timing_tiles(document: Timed) -> list[Tile]:
    """The speed of a timed kernel, and of the reference if that was timed too, as tiles."""
    check = "The result is verified." if document.verified else "WRONG RESULT."
    launches = f"Median of {document.repeats:,} launches, each with a cold L2 cache. {check}"
    tiles = [
        Tile(
            "Median",
            human_ms(document.median_us / 1e3),
            launches,
            change=f"{human_ms(document.p10_us / 1e3)} to {human_ms(document.p90_us / 1e3)}, 10th to 90th percentile",
        ),
        Tile("Speed", f"{document.tflops:,.1f} TFLOP/s", f"2·m·n·k·batch ÷ median. {check}"),
    ]
    if document.reference_median_us is not None:
        reference = human_ms(document.reference_median_us / 1e3)
        tiles.append(Tile("Reference", reference, "Median of the library kernel for the same problem."))
        if document.speed_ratio is not None:
            ratio = f"{document.speed_ratio:.2f}×"
            tiles.append(Tile("Speed-up vs reference", ratio, "Above 1: faster than the reference."))
    return tiles
