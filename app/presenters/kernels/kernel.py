"""One kernel: its facts, tiles, occupancy, code and history."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import tzinfo

import msgspec
import plotly.graph_objects as go

from app.presenters.shared import COLOURS, GREY, Row, Tile, moment, when
from app.presenters.store.overview import EVENTS
from cache_engine.cli import documents
from cache_engine.compilers.disassembly import OTHER, InstructionMix
from cache_engine.insight.description import described
from cache_engine.insight.inspection import Inspection
from cache_engine.model.architecture import runs_on
from cache_engine.model.artifact import Record
from cache_engine.model.occupancy import Occupancy, occupancy
from cache_engine.units import counted, human_bytes, human_ms

MOST_LINES = 5_000
"""Of a text, in the page; the rest is in the download."""

_MOST_OTHERS = 6


def kernel_tiles(inspection: Inspection, row: Row | None) -> list[Tile]:
    """The numbers at the head of a kernel's page."""
    record, resident = inspection.record, inspection.occupancy
    resources = record.resources
    hits = 0 if row is None else row["hits"]
    return [
        Tile("Registers", f"{resources.registers}", "Per thread."),
        Tile("Spilled", human_bytes(resources.spill_bytes), "Register contents moved to local memory."),
        Tile("Shared memory", human_bytes(resources.shared_bytes), "Per block."),
        Tile(
            "Occupancy",
            "–" if resident is None else f"{resident.share:.1%}",
            "Theoretical, on its own target." if resident is None else f"Theoretical: {resident}.",
        ),
        Tile("Compiled in", human_ms(record.compile_ms), "What a hit saves."),
        Tile("Hits", f"{hits:,}", "In memory, in packs and on disk together."),
    ]


def record_properties(record: Record, zone: tzinfo) -> list[Row]:
    """A kernel, property by property."""
    words = described(record, when(record.created_at, zone))
    words |= {f"Warning {number}": text for number, text in enumerate(record.warnings, 1)}
    return [{"Property": name, "Value": value} for name, value in words.items()]


def component_table(record: Record) -> list[Row]:
    """What the key was hashed from."""
    return [{"Component": label, "Value": value} for label, value in record.components]


def record_document(record: Record) -> str:
    """What is kept about the kernel, as JSON: the document that ``show --json`` prints."""
    return msgspec.json.format(msgspec.json.encode(documents.record(record)), indent=2).decode()


def occupancy_table(resident: Occupancy) -> list[Row]:
    """How many blocks each limit allows on one SM."""
    return [
        {"Limit": name, "Blocks per SM": blocks, "Binds": name in resident.bound_by}
        for name, blocks in resident.block_limits.items()
    ]


def occupancy_by_chip(record: Record) -> list[Row]:
    """The occupancy on each chip that runs the code."""
    r = record.resources
    found = []
    for chip in runs_on(record.arch):
        resident = occupancy(chip, threads=record.config.threads, registers=r.registers, shared_bytes=r.shared_bytes)
        found.append(
            {
                "Chip": chip.name,
                "Such as": chip.example,
                "Occupancy": resident.share,
                "Warps per SM": f"{resident.warps_per_sm} of {resident.most_warps_per_sm}",
                "Blocks per SM": resident.blocks_per_sm,
                "Bound by": " and ".join(resident.bound_by),
            }
        )
    return found


def found_lines(text: str, wanted: str) -> tuple[str, str]:
    """The lines that hold a text, in any case, with their numbers; and how many they are, in words."""
    lines = text.splitlines()
    wanted = wanted.casefold()
    found = [f"{number:>6}  {line}" for number, line in enumerate(lines, 1) if wanted in line.casefold()]
    shown = "\n".join(found[:MOST_LINES])
    return shown, f"{len(found):,} of {counted(len(lines), 'line')}{_shown_of(len(found))}"


def first_lines(text: str) -> tuple[str, str]:
    """A text as far as a page shows it, and how long it is, in words."""
    lines = text.splitlines()
    return "\n".join(lines[:MOST_LINES]), f"{counted(len(lines), 'line')}{_shown_of(len(lines))}"


def narrowed(sass: str) -> str:
    """Disassembled code without the wide margins and gaps that the disassembler makes."""
    return re.sub("[ \t]{2,}", "  ", sass)


def hit_table(row: Row) -> list[Row]:
    """Hits by tier."""
    return [{"Tier": tier, "Hits": row[f"{tier}_hits"]} for tier in ("memory", "pack", "disk")]


def history_table(record: Record, events: Iterable[Row], timings: Iterable[Row], zone: tzinfo) -> list[Row]:
    """What is known to have happened to a key's entries, the newest first; by whom the present one was made."""
    made = f"by {record.created_by}, with {record.compiler} {record.compiler_version}"
    found = [(record.created_at, "made", made)]
    found += [
        (
            event["happened_at"],
            EVENTS.get(event["kind"], str(event["kind"])),
            event["detail"] or (f"in {human_ms(event['compile_ms'])}" if event["compile_ms"] else ""),
        )
        for event in events
    ]
    found += [
        (
            timing["measured_at"],
            "verified" if timing["verified"] else "NOT VERIFIED",
            f"and timed on {timing['device']}",
        )
        for timing in timings
    ]
    found.sort(key=lambda row: -row[0])
    return [{"When": moment(at, zone), "What": what, "Details": details} for at, what, details in found]


def instruction_figure(mix: InstructionMix) -> go.Figure:
    """Instructions by class, and the most frequent of those in none, in grey."""
    named = {name: count for name, count in mix.classes.items() if name != OTHER}
    most = dict(list(mix.others.items())[:_MOST_OTHERS])
    rest = mix.total - sum(named.values()) - sum(most.values())
    bars = {**named, **most, **({OTHER: rest} if rest else {})}
    figure = go.Figure()
    figure.add_bar(
        x=list(bars.values()),
        y=list(bars),
        orientation="h",
        marker_color=[COLOURS[0] if name in named else GREY for name in bars],
        text=[f"{count:,}" for count in bars.values()],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{x:,}<extra></extra>",
    )
    figure.update_layout(margin={"t": 8, "b": 8, "l": 8, "r": 40}, height=60 + 22 * len(bars), bargap=0.25)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def _shown_of(count: int) -> str:
    return f"; the first {MOST_LINES:,} are shown" if count > MOST_LINES else ""
