"""One kernel, fact by fact and as figures."""

from __future__ import annotations

from datetime import tzinfo

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, GREY, Row, when
from cache_engine.compilers.disassembly import OTHER, InstructionMix
from cache_engine.model.artifact import Record
from cache_engine.model.occupancy import Occupancy
from cache_engine.store.codec import stored_bytes
from cache_engine.units import human_bytes, human_ms

_MOST_OTHERS = 6


def record_facts(record: Record, row: Row | None, zone: tzinfo) -> list[Row]:
    """A kernel, fact by fact."""
    p, r = record.problem, record.resources
    facts = {
        "Target": record.arch,
        "Problem": f"{p.m} × {p.n} × {p.k}, batch {p.batch}; n and k are fixed, every m and batch is served",
        "Types": f"{p.dtype} in, {p.out_dtype} out; layout {p.layout}",
        "Family": record.family,
        "Config": str(record.config),
        "Compiler": f"{record.compiler} {record.compiler_version}",
        "Registers": f"{r.registers} per thread; {r.spill_bytes} bytes spilled; {r.stack_bytes} bytes of stack",
        "Shared memory": f"{human_bytes(r.shared_bytes)} per block",
        "Size": f"{human_bytes(record.size_bytes)} of code; {human_bytes(stored_bytes(record))} on disk with PTX, "
        "source and log",
        "Compiled": f"in {human_ms(record.compile_ms)}, {when(record.created_at, zone)}, by {record.created_by}",
    }
    if row is not None:
        in_packs = f", {row['pack_hits']:,} in packs" if row["pack_hits"] else ""
        facts["Hits"] = f"{row['disk_hits']:,} on disk{in_packs}, {row['memory_hits']:,} in memory"
        facts["Last used"] = when(row["last_used_at"], zone)
    return [{"Fact": name, "Value": value} for name, value in facts.items()]


def occupancy_table(resident: Occupancy) -> list[Row]:
    """How many blocks each limit allows on one SM."""
    return [
        {"Limit": name, "Blocks per SM": blocks, "Binds": name in resident.bound_by}
        for name, blocks in resident.block_limits.items()
    ]


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


def component_table(record: Record) -> list[Row]:
    """What the key was hashed from."""
    return [{"Component": label, "Value": value} for label, value in record.components]
