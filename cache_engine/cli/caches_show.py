"""``gemm-cache caches show``: one entry of another framework's cache, or how two entries or directories differ."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cache_engine.cli import caches
from cache_engine.cli.support import Verb, emit, json_option, only_with
from cache_engine.cli.terminal import LEFT, RIGHT, print_fields, print_table, progress
from cache_engine.errors import KeyNotFound, StoreError, UsageError
from cache_engine.settings import Settings
from cache_engine.units import counted, human_bytes, human_ms, printable

if TYPE_CHECKING:
    from cache_engine.frameworks.comparison import Difference, DirectoriesCompared, EntriesCompared, Miss
    from cache_engine.frameworks.registry import Sources
    from cache_engine.frameworks.torch_compile import Lookup
    from cache_engine.frameworks.tuning import TuningCompared
    from cache_engine.frameworks.values import Entry, KeyFactors, Part, Place
    from cache_engine.model.outcome import Failure

_MOST_SHOWN, _MOST_LETTERS, _MOST_GRAPHS = 20, 60, 200
_NOT_LOGGED = "the log does not state the inputs of this key; of AOTAutograd it does with TORCH_LOGS=+aot"
_FACTS = {
    "target": "arch", "version": "version", "compiler": "compiler", "registers": "registers",
    "shared": "shared_bytes", "stack": "stack_bytes", "spill": "spill_bytes", "code": "code_bytes",
    "size": "size_bytes",
}  # fmt: skip


@click.command(
    "show",
    cls=Verb,
    examples=(
        "caches show 3f2a",
        "caches show 3f2a --part ptx",
        "caches show 3f2a --part sass",
        "caches show 3f2a 9b01",
        "caches show ~/.triton/cache triton=/scratch/triton",
        "caches show ~/.triton/cache triton=/scratch/triton --part tuning",
        "caches show fk25hsen --trace /tmp/trace",
    ),
    done="The entry is printed; or the two are compared, whatever differs.",
    failed="No entry has such an id, or several have, the part cannot be read, or the two are of different frameworks.",
    missing="--part sass: the disassembler is not installed.",
    argument_texts={
        "first": "An entry, as caches ls prints it; a prefix is enough. Or a directory.",
        "second": "What to compare with it.",
    },
)
@click.argument("first", metavar="ID")
@click.argument("second", metavar="[ID]", required=False)
@caches.cache_option
@click.option("--in", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Look in this directory alone.")
@click.option(
    "--part",
    metavar="NAME",
    help="Print one part, such as ptx, ttgir or source, as text; sass is the code of a CUBIN. Of two directories, "
    "tuning: compare what was chosen for each key.",
)
@caches.trace_option("Say why a graph that a run of torch.compile looked for missed; ID is a key of caches ls --trace.")
@json_option
@click.pass_obj
def show_verb(
    settings: Settings, /, first: str, second: str | None, folder: Path | None, part: str | None, trace: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show one entry, or why one of two missed.

    ID: a prefix is enough. Shows the known facts of the entry, why others are unknown, its parts, and the inputs of its
    key.

    Of two entries, shows the inputs of the key that differ, and what that means. Two directories, also as KIND=DIR, are
    compared too: the entries that only one has, with the inputs that differ, and the entries with the same key but
    other bytes.

    With --trace, takes the key of a graph that a program looked for, and shows how it differs from the nearest key in
    the same trace or in Inductor's caches, or from the key of the second ID.
    """
    sources, places = caches.known_places(settings)
    if trace is not None:
        only_with("", False, ("folder", "part"), instead="--trace")
        _show_lookup(settings, sources, places, trace, (first, second or ""), as_json=as_json)
        return
    if second is not None:
        only_with("", False, ("folder",) if part == "tuning" else ("folder", "part"), instead="two IDs")
        _compare(settings, sources, places, (first, second), part == "tuning", as_json=as_json)
        return
    place, entry = caches.find_entry(settings, sources, places, first, folder)
    source = sources.by_kind[place.kind]
    if part is not None:
        is_sass = part == "sass" and not any(one.name == part for one in entry.parts)
        text = _sass(sources, place, entry) if is_sass else _text(sources, place, entry, _named(entry, part))
        document = {"id": entry.id, "part": part, "text": text}
        emit(document, as_json, lambda: print(printable(text, keep="\n\t")))
        return
    _show(place, entry, {**source.unknowable, **entry.unread}, source.key_factors(place, entry), as_json=as_json)


def _show(place: Place, entry: Entry, unknown: dict[str, str], factors: KeyFactors | Failure, *, as_json: bool) -> None:
    from cache_engine.frameworks.values import KeyFactors
    from cache_engine.model.outcome import Failure

    known = KeyFactors(()) if isinstance(factors, Failure) else factors
    document = {
        **caches.entry_row(place, entry),
        "parts": entry.parts,
        "unknown": unknown,
        "factors": known.factors,
        "hidden": known.hidden,
        "no_factors": factors.reason if isinstance(factors, Failure) else "",
    }

    def show() -> None:
        _print_entry(place, entry, unknown)
        print()
        if isinstance(factors, Failure):
            print(printable(f"Inputs of the key: unknown, because {factors.reason}."))
        else:
            _print_factors(factors)

    emit(document, as_json, show)


def _named(entry: Entry, name: str) -> Part:
    for part in entry.parts:
        if part.name == name:
            return part
    names = ", ".join(dict.fromkeys(part.name for part in entry.parts)) or "none"
    raise UsageError(f"the entry has no part {name[:80]!r}; there are: {names}")


def _text(sources: Sources, place: Place, entry: Entry, part: Part) -> str:
    from cache_engine.frameworks.values import PartKind

    if part.kind in (PartKind.BINARY, PartKind.HOST):
        raise UsageError(f"{part.name} is machine code, not text; --part sass prints that of a CUBIN")
    return _read(sources, place, entry, part).decode(errors="replace")


def _sass(sources: Sources, place: Place, entry: Entry) -> str:
    from cache_engine.compilers.disassembly import sass
    from cache_engine.frameworks.values import PartKind

    part = entry.part(PartKind.BINARY)
    if part is None:
        raise UsageError("the entry has no CUBIN")
    return sass(_read(sources, place, entry, part))


def _read(sources: Sources, place: Place, entry: Entry, part: Part) -> bytes:
    from cache_engine.model.outcome import Failure

    data = sources.by_kind[place.kind].read(place, entry, part)
    if isinstance(data, Failure):
        raise StoreError(data.reason)
    return data


def _compare(
    settings: Settings, sources: Sources, places: list[Place], texts: tuple[str, str], of_tuning: bool, *, as_json: bool
) -> None:
    folders = [_folder(sources, places, text) for text in texts]
    if of_tuning and folders[0] is not None and folders[1] is not None:
        _diff_tuning(folders[0], folders[1], as_json)
    elif of_tuning:
        raise UsageError("--part tuning compares two directories")
    elif folders[0] is None and folders[1] is None:
        _diff_entries(settings, sources, places, texts, as_json)
    elif folders[0] is None or folders[1] is None:
        raise UsageError("compare two entries, or two directories; this is one of each")
    else:
        _diff_folders(settings, sources, folders[0], folders[1], as_json)


def _diff_entries(
    settings: Settings, sources: Sources, places: list[Place], ids: tuple[str, str], as_json: bool
) -> None:
    from cache_engine.frameworks.comparison import Comparing

    one, other = (caches.find_entry(settings, sources, places, each, None) for each in ids)
    _check_kinds(one[0], other[0])
    found = Comparing(sources.by_kind[one[0].kind]).entries(one, other)
    names = ("differences", "hidden", "parts", "unknown")
    document = {
        "first": caches.entry_row(*one),
        "second": caches.entry_row(*other),
        **{name: getattr(found, name) for name in names},
    }
    emit(document, as_json, lambda: _print_entries(one, other, found))


def _diff_folders(settings: Settings, sources: Sources, one: Place, other: Place, as_json: bool) -> None:
    from cache_engine.frameworks.comparison import Comparing
    from cache_engine.frameworks.values import Entry

    _check_kinds(one, other)
    found: list[tuple[Place, list[Entry]]] = []
    for place in (one, other):
        seen = [each for _, each in caches.scanned(settings, sources, [place]) if isinstance(each, Entry)]
        found.append((place, seen))
    with progress("Comparing", None) as (bar, task):
        compared = Comparing(sources.by_kind[one.kind]).directories(found[0], found[1], lambda: bar.advance(task))
    document = {
        "a": str(one.path),
        "b": str(other.path),
        "same": compared.same,
        "changed": [{"id": each.id, "name": each.name, "parts": parts} for each, parts in compared.changed],
        "only_a": [_alone(miss) for miss in compared.only_one],
        "only_b": [_alone(miss) for miss in compared.only_other],
        "causes": [{**asdict(each), "entries": count} for each, count in compared.causes],
    }
    emit(document, as_json, lambda: _print_folders(one, other, compared))


def _diff_tuning(one: Place, other: Place, as_json: bool) -> None:
    from cache_engine.frameworks.tuning import Choice, choices, compare

    mine, theirs = ([each for each in choices(place) if isinstance(each, Choice)] for place in (one, other))
    compared = compare(mine, theirs)
    document = {
        "a": str(one.path), "b": str(other.path), "both": compared.both, "worst": compared.worst,
        "different": compared.different, "only_a": compared.only_first, "only_b": compared.only_second,
    }  # fmt: skip
    emit(document, as_json, lambda: _print_tuning(compared))


def _show_lookup(
    settings: Settings, sources: Sources, places: list[Place], trace: Path, keys: tuple[str, str], *, as_json: bool
) -> None:
    from cache_engine.frameworks.comparison import nearest
    from cache_engine.frameworks.values import KeyFactors

    found, findings = caches.lookups_of(trace)
    asked = _lookup(found, keys[0])
    others: dict[str, KeyFactors | Failure] = {each.key: each.factors for each in found if each.cache == asked.cache}
    if asked.cache == "fx_graph":
        others = {**_graphs(settings, sources, places), **others}
    known = [
        (name, each) for name, each in others.items()
        if isinstance(each, KeyFactors) and each.factors and name != asked.key and name.startswith(keys[1])
    ]  # fmt: skip
    near = nearest(asked.factors, known) if asked.factors.factors else None
    unknown = "" if near else "no other graph has known inputs" if asked.factors.factors else _NOT_LOGGED
    document = {
        "lookup": caches.lookup_row(asked),
        "nearest": near[0] if near else "",
        "differences": near[1] if near else [],
        "unknown": unknown,
        "findings": [caches.finding_row(None, one) for one in findings],
    }

    def show() -> None:
        print(printable(f"A: {asked.name or '–'}, {asked.cache} {asked.result} ({asked.reason}), {asked.key}"))
        print(printable(f"B: the nearest, {near[0]}\n" if near else f"Not compared: {unknown}.", keep="\n"))
        _print_differences(near[1] if near else [])
        caches.print_findings([(None, one) for one in findings])

    emit(document, as_json, show)


def _lookup(found: list[Lookup], key: str) -> Lookup:
    """The last lookup of the one key that begins with a text, a miss before a hit; raises ``KeyNotFound``."""
    chosen = [each for each in found if key and each.key.startswith(key)]
    if len({each.key for each in chosen}) != 1:
        many = "several lookups have keys that begin" if chosen else "no lookup has a key that begins"
        raise KeyNotFound(f"{many} with {key[:80]!r}; caches ls --trace lists them")
    return max(chosen, key=lambda each: each.result == "miss")


def _graphs(settings: Settings, sources: Sources, places: list[Place]) -> dict[str, KeyFactors | Failure]:
    """The inputs of the keys of the newest graphs in Inductor's caches, by key."""
    from cache_engine.frameworks.values import Entry, key_of

    here = [place for place in places if place.kind == "inductor" and not place.replaced_by]
    found = [(place, each) for place, each in caches.scanned(settings, sources, here) if isinstance(each, Entry)]
    graphs = [each for each in found if each[1].id.startswith("fxgraph/")]
    newest = sorted(graphs, key=lambda each: -(each[1].created_at or 0.0))[:_MOST_GRAPHS]
    return {key_of(entry.id): sources.by_kind[place.kind].key_factors(place, entry) for place, entry in newest}


def _alone(miss: Miss) -> dict[str, Any]:
    return {
        "id": miss.entry.id,
        "name": miss.entry.name,
        "nearest": miss.nearest.id if miss.nearest else "",
        "differences": miss.differences,
        "unknown": miss.unknown,
    }


def _folder(sources: Sources, places: list[Place], text: str) -> Place | None:
    """The cache directory that a text on the command line names; ``None`` if it names none."""
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


# ---- For people ----


def _print_entry(place: Place, d: Entry, unknown: dict[str, str]) -> None:
    now = time.time()
    sizes = ("shared_bytes", "stack_bytes", "spill_bytes", "code_bytes")
    facts: dict[str, object] = {"id": d.id, "framework": place.kind, "directory": str(place.path), "state": d.state}
    names = ("name", "version", "compiler", "arch", "registers", *sizes, "compile_ms", "created_at", "last_used_at")
    for name in names:
        value = getattr(d, name)
        label = name.removesuffix("_bytes").removesuffix("_ms").removesuffix("_at").replace("_", " ")
        if value is None:
            facts[label] = f"unknown: {unknown.get(name, 'the file system has not noted it')}"
        elif name in sizes:
            facts[label] = human_bytes(value)
        elif name.endswith("_at"):
            facts[label] = caches.age(value, now)
        else:
            facts[label] = human_ms(value) if name == "compile_ms" else value
    facts["config"] = " ".join(f"{name}={value}" for name, value in d.config.items()) or "–"
    print_fields(facts)
    print()
    print_table(
        {"part": LEFT, "kind": LEFT, "size": RIGHT, "file": LEFT},
        [(part.name, part.kind, human_bytes(part.size_bytes), part.file or "–") for part in d.parts],
    )


def _print_factors(known: KeyFactors) -> None:
    print_table(
        {"input of the key": LEFT, "from": LEFT, "value": LEFT},
        [(factor.name, factor.group, factor.value) for factor in known.factors],
    )
    for hidden in known.hidden:
        print(printable(f"Not stored: {hidden}."))


def _print_entries(one: tuple[Place, Entry], other: tuple[Place, Entry], found: EntriesCompared) -> None:
    names = _both(one[1].name, other[1].name)
    for side, name, (place, each) in zip("AB", names, (one, other), strict=True):
        print(printable(f"{side}: {f'{name}, ' if each.name else ''}{each.id} in {place.path}"))
    print()
    is_same = one[1].id == other[1].id
    if found.unknown:
        print(printable(f"The inputs of the keys are not known: {found.unknown}."))
    elif not found.differences:
        print("They are the same key." if is_same else "None of the inputs that are stored differs.")
    _print_differences(found.differences)
    if not is_same:
        for hidden in found.hidden:
            print(printable(f"May differ too, and is not stored: {hidden}."))
    facts = [(label, *(_fact(each, name) for _, each in (one, other))) for label, name in _FACTS.items()]
    if differing := [row for row in facts if row[1] != row[2]]:
        print_table({"what was made": LEFT, "A": LEFT, "B": LEFT}, differing)
    if found.parts:
        print(printable(f"Parts with other bytes: {', '.join(found.parts)}."))


def _print_differences(differences: Sequence[Difference]) -> None:
    if not differences:
        return
    print_table(
        {"input of the key": LEFT, "from": LEFT, "A": LEFT, "B": LEFT},
        [(each.name, each.group, *_both(each.a, each.b)) for each in differences[:_MOST_SHOWN]],
    )
    if len(differences) > _MOST_SHOWN:
        print(f"… and {len(differences) - _MOST_SHOWN:,} more; --json has all")
    _print_meanings(differences)


def _print_meanings(differences: Sequence[Difference]) -> None:
    names: dict[str, list[str]] = {}
    for each in differences[:_MOST_SHOWN]:
        names.setdefault(each.meaning, []).append(each.name)
    for meaning, of in names.items():
        if meaning:
            print(printable(f"{', '.join(of)}: {meaning}."))


def _print_folders(one: Place, other: Place, d: DirectoriesCompared) -> None:
    print(printable(f"A: {one.path}\nB: {other.path}\n", keep="\n"))
    print(f"{counted(d.same, 'entry', 'entries')} in both, byte for byte.")
    if d.changed:
        print(f"{counted(len(d.changed), 'entry', 'entries')} in both with other bytes:")
        for each, parts in d.changed[:_MOST_SHOWN]:
            print(printable(f"  {each.id} {each.name or ''}: {', '.join(parts)}"))
    alone = [counted(len(each), "entry", "entries") for each in (d.only_one, d.only_other)]
    print(f"{alone[0]} only in A, {alone[1]} only in B.")
    if d.causes:
        print("\nWhat the entries that only A has differ in from the nearest of B:")
        print_table(
            {"entries": LEFT, "input of the key": LEFT, "from": LEFT, "in A, for example": LEFT, "in B": LEFT},
            [(count, each.name, each.group, *_both(each.a, each.b)) for each, count in d.causes[:_MOST_SHOWN]],
        )
        _print_meanings([each for each, _ in d.causes])


def _print_tuning(d: TuningCompared) -> None:
    worst = "" if d.worst is None else f", worst {d.worst:.0%}"
    print(f"{len(d.different):,} of {counted(d.both, 'key')} chose differently{worst}.")
    if d.different:
        print_table(
            {"name": LEFT, "tuned for": LEFT, "in A": LEFT, "in B": LEFT, "slower": RIGHT},
            [
                (each.first.name, each.first.key[:_MOST_LETTERS], *_both(each.first.chosen, each.second.chosen),
                 "–" if each.slower is None else f"{each.slower:.0%}")
                for each in d.different[:_MOST_SHOWN]
            ],
            dispensable=("tuned for",),
        )  # fmt: skip
    print(f"{counted(len(d.only_first), 'key')} only in A, {counted(len(d.only_second), 'key')} only in B.")


def _fact(entry: Entry, name: str) -> str:
    value = getattr(entry, name)
    if value is None:
        return "–"
    return human_bytes(value) if name.endswith("_bytes") else str(value)


def _both(a: str | None, b: str | None) -> tuple[str, str]:
    """Two values that differ, as text for people.

    On a terminal, long values are cut to the part around the first letter that differs.
    """
    if not sys.stdout.isatty():
        return ("–" if a is None else a), ("–" if b is None else b)
    differs_at = caches.common_letters(a or "", b or "")
    return _around(a, differs_at), _around(b, differs_at)


def _around(value: str | None, at: int) -> str:
    """At most 60 letters of a value, those around the position ``at``; a dash if there is no value."""
    if value is None or len(value) <= _MOST_LETTERS:
        return "–" if value is None else value
    start = 0 if at < _MOST_LETTERS // 2 else min(at - _MOST_LETTERS // 3, len(value) - _MOST_LETTERS)
    end = start + _MOST_LETTERS
    return f"{'…' if start else ''}{value[start:end]}{'…' if end < len(value) else ''}"
