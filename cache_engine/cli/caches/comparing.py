"""The verb ``caches diff``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cache_engine.cli.caches.places import cache_option, common_letters, find_entry, known_places, scanned
from cache_engine.cli.support import Verb, emit, json_option
from cache_engine.cli.terminal import LEFT, print_table, progress
from cache_engine.errors import UsageError
from cache_engine.settings import Settings
from cache_engine.units import counted, human_bytes, printable

if TYPE_CHECKING:
    from cache_engine.cli.documents import comparing as documents
    from cache_engine.cli.documents.caches import CacheEntry
    from cache_engine.frameworks.registry import Sources
    from cache_engine.frameworks.values import Entry, Place

_MOST_SHOWN, _MOST_LETTERS = 20, 60
_FACTS = {
    "target": "arch", "version": "version", "compiler": "compiler", "registers": "registers",
    "shared": "shared_bytes", "stack": "stack_bytes", "spill": "spill_bytes", "code": "code_bytes",
    "size": "size_bytes",
}  # fmt: skip


@click.command(
    "diff",
    cls=Verb,
    examples=(
        "caches diff 3f2a 9b01",
        "caches diff ~/.triton/cache triton=/scratch/triton",
        "caches diff 3f2a 9b --json",
    ),
    done="They are compared, whatever differs.",
    failed="One of them is not there, or they are of different frameworks.",
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@cache_option
@json_option
@click.pass_obj
def diff_verb(settings: Settings, /, first: str, second: str, as_json: bool) -> None:
    """Say why one of two entries missed.

    Which inputs of the key differ, and what that means. A and B: ids of two entries, of which a prefix is enough, or
    two directories, also as KIND=DIR. Of two directories: what only one has and what that differs in, and what has
    one key but other bytes.
    """
    sources, places = known_places(settings)
    folders = [_folder(sources, places, text) for text in (first, second)]
    if folders[0] is None and folders[1] is None:
        _diff_entries(settings, sources, places, (first, second), as_json)
    elif folders[0] is None or folders[1] is None:
        raise UsageError("compare two entries, or two directories; this is one of each")
    else:
        _diff_folders(settings, sources, folders[0], folders[1], as_json)


def _diff_entries(
    settings: Settings, sources: Sources, places: list[Place], ids: tuple[str, str], as_json: bool
) -> None:
    from cache_engine.cli.documents import comparing as documents
    from cache_engine.frameworks.comparison import Comparing

    one, other = (find_entry(settings, sources, places, each, None) for each in ids)
    _check_kinds(one[0], other[0])
    found = Comparing(sources.by_kind[one[0].kind]).entries(one, other)
    document = documents.entries_compared(one, other, found)
    emit(document, as_json, lambda: _print_entries(document))


def _diff_folders(settings: Settings, sources: Sources, one: Place, other: Place, as_json: bool) -> None:
    from cache_engine.cli.documents import comparing as documents
    from cache_engine.frameworks.comparison import Comparing
    from cache_engine.frameworks.values import Entry

    _check_kinds(one, other)
    found: list[tuple[Place, list[Entry]]] = []
    for place in (one, other):
        seen = [each for _, each in scanned(settings, sources, [place]) if isinstance(each, Entry)]
        found.append((place, seen))
    with progress("Comparing", None) as (bar, task):
        compared = Comparing(sources.by_kind[one.kind]).directories(found[0], found[1], lambda: bar.advance(task))
    document = documents.directories_compared(one, other, compared)
    emit(document, as_json, lambda: _print_folders(document))


def _folder(sources: Sources, places: list[Place], text: str) -> Place | None:
    """The directory that a text names, if it names one."""
    from cache_engine.frameworks.values import Place
    from cache_engine.settings import parse_place

    kind, _, rest = text.partition("=")
    if rest and kind in sources.by_kind:
        return Place(*parse_place(text), "given")
    path = Path(text).expanduser()
    for place in places:
        if place.path.absolute() == path.absolute():
            return place
    if "/" in text and path.exists():
        raise UsageError(f"{text} is not a directory that is looked at; write KIND={text}")
    return None


def _check_kinds(one: Place, other: Place) -> None:
    if one.kind != other.kind:
        raise UsageError(f"one is of {one.kind}, the other of {other.kind}: their keys have nothing in common")


def _print_entries(d: documents.CacheEntriesCompared) -> None:
    names = _both(d.first.name, d.second.name)
    for side, name, each in zip("AB", names, (d.first, d.second), strict=True):
        print(printable(f"{side}: {f'{name}, ' if each.name else ''}{each.id} in {each.path}"))
    print()
    if d.unknown:
        print(printable(f"The inputs of the keys are not known: {d.unknown}."))
    elif not d.differences:
        same = "They are the same key." if d.first.id == d.second.id else "None of the inputs that are stored differs."
        print(same)
    _print_differences(d.differences)
    if d.first.id != d.second.id:
        for hidden in d.hidden:
            print(printable(f"May differ too, and is not stored: {hidden}."))
    facts = [(label, *(_fact(each, name) for each in (d.first, d.second))) for label, name in _FACTS.items()]
    if differing := [row for row in facts if row[1] != row[2]]:
        print_table({"what was made": LEFT, "A": LEFT, "B": LEFT}, differing)
    if d.parts:
        print(printable(f"Parts with other bytes: {', '.join(d.parts)}."))


def _print_differences(differences: list[documents.CacheDifference]) -> None:
    if not differences:
        return
    print_table(
        {"input of the key": LEFT, "from": LEFT, "A": LEFT, "B": LEFT},
        [(each.name, each.group, *_both(each.a, each.b)) for each in differences[:_MOST_SHOWN]],
    )
    if len(differences) > _MOST_SHOWN:
        print(f"… and {len(differences) - _MOST_SHOWN:,} more; --json has all")
    _print_meanings(differences)


def _print_meanings(differences: Sequence[documents.CacheDifference]) -> None:
    for each in differences[:_MOST_SHOWN]:
        if each.meaning:
            print(printable(f"{each.name}: {each.meaning}."))


def _print_folders(d: documents.CachesCompared) -> None:
    print(printable(f"A: {d.a}\nB: {d.b}\n", keep="\n"))
    print(f"{counted(d.same, 'entry', 'entries')} in both, byte for byte.")
    if d.changed:
        print(f"{counted(len(d.changed), 'entry', 'entries')} in both with other bytes:")
        for each in d.changed[:_MOST_SHOWN]:
            print(printable(f"  {each.id} {each.name or ''}: {', '.join(each.parts)}"))
    alone = [counted(len(each), "entry", "entries") for each in (d.only_a, d.only_b)]
    print(f"{alone[0]} only in A, {alone[1]} only in B.")
    if d.causes:
        print("\nWhat the entries that only A has differ in from the nearest of B:")
        print_table(
            {"entries": LEFT, "input of the key": LEFT, "from": LEFT, "in A, for example": LEFT, "in B": LEFT},
            [(each.entries, each.name, each.group, *_both(each.a, each.b)) for each in d.causes[:_MOST_SHOWN]],
        )
        _print_meanings(d.causes)


def _fact(entry: CacheEntry, name: str) -> str:
    value = getattr(entry, name)
    if value is None:
        return "–"
    return human_bytes(value) if name.endswith("_bytes") else str(value)


def _both(a: str | None, b: str | None) -> tuple[str, str]:
    """Two values. On a terminal, of long ones the part with the first letter that differs; else they are whole."""
    if not sys.stdout.isatty():
        return ("–" if a is None else a), ("–" if b is None else b)
    differs_at = common_letters(a or "", b or "")
    return _around(a, differs_at), _around(b, differs_at)


def _around(value: str | None, at: int) -> str:
    """At most 60 letters of a value, with the one at this position."""
    if value is None or len(value) <= _MOST_LETTERS:
        return "–" if value is None else value
    start = 0 if at < _MOST_LETTERS // 2 else min(at - _MOST_LETTERS // 3, len(value) - _MOST_LETTERS)
    end = start + _MOST_LETTERS
    return f"{'…' if start else ''}{value[start:end]}{'…' if end < len(value) else ''}"
