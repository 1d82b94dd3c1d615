"""The verb ``quarantine``: what was set aside, and what becomes of it."""

from __future__ import annotations

import click

from cache_engine.cli import documents, terminal
from cache_engine.cli.support import emit, json_option, open_cache
from cache_engine.config import Settings
from cache_engine.errors import UsageError
from cache_engine.units import counted, human_bytes


@click.group("quarantine", no_args_is_help=True)
def quarantine_verb() -> None:
    """What was found damaged and set aside: list it, put it back, delete it."""


@quarantine_verb.command("ls")
@json_option
@click.pass_obj
def ls_verb(settings: Settings, /, as_json: bool) -> None:
    """List what is there, why, and whether it verifies after all."""
    with open_cache(settings, create=False) as cache:
        found = cache.quarantined()
        told = [documents.quarantined(item, cache.examine(item)) for item in found]
    emit({"items": told}, as_json, lambda: terminal.print_quarantine(told))


@quarantine_verb.command("restore")
@click.argument("key")
@json_option
@click.pass_obj
def restore_verb(settings: Settings, /, key: str, as_json: bool) -> None:
    """Put the entry of KEY back, which may be shortened; only if every byte of it verifies."""
    with open_cache(settings, create=False) as cache:
        (item,) = cache.find_quarantined([key])
        cache.restore(item)
    emit({"restored": item.name}, as_json, lambda: print(f"Put back {item.name}."))


@quarantine_verb.command("delete")
@click.argument("name", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Delete all that is there.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@json_option
@click.pass_obj
def delete_verb(settings: Settings, /, name: tuple[str, ...], everything: bool, dry_run: bool, as_json: bool) -> None:
    """Delete the items of these names, as ``ls`` tells them, for good."""
    if bool(name) == everything:
        raise UsageError("name what to delete, or give --all; quarantine ls lists what is there")
    with open_cache(settings, create=False) as cache:
        chosen = cache.quarantined() if everything else cache.find_quarantined(name)
        size = sum(item.stored_bytes for item in chosen)
        count = len(chosen)
        if not dry_run:
            done = cache.discard(chosen)
            count, size = done.items, done.stored_bytes
    document = {"dry_run": dry_run, "names": [item.name for item in chosen], "deleted": count, "stored_bytes": size}
    verb = "Would delete" if dry_run else "Deleted"
    emit(document, as_json, lambda: print(f"{verb} {counted(count, 'item')}, {human_bytes(size)}."))
