"""The Caches page: tables and figures of other frameworks' caches, from rows of ``mirror.foreign_queries``."""

from __future__ import annotations

import html
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

import msgspec
import plotly.graph_objects as go

from app.presenters.shared import COLOURS, GREY, Column, Line, Row, Tile, moment, total, when
from cache_engine.frameworks.cleaning import CleanedEntry, CleanedPlace
from cache_engine.frameworks.comparison import Difference, Miss
from cache_engine.frameworks.deleting import CleaningRules
from cache_engine.frameworks.doctor import Ailment, Diagnosis
from cache_engine.frameworks.registry import is_stale
from cache_engine.frameworks.values import Entry, Place, id_of
from cache_engine.index.foreign_queries import place_of
from cache_engine.units import bytes_unit, counted, human_age, human_bytes, human_ms

_MOST_PARTS, _MOST_COUNTED = 6, 4
_SHOWN_DIGITS = 16
_SHOWN_OF_CONFIG = 24
Titles = Mapping[str, str]


def cache_tiles(places: Sequence[Row], wrong: int, duplicates: tuple[int, int], stale: Sequence[Row]) -> list[Tile]:
    """Entries, bytes, what is wrong, what is there twice, and what another version made."""
    count, size = duplicates
    old = [row for row in stale if row["Stale"]]
    return [
        Tile("Entries", f"{total(places, 'entries'):,}", "Kernels, graphs and libraries."),
        Tile("On disk", human_bytes(total(places, "size_bytes")), "The sizes of their files."),
        Tile("Findings", f"{wrong:,}", "What the doctor finds wrong."),
        Tile("Duplicates", f"{count:,}", f"Binaries equal to another, byte for byte: {human_bytes(size)}."),
        Tile("Stale", f"{total(old, 'Entries'):,}", "Entries that another version than the installed one made."),
    ]


def directory_table(
    places: Iterable[Row], archs: Iterable[Row], versions: Iterable[Row], titles: Titles, zone: tzinfo
) -> list[Row]:
    """A row for each directory, the largest first. What is partial or unread has a column where there is any."""
    targets, made_by, places = _by_place(archs), _by_place(versions), list(places)
    faults = {label: name for label, name in (("Partial", "partial"), ("Unread", "unread")) if total(places, name)}
    return [
        {
            "Framework": titles.get(row["kind"], row["kind"]),
            "Directory": row["path"],
            "Found by": row["origin"],
            "Entries": row["entries"],
            "On disk": row["size_bytes"],
            **{label: row[name] for label, name in faults.items()},
            "Targets": targets[row["kind"], row["path"]],
            "Versions": made_by[row["kind"], row["path"]],
            "Oldest": moment(row["oldest"] or 0.0, zone),
            "Newest": moment(row["newest"] or 0.0, zone),
            "Last used": moment(row["last_used_at"] or 0.0, zone),
        }
        for row in places
    ]


def part_figure(parts: Iterable[Row], titles: Titles) -> go.Figure:
    """Bytes by part, a bar for each framework."""
    names: Counter[str] = Counter()
    by_title: dict[str, Counter[str]] = defaultdict(Counter)
    for row in parts:
        names[row["name"]] += row["size_bytes"]
        by_title[titles.get(row["kind"], row["kind"])][row["name"]] += row["size_bytes"]
    largest = [name for name, _ in names.most_common(_MOST_PARTS)]
    rows = sorted(by_title, key=lambda title: by_title[title].total())
    unit, length = bytes_unit(max((sizes.total() for sizes in by_title.values()), default=0))
    figure = go.Figure()
    for number, name in enumerate([*largest, "other"]):
        values = [
            (sizes.total() - sum(sizes[each] for each in largest) if name == "other" else sizes[name]) / length
            for sizes in (by_title[title] for title in rows)
        ]
        if any(values):
            colour = GREY if name == "other" else COLOURS[number % len(COLOURS)]
            figure.add_bar(
                y=[html.escape(title) for title in rows], x=values, name=html.escape(name), orientation="h",
                marker_color=colour, hovertemplate=f"%{{x:,.1f}} {unit}",
            )  # fmt: skip
    figure.update_layout(
        barmode="stack", xaxis_title=unit, height=120 + 40 * len(rows), margin={"t": 10, "b": 10},
        legend_traceorder="normal",  # that of the parts of a bar
    )  # fmt: skip
    return figure


def growth_figure(days: Iterable[Row], titles: Titles) -> go.Figure:
    """The bytes that are there now, by the day until which they were made, a line for each framework."""
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for row in days:
        by_kind[row["kind"]].append(row)
    last = max((rows[-1]["day"] for rows in by_kind.values()), default=0)
    unit, length = bytes_unit(max((total(rows, "size_bytes") for rows in by_kind.values()), default=0))
    figure = go.Figure()
    for number, (kind, rows) in enumerate(sorted(by_kind.items())):
        size, x, y = 0.0, [], []
        for row in rows:
            size += row["size_bytes"] / length
            x.append(_day(row["day"]))
            y.append(size)
        if rows[-1]["day"] != last:  # nothing was made since
            x.append(_day(last))
            y.append(size)
        figure.add_scatter(
            x=x, y=y, name=html.escape(titles.get(kind, kind)), mode="lines+markers", line_shape="hv",
            line_color=COLOURS[number % len(COLOURS)], hovertemplate=f"%{{x}}: %{{y:,.1f}} {unit}",
        )  # fmt: skip
    figure.update_layout(
        yaxis_title=unit, yaxis_rangemode="tozero", xaxis_type="date", xaxis_tickformat="%d %b %Y", xaxis_nticks=4,
        height=260, margin={"t": 10, "b": 10},
    )  # fmt: skip
    return figure


def version_table(versions: Iterable[Row], installed: Callable[[str], str | None], titles: Titles) -> list[Row]:
    """What each version of each framework made, and whether another one is installed here."""
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


def duplicate_table(duplicates: Iterable[Row], titles: Titles) -> list[Row]:
    """A row for each binary that is there more than once."""
    return [
        {
            "Name": row["name"] or "",
            "Framework": ", ".join(titles.get(kind, kind) for kind in row["kinds"]),
            "Entries": row["entries"],
            "Directories": row["directories"],
            "More than once": row["extra_bytes"],
            "Digest of the binary": row["digest"],
        }
        for row in duplicates
    ]


ENTRY_COLUMNS = (
    Column("Id"),
    Column("Name", "name"),
    Column("Framework"),
    Column("Target"),
    Column("Registers", "registers", numeric=True),
    Column("Shared", numeric=True, hidden=True),
    Column("Code", numeric=True),
    Column("On disk", "size", numeric=True),
    Column("Config"),
    Column("Version"),
    Column("State", hidden=True),
    Column("Created", "created", numeric=True),
    Column("Last used", "last used", numeric=True),
    Column("Compile time", "compile time", numeric=True, hidden=True),
    Column("Directory", hidden=True),
)


def entry_lines(entries: Iterable[Row], titles: Titles, zone: tzinfo, now: float) -> list[Line]:
    """Entries, a line each: a text for each of ``ENTRY_COLUMNS``; ``now`` in seconds since 1970."""
    return [_entry_line(row, titles, zone, now) for row in entries]


def _entry_line(row: Row, titles: Titles, zone: tzinfo, now: float) -> Line:
    config = " ".join(f"{name}={value}" for name, value in msgspec.json.decode(row["config"]).items())
    times = {"Created": row["created_at"], "Last used": row["last_used_at"]}
    return Line(
        {
            "Id": _short(row["id"]),
            "Name": row["name"] or "",
            "Framework": titles.get(row["kind"], row["kind"]),
            "Target": row["arch"] or "",
            "Registers": _known(row["registers"], "{:,}".format),
            "Shared": _known(row["shared_bytes"], human_bytes),
            "Code": _known(row["code_bytes"], human_bytes),
            "On disk": human_bytes(row["size_bytes"]),
            "Config": config if len(config) <= _SHOWN_OF_CONFIG else f"{config[:_SHOWN_OF_CONFIG]}…",
            "Version": row["version"] or "",
            "State": row["state"],
            **{name: human_age(now - at) if at else "–" for name, at in times.items()},
            "Compile time": _known(row["compile_ms"], human_ms),
            "Directory": row["path"],
        },
        {
            "Id": row["id"],
            "Config": config,
            **{name: when(at, zone) for name, at in times.items() if at},
        },
    )


def _known(value: Any, text: Callable[[Any], str]) -> str:
    return "–" if value is None else text(value)


def _short(entry: str) -> str:
    """An id as a list shows it: its last part, and of a digest the beginning."""
    last = entry.rpartition("/")[2]
    return last if len(last) <= _SHOWN_DIGITS else f"{last[:_SHOWN_DIGITS]}…"


def other_gpu(archs: Iterable[Row], runs_here: Callable[[str], bool] | None) -> list[Diagnosis]:
    """For each directory and target whose code does not run here one finding; none where that is not known."""
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


def finding_table(found: Iterable[Diagnosis], open_at: Callable[[Place, str], str]) -> list[Row]:
    """A row for each finding of the doctor; ``open_at`` gives the address of an entry's page."""
    return [
        {
            "Finding": each.ailment.value,
            "Open": open_at(each.place, each.id) if each.id else None,
            "Detail": each.detail.removeprefix(f"{each.id}/"),  # the id is a folder, and Where has it
            "What to do": each.cure,
            "Where": "/".join(filter(None, (each.place.path_text, each.id))),
        }
        for each in found
    ]


def _by_place(rows: Iterable[Row]) -> dict[tuple[str, str], str]:
    """The most frequent values of each directory, with their counts."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        found[row["kind"], row["path"]].append(f"{row['value']} ({row['entries']:,})")
    return defaultdict(str, {place: _some(values) for place, values in found.items()})


def _some(values: Sequence[str]) -> str:
    more = f" and {len(values) - _MOST_COUNTED:,} more" if len(values) > _MOST_COUNTED else ""
    return ", ".join(values[:_MOST_COUNTED]) + more


def _day(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"


def deletion_table(deletions: Iterable[CleanedEntry], titles: Titles) -> list[Row]:
    """A row for each entry that is to be deleted."""
    return [
        {
            "Framework": titles.get(each.kind, each.kind),
            "Id": _short(each.id),
            "Name": each.name or "",
            "Target": each.arch or "",
            "Frees": each.size_bytes,
            "Why": each.reason,
            "Directory": id_of(each.path),
        }
        for each in deletions
    ]


def cleaned_table(directories: Iterable[CleanedPlace], titles: Titles) -> list[Row]:
    """What is to be deleted from each directory."""
    return [
        {
            "Framework": titles.get(each.kind, each.kind),
            "Directory": id_of(each.path),
            "Entries": each.entries,
            "Frees": each.size_bytes,
        }
        for each in directories
        if each.entries
    ]


def not_in_use_table(places: Iterable[Place], titles: Titles) -> list[Row]:
    """The directories that are not in use here, each with the variable that names another."""
    return [
        {
            "Framework": titles.get(place.kind, place.kind),
            "Directory": place.path_text,
            "Another is named by": place.replaced_by,
        }
        for place in places
        if place.replaced_by
    ]


def cleaning_arguments(rules: CleaningRules, kinds: Sequence[str]) -> list[str]:
    """The arguments of ``caches clean`` that choose the same entries, of these frameworks alone."""
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


def left_table(reasons: Mapping[tuple[str, str, str], int], titles: Titles) -> list[Row]:
    """How many entries stay for which reason, by kind, directory and reason."""
    return [
        {"Entries": count, "Framework": titles.get(kind, kind), "Directory": id_of(path), "Why": reason}
        for (kind, path, reason), count in reasons.items()
    ]


def cause_table(causes: Iterable[tuple[Difference, int]]) -> list[Row]:
    """The inputs that differ, and for how many entries."""
    return [
        {"Entries": count, "Input": each.name, "From": each.group, "In the first, for example": each.a or "–",
         "In the second": each.b or "–", "Meaning": each.meaning}
        for each, count in causes
    ]  # fmt: skip


def changed_table(
    changed: Iterable[tuple[Entry, tuple[str, ...]]], compare_at: Callable[[Entry, Entry], str]
) -> list[Row]:
    """Entries of one key, and their parts with other bytes; ``compare_at`` gives the address of a comparison."""
    return [
        {
            "Id": _short(entry.id),
            "Compare": compare_at(entry, entry),
            "Name": entry.name or "",
            "Parts": ", ".join(parts),
        }
        for entry, parts in changed
    ]  # fmt: skip


def miss_table(misses: Iterable[Miss], compare_at: Callable[[Entry, Entry], str]) -> list[Row]:
    """Entries that one directory lacks, and the nearest that it has; ``compare_at`` is as in ``changed_table``."""
    return [
        {
            "Id": _short(each.entry.id),
            "Compare": None if each.nearest is None else compare_at(each.entry, each.nearest),
            "Name": each.entry.name or "",
            "Nearest of the other": "" if each.nearest is None else _short(each.nearest.id),
            "Differs in": each.unknown or ", ".join(difference.name for difference in each.differences),
        }
        for each in misses
    ]
