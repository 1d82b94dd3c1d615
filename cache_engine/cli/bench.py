"""The part of ``bench`` that needs a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cache_engine.assets import measurements_folder
from cache_engine.cli import documents, terminal_bench
from cache_engine.cli.support import FAILED, open_cache, printing, to_json
from cache_engine.config import Settings

_F = TypeVar("_F", bound=Callable[..., Any])


def kernel_bench_options(verb: _F) -> _F:
    """Gives ``bench`` the options of ``bench kernels``."""
    for decorate in (
        click.option(
            "--output",
            type=click.Path(path_type=Path, file_okay=False),
            help="kernels: the folder to go on in. Default: sample_data/measurements of the checkout.",
        ),
        click.option("--seconds", type=click.FloatRange(1), help="kernels: begin no other kernel after so long."),
        click.option("--limit", type=click.IntRange(1), help="kernels: measure so many at most."),
    ):
        verb = decorate(verb)
    return verb


def bench_kernels(
    settings: Settings, as_json: bool, *, limit: int | None, seconds: float | None, output: Path | None
) -> None:
    """Measures kernels, printing each as it is known, then a summary."""
    from cache_engine.bench.kernels.speed import Measured, measure, summarise
    from cache_engine.device.probe import require_gpu

    require_gpu("bench kernels")
    wrong = False

    def on_measured(one: Measured) -> None:
        nonlocal wrong
        wrong = wrong or (not one.error and not one.verified)
        if not as_json:
            with printing():
                terminal_bench.print_measurement(one)

    command = " ".join(["gemm-cache", *sys.argv[1:]])
    if not as_json:
        terminal_bench.print_heading()
    with open_cache(settings) as cache:
        report = measure(cache, output or measurements_folder(), command, on_measured, limit=limit, seconds=seconds)
    summaries = summarise(report.measurements)
    with printing():
        if as_json:
            print(to_json(documents.kernel_speed(report, summaries)))
        else:
            terminal_bench.print_report(report, summaries)
    if wrong:
        click.get_current_context().exit(FAILED)
