"""``gemm-cache caches ls``: entries of other frameworks' caches."""

from __future__ import annotations

import heapq
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from cache_engine.cli.caches import (
    age,
    cache_option,
    entry_row,
    finding_row,
    known_places,
    lookup_row,
    lookups_of,
    places_in,
    print_findings,
    scanned,
    shortener,
    trace_option,
    where,
)
from cache_engine.cli.support import Verb, emit, json_option, only_targets_option, only_with
from cache_engine.cli.terminal import LEFT, RIGHT, print_table
from cache_engine.settings import Settings
from cache_engine.units import counted, human_bytes, human_ms

if TYPE_CHECKING:
    from cache_engine.frameworks.registry import EntryFilter
    from cache_engine.frameworks.tuning import Choice
    from cache_engine.frameworks.values import Entry, Place, ScanFinding, Seen

_MOST_LETTERS, _SHOWN_KEY = 60, 13
_SORTS: dict[str, Callable[[Entry], Any]] = {
    "created": lambda entry: entry.created_at or 0.0,
    "last-used": lambda entry: entry.last_used_at or entry.created_at or 0.0,
    "size": lambda entry: entry.size_bytes,
    "registers": lambda entry: entry.registers or 0,
    "name": lambda entry: entry.name or "",
}


@click.command(
    "ls",
    cls=Verb,
    examples=(
        "caches ls",
        "caches ls tile --kind triton --arch sm_90a",
        "caches ls --sort size --limit 10 --json",
        "caches ls --part tuning",
        "caches ls --trace /tmp/trace",
    ),
    done="The entries are listed, or none matches.",
)
@click.argument("text", nargs=-1)
@cache_option
@click.option("--kind", "kinds", multiple=True, help="Only of this framework (repeatable).")
@only_targets_option
@click.option("--state", "states", multiple=True, help="Only complete, partial or unread entries (repeatable).")
@click.option("--part", type=click.Choice(["tuning"]), help="List results of tuning, and what was chosen, instead.")
@trace_option("List the lookups of a trace of torch.compile instead: which graphs hit or missed.")
@click.option(
    "--sort",
    type=click.Choice(list(_SORTS)),
    metavar="BY",
    default="created",
    show_default=True,
    help=f"Sort order, one of: {', '.join(_SORTS)}.",
)
@click.option("--ascending", is_flag=True, help="Smallest, oldest or A first. Default: last.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Rows to print.")
@json_option
@click.pass_obj
def ls_verb(
    settings: Settings, /, text: tuple[str, ...], kinds: tuple[str, ...], archs: tuple[str, ...],
    states: tuple[str, ...], part: str | None, trace: Path | None, sort: str, ascending: bool, limit: int,
    as_json: bool,
) -> None:  # fmt: skip
    """List kernels of other frameworks, newest first.

    TEXT: words that an entry's name, id, target, version or config must contain. Prints 50 entries (see --limit) and
    the number of all.

    With --part tuning, lists results of tuning instead: what Triton, Inductor, Helion and FlashInfer chose for each
    key, and its time if their files have it. With --trace, lists the graphs that a run of torch.compile looked for.
    """
    from cache_engine.frameworks.registry import EntryFilter

    if trace is not None:
        only_with("", False, ("kinds", "archs", "states", "part", "sort", "ascending"), instead="--trace")
        _list_lookups(trace, text, limit, as_json)
        return
    sources, places = known_places(settings)
    if part is not None:
        only_with("", False, ("archs", "states", "sort", "ascending"), instead="--part")
        chosen = [place for place in places_in(places, None) if not kinds or place.kind in kinds]
        _list_tuning(chosen, text, limit, as_json)
        return
    found = scanned(settings, sources, places_in(places, None))
    wanted = EntryFilter(" ".join(text), kinds, archs, states)
    _list_entries(found, wanted, sort, limit, ascending=ascending, as_json=as_json)


def _list_entries(
    scanned: Iterable[tuple[Place, Seen]], wanted: EntryFilter, sort: str, limit: int, *, ascending: bool, as_json: bool
) -> None:
    from cache_engine.frameworks.values import Entry, ScanFinding

    total = 0
    findings: list[tuple[Place | None, ScanFinding]] = []
    ids: list[str] = []  # also of those that are not listed: a short id is one that none of them has

    def matching() -> Iterator[tuple[Place, Entry]]:
        nonlocal total
        for place, seen in scanned:
            if isinstance(seen, ScanFinding):
                findings.append((place, seen))
            elif isinstance(seen, Entry):
                ids.append(seen.id)
                if wanted.takes(place, seen):
                    total += 1
                    yield place, seen

    pick = heapq.nsmallest if ascending else heapq.nlargest
    rows = pick(limit, matching(), key=lambda row: _SORTS[sort](row[1]))
    document = {
        "entries": [entry_row(place, entry) for place, entry in rows],
        "total": total,
        "findings": [finding_row(place, one) for place, one in findings],
    }

    def show() -> None:
        _print_entries(rows, shortener(ids))
        more = f", {total - len(rows):,} of them not printed" if total > len(rows) else ""
        print(f"{counted(total, 'entry', 'entries')}{more}.")
        print_findings(findings)

    emit(document, as_json, show)


def _list_tuning(places: list[Place], words: tuple[str, ...], limit: int, as_json: bool) -> None:
    from cache_engine.frameworks.tuning import choices
    from cache_engine.frameworks.values import Fault, ScanFinding

    found: dict[tuple[str, str], tuple[Place, Choice]] = {}
    findings: list[tuple[Place, ScanFinding]] = []
    for place in places:
        try:
            for each in choices(place):
                if isinstance(each, ScanFinding):
                    findings.append((place, each))
                elif all(word.lower() in f"{each.name} {each.key} {each.chosen}".lower() for word in words):
                    # A directory of Triton's may be in one of Inductor's.
                    found[os.path.realpath(place.path / each.file), each.key] = place, each
        except OSError as error:
            findings.append((place, ScanFinding(Fault.UNREADABLE, "", error.strerror or str(error))))
    rows = [{**where(place), **to_builtins(each), "ms": each.ms} for place, each in found.values()]
    document = {"results": rows[:limit], "total": len(rows), "findings": [finding_row(*one) for one in findings]}

    def show() -> None:
        print_table(
            {"framework": LEFT, "name": LEFT, "tuned for": LEFT, "chosen": LEFT, "time": RIGHT},
            [
                (each.framework, each.name, each.key[:_MOST_LETTERS], each.chosen,
                 "–" if each.ms is None else human_ms(each.ms))
                for _, each in list(found.values())[:limit]
            ],
            dispensable=("tuned for",),
        )  # fmt: skip
        print(f"{counted(len(rows), 'result')} of tuning.")
        print_findings(findings)

    emit(document, as_json, show)


def _list_lookups(trace: Path, words: tuple[str, ...], limit: int, as_json: bool) -> None:
    found, findings = lookups_of(trace)
    texts = [f"{each.cache} {each.result} {each.key} {each.name} {each.reason}".lower() for each in found]
    found = [each for each, said in zip(found, texts, strict=True) if all(word.lower() in said for word in words)]
    results = Counter(f"{each.cache} {each.result}" for each in found)
    document = {
        "lookups": [lookup_row(each) for each in found[:limit]],
        "total": len(found),
        "results": results,
        "findings": [finding_row(None, one) for one in findings],
    }

    def show() -> None:
        print_table(
            {"cache": LEFT, "result": LEFT, "key": LEFT, "function": LEFT, "compile": LEFT, "reason": LEFT},
            [
                (each.cache, each.result, each.key[:_SHOWN_KEY] or "–", each.name or "–", each.compile_id, each.reason)
                for each in found[:limit]
            ],
            dispensable=("compile",),
        )
        sums = ", ".join(f"{count:,} {what}" for what, count in results.items()) or "no lookup"
        print(f"{sums}. Why one missed: caches show KEY --trace DIR.")
        print_findings([(None, one) for one in findings])

    emit(document, as_json, show)


def _print_entries(rows: list[tuple[Place, Entry]], short: Callable[[str], str]) -> None:
    if not rows:
        return
    now = time.time()
    print_table(
        {
            "id": LEFT, "framework": LEFT, "name": LEFT, "target": LEFT, "regs": RIGHT, "shared": RIGHT,
            "size": RIGHT, "config": LEFT, "version": LEFT, "state": LEFT, "created": LEFT,
        },
        [
            (
                short(row.id), place.kind, row.name or "–", row.arch or "–",
                "–" if row.registers is None else row.registers,
                "–" if row.shared_bytes is None else human_bytes(row.shared_bytes), human_bytes(row.size_bytes),
                " ".join(f"{name}={value}" for name, value in row.config.items()) or "–", row.version or "–",
                row.state, age(row.created_at, now),
            )
            for place, row in rows
        ],
        dispensable=("version", "config", "shared", "regs", "state"),
    )  # fmt: skip
