"""The verbs that keep a store in order: ``clean``, ``verify``, ``migrate``, ``quarantine`` and ``sync``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import click
from msgspec import UNSET

from cache_engine.cli import terminal
from cache_engine.cli.documents import migrating, store
from cache_engine.cli.documents.moving import signature_rows
from cache_engine.cli.support import Verb, VerbGroup, emit, json_option, open_cache
from cache_engine.cli.support.completion import quarantined
from cache_engine.cli.support.targets import only_targets_option
from cache_engine.cli.terminal import LEFT, RIGHT, print_table
from cache_engine.errors import UsageError
from cache_engine.model.architecture import architecture
from cache_engine.settings import Settings, parse_bytes
from cache_engine.units import counted, human_age, human_bytes, human_ms, printable
from cache_engine.upkeep.quarantine import Item


@click.command(
    "clean",
    cls=Verb,
    examples=("clean --dry-run", "clean --max-bytes 2GB", "clean --days 14 --stale-toolchain", "clean --all"),
    done="The kernels are evicted; with --dry-run, they are listed.",
    failed="Other maintenance is running, or a file cannot be deleted.",
)
@click.option("--expired", is_flag=True, help="Evict kernels unused for expire_days.")
@click.option("--days", type=click.FloatRange(0), help="Evict kernels unused for this many days.")
@click.option("--max-bytes", metavar="SIZE", help="Evict down to this size, e.g. 2GB.")
@click.option("--max-entries", type=click.IntRange(0), help="Evict down to this number of kernels.")
@click.option(
    "--max-disk-share",
    type=click.FloatRange(0, 1),
    help="Evict down to this fraction of free disk space (store included).",
)
@click.option("--stale-toolchain", is_flag=True, help="Evict kernels from stale compilers or templates.")
@partial(only_targets_option, help_text="Evict kernels for this target or chip (repeatable).")
@click.option("--key", multiple=True, help="Evict this kernel; a key prefix is enough (repeatable).")
@click.option("--foreign-format", is_flag=True, help="Evict kernels that another version of this program reads.")
@click.option("--pinned", is_flag=True, help="Evict pinned kernels like others.")
@click.option("--all", "everything", is_flag=True, help="Evict everything, but what is pinned or of another format.")
@click.option("--dry-run", is_flag=True, help="Show what would be evicted; change nothing.")
@json_option
@click.pass_obj
def clean_verb(
    settings: Settings,
    /,
    expired: bool,
    days: float | None,
    max_bytes: str | None,
    max_entries: int | None,
    max_disk_share: float | None,
    stale_toolchain: bool,
    archs: tuple[str, ...],
    key: tuple[str, ...],
    foreign_format: bool,
    pinned: bool,
    everything: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Evict kernels, least recently used first.

    Without a rule, evicts by the limits in the settings; the setting eviction has other orders. Pinned kernels stay,
    and count against limits. Kernels that serve any size (dynamic) go last, and do not expire. Also deletes leftover
    temporary files, and what has been in quarantine for 30 days. Timings are kept: configs are chosen by them.
    """
    from cache_engine.upkeep.plan import Limits

    targets = frozenset(architecture(name).name for name in archs)
    with open_cache(settings, create=False) as cache:
        rules = Limits(
            expire_days=days if days is not None else settings.expire_days if expired else None,
            stale_toolchain=stale_toolchain,
            keys=frozenset(cache.admin.find_key(prefix) for prefix in key),
            archs=targets,
            max_bytes=None if max_bytes is None else parse_bytes(max_bytes),
            max_entries=max_entries,
            max_disk_share=max_disk_share,
            everything=everything,
            foreign_format=foreign_format,
            pinned=pinned,
        )
        has_rule = replace(rules, pinned=False) != Limits()
        plan = cache.admin.plan_cleaning(rules if has_rule else replace(cache.admin.policy(), pinned=pinned))
        leftovers = cache.admin.find_leftovers()
        cleaned = None
        if not dry_run:
            with terminal.progress("Evicting", len(plan.victims)) as (bar, task):
                cleaned = cache.admin.evict(plan, on_progress=lambda number: bar.update(task, completed=number))
        # Not what the plan says: entries may have been skipped, or published meanwhile.
        kept = (plan.kept_entries, plan.kept_bytes) if dry_run else cache.count()
        kept_timings = sum(device.count for device in cache.timings.devices())
        document = store.cleaning(plan, leftovers, cleaned, kept, kept_timings)
    emit(document, as_json, lambda: _print_cleaning(document))


@click.command(
    "verify",
    cls=Verb,
    examples=("verify", "verify --repair", "verify --sample 0.05", "verify --signatures"),
    done="Nothing is damaged, or all damage is repaired.",
    failed="Something is damaged and not repaired, or a signature is bad.",
    missing="--signatures: the extra team is not installed.",
)
@click.option("--repair", is_flag=True, help="Quarantine corrupt entries.")
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Check a random fraction of the entries, e.g. 0.05.",
)
@click.option("--signatures", is_flag=True, help="Also list who signed the kernels, by the setting trusted_signers.")
@json_option
@click.pass_obj
def verify_verb(settings: Settings, /, repair: bool, sample: float, signatures: bool, as_json: bool) -> None:
    """Check every file of the store, and repair it.

    Reads records, compiled code, the journal, timings and results, and verifies their checksums. --repair moves
    damaged files to the quarantine; the kernels are compiled again on the next use.
    """
    with open_cache(settings, create=False) as cache:
        total, _ = cache.count()
        signed = signature_rows(cache.admin.signatures()) if signatures else UNSET
        checked = 0
        with terminal.progress("Checking", total if sample == 1 else None) as (bar, task):

            def one_more() -> None:
                nonlocal checked
                checked += 1
                bar.advance(task)

            findings = list(cache.admin.check(share=sample, on_entry=one_more))
        acts = cache.admin.plan_repair(findings)
        repaired = cache.admin.repair(findings) if repair else []
        document = store.verification(checked, acts, repaired)
        document.signatures = signed
    unrepaired = {finding for finding in findings if finding.is_damage} - set(repaired)
    failed = bool(unrepaired) or any(row.is_bad for row in document.signatures or ())
    emit(document, as_json, lambda: _print_verification(document), failed=failed)


@click.command(
    "migrate",
    cls=Verb,
    examples=("migrate --dry-run", "migrate --jobs 4"),
    done="All outdated kernels, if any, are compiled again; with --dry-run, they are only counted.",
    failed="Some kernels could not be compiled or stored.",
    missing="The compiler is not installed.",
)
@click.option("--jobs", type=click.IntRange(1), help="Parallel compiles. Default: one per CPU.")
@click.option("--dry-run", is_flag=True, help="Show what becomes of the entries; change nothing.")
@json_option
@click.pass_obj
def migrate_verb(settings: Settings, /, jobs: int | None, dry_run: bool, as_json: bool) -> None:
    """Bring a store up to date after an upgrade.

    Counts the entries by format and maker, and says what becomes of each: it is carried over if requests with the
    settings in force still get it. Kernels whose requests get another key are compiled now, not at the next request.
    Deletes nothing: clean --stale-toolchain does, and clean --foreign-format.
    """
    from cache_engine.batch.migration import migrate, plan_migration

    with open_cache(settings.for_batch(jobs).made_here(), create=False) as cache:
        with terminal.progress("Reading", cache.count()[0]) as (bar, task):
            plan = plan_migration(cache, lambda: bar.advance(task))
        failed = None
        if not dry_run:
            with terminal.progress("Compiling kernels", len(plan.again)) as (bar, task):
                failed = migrate(cache, plan, jobs, lambda: bar.advance(task))
        document = migrating.migration(plan, failed)
    emit(document, as_json, lambda: _print_migration(document), failed=document.failed)


@click.command(
    "sync",
    cls=Verb,
    examples=("sync", "sync --rebuild"),
    done="The index is up to date.",
    failed="The index cannot be updated.",
    missing="The extra dashboard is not installed.",
)
@click.option("--rebuild", is_flag=True, help="Rebuild from scratch.")
@json_option
@click.pass_obj
def sync_verb(settings: Settings, /, rebuild: bool, as_json: bool) -> None:
    """Update the DuckDB index of the store.

    Lists, searches and the dashboard read the index and update it themselves. It holds nothing that the files do not:
    it can be deleted at any time.
    """
    with open_cache(settings, create=False) as cache:
        started = time.perf_counter()
        synced = cache.mirror.sync(rebuild=rebuild)
        document = store.synced(synced, (time.perf_counter() - started) * 1e3)
    emit(document, as_json, lambda: _print_synced(document))


@click.group("quarantine", cls=VerbGroup, examples=("quarantine ls", "quarantine restore 3f2a"), no_args_is_help=True)
def quarantine_verb() -> None:
    """List, restore or delete quarantined entries."""


@quarantine_verb.command("ls", cls=Verb, examples=("quarantine ls",), done="The items are listed, if any.")
@json_option
@click.pass_obj
def ls_verb(settings: Settings, /, as_json: bool) -> None:
    """List items: when, why, and whether they are valid."""
    with open_cache(settings, create=False) as cache:
        found = cache.admin.quarantined()
        document = store.Quarantine(items=[store.quarantined(item, cache.admin.examine(item)) for item in found])
    emit(document, as_json, lambda: _print_quarantine(document.items))


@quarantine_verb.command(
    "restore",
    cls=Verb,
    examples=("quarantine restore 3f2a",),
    completers={"key": quarantined},
    done="The entry is back in the store.",
    failed="The entry is damaged, or the store has one with this key.",
)
@click.argument("key")
@json_option
@click.pass_obj
def restore_verb(settings: Settings, /, key: str, as_json: bool) -> None:
    """Restore the entry of KEY, if every byte is valid.

    KEY: a prefix is enough.
    """
    with open_cache(settings, create=False) as cache:
        (item,) = cache.admin.find_quarantined([key])
        cache.admin.restore(item)
    emit(store.Restored(restored=item.name), as_json, lambda: print(f"Restored {item.name}."))


@quarantine_verb.command(
    "delete",
    cls=Verb,
    examples=("quarantine delete 3f2a", "quarantine delete --all --dry-run"),
    completers={"name": quarantined},
    done="The items are deleted; with --dry-run, they are listed.",
    failed="There is no such item, or a file cannot be deleted.",
)
@click.argument("name", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Delete all items.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; change nothing.")
@json_option
@click.pass_obj
def delete_verb(settings: Settings, /, name: tuple[str, ...], everything: bool, dry_run: bool, as_json: bool) -> None:
    """Delete quarantined items permanently.

    NAME: as quarantine ls prints it; a prefix is enough.
    """
    if bool(name) == everything:
        raise UsageError("give the names of the items to delete, or --all; gemm-cache quarantine ls lists them")
    with open_cache(settings, create=False) as cache:
        chosen = cache.admin.quarantined() if everything else cache.admin.find_quarantined(name)
        size = sum(item.stored_bytes for item in chosen)
        count = len(chosen)
        if not dry_run:
            done = cache.admin.discard(chosen)
            count, size = done.items, done.stored_bytes
    document = store.Discarded(dry_run=dry_run, names=[item.name for item in chosen], deleted=count, stored_bytes=size)
    emit(document, as_json, lambda: _print_discarded(document, chosen))


# ---- For people ----


def _print_cleaning(d: store.Cleaning) -> None:
    now = time.time()
    if d.victims:
        print_table(
            {"key": LEFT, "on disk": RIGHT, "compile time": RIGHT, "last used": RIGHT, "reason": LEFT},
            [
                (
                    victim.key[:12],
                    human_bytes(victim.stored_bytes),
                    human_ms(victim.compile_s * 1e3),
                    human_age(now - victim.last_used_at),
                    victim.reason,
                )
                for victim in d.victims
            ],
        )
        print()
    for leftover in d.leftovers:
        print(printable(f"{leftover.path}: {leftover.reason}, {human_bytes(leftover.stored_bytes)}"))
    kept = f"{_entries(d.kept_entries)}, {human_bytes(d.kept_bytes)}"
    if d.cleaned is None:
        left = f"; would delete {counted(len(d.leftovers), 'leftover file')}" if d.leftovers else ""
        price = f", {human_ms(d.victim_compile_s * 1e3)} of compiling" if d.victim_compile_s else ""
        print(f"Would evict {_entries(len(d.victims))}, {human_bytes(d.victim_bytes)}{price}; would keep {kept}{left}.")
    else:
        in_use = d.cleaned.skipped - d.cleaned.foreign  # or used, replaced or deleted since they were chosen
        print(
            f"Evicted {_entries(d.cleaned.evicted)}, {human_bytes(d.cleaned.freed_bytes)}"
            + (f"; {in_use} skipped (in use or gone)" if in_use else "")
            + f"; kept {kept}"
            + (f"; deleted {counted(d.cleaned.leftovers, 'leftover file')}" if d.cleaned.leftovers else "")
            + "."
        )
    if d.foreign:
        print(f"{_entries(d.foreign)} of another format version not evicted; --foreign-format evicts such entries.")
    if d.pinned:
        print(f"{_entries(d.pinned)} pinned and not evicted; --pinned evicts such entries.")
    if d.kept_timings:
        print(f"Timings are kept: {counted(d.kept_timings, 'timing')}.")


def _print_migration(d: migrating.Migration) -> None:
    print_table(
        {"becomes": LEFT, "entries": RIGHT, "on disk": RIGHT, "format": RIGHT, "keys": RIGHT, "by": LEFT, "why": LEFT},
        [
            (r.fate, r.entries, human_bytes(r.stored_bytes), r.format, r.key_schema, r.created_by, r.reason)
            for r in d.rows
        ],
    )
    kernels = counted(d.to_compile, "kernel")
    if d.dry_run:
        print(f"\nThe store has format {d.store_format}, as this version writes it. Would compile {kernels}.")
        return
    for key, cause in d.failed.items():
        print(printable(f"failed: {key[:12]}: {cause}"), file=sys.stderr)
    print(f"\nCompiled {d.to_compile - len(d.failed):,} of {kernels}.")


def _entries(count: int) -> str:
    return counted(count, "entry", "entries")


def _print_verification(d: store.Verification) -> None:
    for finding in d.findings:
        print(printable(f"{finding.kind}: {finding.path}: {finding.cause}"))
        print(f"    {'done' if finding.repaired else 'fix'}: {finding.remedy}")
    verdict = counted(len(d.findings), "finding") if d.findings else "nothing wrong"
    print(f"{_entries(d.checked)} checked, {verdict}.")
    if d.signatures:
        print()
        print_table(
            {"signature": LEFT, "kernels": RIGHT, "signer": LEFT, "why": LEFT},
            [(row.standing, f"{row.kernels:,}", row.signer, row.why) for row in d.signatures],
        )
        for key in (key for row in d.signatures for key in row.keys):
            print(f"bad signature: {key}; gemm-cache clean --key {key[:12]} deletes the kernel")


def _print_synced(d: store.SyncReport) -> None:
    print(
        f"{counted(d.added, 'kernel')} new or changed, {d.removed:,} gone, {d.unreadable:,} unreadable, "
        f"{counted(d.events, 'event')}, {counted(d.results, 'evaluation')}, {counted(d.timings, 'timing')}; "
        f"in {human_ms(d.ms)}."
    )
    if d.skipped:
        print(f"{counted(d.skipped, 'item')} of the store cannot be indexed; gemm-cache verify names each.")


def _print_discarded(d: store.Discarded, chosen: Sequence[Item]) -> None:
    if d.dry_run:
        now = time.time()
        for item in chosen:
            about = f"{human_bytes(item.stored_bytes)}, quarantined {human_age(now - item.set_aside_at)}"
            print(printable(f"{item.name}: {about}{f': {item.why}' if item.why else ''}"))
    verb = "Would delete" if d.dry_run else "Deleted"
    print(f"{verb} {counted(d.deleted, 'item')}, {human_bytes(d.stored_bytes)}.")


def _print_quarantine(items: Sequence[store.QuarantineItem]) -> None:
    now = time.time()
    for item in items:
        about = f"{human_bytes(item.stored_bytes)}, quarantined {human_age(now - item.set_aside_at)}"
        print(printable(f"{item.kernel or item.files[0].original}: {about}"))
        print(printable(f"    {item.name}"))
        for label, text in (("why", item.why), ("now", item.cause or "valid: can be restored")):
            if text:
                print(printable(f"    {label}: {text}"))
    size = sum(item.stored_bytes for item in items)
    print(f"{counted(len(items), 'item')} in quarantine, {human_bytes(size)}.")
