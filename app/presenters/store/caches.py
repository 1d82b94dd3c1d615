"""The Caches page: tables and figures of other frameworks' caches."""

from __future__ import annotations

import html
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import tzinfo
from pathlib import Path

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, GREY, Row, Tile, moment
from cache_engine.foreign.base import Source
from cache_engine.foreign.doctor import Diagnosis
from cache_engine.foreign.survey import Sums
from cache_engine.foreign.values import Entry, Place
from cache_engine.units import human_bytes

_MIB = 1 << 20
_MOST_PARTS = 6


def cache_tiles(totals: Mapping[Place, Sums], wrong: int, duplicates: tuple[int, int]) -> list[Tile]:
    """Entries, bytes, what is wrong, and what is there twice."""
    count, size = duplicates
    return [
        Tile("Entries", f"{sum(each.entries for each in totals.values()):,}", "Kernels, graphs and libraries."),
        Tile("On disk", human_bytes(sum(each.size_bytes for each in totals.values())), "The sizes of their files."),
        Tile("Findings", f"{wrong:,}", "What the doctor finds wrong; see below."),
        Tile("Duplicates", f"{count:,}", f"Binaries equal to another, byte for byte: {human_bytes(size)}."),
    ]


def duplicates_of(entries: Iterable[Entry]) -> tuple[int, int]:
    """How many entries have the same binary as another one, and the bytes of all but the first of each."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for entry in entries:
        if entry.digest is not None:
            part = next((part for part in entry.parts if part.name in ("cubin", "hsaco")), None)
            sizes[entry.digest].append(part.size_bytes if part else 0)
    extra = [size for same in sizes.values() for size in same[1:]]
    return len(extra), sum(extra)


def directory_table(totals: Mapping[Place, Sums], sources: Mapping[str, Source], zone: tzinfo) -> list[Row]:
    """A row for each directory, the largest first."""
    return [
        {
            "Framework": sources[place.kind].title,
            "Directory": str(place.path),
            "Found by": place.origin,
            "Entries": each.entries,
            "On disk": each.size_bytes / _MIB,
            "Partial": each.partial,
            "Unread": each.unread,
            "Targets": _counted(each.archs),
            "Versions": _counted(each.versions),
            "Oldest": moment(each.oldest or 0.0, zone),
            "Newest": moment(each.newest or 0.0, zone),
            "Last used": moment(each.last_used_at or 0.0, zone),
        }
        for place, each in sorted(totals.items(), key=lambda row: -row[1].size_bytes)
    ]


def part_figure(totals: Mapping[Place, Sums], sources: Mapping[str, Source]) -> go.Figure:
    """Bytes by part, a bar for each framework."""
    parts: Counter[str] = Counter()
    by_title: dict[str, Counter[str]] = defaultdict(Counter)
    for place, each in totals.items():
        parts.update(each.part_bytes)
        by_title[sources[place.kind].title].update(each.part_bytes)
    largest = [name for name, _ in parts.most_common(_MOST_PARTS)]
    titles = sorted(by_title, key=lambda title: sum(by_title[title].values()))
    figure = go.Figure()
    for number, name in enumerate([*largest, "other"]):
        values = [
            (sum(sizes.values()) - sum(sizes[each] for each in largest) if name == "other" else sizes[name]) / _MIB
            for sizes in (by_title[title] for title in titles)
        ]
        if any(values):
            colour = GREY if name == "other" else COLOURS[number % len(COLOURS)]
            figure.add_bar(
                y=[html.escape(title) for title in titles], x=values, name=html.escape(name), orientation="h",
                marker_color=colour, hovertemplate="%{x:.2f} MiB",
            )  # fmt: skip
    figure.update_layout(barmode="stack", xaxis_title="MiB", height=120 + 40 * len(titles), margin={"t": 10, "b": 10})
    return figure


def entry_table(found: Iterable[tuple[Place, Entry]], sources: Mapping[str, Source], zone: tzinfo) -> list[Row]:
    """A row for each entry."""
    return [
        {
            "Name": entry.name or "",
            "Framework": sources[place.kind].title,
            "Target": entry.arch or "",
            "Registers": entry.registers,
            "Shared": None if entry.shared_bytes is None else entry.shared_bytes / 1024,
            "Code": None if entry.code_bytes is None else entry.code_bytes / 1024,
            "On disk": entry.size_bytes / 1024,
            "Config": " ".join(f"{name}={value}" for name, value in entry.config.items()),
            "Version": entry.version or "",
            "State": entry.state.value,
            "Created": moment(entry.created_at or 0.0, zone),
            "Last used": moment(entry.last_used_at or 0.0, zone),
            "Id": entry.id,
        }
        for place, entry in found
    ]


def finding_table(found: Iterable[Diagnosis]) -> list[Row]:
    """A row for each finding of the doctor."""
    return [
        {
            "Finding": each.ailment.value,
            "What to do": each.cure,
            "Detail": each.detail,
            "Where": str(Path(each.place.path, each.id)) if each.id else str(each.place.path),
        }
        for each in found
    ]


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in counts.most_common(4))
