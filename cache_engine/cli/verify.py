"""The verb ``verify``: checks every file of the store; lists, restores and deletes files in quarantine."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from cache_engine.cli import terminal
from cache_engine.cli.support import Verb, emit, json_option, open_cache
from cache_engine.cli.support.completion import quarantined
from cache_engine.cli.terminal import LEFT, RIGHT, print_table
from cache_engine.errors import UsageError
from cache_engine.model.documents import picked
from cache_engine.model.key import CacheKey
from cache_engine.process import processors
from cache_engine.settings import Settings
from cache_engine.store.signatures.signers import Signed, Standing
from cache_engine.units import counted, human_age, human_bytes, printable
from cache_engine.upkeep.quarantine import Examined, Item

if TYPE_CHECKING:
    from cache_engine.cache.cache import Cache


@click.command(
    "verify",
    cls=Verb,
    examples=(
        "verify",
        "verify --repair",
        "verify --sample 0.05",
        "verify --signatures",
        "verify --quarantined",
        "verify --restore 3f2a",
        "verify --delete 3f2a --yes",
    ),
    completers={"names": quarantined},
    done="Nothing is damaged, or the damage is repaired; or what was asked of the quarantine is done.",
    failed="Something is damaged and not repaired, or a signature is bad; or an item cannot be restored or deleted.",
    missing="--signatures: the extra team is not installed.",
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--repair", is_flag=True, help="Quarantine what is damaged; its kernels are compiled again on the next use."
)
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Check a random fraction of the entries, e.g. 0.05.",
)
@click.option("--signatures", is_flag=True, help="Also list who signed the kernels, by the setting trusted_signers.")
@click.option("--quarantined", "act", flag_value="list", help="List the quarantined items instead.")
@click.option("--restore", "act", flag_value="restore", help="Restore the entry NAME, if every byte is valid.")
@click.option("--delete", "act", flag_value="delete", help="Show the quarantined items NAME… that --yes deletes.")
@click.option("--all", "everything", is_flag=True, help="--delete: all items.")
@click.option("--yes", is_flag=True, help="--delete: delete the items permanently.")
@click.option("--dry-run", is_flag=True, hidden=True)
@json_option
@click.pass_obj
def verify_verb(
    settings: Settings, /, names: tuple[str, ...], repair: bool, sample: float, signatures: bool, act: str | None,
    everything: bool, yes: bool, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Check every file of the store.

    Reads records, compiled code, the journal, timings and results, and verifies their checksums.

    --quarantined lists the items in quarantine: when and why each was moved, and whether it is valid now.
    """
    if act is None and names:
        raise UsageError("verify checks the whole store; NAME goes with --restore and --delete")
    if act != "delete" and (everything or yes):
        raise UsageError("--all and --yes go with --delete")
    if act is not None and (repair or signatures or sample != 1):
        raise UsageError("the quarantine has no --sample, --signatures or --repair; leave them out")
    with open_cache(settings, create=False) as cache:
        if act is None:
            check(cache, sample, repair=repair, signatures=signatures, as_json=as_json)
        elif act == "list":
            _list(cache, names, as_json=as_json)
        elif act == "restore":
            _restore(cache, names, as_json=as_json)
        else:
            _delete(cache, names, everything=everything, dry_run=dry_run or not yes, as_json=as_json)


def check(cache: Cache, share: float = 1.0, *, repair: bool = False, signatures: bool = False, as_json: bool) -> None:
    """Checks a store, repairs it if ``repair`` is true, and prints the findings.

    Exits with code 1 if damage remains.
    """
    total, _ = cache.count()
    signers = _by_signer(cache.admin.signatures()) if signatures else []
    checked = 0
    with terminal.progress("Checking", total if share == 1 else None) as (bar, task):

        def one_more() -> None:
            nonlocal checked
            checked += 1
            bar.advance(task)

        findings = list(cache.admin.check(share=share, on_entry=one_more, processes=processors()))
    acts = cache.admin.plan_repair(findings)
    repaired = set(cache.admin.repair(findings)) if repair else set()
    document: dict[str, Any] = {
        "checked": checked,
        "findings": [
            {
                **picked(act.finding, "kind", "path", "key", "cause", "remedy"),
                "files": [{"path": path, "stored_bytes": size} for path, size in act.files],
                "repaired": act.finding in repaired,
            }
            for act in acts
        ],
    }
    if signatures:
        document["signatures"] = signers
    unrepaired = {finding for finding in findings if finding.is_damage} - repaired
    failed = bool(unrepaired) or any(row["standing"] is Standing.BAD for row in signers)
    emit(document, as_json, lambda: _print_verification(document, signers), failed=failed)


def _by_signer(checked: Iterable[tuple[CacheKey, Signed]]) -> list[dict[str, Any]]:
    """A row for each signer and state of its signatures: the number of kernels, and the keys of invalid ones.

    Valid signatures come first.
    """
    groups: defaultdict[tuple[Standing, str], list[tuple[CacheKey, str]]] = defaultdict(list)
    for key, signed in checked:
        groups[signed.standing, signed.signer].append((key, signed.why))
    order = list(Standing)
    return [
        {
            "standing": standing,
            "signer": signer,
            "kernels": len(groups[standing, signer]),
            "why": groups[standing, signer][0][1],
            "keys": [key for key, _ in groups[standing, signer]] if standing is Standing.BAD else [],
        }
        for standing, signer in sorted(groups, key=lambda group: (order.index(group[0]), group[1]))
    ]


def _list(cache: Cache, names: tuple[str, ...], *, as_json: bool) -> None:
    found = cache.admin.find_quarantined(names) if names else cache.admin.quarantined()
    items = [_item_document(item, cache.admin.examine(item)) for item in found]
    emit({"items": items}, as_json, lambda: _print_quarantine(items))


def _item_document(item: Item, examined: Examined) -> dict[str, Any]:
    """An item in quarantine as JSON: why its files were moved there, and whether they are valid now."""
    return {
        **picked(item, "name", "key", "set_aside_at", "why", "stored_bytes", "files"),
        "kernel": None if examined.record is None else examined.record.name,
        "restorable": not examined.cause,
        "cause": examined.cause,
    }


def _restore(cache: Cache, names: tuple[str, ...], *, as_json: bool) -> None:
    if len(names) != 1:
        raise UsageError("give the NAME of one entry to restore; gemm-cache verify --quarantined lists them")
    (item,) = cache.admin.find_quarantined(names)
    cache.admin.restore(item)
    emit({"restored": item.name}, as_json, lambda: print(printable(f"Restored {item.name}.")))


def _delete(cache: Cache, names: tuple[str, ...], *, everything: bool, dry_run: bool, as_json: bool) -> None:
    if bool(names) == everything:
        raise UsageError("give the names of the items to delete, or --all; gemm-cache verify --quarantined lists them")
    chosen = cache.admin.quarantined() if everything else cache.admin.find_quarantined(names)
    size = sum(item.stored_bytes for item in chosen)
    count = len(chosen)
    if not dry_run:
        done = cache.admin.discard(chosen)
        count, size = done.items, done.stored_bytes
    document = {
        "dry_run": dry_run,
        "names": [item.name for item in chosen],
        "deleted": count,
        "stored_bytes": size,
    }
    emit(document, as_json, lambda: _print_deleted(chosen, count, size, dry_run=dry_run))


# ---- For people ----


def _print_verification(d: dict[str, Any], signers: Sequence[dict[str, Any]]) -> None:
    for finding in d["findings"]:
        print(printable(f"{finding['kind']}: {finding['path']}: {finding['cause']}"))
        print(f"    {'done' if finding['repaired'] else 'fix'}: {finding['remedy']}")
    verdict = counted(len(d["findings"]), "finding") if d["findings"] else "nothing wrong"
    print(f"{counted(d['checked'], 'entry', 'entries')} checked, {verdict}.")
    if signers:
        print()
        print_table(
            {"signature": LEFT, "kernels": RIGHT, "signer": LEFT, "why": LEFT},
            [(row["standing"], f"{row['kernels']:,}", row["signer"], row["why"]) for row in signers],
        )
        for key in (key for row in signers for key in row["keys"]):
            print(f"bad signature: {key}; gemm-cache clean --key {key[:12]} --yes deletes the kernel")


def _print_quarantine(items: Sequence[dict[str, Any]]) -> None:
    now = time.time()
    for item in items:
        about = f"{human_bytes(item['stored_bytes'])}, quarantined {human_age(now - item['set_aside_at'])}"
        print(printable(f"{item['kernel'] or item['files'][0].original}: {about}"))
        print(printable(f"    {item['name']}"))
        for label, text in (("why", item["why"]), ("now", item["cause"] or "valid: can be restored")):
            if text:
                print(printable(f"    {label}: {text}"))
    size = sum(item["stored_bytes"] for item in items)
    print(f"{counted(len(items), 'item')} in quarantine, {human_bytes(size)}.")


def _print_deleted(chosen: Sequence[Item], count: int, size: int, *, dry_run: bool) -> None:
    now = time.time()
    for item in chosen if dry_run else ():
        about = f"{human_bytes(item.stored_bytes)}, quarantined {human_age(now - item.set_aside_at)}"
        print(printable(f"{item.name}: {about}{f': {item.why}' if item.why else ''}"))
    what = f"{counted(count, 'item')}, {human_bytes(size)}"
    print(f"Would delete {what}. Nothing is deleted without --yes." if dry_run else f"Deleted {what}.")
