"""``gemm-cache caches clean``: deletes entries of other frameworks' caches."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cache_engine.cli import caches
from cache_engine.cli.support import Verb, emit, json_option, only_targets_option, open_cache
from cache_engine.cli.terminal import LEFT, RIGHT, print_table, progress
from cache_engine.errors import UsageError
from cache_engine.settings import Settings, parse_bytes
from cache_engine.units import counted, human_bytes, printable

if TYPE_CHECKING:
    from cache_engine.frameworks.cleanup import Cleaning
    from cache_engine.frameworks.deletion import Deleted, Plans
    from cache_engine.frameworks.values import Place, ScanFinding

_MOST_SHOWN = 20
OFFLINE = (
    "--offline deletes files at once. A process that uses one of these caches now may fail: stop all of them, "
    "on every machine that shares the directory"
)


@click.command(
    "clean",
    cls=Verb,
    examples=(
        "caches clean --days 30",
        "caches clean --kind triton --version 3.2.0 --yes",
        "caches clean --kind triton --max-bytes 5GB --yes",
        "caches clean --kind triton --days 7 --part ir --yes",
        "caches clean --kind cupy --all --offline --yes",
    ),
    done="The entries are deleted; without --yes, they are listed.",
    failed="Some entries stay; the reasons are printed.",
)
@click.argument("text", nargs=-1)
@caches.cache_option
@click.option("--kind", "kinds", multiple=True, help="Only of this framework (repeatable).")
@click.option("--in", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Only in this directory.")
@only_targets_option
@click.option("--state", "states", multiple=True, help="Only complete, partial or unread entries (repeatable).")
@click.option("--days", type=click.FloatRange(0), help="Those unused for this many days.")
@click.option("--version", "versions", multiple=True, help="Those that this version made (repeatable).")
@click.option("--max-bytes", metavar="SIZE", help="Down to this size in all, the longest unused first.")
@click.option("--all", "everything", is_flag=True, help="All entries of the caches that are in use here.")
@click.option(
    "--part",
    type=click.Choice(("all", "ir")),
    default="all",
    help="ir: only their intermediate representations; the kernels stay cached.",
)
@click.option("--offline", is_flag=True, help="No process uses these caches: delete also where no safe way is known.")
@click.option("--yes", is_flag=True, help="Delete them. Without it, they are only listed.")
@json_option
@click.pass_obj
def clean_verb(
    settings: Settings,
    /,
    text: tuple[str, ...],
    kinds: tuple[str, ...],
    folder: Path | None,
    archs: tuple[str, ...],
    states: tuple[str, ...],
    days: float | None,
    versions: tuple[str, ...],
    max_bytes: str | None,
    everything: bool,
    part: str,
    offline: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete entries of other frameworks' caches.

    TEXT: words that an entry's name, id, target, version or config must contain. Lists what would be deleted; --yes
    deletes it so that no process that uses the cache fails. The store's audit log has every deletion. Where an
    environment variable names another directory, a framework's usual one is cleaned only with --in.
    """
    from cache_engine.frameworks.cleanup import cleaning
    from cache_engine.frameworks.deletion import CleaningRules, choose, plan_cleaning, with_irs
    from cache_engine.frameworks.registry import EntryFilter
    from cache_engine.frameworks.values import Entry, ScanFinding

    irs_only = part == "ir"
    if irs_only and (offline or max_bytes is not None):
        raise UsageError("--part ir goes with neither --offline nor --max-bytes: entries stay, and stay in use")
    size = None if max_bytes is None else parse_bytes(max_bytes)
    rules = CleaningRules(EntryFilter(" ".join(text), kinds, archs, states), days, versions, size)
    if rules.is_everything and folder is None and not everything:
        raise UsageError("this would delete all entries of all caches; give a rule, such as --days 30, or --all")
    sources, known = caches.known_places(settings)
    places = caches.places_in(known, folder)
    listed = known if folder is None else places
    seen = list(caches.scanned(settings, sources, places))
    found = [(place, each) for place, each in seen if isinstance(each, Entry)]
    chosen = choose(with_irs(found) if irs_only else found, rules, time.time())
    plans = plan_cleaning(sources.by_kind, chosen, irs_only=irs_only, offline=offline, known=known)
    findings: list[tuple[Place | None, ScanFinding]] = [
        (place, each) for place, each in seen if isinstance(each, ScanFinding)
    ]
    if offline and not as_json:
        click.echo(f"Warning: {OFFLINE}.", err=True)
    done = cleaning(chosen, plans, _deleted(settings, plans) if yes else {}, listed)
    document = {name: getattr(done, name) for name in ("entries", "size_bytes", "directories", "left")}
    document["findings"] = [caches.finding_row(place, one) for place, one in findings]

    def show() -> None:
        _print_cleaning(done, deletes=yes, irs_only=irs_only)
        caches.print_findings(findings)

    emit(document, as_json, show, failed=yes and done.left)


def _deleted(settings: Settings, plans: Plans) -> dict[Place, Deleted]:
    from cache_engine.frameworks.values import DeletePlan

    found = {}
    with open_cache(settings) as cache:
        for place, plan in plans.items():
            if isinstance(plan, DeletePlan) and plan.deletions:
                with progress("Deleting", len(plan.deletions)) as (bar, task):
                    found[place] = cache.admin.clean_other(
                        place, plan, on_progress=lambda number: bar.update(task, completed=number)
                    )
    return found


def _print_cleaning(d: Cleaning, *, deletes: bool, irs_only: bool) -> None:
    if d.entries and not deletes:
        short = caches.shortener(row.id for row in d.entries)
        print_table(
            {
                "framework": LEFT, "id": LEFT, "name": LEFT, "target": LEFT, "size": RIGHT, "why": LEFT,
                "directory": LEFT,
            },
            [
                (
                    row.kind, short(row.id), row.name or "–", row.arch or "–", human_bytes(row.size_bytes), row.reason,
                    row.path,
                )
                for row in d.entries[:_MOST_SHOWN]
            ],
            dispensable=("target", "why", "name"),
        )  # fmt: skip
        if len(d.entries) > _MOST_SHOWN:
            print(f"… and {len(d.entries) - _MOST_SHOWN:,} more; --json has all")
    count, freed = counted(len(d.entries), "entry", "entries"), human_bytes(d.size_bytes)
    count = f"IRs of {count}" if irs_only else count
    how = "deleted" if deletes else "to delete"
    for row in filter(lambda row: row.entries, d.directories):
        sums = f"{counted(row.entries, 'entry', 'entries')}, {human_bytes(row.size_bytes)}"
        print(printable(f"{row.kind} in {row.path}: {sums}"))
    print(f"{count} {how}, {freed}.{'' if deletes or not d.entries else ' --yes does it.'}")
    reasons = Counter((left.kind, left.path, left.reason) for left in d.left)
    for (kind, path, reason), number in reasons.most_common(_MOST_SHOWN):
        print(printable(f"{counted(number, 'entry', 'entries')} of {kind} in {path} not deleted: {reason}."))
    if any(left.no_safe_way for left in d.left) and not irs_only:
        print(f"With --offline they can be deleted. {OFFLINE}.")
    for row in d.directories:
        if row.replaced_by and not row.entries:
            why = f"{row.replaced_by} is set, and {row.kind} uses another directory"
            print(printable(f"{row.path} is not in use here: {why}. --in {row.path} cleans it."))
