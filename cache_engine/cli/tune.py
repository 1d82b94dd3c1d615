"""``gemm-cache tune``: the fastest config of a kernel, measured on the local GPU."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cache_engine.batch.results import Tuning, candidate_row, chosen_row
from cache_engine.cli import terminal
from cache_engine.cli.support import (
    SizedVerb,
    asked_problem,
    device_option,
    emit,
    job_option,
    json_option,
    open_cache,
    reporting,
    shape_options,
)
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_table, printed_number, printed_us
from cache_engine.model.documents import picked, to_json
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem
from cache_engine.settings import Settings
from cache_engine.units import counted, human_ms, printable

if TYPE_CHECKING:
    from rich.progress import TaskID

    from cache_engine.batch.jobs import Reporter
    from cache_engine.batch.tuning import Candidate, DeviceAgreement, Tuned
    from cache_engine.cache.cache import Cache


@click.command(
    "tune",
    cls=SizedVerb,
    examples=("tune 4096 7168 2048", "tune 16 7168 2048 --family simt --top 16 --dry-run", "tune --check"),
    done="Every config is timed, and its result is correct.",
    failed="Some configs failed; the others are timed.",
    missing="There is no NVIDIA GPU, or the extra gpu or the compiler is not installed.",
)
@shape_options
@click.option("--family", multiple=True, help="Kernel family to tune (repeatable). Default: the family in use.")
@click.option("--compiler", help="Compiler: nvrtc, nvcc or triton. Default: the one that each family needs.")
@click.option("--top", type=click.IntRange(1, 1000), default=8, show_default=True, help="Configs to time per family.")
@click.option("--jobs", type=click.IntRange(1), help="Parallel compiles. Default: one per CPU.")
@click.option("--dry-run", is_flag=True, help="Show what would be timed; needs no GPU.")
@device_option
@click.option("--check", is_flag=True, help="Compare the store's timings with the cost model; time nothing.")
@job_option
@json_option
@click.pass_obj
def tune_verb(
    settings: Settings,
    /,
    family: tuple[str, ...],
    compiler: str | None,
    top: int,
    jobs: int | None,
    dry_run: bool,
    check: bool,
    job: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Find the fastest config on the local GPU.

    Compiles the configs that the cost model ranks best, verifies and times each, and stores the timings. Later lookups
    use the fastest config. With --check, which needs no problem and no GPU, it says how well the cost model ranks the
    timed configs.
    """
    if check:
        _check(settings, as_json)
        return
    if missing := [name for name in ("m", "n", "k") if asked[name] is None]:
        raise click.UsageError(f"Missing argument '{missing[0].upper()}'.")
    with reporting(job) as reporter:
        document = _tuned(settings, asked_problem(asked), family, compiler, top, jobs, reporter, dry_run=dry_run)
        if reporter:
            reporter.finish(to_json(document))
    emit(document, as_json, lambda: _print_tuning(document), failed=document.failed)


# With --check no problem is named; without, the verb asks for what is missing.
for _parameter in tune_verb.params:
    if _parameter.name in ("m", "n", "k"):
        _parameter.required = False


def _tuned(
    settings: Settings,
    problem: GemmProblem,
    family: tuple[str, ...],
    compiler: str | None,
    top: int,
    jobs: int | None,
    reporter: Reporter | None,
    *,
    dry_run: bool,
) -> Tuning:
    from cache_engine.batch.tuning import candidates
    from cache_engine.batch.warm import estimate
    from cache_engine.gpu.probe import gpu, require_gpu
    from cache_engine.kernels.rates import rates_of
    from cache_engine.process import processors

    if not dry_run:
        require_gpu("timing kernels")
    device = gpu()
    started = time.perf_counter()
    with open_cache(settings.for_batch(jobs), create=not dry_run, optional=dry_run) as cache:
        problem = cache.targeted(problem)
        target = problem.target
        clock_khz = device.clock_khz if isinstance(device, DeviceFingerprint) else rates_of(target).clock_mhz * 1000
        chosen = candidates(cache, problem, family, compiler, top)
        compiling = estimate(cache, [one.selection for one in chosen if one.tier is None], jobs or processors())
        tuned = [] if dry_run else _timed(cache, chosen, jobs, reporter)
        return Tuning(
            dry_run=dry_run,
            problem=problem,
            device=device.name if isinstance(device, DeviceFingerprint) else None,
            clock_mhz=clock_khz / 1e3,
            candidates=[candidate_row(one, clock_khz, done) for one, done in zip_longest(chosen, tuned)],
            chosen=chosen_row(cache.select(problem)),
            failed=sum(one.trouble is not None for one in tuned),
            seconds=time.perf_counter() - started,
            estimated_seconds=compiling.seconds,
            estimated_error=compiling.error,
            estimated_by=compiling.by,
        )


def _timed(cache: Cache, chosen: list[Candidate], jobs: int | None, reporter: Reporter | None) -> list[Tuned]:
    """Compiles and times configs; shows a progress bar for compiling and one for timing."""
    from cache_engine.batch.tuning import tune

    step = _steps(reporter, 2 * len(chosen))
    with terminal.progress("Compiling kernels", len(chosen)) as (bar, made):
        timing = bar.add_task("Timing kernels", total=len(chosen))

        def advance(task: TaskID) -> None:
            bar.advance(task)
            step()

        return tune(cache, chosen, jobs, partial(advance, made), partial(advance, timing))


def _steps(reporter: Reporter | None, total: int) -> Callable[[], None]:
    """A function to call after each step of tuning, which reports the step: a kernel compiled, found or timed."""
    if reporter is None:
        return lambda: None
    from cache_engine.batch.jobs import JobProgress

    done = itertools.count(1)
    return lambda: reporter.progress(JobProgress(total=total, compiled=next(done)))


def _check(settings: Settings, as_json: bool) -> None:
    from cache_engine.batch.tuning import agreements

    with open_cache(settings, create=False) as cache:
        found = agreements(cache)
    document = {"devices": [_device(one) for one in found]}
    emit(document, as_json, lambda: _print_report(found))


def _device(one: DeviceAgreement) -> dict[str, Any]:
    return {
        **picked(one, "device", "fingerprint"),
        **picked(one.agreement, "problems", "timings", "rank_correlation", "lowest"),
        "corrections": [
            {
                **picked(each, "family", "ratio", "uncertainty", "timings", "applies"),
                "block_m": each.tile[0],
                "block_n": each.tile[1],
            }
            for each in one.agreement.corrections
        ],
    }


# ---- For people ----


def _print_tuning(d: Tuning) -> None:
    if d.dry_run:
        columns: dict[str, Align] = {
            "family": LEFT, "config": LEFT, "predicted": RIGHT, "compiled": LEFT, "key": LEFT,
        }  # fmt: skip
        print_table(
            columns,
            [
                (row.family, row.config_text, printed_us(row.predicted_us), _tier(row.tier), row.key[:12])
                for row in d.candidates
            ],
        )
        missing = sum(row.tier is None for row in d.candidates)
        takes = f"; compiling {missing:,} takes about {human_ms(d.estimated_seconds * 1e3)}, {d.estimated_by}"
        print(f"\n{_clock(d)}")
        print(printable(f"Would time {counted(len(d.candidates), 'config')}{takes if missing else ''}."))
        return
    columns = {
        "family": LEFT, "config": LEFT, "predicted": RIGHT, "measured": RIGHT, "measured ÷ predicted": RIGHT,
        "TFLOP/s": RIGHT, "result": LEFT,
    }  # fmt: skip
    print_table(
        columns,
        [
            (
                row.family, row.config_text, printed_us(row.predicted_us), printed_us(row.median_us),
                printed_number(row.ratio), printed_number(row.tflops), row.trouble or "correct",
            )
            for row in d.candidates
        ],
    )  # fmt: skip
    print(f"\n{_clock(d)}")
    print(printable(f"{d.chosen.family} {d.chosen.config_text} is now used ({d.chosen.config_from})."))


def _print_report(found: list[DeviceAgreement]) -> None:
    if not found:
        print("There are no timings in this store. On a machine with a GPU, gemm-cache tune measures some.")
    for device in found:
        one = device.agreement
        print(printable(f"{device.device} ({device.fingerprint[:12]})"))
        if one.rank_correlation is None:
            print("Rank correlation: unknown; no problem has three timed configs of a family.")
        else:
            print(
                f"Rank correlation of predicted and measured times (Spearman): {one.rank_correlation:.2f}, the median "
                f"of {counted(one.problems, 'problem')} with {one.timings:,} timings; the lowest is {one.lowest:.2f}."
            )
        if one.corrections:
            print_table(
                {"family": LEFT, "tile": LEFT, "measured ÷ predicted": RIGHT, "timings": RIGHT, "corrects": LEFT},
                [
                    (
                        row.family, f"{row.tile[0]} × {row.tile[1]}", f"{row.ratio:.2f} ± {row.uncertainty:.2f}",
                        row.timings, "yes" if row.applies else "no",
                    )
                    for row in one.corrections
                ],
            )  # fmt: skip


def _clock(d: Tuning) -> str:
    clock = f"{d.clock_mhz:,.0f} MHz" + (
        f", the clock of {d.device}" if d.device else f", the clock of {d.problem.target.example}"
    )
    return printable(f"Predictions are the ranking of the cost model: cycles converted at {clock}.")


def _tier(tier: str | None) -> str:
    return "no" if tier is None else f"yes ({tier})"
