"""The verb that compares toolchains: ``regressions``."""

from __future__ import annotations

import math

import click

from cache_engine.cli.documents import toolchains
from cache_engine.cli.support import Verb, emit, json_option, open_cache
from cache_engine.cli.terminal import LEFT, RIGHT, print_table
from cache_engine.settings import Settings
from cache_engine.units import counted, printable


@click.command(
    "regressions",
    cls=Verb,
    examples=(
        'regressions --from "nvrtc 13.4" --to "nvrtc 13.5"',
        "regressions --from 3f2a --to 9c01 --threshold 0.05",
    ),
    done="Nothing is worse by more than the threshold.",
    failed="Something is worse by more than the threshold, or no kernel was made by both.",
)
@click.option("--from", "from_", required=True, metavar="TOOLCHAIN", help="The toolchain to compare with.")
@click.option("--to", required=True, metavar="TOOLCHAIN", help="The toolchain to judge.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 100),
    default=0.1,
    show_default=True,
    help="By which share a figure may grow; 0.1 is 10 %.",
)
@json_option
@click.pass_obj
def regressions_verb(settings: Settings, /, from_: str, to: str, threshold: float, as_json: bool) -> None:
    """Compare the kernels of two toolchains.

    TOOLCHAIN is the beginning of a compiler and version, such as "nvrtc 13.4", or of the digits of its build; stored
    kernels of both are compared: registers, spills, code size, compile time, and timings on GPUs of the same name.
    """
    from cache_engine.insight.toolchains import regressions

    with open_cache(settings, create=False) as cache:
        found = regressions(cache.records(), cache.timings, from_, to, threshold)
    document = toolchains.comparison(found, threshold)
    emit(document, as_json, lambda: _print(document), failed=document.worse or not document.kernels)


def _print(d: toolchains.Regressions) -> None:
    print(printable(f"from {d.from_toolchain}"))
    print(printable(f"to   {d.to_toolchain}"))
    print(f"{counted(d.kernels, 'kernel')} made by both; more than {d.threshold:.0%} counts.")
    if not d.kernels:
        print("Nothing was compared: compile the same kernels with both, such as with warm, and run this again.")
        return
    print_table(
        {"figure": LEFT, "compared": RIGHT, "median ratio": RIGHT, "worse": RIGHT, "better": RIGHT},
        [
            (row.metric, row.compared, _ratio(row.median_ratio) if row.compared else "–", row.worse, row.better)
            for row in d.summaries
        ],
    )
    if d.worse:
        print()
        print_table(
            {"worse": LEFT, "figure": LEFT, "before": RIGHT, "after": RIGHT, "ratio": RIGHT, "where": LEFT},
            [
                (row.name, row.metric, f"{row.before:,.4g}", f"{row.after:,.4g}", _ratio(row.ratio), row.where)
                for row in d.worse
            ],
            dispensable=("where",),
        )


def _ratio(ratio: float | None) -> str:
    return "new" if ratio is None or math.isinf(ratio) else f"{ratio:.3f}"
