"""The verb ``jobs``: long work that the dashboard started, followed and ended from the command line."""

from __future__ import annotations

import shlex
import time

import click

from cache_engine.batch.jobs import RUNNING, Jobs
from cache_engine.cli.documents import lengths
from cache_engine.cli.support import Verb, VerbGroup, emit, json_option, open_cache
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_fields, print_table
from cache_engine.settings import Settings
from cache_engine.units import human_age, human_ms, printable


@click.group("jobs", cls=VerbGroup, examples=("jobs ls", "jobs show ID", "jobs cancel ID"), no_args_is_help=True)
def jobs_verb() -> None:
    """List, show or cancel jobs of the dashboard."""


@jobs_verb.command("ls", cls=Verb, examples=("jobs ls", "jobs ls --json"), done="The jobs are listed, if any.")
@json_option
@click.pass_obj
def ls_verb(settings: Settings, /, as_json: bool) -> None:
    """List jobs, newest first.

    All of the store, whoever started them. They run on when a browser is closed.
    """
    with open_cache(settings, create=False) as cache:
        document = lengths.JobList(jobs=[lengths.job_row(job) for job in Jobs(cache.layout).recent()])
    emit(document, as_json, lambda: _print_list(document))


@jobs_verb.command(
    "show", cls=Verb, examples=("jobs show 18c7f2a1b3e4d500-1f2e3d4c",), done="The job is shown.",
    failed="There is no such job, or its file cannot be read.",
)  # fmt: skip
@click.argument("job_id", metavar="ID")
@json_option
@click.pass_obj
def show_verb(settings: Settings, /, job_id: str, as_json: bool) -> None:
    """Show a job: its progress, its result or its error."""
    with open_cache(settings, create=False) as cache:
        document = lengths.job_row(Jobs(cache.layout).load(job_id))
    emit(document, as_json, lambda: _print_job(document))


@jobs_verb.command(
    "cancel", cls=Verb, examples=("jobs cancel 18c7f2a1b3e4d500-1f2e3d4c",),
    done="The job was asked to end, or has ended.", failed="There is no such job, or its file cannot be read.",
)  # fmt: skip
@click.argument("job_id", metavar="ID")
@json_option
@click.pass_obj
def cancel_verb(settings: Settings, /, job_id: str, as_json: bool) -> None:
    """Cancel a running job.

    It finishes the kernels that it has begun. A second call ends it at once.
    """
    with open_cache(settings, create=False) as cache:
        jobs = Jobs(cache.layout)
        jobs.cancel(job_id)
        document = lengths.job_row(jobs.load(job_id))
    emit(document, as_json, lambda: _print_job(document))


# ---- For people ----


def _print_list(d: lengths.JobList) -> None:
    if not d.jobs:
        print("There are no jobs.")
        return
    columns: dict[str, Align] = {"id": LEFT, "state": LEFT, "started": RIGHT, "took": RIGHT, "done": RIGHT}
    now = time.time()
    print_table(
        {**columns, "command": LEFT},
        [
            (
                job.id, job.state, human_age(now - job.started_at),
                human_ms(1e3 * ((now if job.state == RUNNING else job.ended_at) - job.started_at)),
                f"{job.done:,} of {job.total:,}" if job.total else "", printable(shlex.join(job.command)),
            )
            for job in d.jobs
        ],
    )  # fmt: skip


def _print_job(job: lengths.JobRow) -> None:
    fields = {
        "id": job.id,
        "command": shlex.join(job.command),
        "state": f"{job.state}, cancel asked" if job.cancel_asked and job.state == RUNNING else job.state,
        "started": human_age(time.time() - job.started_at),
        **({"done": f"{job.done:,} of {job.total:,}, {job.failed:,} failed"} if job.total else {}),
    }
    print_fields(fields)
    if text := job.result or job.error:
        print(f"\n{printable(text, keep=chr(10))}")
