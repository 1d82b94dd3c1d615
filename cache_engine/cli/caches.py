"""``gemm-cache caches``: lists other frameworks' caches and their sizes, or checks them.

Also has the functions that the verbs under ``caches`` share.
"""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cache_engine import log_handlers
from cache_engine.cli.support import emit, json_option, named, open_cache
from cache_engine.cli.support.global_options import settings_of
from cache_engine.cli.support.verb import LazyVerbs, VerbGroup
from cache_engine.cli.terminal import LEFT, RIGHT, print_table
from cache_engine.errors import GemmCacheError, KeyNotFound, UsageError
from cache_engine.model.documents import picked
from cache_engine.settings import Settings
from cache_engine.units import counted, human_age, human_bytes, printable

if TYPE_CHECKING:
    from cache_engine.frameworks.doctor import Diagnosis
    from cache_engine.frameworks.registry import Sources, Sums
    from cache_engine.frameworks.torch_compile import Lookup
    from cache_engine.frameworks.values import Entry, Place, ScanFinding, Seen

_F = TypeVar("_F", bound=Callable[..., Any])
_GIVEN = "gemm-cache caches"
_MOST_FINDINGS = 20
_MOST_NAMED = 10
_SHOWN_DIGITS = 12
_MOST_COUNTED, _MOST_PARTS = 4, 8
_MOST_SHOWN = 5

PAYS_FROM = 1_000
"""The least number of entries for which the index is used; fewer are read faster than DuckDB is imported."""


def cache_option(verb: _F) -> _F:
    """Adds the option ``--cache`` to a verb.

    The option may be before and after the name of a verb under ``caches``; all directories given are read.
    """

    def note(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> None:
        ctx.meta.setdefault(_GIVEN, []).extend(given)

    return click.option(
        "--cache",
        multiple=True,
        metavar="KIND=DIR",
        expose_value=False,
        callback=note,
        help="Also look in DIR, a cache of the framework KIND (repeatable).",
    )(verb)


def trace_option(help: str) -> Callable[[_F], _F]:
    """The option ``--trace`` of a verb, with the help that says what the verb does with it."""
    kind = click.Path(path_type=Path, file_okay=False)
    return click.option("--trace", type=kind, metavar="DIR", help=f"{help} DIR: what TORCH_TRACE named.")


def lookups_of(trace: Path) -> tuple[list[Lookup], list[ScanFinding]]:
    """The lookups of a trace, and the findings about its logs. Raises ``UsageError`` if it has neither."""
    from cache_engine.frameworks.torch_compile import Lookup, lookups

    with named(trace):
        found = list(lookups(trace))
    if not found:
        raise UsageError(f"{trace} has no log with a lookup of torch.compile; run the program with TORCH_TRACE={trace}")
    seen = [each for each in found if isinstance(each, Lookup)]
    return seen, [each for each in found if not isinstance(each, Lookup)]


def lookup_row(each: Lookup) -> dict[str, Any]:
    """A lookup as a row for JSON, without the inputs of its key."""
    return {name: getattr(each, name) for name in each.__slots__ if name != "factors"}


@click.group(
    "caches",
    cls=VerbGroup,
    commands=LazyVerbs({verb: f"{__name__}_{verb}" for verb in ("ls", "show", "clean", "export")}),
    invoke_without_command=True,
    examples=("caches", "caches --check --cache triton=/scratch/triton", "caches ls --arch sm_90a", "caches show 3f2a"),
)
@cache_option
@click.option("--check", is_flag=True, help="Check them, and end with exit code 1 if something is wrong.")
@json_option
@click.pass_context
def caches_verb(ctx: click.Context, /, check: bool, as_json: bool) -> None:
    """Show the kernel caches of other frameworks.

    Without a verb, lists how much each framework has in each directory, for which targets, by which versions. Reads
    only: no framework is imported, nothing is run or changed. --check finds entries that the framework would ignore or
    fail on, leftovers of killed processes, directories that other users may write to, and network file systems.
    """
    if ctx.invoked_subcommand is not None:
        if as_json or check:
            raise UsageError(f"{'--json belongs after' if as_json else '--check goes without'} the name of a verb")
        return
    settings = settings_of(ctx)
    log_handlers.configure(settings.log or "warning")
    if check:
        _check(settings, as_json=as_json)
        return
    from cache_engine.frameworks.registry import in_memory_here, sums

    sources, places = known_places(settings)
    unused = [place for place in places if place.replaced_by]
    # What is not in use is read apart: the index has no entries of it.
    seen = chain(scanned(settings, sources, places_in(places, None)), scanned(settings, sources, unused, afresh=True))
    found = sums(places, seen)
    findings: list[tuple[Place | None, ScanFinding]] = [(None, one) for one in sources.findings]
    findings += [(place, one) for place, each in found.items() for one in each.findings]
    in_memory = in_memory_here()
    document = {
        "directories": [_directory(sources.by_kind[place.kind].title, place, each) for place, each in found.items()],
        "findings": [finding_row(place, one) for place, one in findings],
        "in_memory": in_memory,
    }
    emit(document, as_json, lambda: _print_overview(sources, found, findings, in_memory))


def _directory(title: str, place: Place, sums: Sums) -> dict[str, Any]:
    return {
        **where(place),
        "title": title,
        "origin": place.origin,
        "replaced_by": place.replaced_by,
        **{name: getattr(sums, name) for name in ("entries", "size_bytes", "partial", "unread")},
        "part_bytes": dict(sums.part_bytes.most_common()),
        "targets": dict(sums.archs.most_common()),
        "versions": dict(sums.versions.most_common()),
        **{name: getattr(sums, name) for name in ("oldest", "newest", "last_used_at")},
        "findings": len(sums.findings),
    }


def _check(settings: Settings, *, as_json: bool) -> None:
    from cache_engine.frameworks.doctor import code_runs_on, examine, read_mounts
    from cache_engine.frameworks.registry import in_memory_here
    from cache_engine.gpu.probe import local_arch

    sources, known = known_places(settings)
    places = places_in(known, None)
    arch = local_arch()
    at, cure = {"kind": "", "path": ""}, "update its package, or remove it"
    wrong = [{**at, "id": one.id, "ailment": one.fault, "detail": one.detail, "cure": cure} for one in sources.findings]
    for place in places:
        seen = (seen for _, seen in scanned(settings, sources, [place], afresh=True))
        runs_here = None if arch is None else code_runs_on(arch)
        wrong += map(_problem_row, examine(place, seen, runs_here=runs_here, mounts=read_mounts()))
    in_memory = in_memory_here()
    document = {"findings": wrong, "gpu": arch, "in_memory": in_memory}
    emit(document, as_json, lambda: _print_wrong(wrong, arch, len(places), in_memory), failed=wrong)


def _problem_row(found: Diagnosis) -> dict[str, str]:
    """A problem of a cache as a row for JSON; ``id`` is empty for a problem of the whole directory."""
    return {**where(found.place), **picked(found, "id", "ailment", "detail", "cure")}


# ---- Shared with the verbs of this group ----


def known_places(settings: Settings) -> tuple[Sources, list[Place]]:
    """The readers of all frameworks; and every cache directory, found or named by the user, in use or not."""
    from cache_engine.frameworks.registry import load_sources, surroundings

    sources = load_sources()
    given = click.get_current_context().meta.get(_GIVEN, [])
    return sources, list(sources.places(surroundings([*given, *settings.caches])))


def places_in(places: list[Place], folder: Path | None) -> list[Place]:
    """Those of ``places`` whose directory is ``folder``; without a folder, all that are in use.

    Raises:
        UsageError: when ``folder`` is the directory of no cache.
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
    """Scans caches, and yields each with its content; a slow scan shows the number of entries on a terminal.

    Args:
        afresh: read every file again, also those whose time and size have not changed.
    """
    from cache_engine.frameworks.registry import survey

    started, shows, count = time.monotonic(), sys.stderr.isatty(), 0

    def progress(number: int, _: str = "") -> None:
        if shows and time.monotonic() - started > 1:
            print(f"\r{counted(number, 'entry', 'entries')} read…", end="", file=sys.stderr)

    found = None if afresh else _from_index(settings, sources, places, progress)
    for count, seen in enumerate(survey(sources, places) if found is None else found, start=1):
        if found is None and count % 1000 == 0:
            progress(count)
        yield seen
    if shows and count >= 1000:
        print("\r\033[K", end="", file=sys.stderr)


def find_entry(
    settings: Settings, sources: Sources, places: list[Place], id: str, folder: Path | None
) -> tuple[Place, Entry]:
    """The entry whose id begins with ``id``. An entry whose full id is ``id`` wins over longer ids."""
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
    """The texts that a user may type to name an entry: its id, the last part of its path, and its key."""
    from cache_engine.frameworks.values import key_of

    return id, id.rpartition("/")[2], key_of(id)


def common_letters(one: str, other: str) -> int:
    """The number of letters that two texts share at their beginning."""
    return len(os.path.commonprefix([one, other]))  # noqa: RUF071 (texts, not paths)


def shortener(ids: Iterable[str]) -> Callable[[str], str]:
    """A function that shortens one of ``ids``, to at least 12 digits; ``find_entry`` still finds only its entry."""
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


def where(place: Place) -> dict[str, str]:
    """The fields of a JSON document that name the cache directory ``place``."""
    return {"kind": place.kind, "path": str(place.path)}


def finding_row(place: Place | None, found: ScanFinding) -> dict[str, str]:
    """A finding as a row for JSON. ``place`` is ``None`` for a finding about a plug-in."""
    at = where(place) if place else {"kind": "", "path": ""}
    return {**at, "id": found.id, "fault": found.fault, "detail": found.detail}


def entry_row(place: Place, entry: Entry) -> dict[str, Any]:
    """An entry as a row for JSON. An unknown value is ``None``."""
    left_out = ("stamp", "parts", "unread", "elsewhere")
    facts = {name: getattr(entry, name) for name in entry.__slots__ if name not in left_out}
    return {**where(place), **facts, "config": dict(entry.config), "size_bytes": entry.size_bytes}


def print_findings(findings: Sequence[tuple[Place | None, ScanFinding]]) -> None:
    """Prints findings on standard error; of many, only the first few and the number of all."""
    for place, finding in findings[:_MOST_FINDINGS]:
        at = "/".join(filter(None, (str(place.path) if place else "", finding.id)))
        print(printable(f"{finding.fault}: {at}: {finding.detail}"), file=sys.stderr)
    if len(findings) > _MOST_FINDINGS:
        print(f"and {counted(len(findings) - _MOST_FINDINGS, 'finding')} more; --json has all", file=sys.stderr)


def age(at: float | None, now: float) -> str:
    """The age of something made at the time ``at``, as text; a dash where the time is unknown."""
    return "–" if at is None else human_age(now - at)


# ---- Entries from the index, where that is quicker than reading all: only what has changed is read ----


def _from_index(
    settings: Settings, sources: Sources, places: Sequence[Place], progress: Callable[[int, str], None]
) -> list[tuple[Place, Seen]] | None:
    """The content of the caches, read through the index: reads only changed files, and updates the index.

    ``None`` where there is no store or no DuckDB, where the index cannot be written now, or where there are few
    entries.
    """
    if not settings.directory_exists or find_spec("duckdb") is None or not _pays(places):
        return None
    from cache_engine.index.framework_caches import scan
    from cache_engine.index.framework_queries import entries_of, findings_of

    found: list[tuple[Place, Seen]] = []
    try:
        with open_cache(settings, create=False) as cache:
            scan(cache.index, sources, places, progress, others_stay=True)
            for place in places:
                found += [(place, entry) for entry in cache.index.query(entries_of, place)]
                found += [(place, finding) for finding in cache.index.query(findings_of, place)]
    except GemmCacheError:  # busy, read-only or damaged: the caches themselves are still there
        return None
    return found


def _pays(places: Sequence[Place]) -> bool:
    count = 0
    for place in places:
        try:
            with os.scandir(place.path) as names:
                count += sum(1 for _ in islice(names, PAYS_FROM))
        except OSError:
            continue
    return count >= PAYS_FROM


# ---- For people ----


def _print_overview(
    sources: Sources,
    found: dict[Place, Sums],
    findings: Sequence[tuple[Place | None, ScanFinding]],
    in_memory: list[str],
) -> None:
    if not found:
        print("No cache of another framework is here. Name one with --cache KIND=DIR, such as triton=/scratch/triton.")
    used = {place: each for place, each in found.items() if not place.replaced_by}
    _print_directories(sources, used)
    if unused := {place: each for place, each in found.items() if place.replaced_by}:
        print("\nNot in use here, because a variable names another directory; caches clean --in DIR cleans one:")
        _print_directories(sources, unused)
    parts: dict[str, int] = {}
    for each in used.values():
        for name, size in each.part_bytes.items():
            parts[name] = parts.get(name, 0) + size
    by_size = sorted(parts.items(), key=lambda item: -item[1])[:_MOST_PARTS]
    if by_size:
        text = ", ".join(printable(f"{name} {human_bytes(size)}") for name, size in by_size)
        print(f"\nBy part: {_and_more(text, len(parts) - len(by_size))}")
    _print_in_memory(in_memory)
    print_findings(findings)


def _print_directories(sources: Sources, found: dict[Place, Sums]) -> None:
    if not found:
        return
    now = time.time()
    with_variable = any(place.replaced_by for place in found)
    print_table(
        {
            "framework": LEFT, "entries": RIGHT, "size": RIGHT, "partial": RIGHT, "targets": LEFT, "versions": LEFT,
            "newest": LEFT, "directory": LEFT, **({"variable": LEFT} if with_variable else {}),
        },
        [
            (
                sources.by_kind[place.kind].title, f"{each.entries:,}", human_bytes(each.size_bytes),
                each.partial or "–", _counted(each.archs), _counted(each.versions), age(each.newest, now),
                str(place.path), *([place.replaced_by] if with_variable else []),
            )
            for place, each in found.items()
        ],
        dispensable=("partial", "versions", "targets"),
    )  # fmt: skip


def _counted(counts: Counter[str]) -> str:
    shown = [f"{name} ({count:,})" for name, count in counts.most_common(_MOST_COUNTED)]
    return _and_more(", ".join(shown), len(counts) - len(shown)) or "–"


def _and_more(text: str, left: int) -> str:
    return f"{text} and {left:,} more" if left else text


def _print_wrong(wrong: list[dict[str, str]], gpu: str | None, directories: int, in_memory: list[str]) -> None:
    groups: dict[str, list[dict[str, str]]] = {}
    for each in wrong:
        groups.setdefault(each["ailment"], []).append(each)
    for ailment, found in groups.items():
        print(f"{ailment}: {counted(len(found), 'finding')}")
        for each in found[:_MOST_SHOWN]:
            print(printable(f"  {'/'.join(filter(None, (each['path'], each['id'])))}: {each['detail']}"))
        if len(found) > _MOST_SHOWN:
            print(f"  … and {len(found) - _MOST_SHOWN:,} more; --json has all")
        print(printable(f"  What to do: {found[0]['cure']}."))
    if not wrong:
        print(f"Nothing is wrong in {counted(directories, 'directory', 'directories')}.")
    if not gpu:
        print("No GPU is here, so code for other GPUs is not looked for.")
    _print_in_memory(in_memory)


def _print_in_memory(titles: list[str]) -> None:
    """Prints which installed frameworks store no kernels on disk."""
    for title in titles:
        print(printable(f"{title} is installed and keeps nothing on disk: each process compiles its kernels again."))
