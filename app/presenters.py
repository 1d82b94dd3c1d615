"""From rows to what is shown: tables, figures and words. No Streamlit here, so all of it can be tested plainly.

Text from the store never becomes markup: tables show it as it is, and Plotly, which reads some HTML, gets it escaped.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

import plotly.graph_objects as go

from cache_engine.comparison import Pair, change, shown
from cache_engine.compilers.disassembly import OTHER, InstructionMix
from cache_engine.errors import InvalidProblem
from cache_engine.integrity import Finding
from cache_engine.jobs import Job
from cache_engine.model.artifact import Record
from cache_engine.model.gemm import DType, GemmProblem, Layout
from cache_engine.model.occupancy import Occupancy
from cache_engine.policy.plan import EvictionPlan
from cache_engine.stats import CLEAN, CORRUPT, EVICT, IMPORT, PUBLISH, REPAIR, UNPUBLISHED, hit_rate
from cache_engine.store.codec import stored_bytes
from cache_engine.units import counted, human_bytes, human_ms, human_rate

Row = dict[str, Any]

# What has a colour of its own, so that it keeps it whatever else is in a store.
_KINDS = (("simt", "fp32"), ("tensor_core", "bf16"), ("tensor_core", "fp16"), ("simt", "fp64"))
AS_INPUTS = "as A and B"
_LATELY_S = 7 * 86_400.0

# Okabe and Ito's colours, which most colour-blind readers tell apart, the accent first.
COLOURS = ("#4d8b00", "#0072b2", "#d55e00", "#cc79a7", "#e69f00", "#56b4e9")
_GREY = "#9a9a9a"
_MOST_OTHERS = 6

# What happened, in words.
EVENTS = {
    PUBLISH: "compiled",
    UNPUBLISHED: "compiled, not kept",
    CORRUPT: "found damaged",
    EVICT: "evicted",
    CLEAN: "cleaned",
    REPAIR: "repaired",
    IMPORT: "imported",
}


@dataclass(frozen=True, slots=True)
class Tile:
    """A number with its name, what it is out of, and what it means."""

    label: str
    value: str
    help: str
    share: float | None = None
    share_text: str = ""


def overview_tiles(row: Row, max_entries: int, max_bytes: int) -> list[Tile]:
    """The numbers at the head of the overview."""
    hits = row["memory_hits"] + row["pack_hits"] + row["disk_hits"]
    failures = row["tier_failures"]
    failed = f" A pack or the disk failed and was passed over {counted(failures, 'time')}." if failures else ""
    return [
        Tile(
            "Kernels",
            f"{row['entries']:,}",
            "Entries in the store.",
            _share(row["entries"], max_entries),
            f"of {max_entries:,}",
        ),
        Tile(
            "On disk",
            human_bytes(row["stored_bytes"]),
            "Compiled code with PTX, source and log, compressed, and its records.",
            _share(row["stored_bytes"], max_bytes),
            f"of {human_bytes(max_bytes)}",
        ),
        Tile(
            "Hit rate",
            human_rate(hit_rate(hits, row["misses"])),
            f"{row['disk_hits']:,} lookups were served from disk, {row['pack_hits']:,} from packs, "
            f"{row['memory_hits']:,} from the memory of the process that asked; {row['misses']:,} had to compile."
            f"{failed}",
        ),
        Tile(
            "Compiling saved",
            human_ms(row["saved_us"] / 1e3),
            "What the kernels served from disk and packs took to compile. Hits in memory are not counted: without a "
            "cache, too, a process would keep what it has compiled.",
        ),
        Tile("Compiling spent", human_ms(row["compile_us"] / 1e3), f"{counted(row['compiles'], 'compile')}."),
    ]


def overview_troubles(row: Row, events: Iterable[Row], now: float) -> list[str]:
    """What someone should look at, in words: what cannot be read now, and what went wrong lately."""
    recent = Counter(event["kind"] for event in events if now - event["happened_at"] < _LATELY_S)
    troubles = []
    if recent[UNPUBLISHED]:
        kernels = counted(recent[UNPUBLISHED], "kernel")
        troubles.append(f"In the last week {kernels} could not be kept after compiling. Below is why.")
    if recent[CORRUPT]:
        entries = counted(recent[CORRUPT], "damaged entry", "damaged entries")
        troubles.append(f"In the last week {entries} were found and set aside in the store's quarantine folder.")
    if row["unreadable"]:
        records = counted(row["unreadable"], "record")
        troubles.append(f"{records} cannot be read now. Admin → Integrity tells more.")
    return troubles


def kernel_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """Kernels as the lists show them."""
    return [
        {
            "Key": row["key"][:12],
            "Target": row["arch"],
            "Family": row["family"],
            "Dtype": _dtype(row),
            "Layout": row["layout"],
            "m × n × k": f"{row['m']} × {row['n']} × {row['k']}",
            "Batch": row["batch"],
            "Config": row["config"],
            "Registers": row["registers"],
            "Spilled": row["spill_bytes"],
            "Code": row["size_bytes"] / 1024,
            "Compiled in": row["compile_ms"],
            "Hits": row["hits"],
            "Last used": moment(row["last_used_at"], zone),
        }
        for row in rows
    ]


def event_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """What happened last."""
    return [
        {
            "When": moment(row["happened_at"], zone),
            "What": EVENTS.get(row["kind"], row["kind"]),
            "Kernel": row["name"] or row["key"][:12],
            "Details": row["detail"] or (f"in {human_ms(row['compile_ms'])}" if row["compile_ms"] else ""),
        }
        for row in rows
    ]


def architecture_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """Sums for each architecture, as numbers, so that every column can be sorted."""
    return [
        {
            "Target": row["arch"],
            "Kernels": row["entries"],
            "Code": row["size_bytes"] / 1024,
            "On disk": row["stored_bytes"] / 1024,
            "Compiling took": row["compile_ms"] / 1000,
            "Median": row["median_compile_ms"],
            "Hits": row["hits"],
            "Last used": moment(row["last_used_at"], zone),
        }
        for row in rows
    ]


def entries_figure(families: Sequence[Row]) -> go.Figure:
    """Kernels per architecture, stacked by family and dtype."""
    figure = go.Figure()
    kinds = sorted({(row["family"], row["dtype"]) for row in families})
    strange = [kind for kind in kinds if kind not in _KINDS]
    for family, dtype in kinds:
        kind = (family, dtype)
        chosen = [row for row in families if (row["family"], row["dtype"]) == kind]
        number = _KINDS.index(kind) if kind in _KINDS else len(_KINDS) + strange.index(kind)
        figure.add_bar(
            name=html.escape(f"{family} {dtype}"),
            marker_color=COLOURS[number % len(COLOURS)],
            x=[html.escape(row["arch"]) for row in chosen],
            y=[row["entries"] for row in chosen],
        )
    figure.update_layout(barmode="stack", legend_title_text="Family and dtype")
    return _titled(figure, "Kernels by architecture", "Target", "Kernels", families)


def compile_time_figure(architectures: Sequence[Row]) -> go.Figure:
    """Median compile time per architecture."""
    figure = _bars(architectures, "median_compile_ms")
    return _titled(figure, "Median compile time", "Target", "Milliseconds", architectures)


def stored_bytes_figure(architectures: Sequence[Row]) -> go.Figure:
    """Bytes on disk per architecture."""
    figure = _bars([{**row, "kib": row["stored_bytes"] / 1024} for row in architectures], "kib")
    return _titled(figure, "Size on disk", "Target", "KiB", architectures)


def hits_figure(architectures: Sequence[Row]) -> go.Figure:
    """Hits per architecture."""
    return _titled(_bars(architectures, "hits"), "Hits", "Target", "Hits", architectures)


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
        "Compiled": f"in {human_ms(record.compile_ms)}, {_when(record.created_at, zone)}, by {record.created_by}",
    }
    if row is not None:
        in_packs = f", {row['pack_hits']:,} in packs" if row["pack_hits"] else ""
        facts["Hits"] = f"{row['disk_hits']:,} on disk{in_packs}, {row['memory_hits']:,} in memory"
        facts["Last used"] = _when(row["last_used_at"], zone)
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
        marker_color=[COLOURS[0] if name in named else _GREY for name in bars],
        text=[f"{count:,}" for count in bars.values()],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{x:,}<extra></extra>",
    )
    figure.update_layout(margin={"t": 8, "b": 8, "l": 8, "r": 40}, height=60 + 22 * len(bars), bargap=0.25)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def pair_table(pairs: Iterable[Pair], first: str, second: str) -> list[Row]:
    """Things of two kernels side by side, as text, since numbers and words stand in one column."""
    return [
        {"What": pair.name, first: shown(pair.first), second: shown(pair.second), "Change": change(pair)}
        for pair in pairs
    ]


def compared_figure(pairs: Sequence[Pair], first: str, second: str) -> go.Figure:
    """Instructions of two kernels by class, side by side."""
    classes = [pair for pair in pairs if pair.name not in (OTHER, "total")]
    figure = go.Figure()
    for name, colour, counts in (
        (first, COLOURS[0], [pair.first or 0 for pair in classes]),
        (second, COLOURS[1], [pair.second or 0 for pair in classes]),
    ):
        figure.add_bar(name=html.escape(name), marker_color=colour, x=[pair.name for pair in classes], y=counts)
    figure.update_layout(barmode="group", margin={"t": 8, "b": 8, "l": 8, "r": 8}, height=300)
    figure.update_layout(legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"})
    figure.update_xaxes(type="category")
    return figure


def component_table(record: Record) -> list[Row]:
    """What the key was hashed from."""
    return [{"Component": label, "Value": value} for label, value in record.components]


def victim_table(plan: EvictionPlan, names: dict[str, str], zone: tzinfo) -> list[Row]:
    """What a cleanup would evict, and why each."""
    return [
        {
            "Key": victim.key[:12],
            "Kernel": names.get(victim.key, ""),
            "On disk": victim.stored_bytes / 1024,
            "Last used": moment(victim.last_used_at, zone),
            "Why": victim.reason,
        }
        for victim in plan.victims
    ]


def finding_table(findings: Iterable[Finding]) -> list[Row]:
    """What a check found, and what repair would do."""
    return [
        {"Finding": finding.kind.value, "Repair would": finding.remedy, "Cause": finding.cause, "File": finding.path}
        for finding in findings
    ]


def asked_of(job: Job) -> Row:
    """What a job was asked, as the Compile page's form names it; nothing of a command that it would not give."""
    named = dict(zip(job.command[4::2], job.command[5::2], strict=False))
    try:
        m, n, k = (int(size) for size in job.command[1:4])
        asked = GemmProblem(
            m,
            n,
            k,
            int(named["--batch"]),
            dtype=DType(named["--dtype"]),
            out_dtype=DType(named["--out-dtype"]),
            layout=Layout(named["--layout"]),
            arch=named["--arch"],
        )
    except (KeyError, ValueError, InvalidProblem):
        return {}
    values = {name: getattr(asked, name) for name in ("m", "n", "k", "batch", "dtype", "layout", "arch")}
    return {**values, "out_dtype": AS_INPUTS if asked.output is asked.dtype else asked.output}


def stage_lines(job: Job) -> str:
    """A job's stages with their times, a line each, the one under way last. One entered twice is one line."""
    times: dict[str, float | None] = {}
    for stage in job.stages:
        spent = times.pop(stage.name, 0.0)
        times[stage.name] = None if stage.ms is None or spent is None else spent + stage.ms
    return "\n".join(f"{name.replace('_', ' ')} — {'…' if ms is None else human_ms(ms)}" for name, ms in times.items())


def moment(seconds: float, zone: tzinfo) -> datetime | None:
    """A time as the reader's clock shows it; none for "never"."""
    try:
        return datetime.fromtimestamp(seconds, zone) if seconds > 0 else None
    except (ValueError, OverflowError, OSError):
        return None  # a clock that was far off, or a record made up


def _when(seconds: float, zone: tzinfo) -> str:
    at = moment(seconds, zone)
    return "at an unknown time" if at is None else f"{at:%Y-%m-%d %H:%M}"


def _dtype(row: Row) -> str:
    return row["dtype"] if row["dtype"] == row["out_dtype"] else f"{row['dtype']} → {row['out_dtype']}"


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole else 1.0


def _bars(rows: Sequence[Row], column: str) -> go.Figure:
    figure = go.Figure()
    figure.add_bar(x=[html.escape(row["arch"]) for row in rows], y=[row[column] for row in rows])
    return figure


def _titled(figure: go.Figure, title: str, x: str, y: str, rows: Sequence[Row]) -> go.Figure:
    categories = list(dict.fromkeys(html.escape(row["arch"]) for row in rows))
    figure.update_layout(
        title=title,
        xaxis_title=x,
        yaxis_title=y,
        colorway=COLOURS,
        margin={"t": 48, "b": 40, "l": 48, "r": 16},
        height=360,
    )
    # In the order of the rows, which is that of the compute capabilities.
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=categories)
    return figure
