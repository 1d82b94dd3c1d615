"""``gemm-cache demand``: the requests that a store gets, their time on a GPU, and compiling kernels ahead."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from cache_engine.cache.cache import Cache
from cache_engine.cli.support import Amount, Span, Verb, emit, json_option, only_with, open_cache
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_table, progress
from cache_engine.errors import UsageError
from cache_engine.model.documents import picked
from cache_engine.settings import Settings
from cache_engine.units import counted, human_age, human_forecast, human_ms, human_rate, printable

if TYPE_CHECKING:
    from cache_engine.cache.demand import DemandReport, DemandShare
    from cache_engine.cache.demand.promotion import Candidate, PromotionPlan
    from cache_engine.model.key import CacheKey
    from cache_engine.model.outcome import Failure

_BY = ("shape", "kernel", "model", "arch")
_DISPENSABLE = ("FLOPs", "bytes", "time from", "GPU time")
_LESS_NEEDED = ("now", "in", "compile", "launches")
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
    """Show the requests to the store, with shares of GPU time.

    Every request counts, hit or miss, and each launch by matmul and operators. A request counts half as much after the
    half-life, a week. Times are those measured in this store, else predicted by the GPU model for a library's kernel.
    --by kernel means the kernel that serves today. Models may share shapes, so their shares overlap.

    With --promote, compiles requested kernels that were evicted, that another compiler made, that another kernel stands
    in for, or that were measured to be faster, if the time that they save over the horizon is worth their price. If
    half of a model's shapes are requested, the others count as likely too. A kernel compiled in this way is demoted
    when it is expected to save less than half of its price: cleaning evicts it first.
    """
    only_with("--promote", promote, ("horizon", "budget", "every", "dry_run"))
    only_with("", not promote, ("by", "since"), instead="--promote")
    if promote:
        _promote_and_print(settings, horizon * 3600, math.inf if budget is None else budget, every, dry_run, as_json)
        return
    with open_cache(settings, create=False) as cache:
        found = cache.demand(by, since_s=since)
    document = {
        **picked(found, "by", "since", "at"),
        "half_life_hours": _finite(found.half_life_s / 3600),
        **picked(found.total, "launches", "per_hour"),
        "gpu_seconds": found.total.gpu_s,
        **picked(found, "dropped", "gpus", "unpredicted"),
        "shares": [_share_row(by, share) for share in found.shares],
    }
    emit(document, as_json, lambda: _print(found))


def _share_row(by: str, share: DemandShare) -> dict[str, Any]:
    launches = share.launches or 1.0
    return {
        **picked(share, "name", "launches", "per_hour", "launch_share", "time_share", "bytes_share", "flops_share"),
        "gpu_seconds": share.gpu_s,
        "timed_share": share.timed / launches,
        "measured_share": share.measured / launches,
        # What it is of: the problem without its m, and with every default; the kernel that serves it; or a model.
        "shape": None if share.shape is None else asdict(share.shape),
        "key": share.key if by == "kernel" else None,
        "asked_shapes": share.asked_shapes if by == "model" else None,
        "all_shapes": share.all_shapes if by == "model" else None,
    }


def _promote_and_print(
    settings: Settings, horizon_s: float, budget_s: float, every: float | None, dry_run: bool, as_json: bool
) -> None:
    if every is not None and as_json:
        raise UsageError("--json prints one document, so it does not go with --every")
    with open_cache(settings, create=False) as cache:
        while True:
            done = _promote(cache, horizon_s, budget_s, dry_run)
            failed = every is None and done.failed
            emit(_document(done, budget_s), as_json, lambda: _print_promoted(done), failed=failed)  # noqa: B023 (called at once)
            if every is None:
                break
            time.sleep(every * 60)


@dataclass(frozen=True)
class _Promoted:
    """The result of ``--promote``: the plan, the kernels chosen from the plan, and those that could not be compiled.

    ``failed`` is ``None`` in a dry run.
    """

    plan: PromotionPlan
    taken: list[Candidate]
    failed: list[tuple[Candidate, Failure]] | None

    @property
    def compiled(self) -> int | None:
        """The number of kernels compiled; ``None`` for a dry run."""
        return None if self.failed is None else len(self.taken) - len(self.failed)


def _promote(cache: Cache, horizon_s: float, budget_s: float, dry_run: bool) -> _Promoted:
    from cache_engine.cache.demand.promotion import note, plan_promotion, promote

    with progress("Weighing sizes", None) as (bar, task):
        plan = plan_promotion(cache, horizon_s, lambda: bar.advance(task))
    taken = plan.within(budget_s)
    if dry_run:
        return _Promoted(plan, taken, None)
    note(cache.journal, plan.changes)
    with progress("Compiling kernels", len(taken)) as (bar, task):
        return _Promoted(plan, taken, promote(cache, taken, lambda _: bar.advance(task)))


def _document(done: _Promoted, budget_s: float) -> dict[str, Any]:
    plan, taken = done.plan, {one.selection.key for one in done.taken}
    return {
        "horizon_seconds": plan.horizon_s,
        "budget_seconds": _finite(budget_s),
        "asked_kernels": plan.asked_kernels,
        "model": plan.model or None,
        "compile_records": plan.compile_times.records,
        "compile_error": plan.compile_times.error,
        "unpredicted": plan.unpredicted,
        "rows": [_candidate_row(one, one.selection.key in taken) for one in plan.candidates],
        "compiled": done.compiled,
        "failed": [{"key": one.selection.key, "reason": str(why)} for one, why in done.failed or ()],
        "changes": [
            {
                **picked(one, "kind", "key", "name"),
                "forecast_seconds": one.forecast_s,
                "price_seconds": one.price_s,
                "why": f"{one.reason}: {one.detail}",
            }
            for one in plan.changes
        ],
    }


def _candidate_row(one: Candidate, is_taken: bool) -> dict[str, Any]:
    """A kernel that could be compiled ahead, as a row for JSON: its cost and benefit in seconds, over the horizon."""
    value = one.value
    return {
        "kind": one.kind,
        **picked(one.selection, "key", "name"),
        "m": one.m,
        **picked(one.selection.problem, "n", "k"),
        "instead": one.instead or None,
        **picked(value, "launches", "wait_chance"),
        "saved_gpu_seconds": value.saved_s,
        "compile_seconds": value.compile_s,
        "price_seconds": value.price_s,
        "net_seconds": value.net_s,
        "pays_back_after_launches": _finite(value.pays_back_after),
        "pays_back_in_seconds": _finite(value.pays_back_in_s),
        "times": one.time_from,
        "taken": is_taken,
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


# ---- For people ----


def _print(d: DemandReport) -> None:
    if not d.shares:
        print("Nothing was asked for." if not d.total.launches else "What was asked for belongs to no model.")
        return
    columns: dict[str, Align] = {d.by: LEFT, "launches/h": RIGHT, "launches": RIGHT, "time": RIGHT, "GPU time": RIGHT}
    columns |= {"bytes": RIGHT, "FLOPs": RIGHT, "time from": LEFT}
    if d.by == "model":
        columns["shapes"] = RIGHT
    print_table(columns, [_cells(d, row) for row in d.shares], _DISPENSABLE)
    counts = f"half-life {d.half_life_s / 3600:g} h" if math.isfinite(d.half_life_s) else "each counts the same"
    print(f"Counting began {human_age(time.time() - d.since)}; {counts}.")
    for arch, gpus in sorted(d.gpus.items()):
        ways = {"measured": "measured on", "predicted": "predicted for"}
        print(f"GPU times of {arch}: {', '.join(f'{ways[how]} {gpu}' for how, gpu in sorted(gpus.items()))}.")
    if d.unpredicted:
        print(f"Times are not predicted: {d.unpredicted}")


def _cells(d: DemandReport, row: DemandShare) -> list[str]:
    is_known = row.timed > 0
    cells = [
        row.name,
        f"{row.per_hour:,.0f}",
        human_rate(row.launch_share),
        human_rate(row.time_share if is_known else None),
        human_ms(row.gpu_s * 1e3) if is_known else "–",
        human_rate(row.bytes_share),
        human_rate(row.flops_share),
        _source(row),
    ]
    return [*cells, f"{row.asked_shapes} of {row.all_shapes}"] if d.by == "model" else cells


def _source(row: DemandShare) -> str:
    launches = row.launches or 1.0
    parts = {"measured": row.measured / launches, "predicted": (row.timed - row.measured) / launches}
    parts["unknown"] = 1 - row.timed / launches
    named = [name for name, share in parts.items() if share > 1e-9]
    return named[0] if len(named) == 1 else ", ".join(f"{name} {parts[name]:.0%}" for name in named)


def _print_promoted(done: _Promoted) -> None:
    d = done.plan
    if not d.asked_kernels:
        print("no request has been counted yet")
        return
    asked = sum(one.kind == "promotion" for one in d.candidates)
    more = len(d.candidates) - asked
    print(f"{counted(d.asked_kernels - more, 'kernel')} asked for, {asked:,} of them missing")
    if d.model:
        print(printable(f"the demand looks like {d.model}: {more:,} more of its kernels are missing"))
    if d.unpredicted:
        print(printable(f"launches are not timed: {d.unpredicted}"))
    if d.candidates:
        print()
        _print_rows(d.candidates[:_SHOWN], {one.selection.key for one in done.taken})
        if len(d.candidates) > _SHOWN:
            print(f"and {len(d.candidates) - _SHOWN:,} more; --json lists all")
        print(
            "\nsaves: GPU seconds over the horizon, and seconds that requests would wait. pays back: launches until the"
        )
        print("compile has earned its price, and how long that takes at today's rate.")
    for change in d.changes:
        verb = "demoted" if change.kind == "demotion" else "promoted again"
        verb = f"to be {verb}" if done.failed is None else verb
        print(printable(f"{verb}: {change.name}, {change.key[:12]}: {change.reason}: {change.detail}"))
    if done.failed is not None:
        print(f"\ncompiled: {done.compiled:,}")
    for one, why in done.failed or ():
        print(printable(f"failed: {one.selection.key[:12]}: {why}"))


def _print_rows(rows: Sequence[Candidate], taken: set[CacheKey]) -> None:
    columns = {"kernel": LEFT, "m": RIGHT, "now": LEFT} | dict.fromkeys(
        ("launches", "saves", "a request waits", "compile", "pays back", "in"), RIGHT
    )
    print_table(columns | {"": LEFT}, (_row(one, one.selection.key in taken) for one in rows), _LESS_NEEDED)


def _row(one: Candidate, is_taken: bool) -> tuple[str, ...]:
    value, back = one.value, _finite(one.value.pays_back_in_s)
    return (
        printable(one.selection.name), f"{one.m:,}", printable(one.instead or "waits"), f"{value.launches:,.0f}",
        human_ms(value.saved_s * 1e3), human_rate(value.wait_chance), human_ms(value.compile_s * 1e3),
        f"{value.pays_back_after:,.0f}" if math.isfinite(value.pays_back_after) else "never",
        "–" if back is None else human_forecast(back * 1e3),
        "✓" if is_taken else "",
    )  # fmt: skip
