"""The verb ``log``: the decisions of the cache, actions on the store, and jobs of the dashboard."""

from __future__ import annotations

import os
import select
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from cache_engine.batch.jobs import RUNNING, Job, JobProgress, Jobs, LostJob
from cache_engine.cli.support import Span, Verb, emit, json_option, open_cache, write_or_print
from cache_engine.cli.terminal import LEFT, RIGHT, Align, escaped, moment, print_fields, print_table
from cache_engine.errors import UsageError
from cache_engine.model.decision import KINDS, Decision
from cache_engine.model.documents import picked
from cache_engine.model.events import ACTS, Event
from cache_engine.model.key import check_prefix
from cache_engine.settings import Settings
from cache_engine.units import counted, human_age, human_bytes, human_ms, human_rate, printable

if TYPE_CHECKING:
    from cache_engine.cache.cache import Cache

_LOOK_MS = 500


@click.command(
    "log",
    cls=Verb,
    examples=(
        "log",
        "log --kind miss --since 24h",
        "log --key 3f2a --json",
        "log --follow",
        "log --audit --limit 20",
        "log --since 1h --format perfetto --output trace.json",
        "log --jobs",
        "log --jobs 18c7f2a1b3e4d500-1f2e3d4c --cancel",
    ),
    done="What happened is printed, if anything did; or Ctrl-C has ended --follow, or the job was asked to end.",
    failed="There is no such job, or its file cannot be read.",
)
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--key", help="Only of this kernel; a key prefix is enough.")
@click.option(
    "--kind", "kinds", type=click.Choice(KINDS), metavar="KIND", multiple=True,
    help=f"Only this kind (repeatable), one of: {', '.join(KINDS)}.",
)  # fmt: skip
@click.option("--since", type=Span(), metavar="SPAN", help="Only this recent, e.g. 90s, 30m, 24h, 7d.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), help="Rows to print. Default: 100; --audit: 50.")
@click.option("--follow", is_flag=True, help="Go on printing; with --json, an object a line. Ctrl-C ends it.")
@click.option("--audit", is_flag=True, help="Print who deleted, repaired, imported or restored instead.")
@click.option("--jobs", is_flag=True, help="List the jobs of the dashboard instead, newest first; with ID, show one.")
@click.option("--cancel", is_flag=True, help="--jobs: cancel the job ID. A second call ends it at once.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "perfetto")),
    default="table",
    help="perfetto: a trace of compiles, waits, hits and evictions by process, for ui.perfetto.dev.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Write the trace to a file; replaces it.")
@json_option
@click.pass_obj
def log_verb(
    settings: Settings, /, job_id: str | None, key: str | None, kinds: tuple[str, ...], since: float | None,
    limit: int | None, follow: bool, audit: bool, jobs: bool, cancel: bool, form: str, output: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Print decisions, actions (--audit) and dashboard jobs (--jobs).

    Prints misses with their causes, choices of a config with the runner-up, and what was evicted, refused, quarantined
    or pinned: the latest decisions, the oldest first. Processes write decisions in batches, every 5 s. The log holds
    about the last 20,000 decisions.

    --audit prints actions on the whole store, newest first: by whom, when, and how much. Deletions from remotes and
    from caches of other frameworks are in it, if this store was in use. The journal keeps the last 5,000.

    --jobs lists all jobs of the store, of every user and browser. Closing the browser does not end a job. A
    cancelled job still finishes the kernels that it has begun.
    """
    if audit and jobs:
        raise UsageError("--audit and --jobs exclude each other")
    if (audit or jobs) and (key or kinds or follow):
        raise UsageError("--key, --kind and --follow are of decisions; leave them out, or --audit and --jobs")
    if jobs and (since is not None or limit is not None):
        raise UsageError("--jobs lists all jobs; leave --since and --limit out")
    if (job_id and not jobs) or (cancel and not job_id):
        raise UsageError("ID is of a job and goes with --jobs, --cancel with an ID; gemm-cache log --jobs lists them")
    if form == "perfetto" and (audit or jobs or key or kinds or follow or limit or as_json):
        raise UsageError("--format perfetto takes only --since and --output")
    if output and form != "perfetto":
        raise UsageError("--output goes with --format perfetto")
    earliest = -(2.0**31) if since is None else time.time() - since
    with open_cache(settings, create=False) as cache:
        if form == "perfetto":
            _export_trace(cache, earliest, output)
        elif audit:
            _show_audit(cache, earliest, limit or 50, as_json=as_json)
        elif job_id:
            _show_job(cache, job_id, cancel=cancel, as_json=as_json)
        elif jobs:
            _show_jobs(cache, as_json=as_json)
        else:
            prefix = check_prefix(key) if key else ""
            _show_decisions(cache, prefix, kinds, earliest, limit or 100, follow=follow, as_json=as_json)


def _export_trace(cache: Cache, earliest: float, file: Path | None) -> None:
    from cache_engine.insight.monitoring import perfetto_trace

    text = perfetto_trace(cache, earliest)
    write_or_print(text if file else f"{text}\n", file)


def _show_decisions(
    cache: Cache, prefix: str, kinds: tuple[str, ...], earliest: float, limit: int, *, follow: bool, as_json: bool
) -> None:
    log = cache.admin.open_log()
    found = log.new(prefix, kinds, earliest)
    latest = found[-limit:]
    if not follow:
        document = {"total": len(found), "damaged": log.damaged, "rows": [_row(one) for one in latest]}
        emit(document, as_json, lambda: _print_log(latest, len(found), log.damaged))
        return
    with suppress(KeyboardInterrupt):
        while _print_lines(latest, as_json) and _has_reader():
            latest = log.new(prefix, kinds, earliest)


def _show_audit(cache: Cache, earliest: float, limit: int, *, as_json: bool) -> None:
    acts = [event for event in cache.tally().recent if event.kind in ACTS and event.at >= earliest]
    rows = [
        {**picked(act, "at", "kind", "by"), "bytes": act.stored_bytes, **picked(act, "detail", "key")}
        for act in acts[:limit]
    ]
    emit({"total": len(acts), "rows": rows}, as_json, lambda: _print_audit(acts[:limit], len(acts)))


def _show_jobs(cache: Cache, *, as_json: bool) -> None:
    rows = [_job_row(job) for job in Jobs(cache.layout).recent()]
    emit({"jobs": rows}, as_json, lambda: _print_jobs(rows))


def _show_job(cache: Cache, job_id: str, *, cancel: bool, as_json: bool) -> None:
    jobs = Jobs(cache.layout)
    if cancel:
        jobs.cancel(job_id)
    row = _job_row(jobs.load(job_id))
    emit(row, as_json, lambda: _print_job(row))


def _row(one: Decision) -> dict[str, Any]:
    return picked(one, "kind", "at", "key", "name", "reason", "detail", "runner_up", "margin", "by")


def _job_row(job: Job | LostJob) -> dict[str, Any]:
    """A job as JSON. A job whose file cannot be read has the state ``lost`` and the reason as its error."""
    if isinstance(job, LostJob):
        lost = Job(id=job.id, command=[], error=job.error)
        return {**_job_row(lost), "state": "lost"}
    return {
        **picked(job, "id", "command", "state", "started_at", "ended_at", "pid"),
        **picked(job.progress or JobProgress(), "total", "done", "failed"),
        **picked(job, "cancel_asked", "result", "error"),
    }


# ---- For people ----


def _print_log(latest: Sequence[Decision], total: int, damaged: int) -> None:
    if latest:
        columns: dict[str, Align] = dict.fromkeys(("time", "kind", "key", "reason", "detail", "kernel"), LEFT)
        print_table(columns, [_cells(one) for one in latest], dispensable=("kernel",))
        print()
    shown = f"latest {len(latest):,} of " if len(latest) < total else ""
    skipped = f"; {counted(damaged, 'line')} skipped, gemm-cache verify says why" if damaged else ""
    print(f"{shown}{counted(total, 'decision')}{skipped}.".capitalize())


def _cells(row: Decision) -> tuple[str, ...]:
    detail = row.detail
    if row.runner_up:
        detail += f"; before {row.runner_up} (+{human_rate(row.margin)})"
    if row.by:
        detail += f"{', ' if detail else ''}by {row.by}"
    with suppress(ValueError, OverflowError, OSError):  # a year that no calendar has
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.at))
        return when, row.kind, row.key[:12], row.reason, detail, row.name
    return "?", row.kind, row.key[:12], row.reason, detail, row.name


def _has_reader() -> bool:
    """Waits a little; returns whether standard output still has a reader, at once if the reader has closed the pipe."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors are always reported
    return not poll.poll(_LOOK_MS)


def _print_lines(rows: Iterable[Decision], as_json: bool) -> bool:
    """Prints one line per decision; returns whether standard output still has a reader."""
    try:
        for row in rows:
            if as_json:
                print(escaped(msgspec.json.encode(_row(row)).decode()))
            else:
                print(printable("  ".join(cell for cell in _cells(row) if cell)))
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def _print_audit(acts: Sequence[Event], total: int) -> None:
    if not acts:
        print("No action is logged.")
        return
    columns: dict[str, Align] = {"time": LEFT, "action": LEFT, "by": LEFT, "size": RIGHT, "details": LEFT, "key": LEFT}
    print_table(
        columns,
        [
            (
                moment(row.at), row.kind, row.by or "unknown",
                human_bytes(row.stored_bytes) if row.stored_bytes else "", row.detail, row.key[:12],
            )
            for row in acts
        ],
        dispensable=("key",),
    )  # fmt: skip
    if total > len(acts):
        print(f"\nThe latest {len(acts):,} of {counted(total, 'action')}.")


def _print_jobs(jobs: Sequence[dict[str, Any]]) -> None:
    if not jobs:
        print("There are no jobs.")
        return
    columns: dict[str, Align] = {"id": LEFT, "state": LEFT, "started": RIGHT, "took": RIGHT, "done": RIGHT}
    now = time.time()
    print_table(
        {**columns, "command": LEFT},
        [
            (
                job["id"], job["state"], human_age(now - job["started_at"]),
                human_ms(1e3 * ((now if job["state"] == RUNNING else job["ended_at"]) - job["started_at"])),
                f"{job['done']:,} of {job['total']:,}" if job["total"] else "", shlex.join(job["command"]),
            )
            for job in jobs
        ],
    )  # fmt: skip


def _print_job(job: dict[str, Any]) -> None:
    state = f"{job['state']}, cancel asked" if job["cancel_asked"] and job["state"] == RUNNING else job["state"]
    fields = {
        "id": job["id"],
        "command": shlex.join(job["command"]),
        "state": state,
        "started": human_age(time.time() - job["started_at"]),
    }
    if job["total"]:
        fields["done"] = f"{job['done']:,} of {job['total']:,}, {job['failed']:,} failed"
    print_fields(fields)
    if text := job["result"] or job["error"]:
        print(f"\n{printable(text, keep=chr(10))}")
