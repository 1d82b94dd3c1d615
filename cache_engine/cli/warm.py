"""The verb that fills a store before its kernels are asked for."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cache_engine.catalogue import TOKENS
from cache_engine.cli import terminal
from cache_engine.cli.support import (
    FAILED,
    emit,
    job_option,
    json_option,
    open_cache,
    opt_level_option,
    reporting,
    specialise_option,
    to_json,
)  # fmt: skip
from cache_engine.config import Settings
from cache_engine.errors import UsageError
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import INPUT_DTYPES, DType, GemmProblem, Layout

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


@click.command("warm")
@click.argument("table", metavar="MODEL|FILE")
@click.option("--arch", multiple=True, help="Target; may be given several times. Default: the local GPU, else sm_90.")
@click.option("--m", "ms", type=_Sizes(), default=_TOKENS, show_default=True, help="Numbers of tokens.")
@click.option("--dtype", default=DType.BF16.value, show_default=True, help=f"{', '.join(INPUT_DTYPES)}.")
@click.option(
    "--layout", default=Layout.NT.value, show_default=True, help=f"How A and B are stored: {', '.join(Layout)}."
)
@specialise_option
@opt_level_option
@click.option("--compiler", default="nvrtc", show_default=True, help="What compiles.")
@click.option("--jobs", type=click.IntRange(1), help="Compiles at a time. Default: one per processor.")
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
    """Compile all kernels of a model, or of a table, that are not in the store yet.

    FILE is a CSV file with the columns n and k and, if wanted, batch and m. Stopped with Ctrl-C it can be started
    again, and goes on where it was.
    """
    from cache_engine.batch.warm import compile_all, one_per_key

    started = time.perf_counter()
    with reporting(job) as reporter:
        problems = _asked(table, ms, dtype, layout, arch, specialisation=specialisation, opt_level=opt_level)
        with open_cache(settings) as cache:
            root = cache.layout.root  # where caching is switched off, this says so before anything is compiled
            chosen, results = one_per_key(cache, problems, compiler)
            tally = _Tally(len(chosen) + len(results), reporter)
            for refused in results:
                tally.add(refused)
            with terminal.progress("Compiling kernels", len(chosen)) as (bar, task):

                def on_done(warmed: Warmed) -> None:
                    bar.advance(task)
                    tally.add(warmed)

                results += compile_all(cache, chosen, jobs, on_done, compiler)
        document = {
            "store": str(root),
            "problems": len(problems),
            "kernels": len(chosen),
            "compiled": tally.compiled,
            "found": tally.found,
            "failed": [
                {"problem": _named(warmed.problem), "error": warmed.trouble} for warmed in results if warmed.trouble
            ],
            "seconds": time.perf_counter() - started,
        }
        if reporter:
            reporter.finish(to_json(document))
    emit(document, as_json, lambda: terminal.print_warmed(document))
    if document["failed"]:
        click.get_current_context().exit(FAILED)


class _Tally:
    """Counts what became of problems, for whoever follows the job."""

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
    """The problems that the options ask for."""
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
