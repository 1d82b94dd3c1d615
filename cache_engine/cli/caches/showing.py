"""The verb ``caches show``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cache_engine.cli.caches.places import age, cache_option, find_entry, known_places
from cache_engine.cli.support import Verb, emit, json_option
from cache_engine.cli.terminal import LEFT, RIGHT, print_fields, print_table
from cache_engine.errors import StoreError, UsageError
from cache_engine.settings import Settings
from cache_engine.units import human_bytes, human_ms, printable

if TYPE_CHECKING:
    from cache_engine.cli.documents import caches as documents
    from cache_engine.frameworks.registry import Sources
    from cache_engine.frameworks.values import Entry, Part, Place


@click.command(
    "show",
    cls=Verb,
    examples=("caches show 3f2a", "caches show 3f2a --part ptx", "caches show 3f2a --sass"),
    done="The entry is printed.",
    failed="No entry has such an id, or several have, or the part cannot be read.",
    missing="--sass: the disassembler is not installed.",
)
@click.argument("id", metavar="ID")
@cache_option
@click.option("--in", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Look in this directory alone.")
@click.option("--part", metavar="NAME", help="Print one part, such as ptx, ttgir or source, as text.")
@click.option("--sass", "with_sass", is_flag=True, help="Print the machine code of the CUBIN.")
@json_option
@click.pass_obj
def show_verb(
    settings: Settings, /, id: str, folder: Path | None, part: str | None, with_sass: bool, as_json: bool
) -> None:
    """Show one entry of another framework's cache.

    ID: a prefix is enough. Shows what is known, why the rest is not, its parts, and the inputs of its key.
    """
    from cache_engine.cli.documents import caches as documents

    if with_sass and part is not None:
        raise UsageError("--part and --sass print different texts; give one of them")
    sources, places = known_places(settings)
    place, entry = find_entry(settings, sources, places, id, folder)
    source = sources.by_kind[place.kind]
    if with_sass or part is not None:
        text = _sass(sources, place, entry) if with_sass else _text(sources, place, entry, _named(entry, part or ""))
        whole = documents.CachePartText(id=entry.id, part=part or "sass", text=text)
        emit(whole, as_json, lambda: print(printable(text, keep="\n\t")))
        return
    document = documents.shown(source, place, entry, source.key_factors(place, entry))
    emit(document, as_json, lambda: _print_entry(document))


def _named(entry: Entry, name: str) -> Part:
    for part in entry.parts:
        if part.name == name:
            return part
    names = ", ".join(dict.fromkeys(part.name for part in entry.parts)) or "none"
    raise UsageError(f"the entry has no part {name[:80]!r}; there are: {names}")


def _text(sources: Sources, place: Place, entry: Entry, part: Part) -> str:
    from cache_engine.frameworks.values import PartKind
    from cache_engine.model.outcome import Failure

    if part.kind in (PartKind.BINARY, PartKind.HOST):
        raise UsageError(f"{part.name} is machine code, not text; --sass prints that of a CUBIN")
    data = sources.by_kind[place.kind].read(place, entry, part)
    if isinstance(data, Failure):
        raise StoreError(data.reason)
    return data.decode(errors="replace")


def _sass(sources: Sources, place: Place, entry: Entry) -> str:
    from cache_engine.compilers.disassembly import sass
    from cache_engine.frameworks.values import PartKind
    from cache_engine.model.outcome import Failure

    part = entry.part(PartKind.BINARY)
    if part is None:
        raise UsageError("the entry has no CUBIN")
    data = sources.by_kind[place.kind].read(place, entry, part)
    if isinstance(data, Failure):
        raise StoreError(data.reason)
    return sass(data)


def _print_entry(d: documents.CacheEntryShown) -> None:
    now = time.time()
    sizes = ("shared_bytes", "stack_bytes", "spill_bytes", "code_bytes")
    facts: dict[str, object] = {"id": d.id, "framework": d.kind, "directory": d.path, "state": d.state}
    for name in (
        "name",
        "version",
        "compiler",
        "arch",
        "registers",
        *sizes,
        "compile_ms",
        "created_at",
        "last_used_at",
    ):
        value = getattr(d, name)
        label = name.removesuffix("_bytes").removesuffix("_ms").removesuffix("_at").replace("_", " ")
        if value is None:
            facts[label] = f"unknown: {d.unknown.get(name, 'the file system has not noted it')}"
        elif name in sizes:
            facts[label] = human_bytes(value)
        elif name.endswith("_at"):
            facts[label] = age(value, now)
        else:
            facts[label] = human_ms(value) if name == "compile_ms" else value
    facts["config"] = " ".join(f"{name}={value}" for name, value in d.config.items()) or "–"
    print_fields(facts)
    print()
    print_table(
        {"part": LEFT, "kind": LEFT, "size": RIGHT, "file": LEFT},
        [(part.name, part.kind, human_bytes(part.size_bytes), part.file or "–") for part in d.parts],
    )
    print()
    if d.no_factors:
        print(printable(f"Inputs of the key: unknown, because {d.no_factors}."))
        return
    print_table(
        {"input of the key": LEFT, "from": LEFT, "value": LEFT},
        [(factor.name, factor.group, factor.value) for factor in d.factors],
    )
    for hidden in d.hidden:
        print(printable(f"Not stored: {hidden}."))
