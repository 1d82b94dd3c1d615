"""The verb that prints what the cache decided, and why: ``log``."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

import click
import msgspec

from cache_engine.cli.documents import decisions
from cache_engine.cli.support import Span, Verb, emit, json_option, open_cache
from cache_engine.cli.terminal import LEFT, Align, escaped, print_table
from cache_engine.model.decision import KINDS
from cache_engine.model.key import check_prefix
from cache_engine.settings import Settings
from cache_engine.units import counted, human_rate, printable

_LOOK_MS = 500


@click.command(
    "log",
    cls=Verb,
    examples=("log", "log --kind miss --since 24h", "log --key 3f2a --json", "log --follow"),
    done="The decisions are printed, if any; or Ctrl-C has ended --follow.",
)
@click.option("--key", help="Only of this kernel; a key prefix is enough.")
@click.option(
    "--kind", "kinds", type=click.Choice(KINDS), metavar="KIND", multiple=True,
    help=f"Only this kind (repeatable), one of: {', '.join(KINDS)}.",
)  # fmt: skip
@click.option("--since", type=Span(), metavar="SPAN", help="Only this recent, e.g. 90s, 30m, 24h, 7d.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="Rows to print.")
@click.option("--follow", is_flag=True, help="Go on printing; with --json, an object a line. Ctrl-C ends it.")
@json_option
@click.pass_obj
def log_verb(
    settings: Settings,
    /,
    key: str | None,
    kinds: tuple[str, ...],
    since: float | None,
    limit: int,
    follow: bool,
    as_json: bool,
) -> None:
    """Print what was decided, and why.

    Every miss with its cause, every choice of a config with its runner-up, and what was evicted, refused, quarantined
    or pinned; the oldest of the latest first. Processes write decisions in batches, every 5 s. The log holds
    about the last 20,000 decisions.
    """
    with open_cache(settings, create=False) as cache:
        log, earliest = cache.admin.open_log(), -(2.0**31) if since is None else time.time() - since
        prefix = check_prefix(key) if key else ""
        found = log.new(prefix, kinds, earliest)
        rows = [decisions.row_of(one) for one in found[-limit:]]
        if not follow:
            document = decisions.DecisionList(total=len(found), damaged=log.damaged, rows=rows)
            emit(document, as_json, lambda: _print_log(document))
            return
        with suppress(KeyboardInterrupt):
            while _print_lines(rows, as_json) and _has_reader():
                rows = [decisions.row_of(one) for one in log.new(prefix, kinds, earliest)]


# ---- For people ----


def _print_log(d: decisions.DecisionList) -> None:
    if d.rows:
        columns: dict[str, Align] = dict.fromkeys(("time", "kind", "key", "reason", "detail", "kernel"), LEFT)
        print_table(columns, [_cells(row) for row in d.rows], dispensable=("kernel",))
        print()
    shown = f"latest {len(d.rows):,} of " if len(d.rows) < d.total else ""
    skipped = f"; {counted(d.damaged, 'line')} skipped, gemm-cache verify says why" if d.damaged else ""
    print(f"{shown}{counted(d.total, 'decision')}{skipped}.".capitalize())


def _cells(row: decisions.DecisionRow) -> tuple[str, ...]:
    detail = row.detail
    if row.runner_up:
        detail += f"; before {row.runner_up} (+{human_rate(row.margin)})"
    if row.by:
        detail += f"{', ' if detail else ''}by {row.by}"
    with suppress(ValueError, OverflowError, OSError):  # a year that no calendar has
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.at))
        return when, row.kind, row.key[:12], row.reason, detail, row.name
    return "?", row.kind, row.key[:12], row.reason, detail, row.name


def _has_reader() -> bool:
    """Waits a little; returns at once, and false, when a pipe on standard output has lost its reader."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors are always reported
    return not poll.poll(_LOOK_MS)


def _print_lines(rows: Iterable[decisions.DecisionRow], as_json: bool) -> bool:
    """Prints a line each; returns whether the reader is still there."""
    try:
        for row in rows:
            if as_json:
                print(escaped(msgspec.json.encode(row).decode()))
            else:
                print(printable("  ".join(cell for cell in _cells(row) if cell)))
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
