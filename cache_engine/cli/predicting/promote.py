"""The verb ``promote``."""

from __future__ import annotations

import math
import time

import click

from cache_engine.cache.cache import Cache
from cache_engine.cli.documents import promoting
from cache_engine.cli.support import Verb, emit, json_option, open_cache
from cache_engine.cli.support.amounts import Amount
from cache_engine.cli.terminal import LEFT, RIGHT, print_table, progress
from cache_engine.errors import UsageError
from cache_engine.settings import Settings
from cache_engine.units import counted, human_forecast, human_ms, human_rate, printable

_SHOWN = 20


@click.command(
    "promote",
    cls=Verb,
    examples=("promote --dry-run", "promote --budget 60", "promote --every 10"),
    done="The kernels that pay are compiled; with --dry-run, they are listed.",
    failed="Some kernels could not be compiled or stored.",
    missing="The compiler is not installed.",
)
@click.option(
    "--horizon",
    type=Amount(0.01, 1e5),
    default=24.0,
    show_default=True,
    help="Hours for which a kernel is expected to be asked for as often as now.",
)
@click.option("--budget", type=Amount(0, 1e6), help="Seconds of compiling, at most. Default: no limit.")
@click.option("--every", type=Amount(0.1, 1e5), help="Do so again after every so many minutes, until interrupted.")
@click.option("--dry-run", is_flag=True, help="Print the sum behind each kernel; compile nothing.")
@json_option
@click.pass_obj
def promote_verb(
    settings: Settings, /, horizon: float, budget: float | None, every: float | None, dry_run: bool, as_json: bool
) -> None:
    """Compile missing kernels before a request waits.

    By the demand that the store has counted: kernels that are asked for and were evicted, that another compiler made,
    that another kernel serves in place of, or that were measured to be faster. One is compiled if the time that it
    saves over the horizon is worth its price. When a model's shapes are asked for in part, the others are likely too.
    What was compiled so and saves less than half of its price by now is demoted: cleaning evicts it first.
    """
    if every is not None and as_json:
        raise UsageError("--json prints one document, so it does not go with --every")
    budget_s = math.inf if budget is None else budget
    with open_cache(settings, create=False) as cache:
        while True:
            document = _promote(cache, horizon * 3600, budget_s, dry_run)
            emit(document, as_json, lambda: _print(document), failed=every is None and document.failed)  # noqa: B023 (called at once)
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


def _print(d: promoting.Promoted) -> None:
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
