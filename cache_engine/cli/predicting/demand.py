"""The verb ``demand``: what a store is asked for, and how long that takes on a GPU."""

from __future__ import annotations

import time

import click

from cache_engine.cli.documents import asking
from cache_engine.cli.support import Span, Verb, emit, json_option, open_cache
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_table
from cache_engine.settings import Settings
from cache_engine.units import human_age, human_ms, human_rate

_BY = ("shape", "kernel", "model", "arch")
_DISPENSABLE = ("FLOPs", "bytes", "time from", "GPU time")


@click.command(
    "demand",
    cls=Verb,
    examples=("demand", "demand --by kernel --since 24h", "demand --by model --json"),
    done="The shares are printed, or nothing was asked for.",
)
@click.option(
    "--by",
    type=click.Choice(_BY),
    default="shape",
    show_default=True,
    help="What the shares are of; a model of the catalogue.",
)
@click.option("--since", type=Span(), metavar="SPAN", help="Count the last 24h, 7d, 90m alone, each request the same.")
@json_option
@click.pass_obj
def demand_verb(settings: Settings, /, by: str, since: float | None, as_json: bool) -> None:
    """Show what the store is asked for, with shares of GPU time.

    Every request counts, hit or miss, and each launch by matmul and operators. A request counts half as much after
    the half-life, a week. Times are those measured in this store, else predicted by the GPU model for a
    library's kernel. --by kernel means the kernel that serves today. Models may share shapes, so their shares overlap.
    """
    with open_cache(settings, create=False) as cache:
        document = asking.demand(cache.demand(by, since_s=since))
    emit(document, as_json, lambda: _print(document))


def _print(d: asking.DemandDocument) -> None:
    if not d.shares:
        print("Nothing was asked for." if not d.launches else "What was asked for belongs to no model.")
        return
    columns: dict[str, Align] = {d.by: LEFT, "launches/h": RIGHT, "launches": RIGHT, "time": RIGHT, "GPU time": RIGHT}
    columns |= {"bytes": RIGHT, "FLOPs": RIGHT, "time from": LEFT}
    if d.by == "model":
        columns["shapes"] = RIGHT
    print_table(columns, [_cells(d, row) for row in d.shares], _DISPENSABLE)
    counted = "each counts the same" if d.half_life_hours is None else f"half-life {d.half_life_hours:g} h"
    print(f"Counting began {human_age(time.time() - d.since)}; {counted}.")
    for arch, gpus in sorted(d.gpus.items()):
        ways = {"measured": "measured on", "predicted": "predicted for"}
        print(f"GPU times of {arch}: {', '.join(f'{ways[how]} {gpu}' for how, gpu in sorted(gpus.items()))}.")
    if d.unpredicted:
        print(f"Times are not predicted: {d.unpredicted}")


def _cells(d: asking.DemandDocument, row: asking.ShareRow) -> list[str]:
    is_known = row.timed_share > 0
    cells = [
        row.name,
        f"{row.per_hour:,.0f}",
        human_rate(row.launch_share),
        human_rate(row.time_share if is_known else None),
        human_ms(row.gpu_seconds * 1e3) if is_known else "–",
        human_rate(row.bytes_share),
        human_rate(row.flops_share),
        _source(row),
    ]
    return [*cells, f"{row.asked_shapes} of {row.all_shapes}"] if d.by == "model" else cells


def _source(row: asking.ShareRow) -> str:
    parts = {"measured": row.measured_share, "predicted": row.timed_share - row.measured_share}
    parts["unknown"] = 1 - row.timed_share
    named = [name for name, share in parts.items() if share > 1e-9]
    return named[0] if len(named) == 1 else ", ".join(f"{name} {parts[name]:.0%}" for name in named)
