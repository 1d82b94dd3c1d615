"""The verb ``caches``: how much each framework has where. Its own verbs are in the other modules."""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING

import click

from cache_engine import logs
from cache_engine.cli.caches.places import (
    age,
    cache_option,
    known_places,
    places_in,
    print_findings,
    print_in_memory,
    scanned,
)
from cache_engine.cli.support import emit, json_option
from cache_engine.cli.support.given import settings_of
from cache_engine.cli.support.verb import LazyVerbs, VerbGroup
from cache_engine.cli.terminal import LEFT, RIGHT, print_table
from cache_engine.errors import UsageError
from cache_engine.units import human_bytes, printable

if TYPE_CHECKING:
    from cache_engine.cli.documents import caches as documents

_MOST_COUNTED, _MOST_PARTS = 4, 8
_WHERE = {"ls": "listing", "show": "showing", "clean": "cleaning", "diff": "comparing", "doctor": "examining"}
"""The module of this package that has each verb of the group, as ``NAME_verb``."""


@click.group(
    "caches",
    cls=VerbGroup,
    commands=LazyVerbs({verb: f"{__package__}.{module}" for verb, module in _WHERE.items()}),
    invoke_without_command=True,
    examples=("caches", "caches --json", "caches ls --arch sm_90a", "caches show 3f2a"),
)
@cache_option
@json_option
@click.pass_context
def caches_verb(ctx: click.Context, /, as_json: bool) -> None:
    """Show the kernel caches of other frameworks.

    Without a verb: how much each framework has in each directory, for which targets, by which versions. Reads only:
    no framework is imported, nothing is run or changed.
    """
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise UsageError("--json belongs after the name of the verb")
        return
    settings = settings_of(ctx)
    logs.configure(settings.log or "warning")
    from cache_engine.cli.documents import caches as documents
    from cache_engine.frameworks.registry import in_memory_here, sums

    sources, places = known_places(settings)
    unused = [place for place in places if place.replaced_by]
    # What is not in use is read apart: the index has no entries of it.
    seen = chain(scanned(settings, sources, places_in(places, None)), scanned(settings, sources, unused, afresh=True))
    found = sums(places, seen)
    document = documents.CachesOverview(
        directories=[documents.directory(sources.by_kind[place.kind], place, each) for place, each in found.items()],
        findings=[
            *(documents.finding(None, finding) for finding in sources.findings),
            *(documents.finding(place, finding) for place, each in found.items() for finding in each.findings),
        ],
        in_memory=in_memory_here(),
    )
    emit(document, as_json, lambda: _print_overview(document))


def _print_overview(d: documents.CachesOverview) -> None:
    if not d.directories:
        print("No cache of another framework is here. Name one with --cache KIND=DIR, such as triton=/scratch/triton.")
    now = time.time()
    used = [row for row in d.directories if not row.replaced_by]
    for rows in (used, [row for row in d.directories if row.replaced_by]):
        if rows and rows[0].replaced_by:
            print("\nNot in use here, because a variable names another directory; caches clean --in DIR cleans one:")
        if not rows:
            continue
        print_table(
            {
                "framework": LEFT, "entries": RIGHT, "size": RIGHT, "partial": RIGHT, "targets": LEFT,
                "versions": LEFT, "newest": LEFT, "directory": LEFT,
                **({"variable": LEFT} if rows[0].replaced_by else {}),
            },
            [
                (
                    row.title, f"{row.entries:,}", human_bytes(row.size_bytes), row.partial or "–",
                    _counted(row.targets), _counted(row.versions), age(row.newest, now), row.path,
                    *filter(None, [row.replaced_by]),
                )
                for row in rows
            ],
            dispensable=("partial", "versions", "targets"),
        )  # fmt: skip
    if used:
        parts: dict[str, int] = {}
        for row in used:
            for name, size in row.part_bytes.items():
                parts[name] = parts.get(name, 0) + size
        by_size = sorted(parts.items(), key=lambda item: -item[1])[:_MOST_PARTS]
        if by_size:
            text = ", ".join(printable(f"{name} {human_bytes(size)}") for name, size in by_size)
            print(f"\nBy part: {_and_more(text, len(parts) - len(by_size))}")
    print_in_memory(d.in_memory)
    print_findings(d.findings)


def _counted(counts: dict[str, int]) -> str:
    shown = [f"{name} ({count:,})" for name, count in list(counts.items())[:_MOST_COUNTED]]
    return _and_more(", ".join(shown), len(counts) - len(shown)) or "–"


def _and_more(text: str, left: int) -> str:
    return f"{text} and {left:,} more" if left else text
