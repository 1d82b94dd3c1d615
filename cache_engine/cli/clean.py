"""The verb ``clean``: shows which kernels the limits evict, and evicts them."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import click

from cache_engine.cli import terminal
from cache_engine.cli.old_names import say_new_name
from cache_engine.cli.support import Verb, emit, json_option, only_targets_option, open_cache
from cache_engine.cli.terminal import LEFT, RIGHT, print_table
from cache_engine.errors import UsageError
from cache_engine.model.architecture import architecture
from cache_engine.settings import Settings, parse_bytes
from cache_engine.units import counted, human_age, human_bytes, human_ms, printable
from cache_engine.upkeep.cleanup import Cleaned
from cache_engine.upkeep.plan import EvictionPlan, Limits


@click.command(
    "clean",
    cls=Verb,
    examples=("clean", "clean --max-bytes 2GB --yes", "clean --days 14 --state stale", "clean --all --yes"),
    done="The kernels are listed; with --yes, they are evicted.",
    failed="Other maintenance is running, or a file cannot be deleted.",
)
@click.option("--days", type=click.FloatRange(0), help="Evict kernels unused for this many days.")
@click.option(
    "--max-bytes",
    metavar="SIZE|SHARE",
    multiple=True,
    help="Evict down to this size, e.g. 2GB, or share of free disk space (store included), e.g. 20% (repeatable).",
)
@click.option("--max-entries", type=click.IntRange(0), help="Evict down to this number of kernels.")
@click.option("--max-disk-share", type=click.FloatRange(0, 1), hidden=True)
@click.option(
    "--state",
    "states",
    type=click.Choice(("expired", "stale", "unknown-format")),
    multiple=True,
    help="Evict kernels in this state (repeatable). expired: unused for expire_days; stale: of a compiler or template "
    "that is no longer used; unknown-format: that only another version of gemm-cache can read.",
)
@partial(only_targets_option, help_text="Evict kernels for this target or chip (repeatable).")
@click.option("--key", multiple=True, help="Evict this kernel; a key prefix is enough (repeatable).")
@click.option("--pinned", is_flag=True, help="Evict pinned kernels like others.")
@click.option(
    "--all", "everything", is_flag=True, help="Evict all kernels except pinned ones and those of another format."
)
@click.option("--yes", is_flag=True, help="Evict them. Without it, they are only listed.")
@click.option("--dry-run", is_flag=True, hidden=True)
@json_option
@click.pass_obj
def clean_verb(
    settings: Settings, /, days: float | None, max_bytes: tuple[str, ...], max_entries: int | None,
    max_disk_share: float | None, states: tuple[str, ...], archs: tuple[str, ...], key: tuple[str, ...],
    pinned: bool, everything: bool, yes: bool, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show which kernels to evict; with --yes, evict them.

    Each option that names kernels or a limit is a rule. A kernel is evicted if any one of the rules names it: --days 14
    --state stale evicts what is unused for 14 days, and also what is stale. Without a rule, evicts by the limits in
    the settings. The least recently used come first; the setting eviction has other orders. Pinned kernels stay, and
    count against limits. Kernels that serve any size (dynamic) go last, and do not expire. Also deletes leftover
    temporary files, and what has been in quarantine for 30 days. Timings are kept: configs are chosen by them.
    """
    is_asked, dry_run = dry_run, dry_run or not yes
    most_bytes, most_share = _sizes(max_bytes, max_disk_share)
    targets = frozenset(architecture(name).name for name in archs)
    with open_cache(settings, create=False) as cache:
        rules = Limits(
            expire_days=days if days is not None else settings.expire_days if "expired" in states else None,
            stale_toolchain="stale" in states,
            keys=frozenset(cache.admin.find_key(prefix) for prefix in key),
            archs=targets,
            max_bytes=most_bytes,
            max_entries=max_entries,
            max_disk_share=most_share,
            everything=everything,
            foreign_format="unknown-format" in states,
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
    document = {
        "dry_run": dry_run,
        "victims": plan.victims,
        "victim_bytes": plan.freed_bytes,
        "leftovers": leftovers,
        "kept_entries": kept[0],
        "kept_bytes": kept[1],
        "kept_timings": kept_timings,
        "foreign": plan.foreign + (cleaned.foreign if cleaned else 0),
        "pinned": plan.pinned,
        "cleaned": cleaned,
        "victim_compile_s": plan.compile_s,
    }
    emit(document, as_json, lambda: _print_cleaning(document, plan, cleaned))
    if as_json and dry_run and not is_asked and (plan.victims or leftovers):
        # Version 0.2 deleted without it, and a program that reads the document may not know.
        print("Nothing is deleted without --yes.", file=sys.stderr)


def _sizes(given: tuple[str, ...], old_share: float | None) -> tuple[int | None, float | None]:
    """The smallest size in bytes, and the smallest share of the disk, that the options for limits give.

    Raises ``UsageError`` for a text that is neither a size nor a share.
    """
    sizes = [parse_bytes(text) for text in given if not text.endswith("%")]
    shares = [_share(text) for text in given if text.endswith("%")]
    if old_share is not None:
        say_new_name(click.get_current_context(), "clean --max-disk-share", f"clean --max-bytes {100 * old_share:g}%")
        shares.append(old_share)
    return min(sizes, default=None), min(shares, default=None)


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise UsageError(f"{text!r} is not a share of the disk; write it like 20%")
    return share


# ---- For people ----


def _print_cleaning(d: dict[str, Any], plan: EvictionPlan, cleaned: Cleaned | None) -> None:
    now = time.time()
    if plan.victims:
        print_table(
            {"key": LEFT, "on disk": RIGHT, "compile time": RIGHT, "last used": RIGHT, "reason": LEFT},
            [
                (
                    victim.key[:12], human_bytes(victim.stored_bytes), human_ms(victim.compile_s * 1e3),
                    human_age(now - victim.last_used_at), victim.reason,
                )
                for victim in plan.victims
            ],
        )  # fmt: skip
        print()
    for leftover in d["leftovers"]:
        print(printable(f"{leftover.path}: {leftover.reason}, {human_bytes(leftover.stored_bytes)}"))
    kept = f"{_entries(d['kept_entries'])}, {human_bytes(d['kept_bytes'])}"
    if cleaned is None:
        left = f"; would delete {counted(len(d['leftovers']), 'leftover file')}" if d["leftovers"] else ""
        price = f", {human_ms(plan.compile_s * 1e3)} of compiling" if plan.compile_s else ""
        freed = human_bytes(plan.freed_bytes)
        print(f"Would evict {_entries(len(plan.victims))}, {freed}{price}; would keep {kept}{left}.")
        if plan.victims or d["leftovers"]:
            print("Nothing is deleted without --yes.")
    else:
        in_use = cleaned.skipped - cleaned.foreign  # or used, replaced or deleted since they were chosen
        print(
            f"Evicted {_entries(cleaned.evicted)}, {human_bytes(cleaned.freed_bytes)}"
            + (f"; {in_use} skipped (in use or gone)" if in_use else "")
            + f"; kept {kept}"
            + (f"; deleted {counted(cleaned.leftovers, 'leftover file')}" if cleaned.leftovers else "")
            + "."
        )
    if d["foreign"]:
        words = "of another format version not evicted; --state unknown-format evicts such entries."
        print(f"{_entries(d['foreign'])} {words}")
    if d["pinned"]:
        print(f"{_entries(d['pinned'])} pinned and not evicted; --pinned evicts such entries.")
    if d["kept_timings"]:
        print(f"Timings are kept: {counted(d['kept_timings'], 'timing')}.")


def _entries(count: int) -> str:
    return counted(count, "entry", "entries")
