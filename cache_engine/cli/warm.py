"""The verb ``warm``: fills a store before its kernels are requested."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cache_engine.batch import results
from cache_engine.cli import terminal
from cache_engine.cli.support import (
    Verb,
    device_option,
    emit,
    job_option,
    json_option,
    open_cache,
    reporting,
    table_options,
    wanted_of,
)
from cache_engine.errors import UsageError
from cache_engine.model.documents import picked, to_json
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.outcome import in_json
from cache_engine.model.shapes import sizes_text
from cache_engine.settings import Settings
from cache_engine.units import counted, human_ms, printable

if TYPE_CHECKING:
    from cache_engine.batch.jobs import Reporter
    from cache_engine.batch.warm import Warmed, WarmPlan
    from cache_engine.cache.cache import Cache
    from cache_engine.insight.coverage import Cell, Wanted


_RANGES_SHOWN = 3


@click.command(
    "warm",
    cls=Verb,
    examples=(
        "warm Llama-3.1-8B --arch sm_90a",
        "warm sample_data/model_gemm_shapes.csv --m 1,16 --dtype fp16 --dry-run",
        "warm DeepSeek-V3 --dtype fp8_e4m3 --scales 1x128,128x128 --mode grouped --m 1-4096",
        "warm Llama-3.1-8B --dry-run --by shape",
        "warm Llama-3.1-8B --check",
        "warm --sample --store ./demo-store",
    ),
    done="Every kernel is in the store; with --dry-run, they are listed.",
    failed="Some kernels could not be compiled, stored or loaded; the others are in the store.",
    missing="The compiler is not installed; --check: there is no NVIDIA GPU, or the extra gpu is not installed.",
)
@partial(table_options, required=False)
@click.option("--compiler", help="Compiler: nvrtc, nvcc or triton. Default: the one that the family needs, else nvrtc.")
@click.option(
    "--family",
    help="Kernel family: tensor_core, scaled, grouped, simt, triton, hopper. Default: by compiler and problem.",
)
@click.option("--jobs", type=click.IntRange(1), help="Parallel compiles. Default: one per CPU.")
@click.option("--check", "load", is_flag=True, help="Check that the driver accepts each kernel: load it on the GPU.")
@device_option
@click.option("--dry-run", is_flag=True, help="List the kernels; compile nothing.")
@click.option(
    "--by",
    type=click.Choice(("kernel", "shape")),
    default="kernel",
    help="--dry-run: shape lists how many kernels of each shape and target are stored.",
)
@click.option("--missing", is_flag=True, hidden=True)
@click.option("--sample", is_flag=True, help="Fill the store with 48 example kernels, instead of those of a model.")
@job_option
@json_option
@click.pass_obj
def warm_verb(
    settings: Settings, /, jobs: int | None, sample: bool, by: str, missing: bool, as_json: bool, **asked: Any
) -> None:  # fmt: skip
    """Compile the missing kernels of a model or a table.

    If the model's name is unknown, the known ones are listed. A file may also have the columns batch, m and epilogue.
    Afterwards every m of --m is a hit; with --specialise dynamic, a few kernels serve any m while others are compiled.
    After Ctrl-C, the same command resumes. On a GPU of the target, families that this GPU has not proved yet are then
    proved and timed on it (setting prove).

    With --sample, the kernels are of public models. Afterwards each is requested again, as another process would, and
    comes from disk. Then they are requested 28,000 times, in a mix of decode and prefill, so that the store has demand
    to show; nothing is launched or timed.
    """
    dry_run = asked["dry_run"]
    if sample:
        if asked["table"] is not None or dry_run or asked["load"] or asked["archs"]:
            raise UsageError("--sample has its own 48 kernels; leave MODEL and the other options out")
        _fill_with_sample(settings, jobs, as_json=as_json)
        return
    if asked["table"] is None:
        raise UsageError("give the name of a MODEL, or a FILE with the shapes; --sample needs neither")
    if by == "shape" and not dry_run:
        raise UsageError("--by shape compiles nothing; add --dry-run")
    if by == "shape":
        del asked["job"]  # the dashboard draws a coverage itself
        _show_coverage(settings, only_missing=missing, as_json=as_json, **asked)
    else:
        _warm(settings, jobs, as_json=as_json, **asked)


def _warm(
    settings: Settings, jobs: int | None, *, family: str | None, compiler: str | None, load: bool,
    dry_run: bool, job: Path | None, as_json: bool, **asked: Any,
) -> None:  # fmt: skip
    """Compiles the missing kernels; for a dry run, lists them."""
    started = time.perf_counter()
    with reporting(job) as reporter:
        _check_how(family, compiler, load=load, dry_run=dry_run)
        rows = wanted_of(asked)
        with _opened(settings.for_batch(jobs), dry_run) as cache:
            # Where caching is switched off, this fails before anything is compiled.
            root = settings.shown("dir") if dry_run else cache.layout.root
            plan = _plan(cache, rows, family, compiler, jobs)
            if not dry_run:
                print(_planned(plan), file=sys.stderr)
            tally = _Tally(plan, reporter)
            if not dry_run:
                _compile(cache, plan, tally, jobs, family, compiler, load=load)
        document = results.Warmed(
            store=str(root),
            problems=plan.problems,
            kernels=len(plan.kernels),
            missing=len(plan.missing),
            estimated_seconds=plan.estimate.seconds,
            estimated_from=plan.estimate.records,
            estimated_error=plan.estimate.error,
            estimated_by=plan.estimate.by,
            compiled=tally.compiled,
            found=tally.found,
            loaded=tally.compiled + tally.found if load else None,
            failed=tally.failed,
            dry_run=dry_run,
            needed=_listed(plan) if dry_run else [],
            seconds=time.perf_counter() - started,
        )
        if reporter:
            reporter.finish(to_json(document))
    emit(
        document,
        as_json,
        lambda: _print_planned(document, plan) if dry_run else _print_warmed(document),
        failed=document.failed,
    )


def _show_coverage(
    settings: Settings, *, family: str | None, compiler: str | None, load: bool,
    dry_run: bool, only_missing: bool, as_json: bool, **asked: Any,
) -> None:  # fmt: skip
    """Prints, for each shape and target, how many of its kernels are in the store.

    The kernels of a shape together serve every requested m.
    """
    from cache_engine.batch.warm import stored
    from cache_engine.insight.coverage import coverage, distinct

    _check_how(family, compiler, load=load, dry_run=dry_run)
    rows = wanted_of(asked)
    with _opened(settings, dry_run) as cache:
        cells = coverage(cache, rows, family, compiler)
        keys = {kernel.key for kernel in distinct(cells)}
        cached = stored(cache, keys)
    covered = [_covered(cell, cached) for row in cells for cell in row]
    if only_missing:
        covered = [row for row in covered if row["missing"] or row["refused"]]
    counts = {"kernels": len(keys), "cached": len(cached)}
    document = {"table": asked["table"], "dtype": asked["dtype"], **counts, "rows": covered}
    emit(document, as_json, lambda: _print_coverage(covered, len(cached), len(keys)))


def _covered(cell: Cell, cached: Collection[str]) -> dict[str, Any]:
    """A shape on a target as JSON: the number of stored kernels, the missing keys, or why no kernel serves it."""
    missing = [kernel.key for kernel in cell.kernels if kernel.key not in cached]
    return {
        **picked(cell.shape, "model", "operation", "n", "k", "batch"),
        "arch": cell.arch,
        "kernels": len(cell.kernels),
        "cached": len(cell.kernels) - len(missing),
        "missing": missing,
        "refused": cell.refused,
    }


def _opened(settings: Settings, dry_run: bool) -> Cache:
    """Opens the store. For a dry run, a missing store is not created."""
    return open_cache(settings, create=not dry_run, optional=dry_run)


def _plan(
    cache: Cache, rows: list[list[Wanted]], family: str | None, compiler: str | None, jobs: int | None
) -> WarmPlan:
    """The plan for getting the kernels that serve the shapes ``rows``."""
    from cache_engine.batch.warm import plan_warming
    from cache_engine.insight.coverage import coverage

    return plan_warming(cache, coverage(cache, rows, family, compiler), jobs)


def _check_how(family: str | None, compiler: str | None, *, load: bool, dry_run: bool) -> None:
    """Raises an error, before anything is compiled, for an unknown family or compiler, or if loading is impossible."""
    from cache_engine.compilers import COMPILERS
    from cache_engine.kernels.select import FAMILIES

    _check(compiler=(compiler, tuple(COMPILERS)), family=(family, tuple(FAMILIES)))
    if load and dry_run:
        raise UsageError("--dry-run compiles nothing, and so --check has nothing to load; leave one of them out")
    if load:
        from cache_engine.gpu.probe import require_gpu

        require_gpu("warm --check")


def _check(**given: tuple[str | None, Sequence[str]]) -> None:
    """Raises ``UsageError`` for an option whose value is not one of the allowed ones; ``given`` has both by name."""
    for what, (value, allowed) in given.items():
        if value is not None and value not in allowed:
            raise UsageError(f"unknown {what} {value!r}; use one of: {', '.join(allowed)}")


def _compile(
    cache: Cache,
    plan: WarmPlan,
    tally: _Tally,
    jobs: int | None,
    family: str | None,
    compiler: str | None,
    *,
    load: bool,
) -> None:
    """Gets all kernels of the plan. Kernels that are already stored are read, which verifies them."""
    from cache_engine.batch.warm import warm

    problems = [kernel.selection.problem for kernel in plan.kernels]
    with terminal.progress("Compiling kernels", len(problems)) as (bar, task):

        def on_done(warmed: Warmed) -> None:
            bar.advance(task)
            tally.add(warmed)

        warm(cache, problems, jobs, on_done, family, compiler, load=load)


def _fill_with_sample(settings: Settings, jobs: int | None, *, as_json: bool) -> None:
    from cache_engine.batch.warm import request_kernels, sample_problems, warm

    problems = sample_problems()
    started = time.perf_counter()
    settings = settings.for_batch(jobs)
    with open_cache(settings) as cache, terminal.progress("Compiling kernels", len(problems)) as (bar, task):
        done = warm(cache, problems, jobs, on_done=lambda _: bar.advance(task))
    with open_cache(settings) as cache:
        # Its memory is empty, as that of another process: every kernel must now come from disk.
        again = warm(cache, problems, jobs)
        requests = request_kernels(cache, {one.kernel.key for one in again if one.kernel is not None})
    failed = [one for one in done if one.kernel is None]
    compiled = sum(one.kernel is not None and one.kernel.tier == "compiled" for one in done)
    document = results.Sampled(
        store=str(settings.directory()),
        compiled=compiled,
        found=len(done) - compiled - len(failed),
        failed=[results.FailedProblem(problem=str(one.problem), error=in_json(one.error)) for one in failed],
        found_again=sum(one.kernel is not None and one.kernel.tier == "disk" for one in again),
        requests=requests,
        seconds=time.perf_counter() - started,
    )
    emit(document, as_json, lambda: _print_sample(document), failed=failed)


def _listed(plan: WarmPlan) -> list[results.NeededKernel]:
    """The kernels of a plan, with the values of m that each serves and whether it is stored."""
    return [
        results.NeededKernel(
            key=kernel.key,
            problem=_named(kernel.selection.problem, str(kernel.ms[0][0])),
            m=[results.ServedSizes(first=each[0], last=each[-1], step=each.step) for each in kernel.ms],
            family=kernel.selection.family.name,
            compiler=kernel.selection.compiler.name,
            config_text=str(kernel.selection.config),
            config_from=kernel.selection.config_from,
            stored=kernel.key in plan.stored,
        )
        for kernel in plan.kernels
    ]


class _Tally:
    """Counts the results of a warm-up, and reports the counts to those who follow the job.

    A problem that no kernel serves counts as failed from the start.
    """

    def __init__(self, plan: WarmPlan, reporter: Reporter | None) -> None:
        self.total, self.compiled, self.found = len(plan.kernels) + len(plan.refused), 0, 0
        self.failed: list[results.FailedProblem] = []
        self._reporter = reporter
        for cell in plan.refused:
            self._fail(_named(cell.problem, sizes_text(cell.ms)), cell.refused)

    def add(self, warmed: Warmed) -> None:
        """Counts the result of one more problem."""
        if warmed.kernel is None or warmed.trouble is not None:
            self._fail(_named(warmed.problem, str(warmed.problem.m)), in_json(warmed.trouble))
            return
        if warmed.kernel.tier == "compiled":
            self.compiled += 1
        else:
            self.found += 1
        self._report()

    def _fail(self, problem: str, error: str) -> None:
        """Stores one failed problem with its reason, and reports the progress."""
        self.failed.append(results.FailedProblem(problem=problem, error=error))
        self._report()

    def _report(self) -> None:
        if self._reporter is not None:
            from cache_engine.batch.jobs import JobProgress

            self._reporter.progress(JobProgress(self.total, self.compiled, self.found, len(self.failed)))


def _named(problem: GemmProblem, ms: str) -> str:
    batch = f", batch {problem.batch}" if problem.batch > 1 else ""
    return f"{ms} × {problem.n} × {problem.k}{batch}, {problem.dtype}, {problem.arch}"


# ---- For people ----


def _planned(plan: WarmPlan) -> str:
    """A sentence: the number of kernels that a warm-up would compile, and the predicted time."""
    kernels, missing, estimate = len(plan.kernels), len(plan.missing), plan.estimate
    takes = f"; about {human_ms(estimate.seconds * 1e3)}, {estimate.by}" if missing else ""
    return printable(
        f"{counted(kernels, 'kernel')} for {counted(plan.problems, 'problem')}: "
        f"{kernels - missing:,} stored, {missing:,} to compile{takes}."
    )


def _print_planned(d: results.Warmed, plan: WarmPlan) -> None:
    """Prints the kernels that a dry run found to be needed, and their number."""
    rows = [
        (one.key[:12], "yes" if one.stored else "no", one.problem, _shortened(one.m), one.family, one.config_text)
        for one in d.needed
    ]
    columns = ("kernel", "stored", "problem", "m", "family", "config")
    terminal.print_table(dict.fromkeys(columns, terminal.LEFT), rows, dispensable=("family", "config", "m"))
    _print_failed(d.failed)
    print(f"\n{_planned(plan)}")


def _shortened(served: list[results.ServedSizes]) -> str:
    """The first ranges of m, and the number of further ones; ``--json`` has them all."""
    text = sizes_text(range(one.first, one.last + 1, one.step) for one in served[:_RANGES_SHOWN])
    more = len(served) - _RANGES_SHOWN
    return text if more <= 0 else f"{text} and {counted(more, 'range')} more"


def _print_warmed(d: results.Warmed) -> None:
    _print_failed(d.failed)
    failed = f", {len(d.failed):,} failed" if d.failed else ""
    loaded = "" if d.loaded is None else f", {d.loaded:,} loaded on the GPU"
    counts = f"{counted(d.compiled, 'kernel')} compiled, {d.found:,} found{loaded}{failed}"
    took = human_ms(d.seconds * 1e3)
    print(printable(f"{counts}, for {counted(d.problems, 'problem')}, in {took}; stored in {d.store}."))


def _print_failed(failed: list[results.FailedProblem]) -> None:
    """Prints the problems without a kernel; those with the same cause share a line."""
    by_cause: dict[str, list[str]] = {}
    for failure in failed:
        by_cause.setdefault(failure.error, []).append(failure.problem)
    for cause, problems in by_cause.items():
        more = f" and {len(problems) - 1:,} more" if len(problems) > 1 else ""
        print(printable(f"failed: {problems[0]}{more}: {cause}"), file=sys.stderr)


def _print_sample(d: results.Sampled) -> None:
    for failure in d.failed:
        print(printable(f"failed: {failure.problem}: {failure.error}"), file=sys.stderr)
    counts = f"{counted(d.compiled, 'kernel')} compiled, {d.found} found in {d.store}"
    print(printable(f"{counts}, in {human_ms(d.seconds * 1e3)}."))
    print(f"Re-requested: {counted(d.found_again, 'disk hit')}. Then {counted(d.requests, 'request')}, as of a server.")


def _print_coverage(rows: list[dict[str, Any]], cached: int, kernels: int) -> None:
    columns: dict[str, terminal.Align] = {"operation": terminal.LEFT, "n × k": terminal.RIGHT}
    columns |= {"batch": terminal.RIGHT, "target": terminal.LEFT, "cached": terminal.RIGHT, "": terminal.LEFT}
    terminal.print_table(
        columns,
        [
            (
                row["operation"], f"{row['n']} × {row['k']}", row["batch"], row["arch"],
                "–" if row["refused"] else f"{row['cached']:,} of {row['kernels']:,}", row["refused"],
            )
            for row in rows
        ],
    )  # fmt: skip
    print(f"\n{cached:,} of {counted(kernels, 'kernel')} cached.")
