"""``gemm-cache farm``: worker, compile and status of a farm that compiles on many machines."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cache_engine.cli import terminal
from cache_engine.cli.remote import remote_named
from cache_engine.cli.support import (
    Verb,
    VerbGroup,
    emit,
    json_option,
    open_cache,
    print_refused,
    sign_option,
    signing_key,
    table_options,
    wanted_of,
)
from cache_engine.cli.support.completion import models
from cache_engine.errors import GemmCacheError, UsageError
from cache_engine.settings import Settings
from cache_engine.settings.extras import require
from cache_engine.units import counted, human_age, human_ms, printable
from cache_engine.upkeep.packs import Refused

if TYPE_CHECKING:
    from cache_engine.cache.selection import Selection
    from cache_engine.insight.coverage import Wanted
    from cache_engine.team.progress import Farm
    from cache_engine.team.submission import Farmed
    from cache_engine.usage.compile_time import CompileTimes

_F = TypeVar("_F", bound=Callable[..., Any])
_MISSING = "The extra team is not installed, or the compiler."


def _farm_options(verb: _F) -> _F:
    for decorate in (
        click.option("--remote", "url", help="The object store for the kernels. Default: the setting remote."),
        click.option("--broker", metavar="URL", help="Redis: redis://host:6379/0. Default: the setting broker."),
    ):
        verb = decorate(verb)
    return verb


@click.group(
    "farm",
    cls=VerbGroup,
    examples=(
        "farm worker --broker redis://host:6379/0 --remote s3://bucket/kernels --sign builder_key",
        "farm compile Llama-3.1-8B --arch sm_90a --broker redis://host:6379/0 --remote s3://bucket/kernels",
    ),
    no_args_is_help=True,
)
def farm_verb() -> None:
    """Compile a model on many machines.

    Workers take kernels from a queue in Redis, compile them, and send them to the remote, signed. Every other machine
    gets them from there.
    """


@farm_verb.command(
    "worker",
    cls=Verb,
    examples=("farm worker --broker redis://host:6379/0 --remote s3://bucket/kernels --sign builder_key",),
    done="The worker was stopped, or the queue is empty.",
    failed="The remote cannot be opened.",
    missing=_MISSING,
)
@_farm_options
@sign_option(required=True)
@click.option("--jobs", type=click.IntRange(1), help="Parallel compiles. Default: one per CPU.")
@click.option(
    "--health-file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Touch this file every 5 seconds while the worker goes on. Older than a minute: restart it.",
)  # fmt: skip
@click.option("--until-empty", is_flag=True, help="End when the queue is empty, after what is in work.")
@click.option("--redeliver", type=click.IntRange(1), hidden=True)
@click.pass_obj
def worker_verb(
    settings: Settings, /, broker: str | None, url: str | None, sign: Path, jobs: int | None,
    health_file: Path | None, until_empty: bool, redeliver: int | None,
) -> None:  # fmt: skip
    """Compile what the queue asks for, until stopped by Ctrl-C.

    Prints a line for each kernel. Messages can only ask for kernels made from this program's own templates. The first
    Ctrl-C or SIGTERM lets running compiles finish, a second one ends them.
    """
    from cache_engine.process import processors
    from cache_engine.team.worker import Worker, serve

    require("team", "the farm", "celery", "redis")
    if redeliver is not None:
        print("--redeliver has no effect: another worker gets the work of a lost one after 20 s.", file=sys.stderr)
    broker = _broker_named(settings, broker)
    key, remote = signing_key(sign), remote_named(settings, url)
    count = jobs or processors()
    settings = settings.for_batch(count).with_overrides({"enable_caching": True})
    worker = Worker(settings, broker, remote.url, key)
    print(printable(f"Compiling for {remote.url}, {count} at a time, signed with {key.fingerprint}."), file=sys.stderr)
    code = serve(worker, processes=count, until_empty=until_empty, health_file=health_file)
    click.get_current_context().exit(code)


@farm_verb.command(
    "compile",
    cls=Verb,
    examples=(
        "farm compile Llama-3.1-8B --arch sm_90a --broker redis://host:6379/0 --remote s3://bucket/kernels",
        "farm compile shapes.csv --arch sm_80 --arch sm_90a --m 1-64 --broker redis://host:6379/0",
    ),
    done="The remote has every kernel.",
    failed="Some kernels could not be compiled, or the broker or the remote does not answer.",
    missing=_MISSING,
    completers={"table": models},
)
@table_options
@click.option(
    "--top", type=click.IntRange(1, 1000), help="Also this number of configs of each kernel, for tune to time on a GPU."
)
@click.option("--engine", type=click.Choice(["celery", "dask"]), default="celery", hidden=True)
@click.option("--scheduler", hidden=True)
@_farm_options
@json_option
@click.pass_obj
def compile_verb(
    settings: Settings, /, top: int | None, engine: str, scheduler: str | None, broker: str | None, url: str | None,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Have workers compile what a model needs and the remote lacks.

    The kernels are those that the verb warm compiles with the same arguments, the most requested first. Workers have no
    GPU and time nothing: with --top they compile what tune would time for the first m of each kernel. Ctrl-C withdraws
    the kernels that no worker has begun; the same command resumes. Afterwards, remote pull or a lookup fetches the
    kernels.
    """
    from cache_engine.team.progress import Following
    from cache_engine.team.submission import Submission

    started = time.perf_counter()
    if engine == "dask" or scheduler is not None:
        raise UsageError(
            "Dask is no longer supported, and Celery is what to use: leave out --engine and --scheduler, and start "
            "workers with gemm-cache farm worker"
        )
    require("team", "the farm", "celery", "redis")
    remote = remote_named(settings, url)
    submission = Submission(_broker_named(settings, broker), remote)
    asked = _asked(settings, wanted_of(options), top)
    print(printable(asked.in_words), file=sys.stderr)
    run = Following(submission.board, submission.job, options["table"], asked.selections, asked.times)
    with terminal.progress("Compiling on the farm", len(asked.selections), time_left=False) as (bar, task):

        def on_left(left: int) -> None:
            takes = run.left(left)
            words = f"{counted(run.processes, 'process', 'processes')}, {human_ms(takes * 1e3)} left (predicted)"
            bar.update(task, completed=len(asked.selections) - left, description=words)

        def on_trouble(trouble: str) -> None:
            bar.console.print(printable(trouble), markup=False)

        try:
            done = submission.run(asked.selections, on_left, on_trouble)
        except KeyboardInterrupt:
            with contextlib.suppress(GemmCacheError):
                withdrawn = submission.cancel()
                on_trouble(f"{counted(withdrawn, 'kernel')} withdrawn; workers finish what they compile")
            raise
        finally:
            run.end()
    failed = [Refused(key, why) for key, why in sorted(done.failed.items())]
    document = {
        "url": remote.url,
        "kernels": len(asked.selections),
        **{name: getattr(done, name) for name in ("present", "compiled", "found", "resent", "canceled")},
        "failed": failed,
        "workers": sorted(done.workers),
        "seconds": time.perf_counter() - started,
    }
    emit(document, as_json, lambda: _print_farmed(document, done, failed), failed=failed or done.canceled)


@farm_verb.command(
    "status",
    cls=Verb,
    examples=("farm status --broker redis://host:6379/0",),
    done="What the farm does is printed.",
    failed="The broker does not answer.",
    missing="The extra team is not installed.",
)
@_farm_options
@json_option
@click.pass_obj
def status_verb(settings: Settings, /, broker: str | None, url: str | None, as_json: bool) -> None:
    """Show the state of a farm.

    Shows the queue, the workers and what each compiles, the runs and their predicted end, the last 24 hours, and the
    last failures. If the broker serves only one farm, you need not name a remote.
    """
    from cache_engine.team.progress import look

    require("team", "the farm", "celery", "redis")
    farm = look(_broker_named(settings, broker), url or settings.remote)
    document = {
        "waiting": farm.waiting,
        "taken": farm.taken,
        "workers": [
            {
                "name": one.name,
                "processes": one.present.processes,
                "heard_s": one.heard_s,
                "is_here": one.is_here,
                "doing": [each.kernel for each in one.doing],
            }
            for one in farm.workers
        ],
        "runs": [
            {
                "job": one.job,
                **{name: getattr(one.run, name) for name in ("table", "archs", "kernels", "left")},
                "state": one.state,
                "predicted_s": one.run.eta_s,
                "heard_s": one.heard_s,
            }
            for one in farm.runs
        ],
        "hours": farm.hours,
        "failures": farm.failures,
    }
    emit(document, as_json, lambda: _print_state(farm))


def _broker_named(settings: Settings, broker: str | None) -> str:
    named = broker or settings.broker
    if named is None:
        raise UsageError("name the broker with --broker, such as redis://host:6379/0, or with the setting broker")
    return named


@dataclass(frozen=True)
class _Asked:
    """The kernels to request, in order; how many of them are for timing; and the model that predicts compile times."""

    selections: list[Selection]
    times: CompileTimes
    to_tune: int

    @property
    def in_words(self) -> str:
        """A sentence: the number of kernels, and how long one process would take to compile all of them."""
        from cache_engine.cache.miss import compile_of

        tuned = f", {self.to_tune:,} of them for tune to time" if self.to_tune else ""
        takes = human_ms(1e3 * sum(self.times.seconds(compile_of(one)) for one in self.selections))
        return (
            f"{counted(len(self.selections), 'kernel')}{tuned}; one process would take {takes} for all, "
            f"predicted {self.times.in_words}."
        )


def _asked(settings: Settings, asked: list[list[Wanted]], top: int | None) -> _Asked:
    """The kernels to request from the farm.

    Where there is a store, the kernels are in the order of its demand, and its records predict their compile times.
    """
    from cache_engine.batch.tuning import all_candidates
    from cache_engine.insight.coverage import coverage, distinct, require_served
    from cache_engine.team.progress import by_demand, compile_times

    has_store = settings.directory_exists
    if not has_store:
        settings = settings.with_overrides({"enable_caching": False})
    with open_cache(settings.made_here(), create=not has_store) as cache:
        cells = coverage(cache, asked)
        require_served(cells)
        kernels = distinct(cells)
        if cache.has_store:
            kernels = by_demand(kernels, cache.demand.ledger())
        needed = {kernel.key: kernel.selection for kernel in kernels}
        candidates = all_candidates(cache, list(needed.values()), top) if top else []
        more = [one for one in candidates if one.key not in needed]
        return _Asked([*needed.values(), *more], compile_times(cache), len(more))


# ---- For people ----


def _print_farmed(d: dict[str, Any], done: Farmed, failed: list[Refused]) -> None:
    print_refused(failed, "failed")
    print(
        printable(
            f"{d['url']} has {d['kernels'] - len(failed):,} of {counted(d['kernels'], 'kernel')}: {done.present:,} "
            f"before, {done.compiled:,} compiled by {counted(len(done.workers), 'process', 'processes')}, "
            f"{done.found:,} found; {human_ms(d['seconds'] * 1e3)}."
        )
    )
    if done.canceled:
        print(f"Canceled from elsewhere, with {counted(done.canceled, 'kernel')} left. The same command resumes.")


def _print_state(d: Farm) -> None:
    processes = sum(one.present.processes for one in d.here)
    terminal.print_fields(
        {
            "queue": f"{counted(d.waiting, 'kernel')} waiting, {d.taken:,} taken by workers",
            "workers": f"{len(d.here):,}, {counted(processes, 'process', 'processes')}",
            "24 hours": f"{sum(one.compiled for one in d.hours):,} compiled, {sum(one.found for one in d.hours):,} "
            f"found, {sum(one.failed for one in d.hours):,} failed, "
            f"{counted(sum(one.refused for one in d.hours), 'message')} refused",
        }
    )
    columns = {"worker": terminal.LEFT, "processes": terminal.RIGHT, "heard": terminal.RIGHT, "compiles": terminal.LEFT}
    rows = [
        (
            one.name, f"{one.present.processes:,}", human_age(one.heard_s),
            ", ".join(each.kernel for each in one.doing) if one.is_here else "gone",
        )
        for one in d.workers
    ]  # fmt: skip
    terminal.print_table(columns, rows)
    for one in d.runs:
        end = f", {human_ms(one.run.eta_s * 1e3)} left (predicted)" if one.state == "running" else ""
        done = f"{one.run.kernels - one.run.left:,} of {counted(one.run.kernels, 'kernel')}"
        print(printable(f"{one.run.table}: {done}, {one.state}{end}"))
    for failure in d.failures:
        print(printable(f"failed: {failure.kernel}, on {failure.worker}: {failure.error}"))
