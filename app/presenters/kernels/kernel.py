"""One kernel: its properties, occupancy, code and history."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, GREY, Row, moment, when
from app.presenters.store.overview import EVENTS
from cache_engine.compilers.disassembly import OTHER, InstructionMix
from cache_engine.insight.inspection import block_threads, described
from cache_engine.insight.inspection import record_document as document_of
from cache_engine.model.architecture import runs_on
from cache_engine.model.artifact import Record
from cache_engine.model.document import to_json
from cache_engine.model.events import PUBLISH, TIERS
from cache_engine.model.occupancy import Occupancy, occupancy
from cache_engine.units import counted, human_ms, human_rate

MOST_LINES = 5_000
"""The most lines of a text on the page; the download has all."""

_MOST_OTHERS = 6


def record_properties(record: Record, zone: tzinfo, signature: str = "") -> list[Row]:
    """A kernel, property by property; who signed it, as ``Cache.signature`` says it."""
    words = described(record, when(record.created_at, zone))
    if signature:
        words["Signature"] = signature
    return [{"Property": name, "Value": value} for name, value in words.items()]


def component_table(record: Record) -> list[Row]:
    """What the key was hashed from."""
    return [{"Component": label, "Value": value} for label, value in record.components]


def record_document(record: Record) -> str:
    """The record as JSON: the document that ``show --json`` prints."""
    return to_json(document_of(record))


def occupancy_table(resident: Occupancy) -> list[Row]:
    """How many blocks each limit allows on one SM."""
    return [
        {"Limit": name, "Blocks per SM": blocks, "Limiting": "✓" if name in resident.bound_by else ""}
        for name, blocks in resident.block_limits.items()
    ]


def occupancy_by_chip(record: Record) -> list[Row]:
    """The occupancy on each chip that runs this cubin."""
    r = record.resources
    found = []
    for chip in runs_on(record.arch):
        resident = occupancy(chip, threads=block_threads(record), registers=r.registers, shared_bytes=r.shared_bytes)
        found.append(
            {
                "Target": chip.name,
                "Example chip": chip.example,
                "Occupancy": human_rate(resident.share),
                "Warps per SM": f"{resident.warps_per_sm} of {resident.most_warps_per_sm}",
                "Blocks per SM": resident.blocks_per_sm,
                "Limited by": " and ".join(resident.bound_by),
            }
        )
    return found


def first_lines(text: str) -> tuple[str, str]:
    """The first lines of a text, as many as the page shows; and their count, in words."""
    lines = text.splitlines()
    return "\n".join(lines[:MOST_LINES]), f"{counted(len(lines), 'line')}{_shown_of(len(lines))}"


def hit_table(row: Row) -> list[Row]:
    """Hits by tier."""
    return [{"Tier": tier, "Hits": row[f"{tier}_hits"]} for tier in TIERS]


def history_table(record: Record, events: Iterable[Row], timings: Iterable[Row], zone: tzinfo) -> list[Row]:
    """The known events and timings of a key's entries, newest first.

    The journal has the compile of the present entry as well, but the record says more: the two are one row.
    """
    made = f"in {human_ms(record.compile_ms)}, by {record.created_by}, with {record.compiler} {record.compiler_version}"
    rows = [_event(record.created_at, EVENTS[PUBLISH], made, zone)]
    rows += event_rows(
        (event for event in events if event["kind"] != PUBLISH or event["happened_at"] < record.created_at), zone
    )
    rows += [
        _event(
            timing["measured_at"],
            "timed" if timing["verified"] else "WRONG RESULT",
            f"on {timing['device']}",
            zone,
        )
        for timing in timings
    ]
    return sorted(rows, key=lambda row: row["When"] or datetime.min.replace(tzinfo=UTC), reverse=True)


def event_rows(events: Iterable[Row], zone: tzinfo) -> list[Row]:
    """Events, a row each."""
    return [
        _event(
            event["happened_at"],
            EVENTS.get(event["kind"], str(event["kind"])),
            event["detail"] or (f"in {human_ms(event['compile_ms'])}" if event["compile_ms"] else ""),
            zone,
        )
        for event in events
    ]


def _event(at: float, what: str, details: str, zone: tzinfo) -> Row:
    return {"When": moment(at, zone), "Event": what, "Details": details}


def instruction_figure(mix: InstructionMix) -> go.Figure:
    """Instructions by class, and in grey the most frequent others."""
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
    return f"; showing the first {MOST_LINES:,}" if count > MOST_LINES else ""
