"""The verbs that compile on many machines: ``farm worker`` and ``farm compile``."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cache_engine.catalogue import TOKENS
from cache_engine.cli import terminal
from cache_engine.cli.documents import moving
from cache_engine.cli.keeping.packs import print_refused, signing_key
from cache_engine.cli.keeping.remote import remote_named
from cache_engine.cli.support import Verb, VerbGroup, element_options, emit, input_dtype, json_option, open_cache
from cache_engine.cli.support.completion import models
from cache_engine.config import Settings
from cache_engine.errors import GemmCacheError
from cache_engine.extras import require
from cache_engine.model.gemm import DType
from cache_engine.model.sizes import parse_sizes
from cache_engine.units import counted, human_ms, printable

if TYPE_CHECKING:
    from cache_engine.batch.warm import WarmPlan
    from cache_engine.farm.submitting import Farmed, Submission

_F = TypeVar("_F", bound=Callable[..., Any])
_MISSING = "The extra farm, remote or trust is not installed, or the compiler."


def _farm_options(verb: _F) -> _F:
    for decorate in (
        click.option("--remote", "url", help="The object store for the kernels. Default: the setting remote."),
        click.option("--broker", required=True, metavar="URL", help="Redis, such as redis://host:6379/0."),
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
    done="The worker was stopped.",
    failed="The remote cannot be opened.",
    missing=_MISSING,
)
@_farm_options
@click.option(
    "--sign", type=click.Path(path_type=Path), metavar="KEY", required=True,
    help="Sign each kernel with this private key of OpenSSH (Ed25519).",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), help="Parallel compiles. Default: one per CPU.")
@click.option(
    "--redeliver", type=click.IntRange(1), default=300, show_default=True,
    help="Seconds after which the work of a worker that vanished is given to another; more than a compile takes.",
)  # fmt: skip
@click.pass_obj
def worker_verb(
    settings: Settings, /, broker: str, url: str | None, sign: Path, jobs: int | None, redeliver: int
) -> None:
    """Compile what the queue asks for, until stopped by Ctrl-C.

    A message can only ask for a kernel that this program makes from its own templates. The first Ctrl-C lets compiles
    finish.
    """
    from cache_engine.batch.warm import processors
    from cache_engine.farm.working import Worker, serve

    require("farm", "the farm")
    key, remote = signing_key(sign), remote_named(settings, url)
    count = jobs or processors()
    settings = settings.for_batch(count).with_overrides({"enable_caching": True})
    worker = Worker(settings, broker, remote.url, key)
    print(printable(f"Compiling for {remote.url}, {count} at a time, signed with {key.fingerprint}."), file=sys.stderr)
    click.get_current_context().exit(serve(worker, broker, processes=count, redeliver_s=redeliver))


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
@click.argument("table", metavar="MODEL|FILE")
@click.option("--arch", "archs", multiple=True, help="Target (repeatable). Default: the local GPU, else sm_90.")
@click.option("--m", "ms", default=TOKENS, show_default=True, metavar="SIZES", help="Tokens, such as 1,16,64-512.")
@element_options
@_farm_options
@json_option
@click.pass_obj
def compile_verb(
    settings: Settings, /, table: str, archs: tuple[str, ...], ms: str, dtype: str, scales: str, broker: str,
    url: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Have workers compile what a model needs and the remote lacks.

    The kernels are those of warm with the same arguments. Ctrl-C cancels what no worker has begun; the same command
    resumes. Afterwards remote pull, or a lookup, brings them.
    """
    from cache_engine.farm.submitting import Submission

    started = time.perf_counter()
    require("farm", "the farm")
    remote = remote_named(settings, url)
    submission = Submission(broker, remote)
    plan = _plan(settings, table, archs, ms, input_dtype(dtype), scales)
    selections = [kernel.selection for kernel in plan.kernels]
    print(printable(_planned(plan)), file=sys.stderr)
    with terminal.progress("Compiling on the farm", len(selections)) as (bar, task):

        def on_left(left: int) -> None:
            bar.update(task, completed=len(selections) - left)

        done = _followed(
            submission,
            lambda: submission.run(
                selections,
                on_left,
                lambda trouble: bar.console.print(printable(trouble), markup=False),
            ),
        )
    document = moving.farmed(remote.url, len(selections), done, time.perf_counter() - started)
    emit(document, as_json, lambda: _print_farmed(document), failed=document.failed)


def _followed(submission: Submission, run: Callable[[], Farmed]) -> Farmed:
    try:
        return run()
    except KeyboardInterrupt:
        with contextlib.suppress(GemmCacheError):
            submission.cancel()
        raise


def _plan(settings: Settings, table: str, archs: tuple[str, ...], ms: str, dtype: DType, scales: str) -> WarmPlan:
    """The kernels, and how long one machine would take for them; by the store's records, where there is a store."""
    from cache_engine.batch.warm import plan_warming
    from cache_engine.catalogue import shapes_of
    from cache_engine.insight.coverage import coverage, require_served, wanted

    asked = wanted(shapes_of(table), dtype, archs or (None,), parse_sizes(ms), scales=scales)
    has_store = settings.directory_exists
    if not has_store:
        settings = settings.with_overrides({"enable_caching": False})
    with open_cache(settings, create=not has_store) as cache:
        cells = coverage(cache, asked)
        require_served(cells)
        return plan_warming(cache, cells, 1)


# ---- For people ----


def _planned(plan: WarmPlan) -> str:
    takes = human_ms(plan.estimate.seconds * 1e3)
    alone = f"; those that this store lacks take one processor {takes}, {plan.estimate.by}" if plan.missing else ""
    return f"{counted(len(plan.kernels), 'kernel')}{alone}."


def _print_farmed(d: moving.FarmReport) -> None:
    print_refused(d.failed, "failed")
    print(
        printable(
            f"{d.url} has {d.kernels - len(d.failed):,} of {counted(d.kernels, 'kernel')}: {d.present:,} before, "
            f"{d.compiled:,} compiled by {counted(len(d.workers), 'process', 'processes')}, {d.found:,} found; "
            f"{human_ms(d.seconds * 1e3)}."
        )
    )
