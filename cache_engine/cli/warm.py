"""The verbs that fill a store before its kernels are requested: ``warm`` and ``sample``."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cache_engine.catalogue import TOKENS
from cache_engine.cli import terminal
from cache_engine.cli.documents import measured, to_json
from cache_engine.cli.support import (
    FAILED,
    Verb,
    dtype_option,
    emit,
    job_option,
    json_option,
    open_cache,
    opt_level_option,
    reporting,
    specialise_option,
)
from cache_engine.config import Settings
from cache_engine.errors import UsageError
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import INPUT_DTYPES, DType, GemmProblem, Layout
from cache_engine.units import counted, human_ms, printable

if TYPE_CHECKING:
    from cache_engine.batch.jobs import Reporter
    from cache_engine.batch.warm import Warmed

_TOKENS = ",".join(map(str, TOKENS))


class _Sizes(click.ParamType[tuple[int, ...]]):
    """Whole numbers, separated by commas."""

    name = "integers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in value.split(",")]
        wrong = next((part for part in parts if not re.fullmatch("[0-9]{1,40}", part)), None)
        if wrong is not None:
            self.fail(f"{wrong!r} is not a whole number; write sizes as {_TOKENS}.", param, ctx)
        return tuple(int(part) for part in parts)


@click.command(
    "warm",
    cls=Verb,
    examples=("warm Llama-3.1-8B --arch sm_90a", "warm shapes.csv --m 1,16,4096 --dtype fp16 --jobs 8"),
    done="Every kernel is in the store.",
    failed="Some kernels could not be compiled or stored; the others are in the store.",
    missing="The compiler is not installed.",
)
@click.argument("table", metavar="MODEL|FILE")
@click.option("--arch", multiple=True, help="Target (repeatable). Default: the local GPU, else sm_90.")
@click.option("--m", "ms", type=_Sizes(), default=_TOKENS, show_default=True, help="Numbers of tokens.")
@dtype_option
@click.option("--layout", default=Layout.NT.value, show_default=True, help=f"Storage of A and B: {', '.join(Layout)}.")
@specialise_option
@opt_level_option
@click.option("--compiler", default="nvrtc", show_default=True, help="Compiler: nvrtc, nvcc or triton.")
@click.option("--jobs", type=click.IntRange(1), help="Parallel compiles. Default: one per CPU.")
@job_option
@json_option
@click.pass_obj
def warm_verb(
    settings: Settings,
    /,
    table: str,
    arch: tuple[str, ...],
    ms: tuple[int, ...],
    dtype: str,
    layout: str,
    specialisation: str,
    opt_level: int,
    compiler: str,
    jobs: int | None,
    job: Path | None,
    as_json: bool,
) -> None:
    """Compile all missing kernels of a model or a table.

    MODEL is the name of a public model; an unknown name lists the known ones. FILE is a CSV file with the columns n
    and k, and optionally batch and m. After Ctrl-C, the same command resumes.
    """
    from cache_engine.batch.warm import compile_all, one_per_key

    started = time.perf_counter()
    with reporting(job) as reporter:
        problems = _asked(table, ms, dtype, layout, arch, specialisation=specialisation, opt_level=opt_level)
        with open_cache(settings) as cache:
            root = cache.layout.root  # where caching is switched off, this fails before anything is compiled
            chosen, results = one_per_key(cache, problems, compiler)
            tally = _Tally(len(chosen) + len(results), reporter)
            for refused in results:
                tally.add(refused)
            with terminal.progress("Compiling kernels", len(chosen)) as (bar, task):

                def on_done(warmed: Warmed) -> None:
                    bar.advance(task)
                    tally.add(warmed)

                results += compile_all(cache, chosen, jobs, on_done, compiler)
        document = measured.Warmed(
            store=str(root),
            problems=len(problems),
            kernels=len(chosen),
            compiled=tally.compiled,
            found=tally.found,
            failed=[
                measured.FailedProblem(problem=_named(one.problem), error=one.trouble) for one in results if one.trouble
            ],
            seconds=time.perf_counter() - started,
        )
        if reporter:
            reporter.finish(to_json(document))
    emit(document, as_json, lambda: _print_warmed(document))
    if document.failed:
        click.get_current_context().exit(FAILED)


@click.command(
    "sample",
    cls=Verb,
    examples=("--store ./demo-store sample", "sample --jobs 2"),
    done="All 48 kernels are in the store.",
    failed="Some kernels could not be compiled.",
    missing="The compiler is not installed.",
)
@click.option("--jobs", type=click.IntRange(1), help="Parallel compiles. Default: one per CPU.")
@json_option
@click.pass_obj
def sample_verb(settings: Settings, /, jobs: int | None, as_json: bool) -> None:
    """Fill the store with 48 example kernels.

    They are kernels of public models. Afterwards each is requested again, as another process would, and comes from
    disk.
    """
    from cache_engine.batch.sample import sample_problems
    from cache_engine.batch.warm import compile_all

    problems = sample_problems()
    started = time.perf_counter()
    with open_cache(settings) as cache, terminal.progress("Compiling kernels", len(problems)) as (bar, task):
        done = compile_all(cache, problems, jobs, on_done=lambda _: bar.advance(task))
    with open_cache(settings) as cache:
        # Its memory is empty, as that of another process: every kernel must now come from disk.
        again = compile_all(cache, problems, jobs)
    failed = [one for one in done if one.kernel is None]
    compiled = sum(one.kernel is not None and one.kernel.tier == "compiled" for one in done)
    document = measured.Sampled(
        store=str(settings.directory()),
        compiled=compiled,
        found=len(done) - compiled - len(failed),
        failed=[measured.FailedProblem(problem=str(one.problem), error=one.error) for one in failed],
        found_again=sum(one.kernel is not None and one.kernel.tier == "disk" for one in again),
        seconds=time.perf_counter() - started,
    )
    emit(document, as_json, lambda: _print_sample(document))
    if failed:
        click.get_current_context().exit(FAILED)


class _Tally:
    """Counts what became of problems, for those who follow the job."""

    def __init__(self, total: int, reporter: Reporter | None) -> None:
        self.total, self.compiled, self.found, self.failed = total, 0, 0, 0
        self._reporter = reporter

    def add(self, warmed: Warmed) -> None:
        """Counts one more."""
        if warmed.kernel is None or warmed.trouble:
            self.failed += 1
        elif warmed.kernel.tier == "compiled":
            self.compiled += 1
        else:
            self.found += 1
        if self._reporter is not None:
            from cache_engine.batch.jobs import JobProgress

            self._reporter.progress(JobProgress(self.total, self.compiled, self.found, self.failed))


def _asked(
    table: str, ms: tuple[int, ...], dtype: str, layout: str, archs: tuple[str, ...], **asked: Any
) -> list[GemmProblem]:
    """The problems that the options describe."""
    from cache_engine.batch.warm import problems_of
    from cache_engine.catalogue import model_shapes, table_shapes

    is_file = Path(table).is_file() or "/" in table or table.lower().endswith(".csv")
    shapes = table_shapes(Path(table)) if is_file else model_shapes(table)
    for name in archs:
        architecture(name)
    for what, value, allowed in (("dtype", dtype, INPUT_DTYPES), ("layout", layout, tuple(Layout))):
        if value not in allowed:
            raise UsageError(f"unknown {what} {value!r}; use one of: {', '.join(allowed)}")
    return problems_of(shapes, ms, DType(dtype), archs or (None,), layout=Layout(layout), **asked)


def _named(problem: GemmProblem) -> str:
    batch = f", batch {problem.batch}" if problem.batch > 1 else ""
    return f"{problem.m} × {problem.n} × {problem.k}{batch}, {problem.dtype}, {problem.arch}"


# ---- For people ----


def _print_warmed(d: measured.Warmed) -> None:
    """Prints the counts; failures of one cause share a line."""
    by_cause: dict[str, list[str]] = {}
    for failure in d.failed:
        by_cause.setdefault(failure.error, []).append(failure.problem)
    for cause, problems in by_cause.items():
        more = f" and {len(problems) - 1:,} more" if len(problems) > 1 else ""
        print(printable(f"failed: {problems[0]}{more}: {cause}"), file=sys.stderr)
    failed = f", {len(d.failed):,} failed" if d.failed else ""
    counts = f"{counted(d.compiled, 'kernel')} compiled, {d.found:,} found{failed}"
    took = human_ms(d.seconds * 1e3)
    print(printable(f"{counts}, for {counted(d.problems, 'problem')}, in {took}; stored in {d.store}."))


def _print_sample(d: measured.Sampled) -> None:
    for failure in d.failed:
        print(printable(f"failed: {failure.problem}: {failure.error}"), file=sys.stderr)
    counts = f"{counted(d.compiled, 'kernel')} compiled, {d.found} found in {d.store}"
    print(printable(f"{counts}, in {human_ms(d.seconds * 1e3)}."))
    print(f"Re-requested: {counted(d.found_again, 'disk hit')}.")
