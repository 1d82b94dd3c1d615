"""What the verbs of this group share: the directories, scanning with progress, findings."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cache_engine.config import Settings
from cache_engine.errors import KeyNotFound, UsageError
from cache_engine.units import counted, human_age, printable

if TYPE_CHECKING:
    from cache_engine.cli.documents import caches as documents
    from cache_engine.foreign.registry import Sources
    from cache_engine.foreign.values import Entry, Place, Seen

_F = TypeVar("_F", bound=Callable[..., Any])
_GIVEN = "gemm-cache caches"
_MOST_FINDINGS = 20
_SHOWN_DIGITS = 12


def cache_option(verb: _F) -> _F:
    """Gives a verb ``--cache``; before the name of a verb of this group and after it, all count."""

    def note(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> None:
        ctx.meta.setdefault(_GIVEN, []).extend(given)

    return click.option(
        "--cache",
        multiple=True,
        metavar="KIND=DIR",
        expose_value=False,
        callback=note,
        help="A further directory, and the framework whose cache it is (repeatable).",
    )(verb)


def known_places(settings: Settings) -> tuple[Sources, list[Place]]:
    """The sources, and the places that there are and that the user names, also those that are not in use here."""
    from cache_engine.foreign.registry import load_sources, surroundings

    sources = load_sources()
    given = click.get_current_context().meta.get(_GIVEN, [])
    return sources, list(sources.places(surroundings([*given, *settings.caches])))


def places_in(places: list[Place], folder: Path | None) -> list[Place]:
    """Those in one directory, or all that are in use where none is named.

    Raises:
        UsageError: when it is none of them.
    """
    if folder is None:
        return [place for place in places if not place.replaced_by]
    found = [place for place in places if place.path.absolute() == folder.absolute()]
    if not found:
        raise UsageError(f"{folder} is not a directory that is looked at; add --cache KIND={folder}")
    return found


def scanned(
    settings: Settings, sources: Sources, places: Sequence[Place], *, afresh: bool = False
) -> Iterator[tuple[Place, Seen]]:
    """What is in the places, with a count on a terminal while it takes long.

    Args:
        afresh: all is read, also what is unchanged as far as times and sizes say.
    """
    from cache_engine.cli.caches.indexed import from_index
    from cache_engine.foreign.survey import survey

    started, shows, count = time.monotonic(), sys.stderr.isatty(), 0

    def progress(number: int, _: str = "") -> None:
        if shows and time.monotonic() - started > 1:
            print(f"\r{counted(number, 'entry', 'entries')} read…", end="", file=sys.stderr)

    found = None if afresh else from_index(settings, sources, places, progress)
    for count, seen in enumerate(survey(sources, places) if found is None else found, start=1):
        if found is None and count % 1000 == 0:
            progress(count)
        yield seen
    if shows and count >= 1000:
        print("\r\033[K", end="", file=sys.stderr)


def find_entry(
    settings: Settings, sources: Sources, places: list[Place], id: str, folder: Path | None
) -> tuple[Place, Entry]:
    """The one entry whose id begins so; an id that is there in full is that one."""
    from cache_engine.foreign.values import Entry, key_of

    found = [
        (place, seen)
        for place, seen in scanned(settings, sources, places_in(places, folder))
        if isinstance(seen, Entry)
        and any(name.startswith(id) for name in (seen.id, seen.id.rpartition("/")[2], key_of(seen.id)))
    ]
    whole = [(place, entry) for place, entry in found if entry.id == id]
    found = whole or found
    if not found:
        raise KeyNotFound(f"no entry has an id that begins with {id[:80]!r}; gemm-cache caches ls lists them")
    if len(found) > 1:
        first = ", ".join(f"{key_of(entry.id)[:_SHOWN_DIGITS]} in {place.path}" for place, entry in found[:3])
        raise KeyNotFound(f"{len(found):,} entries begin with {id[:80]!r}: {first}…; give more of it, or --in DIR")
    return found[0]


def print_findings(findings: list[documents.CacheFinding]) -> None:
    """Prints findings on standard error, the first of many."""
    for finding in findings[:_MOST_FINDINGS]:
        where = "/".join(filter(None, (finding.path, finding.id)))
        print(printable(f"{finding.fault}: {where}: {finding.detail}"), file=sys.stderr)
    if len(findings) > _MOST_FINDINGS:
        print(f"and {counted(len(findings) - _MOST_FINDINGS, 'finding')} more; --json has all", file=sys.stderr)


def age(at: float | None, now: float) -> str:
    """A time as its age; a dash where it is not known."""
    return "–" if at is None else human_age(now - at)
