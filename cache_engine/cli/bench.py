"""The verb ``bench``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cache_engine.assets import measurements_folder
from cache_engine.bench.results import LeftOut, Line, Result, Score, Size
from cache_engine.cli.documents import measured, to_json
from cache_engine.cli.support import FAILED, Verb, device_option, json_option, open_cache, printing
from cache_engine.cli.terminal import LEFT, RIGHT, print_table, short_time
from cache_engine.config import Settings
from cache_engine.units import human_bytes, human_ms, printable

if TYPE_CHECKING:
    from cache_engine.bench.kernels.speed import Measured, Report, Summary

_F = TypeVar("_F", bound=Callable[..., Any])


def _kernel_options(verb: _F) -> _F:
    """Gives ``bench`` the options of ``bench kernels``."""
    for decorate in (
        partial(device_option, what="kernels: "),
        click.option(
            "--output",
            type=click.Path(path_type=Path, file_okay=False),
            help="kernels: the folder of the results. Default: sample_data/measurements of the checkout.",
        ),
        click.option("--seconds", type=click.FloatRange(1), help="kernels: start no kernel after this many seconds."),
        click.option("--limit", type=click.IntRange(1), help="kernels: measure at most this many."),
    ):
        verb = decorate(verb)
    return verb


@click.command(
    "bench",
    cls=Verb,
    examples=(
        "bench store --entries 1000",
        "bench all --json",
        "bench dashboard",
        "bench farm",
        "bench fleet --nodes 10000",
        "bench kernels --seconds 300",
    ),
    done="Everything is measured, whether goals are met or not.",
    failed="kernels: a result is wrong.",
    missing="kernels: there is no NVIDIA GPU. farm: there is no redis-server. Others: an extra is not installed.",
)
@click.argument(
    "what",
    type=click.Choice(["all", "compile", "store", "pages", "evaluator", "dashboard", "farm", "fleet", "kernels"]),
    default="all",
)
@click.option(
    "--entries",
    type=click.IntRange(10),
    default=10_000,
    show_default=True,
    help="Entries of the large store; opening is also measured with ten times as many.",
)
@click.option("--rows", type=click.IntRange(10), default=100_000, show_default=True, help="Records in the index.")
@click.option("--nodes", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="fleet: machines.")
@_kernel_options
@json_option
@click.pass_obj
def bench_verb(
    settings: Settings, /, what: str, entries: int, rows: int, nodes: int, as_json: bool, **kernels: Any
) -> None:
    """Run benchmarks against reference tools.

    \b
    compile    NVRTC and NVCC
    store      hits, keys, opening, publishing, other caches, bytes on disk, ranking of timed configs
    pages      syncing and queries
    evaluator  searching, storing and loading results
    dashboard  pages in Chromium, with up to ten times the rows
    farm       what a kernel costs on a compile farm, and a second worker; needs redis-server
    fleet      what many machines would ask of a shared store, from costs measured on this one
    all        compile, store, pages, evaluator and importing; takes minutes
    kernels    kernels against cuBLAS on the local GPU, for all shapes of three models

    Ctrl-C ends kernels; the same command resumes.
    """  # noqa: D301 (click reads the backspace as: leave these lines as they are)
    if what == "kernels":
        _bench_kernels(settings, as_json, **kernels)
        return
    if what == "fleet":
        from cache_engine.cli.measuring.fleet import bench_fleet

        bench_fleet(nodes, as_json)
        return
    from cache_engine.bench import cases

    lines: list[Line] = []
    if not as_json:
        _print_heading()

    def report(line: Line) -> None:
        lines.append(line)
        if not as_json:
            _print_line(line)

    cases.run(report, what, entries, rows)
    if what in ("all", "store") and settings.directory_exists:
        from cache_engine.bench.kernels.ranking import ranking

        with open_cache(settings, create=False) as cache:
            ranking(report, cache)
    if as_json:
        print(to_json(measured.benchmark(lines)))


def _bench_kernels(
    settings: Settings, as_json: bool, *, limit: int | None, seconds: float | None, output: Path | None
) -> None:
    """Measures kernels, printing each at once, then a summary."""
    from cache_engine.bench.kernels.speed import measure, summarise
    from cache_engine.device.probe import require_gpu

    require_gpu("bench kernels")
    wrong = False

    def on_measured(one: Measured) -> None:
        nonlocal wrong
        wrong = wrong or (not one.error and not one.verified)
        if not as_json:
            with printing():
                print_measurement(one)

    command = " ".join(["gemm-cache", *sys.argv[1:]])
    if not as_json:
        print_kernel_heading()
    with open_cache(settings) as cache:
        report = measure(cache, output or measurements_folder(), command, on_measured, limit=limit, seconds=seconds)
    summaries = summarise(report.measurements)
    with printing():
        if as_json:
            print(to_json(measured.kernel_benchmark(report, summaries)))
        else:
            print_report(report, summaries)
    if wrong:
        click.get_current_context().exit(FAILED)


# ---- For people ----


def _print_heading() -> None:
    print(f"{'measured':<52} {'median':>10}   {'ratio':>9}  {'reference':<34} {'median':>10}   goal")


def _print_line(line: Line) -> None:
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
