"""What the verbs of this group share: the directories, scanning with progress, findings."""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cache_engine.errors import KeyNotFound, UsageError
from cache_engine.settings import Settings
from cache_engine.units import counted, human_age, printable

if TYPE_CHECKING:
    from cache_engine.cli.documents import caches as documents
    from cache_engine.frameworks.registry import Sources
    from cache_engine.frameworks.values import Entry, Place, Seen

_F = TypeVar("_F", bound=Callable[..., Any])
_GIVEN = "gemm-cache caches"
_MOST_FINDINGS = 20
_MOST_NAMED = 10
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
    from cache_engine.frameworks.registry import load_sources, surroundings

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
    from cache_engine.frameworks.registry import survey

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
    from cache_engine.frameworks.values import Entry

    found = [
        (place, seen)
        for place, seen in scanned(settings, sources, places_in(places, folder))
        if isinstance(seen, Entry) and any(name.startswith(id) for name in _names_of(seen.id))
    ]
    whole = [(place, entry) for place, entry in found if entry.id == id]
    found = whole or found
    if not found:
        raise KeyNotFound(f"no entry has an id that begins with {id[:80]!r}; gemm-cache caches ls lists them")
    if len(found) > 1:
        first = ", ".join(f"{entry.id} in {place.path}" for place, entry in found[:_MOST_NAMED])
        more = f", and {len(found) - _MOST_NAMED:,} more" if len(found) > _MOST_NAMED else ""
        raise KeyNotFound(f"{len(found):,} entries begin with {id[:80]!r}: {first}{more}; give more of it, or --in DIR")
    return found[0]


def _names_of(id: str) -> tuple[str, ...]:
    """The texts of which a prefix names an entry."""
    from cache_engine.frameworks.values import key_of

    return id, id.rpartition("/")[2], key_of(id)


def common_letters(one: str, other: str) -> int:
    """How many letters two texts begin with alike."""
    return len(os.path.commonprefix([one, other]))  # noqa: RUF071 (texts, not paths)


def shortener(ids: Iterable[str]) -> Callable[[str], str]:
    """What makes an id of these as short as ``find_entry`` takes it for one entry, but not below 12 digits.

    Long digests are cut; of ``NAME.KEY`` only the key stays, because a list shows the name too.
    """
    names = sorted({(name, each) for each in ids for name in _names_of(each)})

    def common(whole: str, id: str, step: int) -> int:
        at = bisect_left(names, (whole, id)) + step
        while 0 <= at < len(names) and names[at][1] == id:
            at += step
        return common_letters(whole, names[at][0]) if 0 <= at < len(names) else -1

    def short(id: str) -> str:
        _, last, key = _names_of(id)
        whole, end = id, len(id)
        if key != last:
            whole, end = key, _SHOWN_DIGITS
        elif len(last) > 2 * _SHOWN_DIGITS:
            end = len(id) - len(last) + _SHOWN_DIGITS
        end = max(end, common(whole, id, -1) + 1, common(whole, id, 1) + 1)
        return whole[:end] if end <= len(whole) else id

    return short


def print_findings(findings: list[documents.CacheFinding]) -> None:
    """Prints findings on standard error, the first of many."""
    for finding in findings[:_MOST_FINDINGS]:
        where = "/".join(filter(None, (finding.path, finding.id)))
        print(printable(f"{finding.fault}: {where}: {finding.detail}"), file=sys.stderr)
    if len(findings) > _MOST_FINDINGS:
        print(f"and {counted(len(findings) - _MOST_FINDINGS, 'finding')} more; --json has all", file=sys.stderr)


def print_in_memory(titles: list[str]) -> None:
    """Says which frameworks have no cache to look at."""
    for title in titles:
        print(printable(f"{title} is installed and keeps nothing on disk: each process compiles its kernels again."))


def age(at: float | None, now: float) -> str:
    """A time as its age; a dash where it is not known."""
    return "–" if at is None else human_age(now - at)
