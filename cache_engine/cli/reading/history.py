"""The verbs that say what happened in a store: ``history`` and ``audit``."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from cache_engine.cli.support import Span, Verb, emit, json_option, open_cache
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_table
from cache_engine.model.events import ACTS, DAY_S, HOUR_S, TIERS, Period, hit_rate
from cache_engine.settings import Settings
from cache_engine.units import counted, human_bytes, human_ms, human_rate, printable

if TYPE_CHECKING:
    from cache_engine.cli.documents import decisions

_STEPS = {"hour": HOUR_S, "day": DAY_S}
_LONG_S = 3 * DAY_S


@click.command(
    "history",
    cls=Verb,
    examples=("history", "history --since 24h", "history --since 90d --json"),
    done="The sums are printed, or there are none.",
)
@click.option("--since", type=Span(), metavar="SPAN", default=7.0 * DAY_S, help="This recent, e.g. 24h. Default: 7d.")
@click.option("--by", type=click.Choice(tuple(_STEPS)), help="Length of a row. Default: hour up to 3 days, else day.")
@json_option
@click.pass_obj
def history_verb(settings: Settings, /, since: float, by: str | None, as_json: bool) -> None:
    """Show lookups, hits and compile time over time.

    A row for each hour or day in which something happened, the earliest first. Hours are known for eight days, days for
    400; longer ago, sums of 28 days. The times are those of this machine; days are counted in UTC.
    """
    from cache_engine.cli.documents import decisions

    step = _STEPS[by or ("hour" if since <= _LONG_S else "day")]
    with open_cache(settings, create=False) as cache:
        found = summed(cache.tally().periods, step, time.time() - since)
    document = decisions.history(found, step)
    emit(document, as_json, lambda: _print_history(document))


@click.command(
    "audit",
    cls=Verb,
    examples=("audit", "audit --limit 20", "audit --json"),
    done="The actions are printed, if any.",
)
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="Rows to print.")
@click.option("--since", type=Span(), metavar="SPAN", help="Only this recent, e.g. 24h, 30d.")
@json_option
@click.pass_obj
def audit_verb(settings: Settings, /, limit: int, since: float | None, as_json: bool) -> None:
    """Show who deleted, repaired, imported or restored.

    Actions on the whole store, newest first: by whom, when, and how much. Includes deletions from remotes and from
    caches of other frameworks that were made with this store. The journal keeps the last 5,000. For decisions on single
    kernels, such as pins, see log.
    """
    from cache_engine.cli.documents import decisions

    earliest = -(2.0**31) if since is None else time.time() - since
    with open_cache(settings, create=False) as cache:
        acts = [event for event in cache.tally().recent if event.kind in ACTS and event.at >= earliest]
    document = decisions.audit(acts, limit)
    emit(document, as_json, lambda: _print_audit(document))


def summed(periods: Iterable[Period], seconds: int, since: float = 0.0) -> list[Period]:
    """Sums over intervals of this length, the earliest first; of a length in which nothing happened, none.

    Args:
        since: seconds since 1970; begins with the interval that holds it.

    What is only known for a longer interval is a row of that length.
    """
    found: dict[tuple[int, int], Period] = {}
    for period in periods:
        length = max(seconds, period.seconds)
        start = period.start // length * length
        if start + length <= since:
            continue
        there = found.get((start, length))
        if there is None:
            copy = msgspec.structs.replace(
                period, start=start, seconds=length, hits=dict(period.hits), failures=dict(period.failures)
            )
            found[start, length] = copy
        else:
            there.add(period)
    return [found[place] for place in sorted(found)]


# ---- For people ----


def _print_history(d: decisions.History) -> None:
    if not d.rows:
        print("No lookups or compiles in this time.")
        return
    columns: dict[str, Align] = {"from": LEFT} | dict.fromkeys(
        ("lookups", "hit rate", *TIERS, "misses", "compiles", "spent", "saved"), RIGHT
    )
    print_table(
        columns,
        [
            (
                _when(row.start), f"{row.misses + sum(row.hits.values()):,}",
                human_rate(hit_rate(sum(row.hits.values()), row.misses)),
                *(f"{row.hits.get(tier, 0):,}" for tier in TIERS), f"{row.misses:,}", f"{row.compiles:,}",
                human_ms(row.compile_ms), human_ms(row.saved_ms),
            )
            for row in d.rows
        ],
    )  # fmt: skip


def _print_audit(d: decisions.Audit) -> None:
    if not d.rows:
        print("No action is logged.")
        return
    columns: dict[str, Align] = {"time": LEFT, "action": LEFT, "by": LEFT, "size": RIGHT, "details": LEFT, "key": LEFT}
    print_table(
        columns,
        [
            (
                _when(row.at), row.kind, row.by or "unknown", human_bytes(row.bytes) if row.bytes else "",
                printable(row.detail), row.key[:12],
            )
            for row in d.rows
        ],
        dispensable=("key",),
    )  # fmt: skip
    if d.total > len(d.rows):
        print(f"\nThe latest {len(d.rows):,} of {counted(d.total, 'action')}.")


def _when(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC).astimezone():%Y-%m-%d %H:%M}"
