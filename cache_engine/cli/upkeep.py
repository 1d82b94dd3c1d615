"""Verbs that keep a store in order: cleaning, checking, the mirror, packs out and in."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from cache_engine.cli import documents, terminal
from cache_engine.cli.support import FAILED, emit, json_option, open_cache
from cache_engine.config import Settings, parse_bytes
from cache_engine.model.architecture import architecture
from cache_engine.model.artifact import Record


@click.command("clean")
@click.option("--expired", is_flag=True, help="Evict what was not used for expire_days.")
@click.option("--max-bytes", metavar="SIZE", help="Evict down to this size, such as 2GB.")
@click.option("--max-entries", type=click.IntRange(0), help="Evict down to this number.")
@click.option(
    "--max-disk-share",
    type=click.FloatRange(0, 1),
    help="Evict down to this share of what is free on the disk, store included.",
)
@click.option("--stale-toolchain", is_flag=True, help="Evict what this compiler and these templates can never hit.")
@click.option("--arch", multiple=True, help="Evict what is for this target. May be given several times, as may --key.")
@click.option("--key", multiple=True, help="Evict the kernel of this key, which may be shortened to its first digits.")
@click.option("--all", "everything", is_flag=True, help="Evict everything.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@json_option
@click.pass_obj
def clean_verb(
    settings: Settings,
    /,
    expired: bool,
    max_bytes: str | None,
    max_entries: int | None,
    max_disk_share: float | None,
    stale_toolchain: bool,
    arch: tuple[str, ...],
    key: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Evict kernels, the least recently used first.

    Without a rule, by the limits in the settings. Files that killed writers left behind go as well. Timings stay, as
    history by which configs are chosen.
    """
    from cache_engine.upkeep.plan import Limits

    targets = frozenset(architecture(name).name for name in arch)
    with open_cache(settings, create=False) as cache:
        rules = Limits(
            expire_days=settings.expire_days if expired else None,
            stale_toolchain=stale_toolchain,
            keys=frozenset(cache.find(prefix).key for prefix in key),
            archs=targets,
            max_bytes=None if max_bytes is None else parse_bytes(max_bytes),
            max_entries=max_entries,
            max_disk_share=max_disk_share,
            everything=everything,
        )
        plan = cache.plan_cleaning(None if rules == Limits() else rules)
        leftovers = cache.find_leftovers()
        cleaned = None
        if not dry_run:
            with terminal.progress("Evicting", len(plan.victims)) as (bar, task):
                cleaned = cache.evict(plan, on_progress=lambda number: bar.update(task, completed=number))
        kept_timings = sum(device.count for device in cache.timings.devices())
        document = documents.cleaning(plan, leftovers, cleaned, kept_timings)
    emit(document, as_json, lambda: terminal.print_cleaning(document))


@click.command("verify")
@click.option("--repair", is_flag=True, help="Set aside what is damaged.")
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Read only this share of the entries, chosen at random, such as 0.05 every night.",
)
@json_option
@click.pass_obj
def verify_verb(settings: Settings, /, repair: bool, sample: float, as_json: bool) -> None:
    """Read every file of the store and report what is wrong.

    Exit 1 when anything is damaged, and is not repaired.
    """
    with open_cache(settings, create=False) as cache:
        total, _ = cache.count()
        checked = 0
        with terminal.progress("Checking", total if sample == 1 else None) as (bar, task):

            def one_more() -> None:
                nonlocal checked
                checked += 1
                bar.advance(task)

            findings = list(cache.check(share=sample, on_entry=one_more))
        acts = cache.plan_repair(findings)
        repaired = cache.repair(findings) if repair else []
    document = documents.verification(checked, acts, repaired)
    emit(document, as_json, lambda: terminal.print_verification(document))
    if {finding for finding in findings if finding.is_damage} - set(repaired):
        click.get_current_context().exit(FAILED)


@click.command("sync")
@click.option("--rebuild", is_flag=True, help="Start from an empty mirror.")
@json_option
@click.pass_obj
def sync_verb(settings: Settings, /, rebuild: bool, as_json: bool) -> None:
    """Bring the DuckDB mirror up to date with the files."""
    with open_cache(settings, create=False) as cache:
        started = time.perf_counter()
        synced = cache.mirror.sync(rebuild=rebuild)
        document = {**msgspec.to_builtins(synced), "ms": (time.perf_counter() - started) * 1e3}
    emit(document, as_json, lambda: terminal.print_synced(document))


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--arch", multiple=True, help="Only this target. May be given several times.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@json_option
@click.pass_obj
def export_verb(settings: Settings, /, file: Path, arch: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Write the store's kernels to a pack, FILE.

    Others can import it, or look kernels up in it as it is (setting packs). Exit 1 when damaged ones were left out.
    """
    targets = {architecture(name).name for name in arch}

    def wanted(record: Record) -> bool:
        return not targets or record.arch in targets

    with open_cache(settings, create=False) as cache:
        total, _ = cache.count()
        with terminal.progress("Exporting", total) as (bar, task):
            exported = cache.export(file, wanted=wanted, replace=force, on_entry=lambda: bar.advance(task))
    document = {"file": str(file.absolute()), "bytes": file.stat().st_size, **msgspec.to_builtins(exported)}
    emit(document, as_json, lambda: terminal.print_exported(document))
    if exported.refused:
        click.get_current_context().exit(FAILED)


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check the pack and say what would be taken in.")
@json_option
@click.pass_obj
def import_verb(settings: Settings, /, file: Path, dry_run: bool, as_json: bool) -> None:
    """Take the kernels of a pack, FILE, into the store.

    Each is checked in full. Only import packs from people you would run programs of: a kernel is one. Exit 1 when some
    were refused.
    """
    settings = settings.with_overrides({"enable_caching": True})
    with open_cache(settings) as cache:
        pack = cache.open_pack(file)
        with terminal.progress("Importing", len(pack)) as (bar, task):
            imported = cache.import_pack(pack, dry_run=dry_run, on_entry=lambda: bar.advance(task))
    document = {"file": str(file.absolute()), "dry_run": dry_run, **msgspec.to_builtins(imported)}
    emit(document, as_json, lambda: terminal.print_imported(document))
    if imported.refused:
        click.get_current_context().exit(FAILED)
