"""The verbs that compare: with references side by side, and kernels with cuBLAS."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks import ROOT, documents
from benchmarks.results import LeftOut, ReportLine, Result, Score, Size
from benchmarks.verb import Experiment
from cache_engine.cli.support import FAILED, device_option, json_option, open_cache, printing
from cache_engine.cli.terminal import LEFT, RIGHT, print_table, short_time
from cache_engine.model.documents import to_json
from cache_engine.settings import Settings
from cache_engine.units import human_bytes, human_ms, printable

if TYPE_CHECKING:
    from benchmarks.kernels.speed import Measured, Report, Summary


def _comparison(what: str, help: str, *, missing: str = "An extra is not installed.") -> click.Command:
    """The verb of one of ``cases.SETS``."""

    @click.command(
        what,
        cls=Experiment,
        help=help,
        examples=(what, f"{what} --json"),
        done="Everything is measured, whether goals are met or not.",
        missing=missing,
    )
    @click.option(
        "--entries",
        type=click.IntRange(10),
        default=10_000,
        show_default=True,
        help="Entries of the large store; opening is also measured with ten times as many.",
    )
    @click.option("--rows", type=click.IntRange(10), default=100_000, show_default=True, help="Records in the index.")
    @json_option
    @click.pass_obj
    def verb(settings: Settings, /, entries: int, rows: int, as_json: bool) -> None:
        _compare(settings, what, entries, rows, as_json)

    return verb


all_verb = _comparison("all", "Measure compile, store, pages, evaluator and importing; takes minutes.")
compile_verb = _comparison("compile", "Measure NVRTC and NVCC.", missing="NVCC is not installed.")
store_verb = _comparison(
    "store",
    "Measure hits, keys, opening, publishing, other caches, bytes on disk, and how well configs are ranked that the "
    "store has timings of.",
)
pages_verb = _comparison("pages", "Measure syncing and the queries of the dashboard's pages.")
evaluator_verb = _comparison("evaluator", "Measure searching, storing and loading results of the evaluator.")
dashboard_verb = _comparison("dashboard", "Measure pages in Chromium, with up to ten times the rows.")
farm_verb = _comparison(
    "farm",
    "Measure what a kernel costs on a compile farm, and a second worker.",
    missing="There is no redis-server, or an extra is not installed.",
)
torch_verb = _comparison(
    "torch", "Measure calls of PyTorch's tensors beside PyTorch's own.", missing="PyTorch is not installed."
)


def _compare(settings: Settings, what: str, entries: int, rows: int, as_json: bool) -> None:
    """Prints each line at once, or all of them as a document."""
    from benchmarks import cases

    lines: list[ReportLine] = []
    if not as_json:
        _print_heading()

    def report(line: ReportLine) -> None:
        lines.append(line)
        if not as_json:
            _print_line(line)

    cases.run(report, what, entries, rows)
    if what in ("all", "store") and settings.directory_exists:
        from benchmarks.kernels.ranking import ranking

        with open_cache(settings, create=False) as cache:
            ranking(report, cache)
    if as_json:
        print(to_json(documents.benchmark(lines)))


@click.command(
    "kernels",
    cls=Experiment,
    examples=("kernels --seconds 300", "kernels --limit 10 --json"),
    done="Kernels are measured, and every result is right.",
    failed="A result is wrong.",
    missing="There is no NVIDIA GPU.",
)
@click.option("--limit", type=click.IntRange(1), help="Measure at most this many.")
@click.option("--seconds", type=click.FloatRange(1), help="Start no kernel after this many seconds.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of the results. Default: sample_data/measurements.",
)
@device_option
@json_option
@click.pass_obj
def kernels_verb(
    settings: Settings, /, limit: int | None, seconds: float | None, output: Path | None, as_json: bool
) -> None:
    """Measure kernels against cuBLAS on the local GPU, for all shapes of three models.

    Ctrl-C ends it; the same command resumes.
    """
    from benchmarks.kernels.speed import measure, summarise
    from cache_engine.gpu.probe import require_gpu

    require_gpu("kernels")
    wrong = False

    def on_measured(one: Measured) -> None:
        nonlocal wrong
        wrong = wrong or (not one.error and not one.verified)
        if not as_json:
            with printing():
                print_measurement(one)

    command = " ".join([Experiment.program, *sys.argv[1:]])
    if not as_json:
        print_kernel_heading()
    with open_cache(settings) as cache:
        report = measure(
            cache, output or ROOT / "sample_data" / "measurements", command, on_measured, limit=limit, seconds=seconds
        )
    summaries = summarise(report.measurements)
    with printing():
        if as_json:
            print(to_json(documents.kernel_benchmark(report, summaries)))
        else:
            print_report(report, summaries)
    if wrong:
        click.get_current_context().exit(FAILED)


# ---- For people ----


def _print_heading() -> None:
    print(f"{'measured':<52} {'median':>10}   {'ratio':>9}  {'reference':<34} {'median':>10}   goal")


def _print_line(line: ReportLine) -> None:
    if isinstance(line, LeftOut):
        print(f"no reference {line.name}: {printable(line.reason)}", flush=True)
        return
    if isinstance(line, Score):
        goal = "" if line.goal is None else f"≤ {line.goal:.3g} {'✓' if line.met else '✗'}"
        text = f"{line.name:<52} {line.value:>10.2f}   {'':>9}  {line.of:<34} {'':>10}   {goal}"
        print(printable(text.rstrip()), flush=True)
        return
    if isinstance(line, Result):
        value, beside = short_time(line.seconds), short_time(line.beside_seconds)
    else:
        value, beside = human_bytes(round(line.size_bytes)), human_bytes(round(line.beside_bytes))
    text = f"{line.name:<52} {value:>10}   {_ratio(line.ratio):>9}  {line.beside:<34} {beside:>10}   {_goal(line)}"
    print(text.rstrip(), flush=True)


def _goal(line: Result | Size) -> str:
    """The goal, and whether it is met: ``"≤ 3 µs ✓"``, ``"≤ 0.125× ✗"``."""
    goals = []
    seconds = getattr(line, "goal_seconds", None)
    if seconds is not None:
        goals.append(f"≤ {human_ms(seconds * 1e3) if seconds >= 1e-6 else short_time(seconds)}")
    if line.goal_ratio is not None:
        goals.append(f"≤ {line.goal_ratio:.3g}×")
    return f"{', '.join(goals)} {'✓' if line.met else '✗'}" if goals else ""


def _ratio(ratio: float) -> str:
    """A ratio with the digits that matter: ``"12.50×"``, ``"0.118×"``, ``"0.00051×"``."""
    return f"{ratio:.2f}×" if ratio >= 0.995 else f"{ratio:.3f}×" if ratio >= 0.01 else f"{ratio:.5f}×"


def print_kernel_heading() -> None:
    """Prints the headings of ``print_measurement``."""
    print(
        f"{'model':<14} {'operation':<16} {'m':>5} {'n':>7} {'k':>6} {'batch':>5}  {'family':<12} {'config':<28} "
        f"{'median':>9} {'cuBLAS':>9} {'ratio':>6}  largest error"
    )


def print_measurement(one: Measured) -> None:
    """Prints a measured kernel, a line."""
    what = f"{one.model:<14} {one.operation:<16} {one.m:>5} {one.n:>7} {one.k:>6} {one.batch:>5}  {one.family:<12}"
    if one.error:
        print(printable(f"{what} {one.config:<28} {one.error}"), flush=True)
        return
    verdict = f"{_number(one.max_rel_error, '.1e')}{'' if one.verified else ' WRONG'}"
    print(
        printable(
            f"{what} {one.config:<28} {_time(one.median_us):>9} {_time(one.reference_median_us):>9} "
            f"{_number(one.ratio, '.2f'):>6}  {verdict}"
        ),
        flush=True,
    )


def print_report(report: Report, summaries: Sequence[Summary]) -> None:
    """Prints a summary by family and m, and the file of the results."""
    for one in report.left_out:
        print(printable(f"{one.name} is not measured: {one.reason}"))
    print("\nRatio: the median of cuBLAS over ours; above 1, ours is faster.")
    print_table(
        {"family": LEFT, "m": RIGHT, "measured": RIGHT, "correct": RIGHT, "median ratio": RIGHT},
        ((one.family, one.m, one.count, one.verified, _number(one.median_ratio, ".2f")) for one in summaries),
    )
    left = f"; {report.left:,} remain: the same command resumes" if report.left else ""
    print()
    print(printable(f"{report.measured:,} measured now, {report.kept:,} before{left}. Results: {report.file}."))


def _time(us: float | None) -> str:
    return "–" if us is None else f"{us:.1f} µs" if us < 1000 else human_ms(us / 1e3)


def _number(value: float | None, how: str) -> str:
    return "–" if value is None else format(value, how)
