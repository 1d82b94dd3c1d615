"""``gemm-cache demand``: what a store is asked for, how long that takes on a GPU, and compiling it ahead."""

from __future__ import annotations

import math
import time

import click

from cache_engine.cache.cache import Cache
from cache_engine.cli.documents import asking, promoting
from cache_engine.cli.support import Span, Verb, emit, json_option, only_with, open_cache
from cache_engine.cli.support.amounts import Amount
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_table, progress
from cache_engine.errors import UsageError
from cache_engine.settings import Settings
from cache_engine.units import counted, human_age, human_forecast, human_ms, human_rate, printable

_BY = ("shape", "kernel", "model", "arch")
_DISPENSABLE = ("FLOPs", "bytes", "time from", "GPU time")
_SHOWN = 20


@click.command(
    "demand",
    cls=Verb,
    examples=(
        "demand",
        "demand --by kernel --since 24h",
        "demand --promote --dry-run",
        "demand --promote --budget 60",
        "demand --promote --every 10",
    ),
    done="The shares are printed; with --promote, the kernels that pay are compiled.",
    failed="Some kernels could not be compiled or stored.",
    missing="The compiler is not installed.",
)
@click.option(
    "--by",
    type=click.Choice(_BY),
    default="shape",
    show_default=True,
    help="What the shares are of; a model of the catalogue.",
)
@click.option("--since", type=Span(), metavar="SPAN", help="Count the last 24h, 7d, 90m alone, each request the same.")
@click.option("--promote", is_flag=True, help="Compile missing kernels before a request waits.")
@click.option(
    "--horizon",
    type=Amount(0.01, 1e5),
    default=24.0,
    show_default=True,
    help="With --promote: hours for which a kernel is expected to be asked for as often as now.",
)
@click.option("--budget", type=Amount(0, 1e6), help="With --promote: seconds of compiling, at most. Default: no limit.")
@click.option(
    "--every", type=Amount(0.1, 1e5), help="With --promote: do so again after this many minutes, until interrupted."
)
@click.option("--dry-run", is_flag=True, help="With --promote: print the sum behind each kernel; compile nothing.")
@json_option
@click.pass_obj
def demand_verb(
    settings: Settings,
    /,
    by: str,
    since: float | None,
    promote: bool,
    horizon: float,
    budget: float | None,
    every: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Show what the store is asked for, with shares of GPU time.

    Every request counts, hit or miss, and each launch by matmul and operators. A request counts half as much after
    the half-life (demand_half_life_h). Times are those measured in this store, else predicted by the GPU model for a
    library's kernel. --by kernel means the kernel that serves today. Models may share shapes, so their shares overlap.

    With --promote: kernels that are asked for and were evicted, that another compiler made, that another kernel serves
    in place of, or that were measured to be faster. One is compiled if the time that it saves over the horizon is worth
    its price. When a model's shapes are asked for in part, the others are likely too. What was compiled so and saves
    less than half of its price by now is demoted: cleaning evicts it first.
    """
    only_with("--promote", promote, ("horizon", "budget", "every", "dry_run"))
    only_with("", not promote, ("by", "since"), instead="--promote")
    if promote:
        _promote_and_print(settings, horizon * 3600, math.inf if budget is None else budget, every, dry_run, as_json)
        return
    with open_cache(settings, create=False) as cache:
        document = asking.demand(cache.demand(by, since_s=since))
    emit(document, as_json, lambda: _print(document))


def _promote_and_print(
    settings: Settings, horizon_s: float, budget_s: float, every: float | None, dry_run: bool, as_json: bool
) -> None:
    if every is not None and as_json:
        raise UsageError("--json prints one document, so it does not go with --every")
    with open_cache(settings, create=False) as cache:
        while True:
            document = _promote(cache, horizon_s, budget_s, dry_run)
            emit(document, as_json, lambda: _print_promoted(document), failed=every is None and document.failed)  # noqa: B023 (called at once)
            if every is None:
                break
            time.sleep(every * 60)


def _promote(cache: Cache, horizon_s: float, budget_s: float, dry_run: bool) -> promoting.Promoted:
    from cache_engine.cache.demand.demotion import note
    from cache_engine.cache.demand.promotion import plan_promotion, promote

    with progress("Weighing sizes", None) as (bar, task):
        plan = plan_promotion(cache, horizon_s, lambda: bar.advance(task))
    taken = plan.within(budget_s)
    failed = None
    if not dry_run:
        note(cache.journal, plan.changes)
        with progress("Compiling kernels", len(taken)) as (bar, task):
            failed = promote(cache, taken, lambda _: bar.advance(task))
    return promoting.promoted(plan, taken, budget_s, failed)


# ---- For people ----


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


def _print_promoted(d: promoting.Promoted) -> None:
    if not d.asked_kernels:
        print("no request has been counted yet")
        return
    asked = [row for row in d.rows if row.kind == "promotion"]
    print(
        f"{counted(d.asked_kernels - (len(d.rows) - len(asked)), 'kernel')} asked for, {len(asked):,} of them missing"
    )
    if d.model:
        print(
            printable(f"the demand looks like {d.model}: {len(d.rows) - len(asked):,} more of its kernels are missing")
        )
    if d.unpredicted:
        print(printable(f"launches are not timed: {d.unpredicted}"))
    if d.rows:
        print()
        _print_rows(d.rows[:_SHOWN])
        if len(d.rows) > _SHOWN:
            print(f"and {len(d.rows) - _SHOWN:,} more; --json lists all")
        print(
            "\nsaves: GPU seconds over the horizon, and seconds that requests would wait. pays back: launches until the"
        )
        print("compile has earned its price, and how long that takes at today's rate.")
    for change in d.changes:
        verb = "demoted" if change.kind == "demotion" else "promoted again"
        verb = f"to be {verb}" if d.compiled is None else verb
        print(printable(f"{verb}: {change.name}, {change.key[:12]}: {change.why}"))
    if d.compiled is not None:
        print(f"\ncompiled: {d.compiled:,}")
    for one in d.failed:
        print(printable(f"failed: {one.key[:12]}: {one.reason}"))


def _print_rows(rows: list[promoting.CandidateRow]) -> None:
    columns = {"kernel": LEFT, "m": RIGHT, "now": LEFT} | dict.fromkeys(
        ("launches", "saves", "a request waits", "compile", "pays back", "in"), RIGHT
    )
    print_table(
        columns | {"": LEFT},
        (
            (
                printable(row.name), f"{row.m:,}", printable(row.instead or "waits"), f"{row.launches:,.0f}",
                human_ms(row.saved_gpu_seconds * 1e3), human_rate(row.wait_chance), human_ms(row.compile_seconds * 1e3),
                "never" if row.pays_back_after_launches is None else f"{row.pays_back_after_launches:,.0f}",
                "–" if row.pays_back_in_seconds is None else human_forecast(row.pays_back_in_seconds * 1e3),
                "✓" if row.taken else "",
            )
            for row in rows
        ),
        dispensable=("now", "in", "compile", "launches"),
    )  # fmt: skip
