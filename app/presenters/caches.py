"""Tables and tiles about other frameworks' caches, from rows of ``index.framework_queries``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any
from urllib.parse import urlencode

import msgspec

from app.presenters.columns import Column
from app.presenters.framework_kernels import Address
from app.presenters.shared import Row, Tile, total
from cache_engine.frameworks.comparison import Miss
from cache_engine.frameworks.deletion import CleaningRules
from cache_engine.frameworks.doctor import Ailment, Diagnosis
from cache_engine.frameworks.registry import is_stale
from cache_engine.frameworks.values import Entry, Place, id_of
from cache_engine.index.framework_queries import place_of
from cache_engine.units import counted, human_bytes

_MOST_COUNTED = 4
_SHOWN_DIGITS = 16
_SHOWN_OF_CONFIG = 24
Titles = Mapping[str, str]


def cache_tiles(places: Sequence[Row], wrong: int, duplicates: tuple[int, int], stale: Sequence[Row]) -> list[Tile]:
    """Tiles of the entries, their bytes, the findings, the duplicates, and the entries that another version made."""
    count, size = duplicates
    old = [row for row in stale if row["Stale"]]
    return [
        Tile("Entries", f"{total(places, 'entries'):,}", "Kernels, graphs and libraries."),
        Tile("On disk", human_bytes(total(places, "size_bytes")), "The sizes of their files."),
        Tile("Findings", f"{wrong:,}", "What the doctor finds wrong."),
        Tile("Duplicates", f"{count:,}", f"Binaries equal to another, byte for byte: {human_bytes(size)}."),
        Tile("Stale", f"{total(old, 'Entries'):,}", "Entries that another version than the installed one made."),
    ]


def directory_columns(
    places: Sequence[Row], archs: Iterable[Row], versions: Iterable[Row], titles: Titles
) -> list[Column]:
    """The columns of directories, with columns of partial and unread entries only if there are any."""
    targets, made_by = _by_place(archs), _by_place(versions)
    return [
        framework(titles),
        Column("Directory", "path"),
        Column("Found by", "origin"),
        Column("Entries", "entries", "count"),
        Column("On disk", "size_bytes", "bytes"),
        *(Column(label, name) for label, name in (("Partial", "partial"), ("Unread", "unread")) if total(places, name)),
        Column("Targets", lambda row: targets[row["kind"], row["path"]]),
        Column("Versions", lambda row: made_by[row["kind"], row["path"]]),
        Column("Oldest", "oldest", "age"),
        Column("Newest", "newest", "age"),
        Column("Last used", "last_used_at", "age"),
    ]


def framework(titles: Titles) -> Column:
    """The column of the framework's name, for rows and values that have the kind of their cache."""

    def title(one: Any) -> str:
        kind = one["kind"] if isinstance(one, Mapping) else one.kind
        return titles.get(kind, kind)

    return Column("Framework", title)


PARTS = (
    Column("Directory", "path"),
    Column("Part", "name"),
    Column("On disk", "size_bytes", "bytes", bar=True),
)
"""The columns after the framework's column: the bytes of each kind of part, for each directory."""


GROWTH = (
    Column("Made on", lambda row: f"{datetime.fromtimestamp(row['day'], UTC):%Y-%m-%d}"),
    Column("Entries", "entries", "count"),
    Column("On disk", "size_bytes", "bytes", bar=True),
)
"""The columns after the framework's column, for the entries that exist now, by the day on which they were made."""


def version_table(versions: Iterable[Row], installed: Callable[[str], str | None], titles: Titles) -> list[Row]:
    """The entries of each version of each framework, and whether another version is installed here."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in versions:
        both = sums[row["kind"], row["value"]]
        both[0] += row["entries"]
        both[1] += row["size_bytes"]
    return [
        {
            "Framework": titles.get(kind, kind),
            "Version": made_by,
            "Installed here": installed(kind) or "–",
            "Stale": is_stale(made_by, installed(kind)),
            "Entries": entries,
            "On disk": size,
        }
        for (kind, made_by), (entries, size) in sorted(sums.items(), key=lambda item: -item[1][1])
    ]


def duplicate_columns(titles: Titles) -> list[Column]:
    """The columns of binaries that exist more than once."""
    return [
        Column("Name", lambda row: row["name"] or ""),
        Column("Framework", lambda row: ", ".join(titles.get(kind, kind) for kind in row["kinds"])),
        Column("Entries", "entries"),
        Column("Directories", "directories"),
        Column("More than once", "extra_bytes", "bytes"),
        Column("Digest of the binary", "digest"),
    ]


def entry_columns(titles: Titles) -> list[Column]:
    """The columns of a list of entries."""
    return [
        Column("Id", lambda row: _short(row["id"]), title=itemgetter("id")),
        Column("Name", lambda row: row["name"] or "", sort="name"),
        framework(titles),
        Column("Target", lambda row: row["arch"] or ""),
        Column("Registers", "registers", "count", sort="registers"),
        Column("Shared", "shared_bytes", "bytes", hidden=True),
        Column("Code", "code_bytes", "bytes"),
        Column("On disk", "size_bytes", "bytes", sort="size"),
        Column("Config", _short_config, title=_config),
        Column("Version", lambda row: row["version"] or ""),
        Column("State", "state", hidden=True),
        Column("Created", "created_at", "age", sort="created"),
        Column("Last used", "last_used_at", "age", sort="last used"),
        Column("Compile time", "compile_ms", "ms", sort="compile time", hidden=True),
        Column("Directory", "path", hidden=True),
    ]


def _config(row: Row) -> str:
    return " ".join(f"{name}={value}" for name, value in msgspec.json.decode(row["config"]).items())


def _short_config(row: Row) -> str:
    config = _config(row)
    return config if len(config) <= _SHOWN_OF_CONFIG else f"{config[:_SHOWN_OF_CONFIG]}…"


def _short(entry: str) -> str:
    """The short form of an entry's id in lists: its last part or, of a digest, the beginning."""
    last = entry.rpartition("/")[2]
    return last if len(last) <= _SHOWN_DIGITS else f"{last[:_SHOWN_DIGITS]}…"


def other_gpu(archs: Iterable[Row], runs_here: Callable[[str], bool] | None) -> list[Diagnosis]:
    """A finding for each directory and target whose code the local GPU does not run; none if that GPU is unknown."""
    if runs_here is None:
        return []
    return [
        Diagnosis(
            place_of(row["kind"], row["path"]), "", Ailment.OTHER_GPU,
            f"{row['value']}: {counted(row['entries'], 'entry', 'entries')}",
        )
        for row in archs
        if not runs_here(row["value"])
    ]  # fmt: skip


FINDINGS = (
    Column("Finding", "ailment.value"),
    Column("Open", lambda each: Address(each.place, each.id).link if each.id else None, "link"),
    # The id is a folder, and Where has it.
    Column("Detail", lambda each: each.detail.removeprefix(f"{each.id}/")),
    Column("What to do", "cure"),
    Column("Where", lambda each: "/".join(filter(None, (each.place.path_text, each.id)))),
)
"""The columns of the doctor's findings in all caches."""


def _by_place(rows: Iterable[Row]) -> dict[tuple[str, str], str]:
    """For each directory, its most frequent values with their counts, as text."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        found[row["kind"], row["path"]].append(f"{row['value']} ({row['entries']:,})")
    return defaultdict(str, {place: _some(values) for place, values in found.items()})


def _some(values: Sequence[str]) -> str:
    more = f" and {len(values) - _MOST_COUNTED:,} more" if len(values) > _MOST_COUNTED else ""
    return ", ".join(values[:_MOST_COUNTED]) + more


DELETIONS = (
    Column("Id", lambda each: _short(each.id)),
    Column("Name", lambda each: each.name or ""),
    Column("Target", lambda each: each.arch or ""),
    Column("Frees", "size_bytes", "bytes"),
    Column("Why", "reason"),
    Column("Directory", lambda each: id_of(each.path)),
)
"""The columns after the framework's column, for entries that are to be deleted."""
CLEANED = (
    Column("Directory", lambda each: id_of(each.path)),
    Column("Entries", "entries"),
    Column("Frees", "size_bytes", "bytes"),
)
"""The columns after the framework's column, for directories from which entries are to be deleted."""


def cleaning_arguments(rules: CleaningRules, kinds: Sequence[str]) -> list[str]:
    """The arguments of ``caches clean`` that choose the same entries as the rules, only from these frameworks."""
    takes = rules.takes
    arguments = takes.text.split()
    for option, values in (
        ("--kind", kinds),
        ("--arch", takes.archs),
        ("--state", takes.states),
        ("--version", rules.versions),
    ):
        arguments += [word for value in values for word in (option, value)]
    if rules.unused_days is not None:
        arguments += ["--days", f"{rules.unused_days:g}"]
    if rules.max_bytes is not None:
        arguments += ["--max-bytes", str(rules.max_bytes)]
    return arguments


LEFT = (
    Column("Directory", lambda one: id_of(one["path"])),
    Column("Entries", "count"),
    Column("Why", "reason"),
)
"""The columns after the framework's column, for the number of entries that stay, by directory and reason."""


CAUSES = (
    Column("Entries", itemgetter(1)),
    Column("Input", lambda one: one[0].name),
    Column("From", lambda one: one[0].group),
    Column("In the first, for example", lambda one: one[0].a or "–"),
    Column("In the second", lambda one: one[0].b or "–"),
    Column("Meaning", lambda one: one[0].meaning),
)
"""The columns of the inputs that differ between two directories, and of the number of entries with each."""


def compare_address(first: Address, second: Address) -> str:
    """The address of the comparison of two entries, from any page."""
    return f"compare?{urlencode(first.compared_with(second))}"


def changed_columns(here: Place, there: Place) -> list[Column]:
    """The columns of entries that two directories have under one key, and of their parts with different bytes."""

    def compared(one: tuple[Entry, object]) -> str:
        return compare_address(Address(here, one[0].id), Address(there, one[0].id))

    return [
        Column("Id", lambda one: _short(one[0].id)),
        Column("Compare", compared, "link", words="compare"),
        Column("Name", lambda one: one[0].name or ""),
        Column("Parts", lambda one: ", ".join(one[1])),
    ]


def miss_columns(here: Place, there: Place) -> list[Column]:
    """The columns of entries of one directory that the other lacks, each with the nearest entry that it has."""

    def compared(one: Miss) -> str | None:
        near = one.nearest
        return compare_address(Address(here, one.entry.id), Address(there, near.id)) if near else None

    return [
        Column("Id", lambda one: _short(one.entry.id)),
        Column("Compare", compared, "link", words="compare"),
        Column("Name", lambda one: one.entry.name or ""),
        Column("Nearest of the other", lambda one: _short(one.nearest.id) if one.nearest else ""),
        Column("Differs in", lambda one: one.unknown or ", ".join(each.name for each in one.differences)),
    ]
