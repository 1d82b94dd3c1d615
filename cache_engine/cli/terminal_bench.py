"""How measured kernels look on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cache_engine.cli.terminal import LEFT, RIGHT, print_table
from cache_engine.units import human_ms, printable

if TYPE_CHECKING:
    from cache_engine.bench.kernels.speed import Measured, Report, Summary


def print_heading() -> None:
    """Headings of what ``print_measurement`` prints."""
    print(
        f"{'model':<14} {'operation':<16} {'m':>5} {'n':>7} {'k':>6} {'batch':>5}  {'family':<12} {'config':<28} "
        f"{'median':>9} {'cuBLAS':>9} {'ratio':>6}  largest error"
    )


def print_measurement(one: Measured) -> None:
    """One line, as soon as it is known."""
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
    """What is known now, by family and m, and where it is."""
    for one in report.left_out:
        print(printable(f"{one.name} is left out: {one.reason}"))
    print("\nRatio: cuBLAS's median over ours; above 1 ours is the faster.")
    print_table(
        {"family": LEFT, "m": RIGHT, "measured": RIGHT, "right": RIGHT, "median ratio": RIGHT},
        ((one.family, one.m, one.count, one.verified, _number(one.median_ratio, ".2f")) for one in summaries),
    )
    left = f"; {report.left:,} are left: call it again to go on" if report.left else ""
    print()
    print(printable(f"{report.measured:,} measured now, {report.kept:,} before{left}. All are in {report.file}."))


def _time(us: float | None) -> str:
    return "–" if us is None else f"{us:.1f} µs" if us < 1000 else human_ms(us / 1e3)


def _number(value: float | None, how: str) -> str:
    return "–" if value is None else format(value, how)
