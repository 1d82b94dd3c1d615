"""The verb ``compile``: looks up one kernel, and compiles it on a miss."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import UNSET

from cache_engine.batch import results
from cache_engine.cli.support import (
    SizedVerb,
    asked_choice,
    asked_problem,
    emit,
    json_option,
    open_cache,
    problem_options,
    reporting,
)
from cache_engine.cli.terminal import print_fields, print_warnings
from cache_engine.errors import UsageError
from cache_engine.gpu.probe import gpu
from cache_engine.insight.inspection import described
from cache_engine.kernels.select import TO_PROVE
from cache_engine.model.artifact import Record
from cache_engine.model.documents import to_json
from cache_engine.settings import PACKS, Settings
from cache_engine.units import human_age, human_ms

if TYPE_CHECKING:
    from cache_engine.batch.jobs import Reporter
    from cache_engine.cache.cache import Cache, CompiledKernel

# How long a job, for which a person waits, may look for the nearest entry.
_EXPLAIN_S = 2.0


@click.command(
    "compile",
    cls=SizedVerb,
    examples=(
        "compile 4096 7168 2048 --arch sm_90a",
        "compile 16 7168 2048 --dtype fp16 --epilogue bias+relu --json",
        "compile 4096 7168 2048 --force --output ./dump",
        "compile 300 7168 2048 --wait 0",
    ),
    done="The kernel is compiled, or was in the cache; with --wait, another kernel may serve.",
    failed="The compiler rejects the source, or the store cannot be read.",
    missing="The compiler is not installed.",
)
@problem_options
@click.option("--force", is_flag=True, help="Recompile even if cached.")
@click.option(
    "--wait",
    metavar="MS",
    type=click.FloatRange(0, 3_600_000),
    help="Wait at most MS milliseconds. After that, print another stored kernel that computes this problem correctly, "
    "if there is one; else go on waiting.",
)
@click.option(
    "--output",
    "debug_dump",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Recompile and write source, PTX, SASS, log and environment to DIR, even on failure.",
)
@json_option
@click.pass_obj
def compile_verb(
    settings: Settings, /, force: bool, wait: float | None, debug_dump: Path | None, as_json: bool, job: Path | None,
    **asked: Any,
) -> None:  # fmt: skip
    """Look up a kernel, and compile it on a miss.

    The kernel computes C (M×N) = A (M×K) · B (K×N). A compiled kernel is stored for later lookups, also of other
    processes. M, N and K are at most 2^24, the batch is at most 65,535, and no operand has more than 2^40 elements over
    the whole batch.

    With --wait, may print another kernel that serves meanwhile; ends when the kernel that was asked for is stored.
    """
    if wait is not None and (force or debug_dump):
        raise UsageError("--wait and --force or --output exclude each other: what is compiled again is waited for")
    with reporting(job) as reporter, open_for(settings, asked) as cache:
        how: dict[str, Any] = {"force": force, "debug_dump": debug_dump} if force or debug_dump else {}
        kernel, why = get_kernel(cache, asked, reporter, **(how if wait is None else {"wait_ms": wait}))
        document = results.compiled(kernel)
        if reporter:
            reporter.finish(job_result(document, why))
        emit(document, as_json, lambda: _print_kernel(document, kernel.record))
        print_warnings(document.warnings)
        if kernel.better is not None:
            kernel.better.wait()  # the answer is out; the kernel that was asked for is for the next


def open_for(settings: Settings, asked: dict[str, Any]) -> Cache:
    """Opens the store for a request. If there is no store, creates one, but only for a valid request."""
    if settings.uses_directory and not settings.directory_exists:
        with open_cache(settings.with_overrides({"enable_caching": PACKS})) as without_store:
            without_store.select(without_store.targeted(asked_problem(asked)), **asked_choice(asked))
    return open_cache(settings)


def get_kernel(
    cache: Cache, asked: dict[str, Any], reporter: Reporter | None, **again: Any
) -> tuple[CompiledKernel, results.Explained | None]:
    """The requested kernel, compiled on a miss; and, for a job, the reason of the miss (``None`` after a hit)."""
    if reporter is None or again:
        on_stage = reporter.stage if reporter else None
        return cache.get_or_compile(asked_problem(asked), **asked_choice(asked), on_stage=on_stage, **again), None
    from cache_engine.insight.explanation import get_and_explain

    kernel, why = get_and_explain(
        cache, asked_problem(asked), **asked_choice(asked), on_stage=reporter.stage, within_s=_EXPLAIN_S
    )
    return kernel, None if why is None else results.explained(why)


def job_result(document: results.Compiled | results.Timed, why: results.Explained | None) -> str:
    """The JSON text of a job's result, with the reason of a miss added."""
    document.why = why
    text = to_json(document)
    document.why = UNSET
    return text


# ---- For people ----


def record_fields(record: Record) -> dict[str, str]:
    """The fields of a record and their values, to be printed."""
    words = described(record, human_age(time.time() - record.created_at))
    return {"key": record.key, "name": record.name, **{label.lower(): value for label, value in words.items()}}


def _print_kernel(document: results.Compiled, record: Record) -> None:
    tier = document.tier if document.tier == "compiled" else f"hit ({document.tier})"
    stages = ", ".join(f"{name.replace('_', ' ')} {human_ms(ms)}" for name, ms in document.stages_ms.items())
    print_fields(
        {
            "result": f"{tier}, but not saved: {document.unpublished}" if document.unpublished else tier,
            **({"serves for": document.stands_in_for[:12] + _behind(document)} if document.stands_in_for else {}),
            **record_fields(record),
            "config source": document.config_from,
            "toolchain from": document.toolchain_from,
            "stage times": stages,
        }
    )
    if record.family in TO_PROVE and isinstance(gpu(), str):
        print(f"\n{record.family} is unproved on this machine: a GPU proves it before it serves matmul there.")


def _behind(document: results.Compiled) -> str:
    failure = document.behind_failure
    return f", which could not be compiled: {failure}" if failure else ", which is being compiled"
