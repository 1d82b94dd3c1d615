"""The verbs ``store migrate`` and ``sync``: upgrade the entries, update the index."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from cache_engine.cli import terminal
from cache_engine.cli.support import Verb, VerbGroup, emit, json_option, open_cache
from cache_engine.cli.terminal import LEFT, RIGHT, print_table
from cache_engine.model.documents import fields_of
from cache_engine.settings import Settings
from cache_engine.store.codec import FORMAT
from cache_engine.units import counted, human_bytes, human_ms, printable

if TYPE_CHECKING:
    from cache_engine.batch.migration import MigrationPlan
    from cache_engine.index.sync import Synced
    from cache_engine.model.key import CacheKey


@click.group("store", cls=VerbGroup, examples=("store migrate --dry-run", "store sync"), no_args_is_help=True)
def store_verb() -> None:
    """Migrate the store, or update its index."""


@store_verb.command(
    "migrate",
    cls=Verb,
    examples=("store migrate --dry-run", "store migrate --jobs 4"),
    done="All outdated kernels, if any, are compiled again; with --dry-run, they are only counted.",
    failed="Some kernels could not be compiled, stored or written again.",
    missing="The compiler is not installed.",
)
@click.option("--jobs", type=click.IntRange(1), help="Parallel compiles. Default: one per CPU.")
@click.option("--dry-run", is_flag=True, help="Show what becomes of the entries; change nothing.")
@json_option
@click.pass_obj
def migrate_verb(settings: Settings, /, jobs: int | None, dry_run: bool, as_json: bool) -> None:
    """Bring a store up to date after an upgrade.

    Counts the entries by format and maker, and says what becomes of each. An entry is carried over if requests with the
    settings in force still find it. Where a request now has another key, the kernel is compiled now, not at the next
    request. Unsigned entries of an older format are written in the new one, which takes half the space. Deletes
    nothing; for that, use clean --state stale and clean --state unknown-format.
    """
    from cache_engine.batch.migration import migrate, plan_migration

    with open_cache(settings.for_batch(jobs).made_here(), create=False) as cache:
        with terminal.progress("Reading", cache.count()[0]) as (bar, task):
            plan = plan_migration(cache, lambda: bar.advance(task))
        failed = None
        if not dry_run:
            with terminal.progress("Compiling kernels", len(plan.again)) as (bar, task):
                failed = migrate(cache, plan, jobs, lambda: bar.advance(task))
    document = {
        "dry_run": failed is None,
        "store_format": FORMAT,
        "rows": [{**fields_of(kind), **fields_of(plan.sums[kind])} for kind in sorted(plan.sums)],
        "to_compile": len(plan.again),
        "to_write_again": len(plan.older),
        "failed": failed or {},
    }
    emit(document, as_json, lambda: _print_migration(plan, failed), failed=failed)


@store_verb.command(
    "sync",
    cls=Verb,
    examples=("store sync", "store sync --rebuild"),
    done="The index is up to date.",
    failed="The index cannot be updated.",
    missing="The extra dashboard is not installed.",
)
@click.option("--rebuild", is_flag=True, help="Rebuild from scratch.")
@json_option
@click.pass_obj
def sync_verb(settings: Settings, /, rebuild: bool, as_json: bool) -> None:
    """Update the DuckDB index of the store.

    Lists, searches and the dashboard read the index and update it themselves. It is a copy of what the files hold, so
    it can be deleted at any time.
    """
    with open_cache(settings, create=False) as cache:
        started = time.perf_counter()
        synced = cache.index.sync(rebuild=rebuild)
        ms = (time.perf_counter() - started) * 1e3
    emit({**fields_of(synced), "ms": ms}, as_json, lambda: _print_synced(synced, ms))


# ---- For people ----


def _print_migration(plan: MigrationPlan, failed: Mapping[CacheKey, str] | None) -> None:
    print_table(
        {"becomes": LEFT, "entries": RIGHT, "on disk": RIGHT, "format": RIGHT, "keys": RIGHT, "by": LEFT, "why": LEFT},
        [
            (
                kind.fate, plan.sums[kind].entries, human_bytes(plan.sums[kind].stored_bytes), kind.format,
                kind.key_schema, kind.created_by, kind.reason,
            )
            for kind in sorted(plan.sums)
        ],
    )  # fmt: skip
    kernels, older = counted(len(plan.again), "kernel"), counted(len(plan.older), "entry", "entries")
    if failed is None:
        print(f"\nThis version writes format {FORMAT}. Would write {older} again. Would compile {kernels}.")
        return
    for key, cause in failed.items():
        print(printable(f"failed: {key[:12]}: {cause}"), file=sys.stderr)
    compiled, written = (len(set(keys) - failed.keys()) for keys in (plan.again, plan.older))
    print(f"\nWrote {written:,} of {older} again. Compiled {compiled:,} of {kernels}.")


def _print_synced(d: Synced, ms: float) -> None:
    print(
        f"{counted(d.added, 'kernel')} new or changed, {d.removed:,} gone, {d.unreadable:,} unreadable, "
        f"{counted(d.events, 'event')}, {counted(d.timings, 'timing')}; "
        f"in {human_ms(ms)}."
    )
    if d.skipped:
        print(f"{counted(d.skipped, 'item')} of the store cannot be indexed; gemm-cache verify names each.")
