"""One kernel: at a glance, its occupancy, its instructions and its history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import tzinfo
from operator import itemgetter

from app.presenters.columns import Column
from app.presenters.kernel_list import COLUMNS
from app.presenters.overview import event_details, event_words
from app.presenters.shared import Row, kernel_address, when
from cache_engine.cache.demand import KernelOf
from cache_engine.compilers.disassembly import OTHER, InstructionMix
from cache_engine.errors import GemmCacheError
from cache_engine.insight.inspection import Inspection, block_threads
from cache_engine.insight.passes import Priced
from cache_engine.model.architecture import Architecture, Occupancy, occupancy, runs_on
from cache_engine.model.artifact import Record
from cache_engine.model.events import PUBLISH, TIERS
from cache_engine.model.shapes import Shape
from cache_engine.store.codec import stored_bytes
from cache_engine.units import counted, human_age, human_bytes, human_ms, human_rate, human_us
from cache_engine.usage.demand import Ledger, rate

MOST_LINES = 5_000
"""The most lines of a kernel's text that the page shows; the download has all."""

_MOST_OTHERS = 6


OCCUPANCY = (
    Column("Target", lambda one: one[0].name),
    Column("Example chip", lambda one: one[0].example),
    Column("Occupancy", lambda one: human_rate(one[1].share)),
    Column("Warps per SM", lambda one: f"{one[1].warps_per_sm} of {one[1].most_warps_per_sm}"),
    Column("Blocks per SM", lambda one: one[1].blocks_per_sm),
    Column("Limited by", lambda one: " and ".join(one[1].bound_by)),
)


def occupancy_by_chip(record: Record) -> list[tuple[Architecture, Occupancy]]:
    """The kernel's occupancy on each architecture that runs its CUBIN."""
    r, threads = record.resources, block_threads(record)
    return [
        (chip, occupancy(chip, threads=threads, registers=r.registers, shared_bytes=r.shared_bytes))
        for chip in runs_on(record.arch)
    ]


def first_lines(text: str) -> tuple[str, str]:
    """The first lines of a text, as many as the page shows; and the number of all lines, in words."""
    lines = text.splitlines()
    only = f"; showing the first {MOST_LINES:,}" if len(lines) > MOST_LINES else ""
    return "\n".join(lines[:MOST_LINES]), f"{counted(len(lines), 'line')}{only}"


EVENTS = (Column("When", "happened_at", "age"), Column("Event", event_words), Column("Details", event_details))


def history(record: Record, events: Iterable[Row], timings: Iterable[Row]) -> list[Row]:
    """The known events and timings of all kernels that were stored under a key, newest first.

    The journal also has the compile of the kernel that is stored now, but the record says more: the two are one row.
    """
    made = f"in {human_ms(record.compile_ms)}, by {record.created_by}, with {record.compiler} {record.compiler_version}"
    rows = [
        {"happened_at": record.created_at, "kind": PUBLISH, "detail": made},
        *(event for event in events if event["kind"] != PUBLISH or event["happened_at"] < record.created_at),
        *(
            {
                "happened_at": timing["measured_at"],
                "kind": "timed" if timing["verified"] else "WRONG RESULT",
                "detail": f"on {timing['device']}",
            }
            for timing in timings
        ),
    ]
    return sorted(rows, key=itemgetter("happened_at"), reverse=True)


def instruction_rows(mix: InstructionMix) -> list[tuple[str, int, str]]:
    """Rows of name, count and kind: the classes of instructions, the most frequent others, and the rest as one row."""
    named = {name: count for name, count in mix.classes.items() if name != OTHER}
    most = dict(list(mix.others.items())[:_MOST_OTHERS])
    rest = mix.total - sum(named.values()) - sum(most.values())
    others = {**most, **({OTHER: rest} if rest else {})}
    return [*((*item, "of GEMM") for item in named.items()), *((*item, "") for item in others.items())]


def version_columns(key: str, instructions: Mapping[str, int]) -> list[Column]:
    """The columns of the kernels for one problem, with what a toolchain or a config changes.

    Args:
        key: the key of the kernel that the page shows.
        instructions: the number of static instructions of each kernel that was disassembled, by key.
    """
    return [
        Column("Kernel", lambda row: kernel_address(row["key"]), "link", lambda row: row["key"][:12]),
        Column("Shown", lambda row: "yes" if row["key"] == key else ""),
        Column("Toolchain", lambda row: " ".join((row["compiler"], row["toolchain"].partition(" ")[2][:24]))),
        *([Column("Instructions", lambda row: instructions.get(row["key"]), "count")] if instructions else []),
        *(column for column in COLUMNS if column.name in _OF_VERSIONS),
    ]


_OF_VERSIONS = {
    "Compiled", "Family", "Config", "m × n × k", "Registers", "Spills", "Cubin size", "Compile time", "Time", "Hits"
}  # fmt: skip


INSTRUCTIONS = (
    Column("Instruction", itemgetter(0)),
    Column("Count", itemgetter(1), "count", bar=True),
    Column("Kind", itemgetter(2)),
)
"""The columns of the table of instructions from ``instruction_rows``."""


_MOST_GPUS, _MOST_SIZES, _MOST_ASKED = 3, 3, 32


def resource_words(inspection: Inspection, known: Mapping[str, str]) -> dict[str, str]:
    """The kernel's registers, memory and occupancy, by label; ``known`` is the result of ``described``."""
    resident, mix = inspection.occupancy, inspection.instructions
    return {
        **{label: known[label] for label in ("Registers", "Spills", "Stack", "Shared memory", "Cubin size")},
        "Occupancy": "–" if resident is None else human_rate(resident.share),
        "Limited by": "–" if resident is None else " and ".join(resident.bound_by),
        "Instructions": "–" if mix is None else f"{mix.total:,} static",
        "Fusion saves": inspection.fusion_in_words or "–",
    }


def speed_words(timings: Sequence[Row], points: Sequence[Priced]) -> dict[str, str]:
    """The kernel's latest measured time, and the model's predicted times, by label; ``timings`` are newest first."""
    words = {}
    if timings:
        last = timings[0]
        speed = f"{human_us(last['median_us'])}, {last['tflops']:,.1f} TFLOP/s"
        words[f"Measured, m = {last['m']:,}"] = speed if last["verified"] else "WRONG RESULT"
        words["On"] = last["device"]
        words["Of cuBLAS"] = human_rate(last["speed_ratio"])
    else:
        words["Measured"] = "not timed yet"
    for point in points[:_MOST_GPUS]:
        name = f"cuBLAS-like kernel on {point.chip.name}"
        words[name] = f"{human_us(point.cost.latency_us)} predicted, {point.utilization:.0%} of peak"
    return words


def demand_words(record: Record, ledger: Ledger, kernel_of: KernelOf) -> dict[str, str]:
    """The present demand for the kernel's shape, by label. A shape is a problem without its m.

    Args:
        kernel_of: a function that finds the kernel for a shape and an m; called only for the most frequent m.
    """
    try:
        shape = Shape.of(record.problem.on(record.arch))
    except GemmCacheError as error:
        return {"Requests": f"none can be for this problem: {error}"}
    sketch = ledger.sketches.get(shape)
    if sketch is None or not sketch.total:
        return {"Requests": "none lately"}
    asked = sorted(sketch.counters, key=lambda m: -sketch.counters[m].certain)
    weights = {m: sketch.counters[m].certain for m in asked[:_MOST_ASKED]}
    ours = sum(weight for m, weight in weights.items() if kernel_of(shape, m)[1] == record.key)
    per_hour = 3600 * rate(ledger, sketch.total, max(ledger.at, ledger.since + 3600))
    return {
        "Shape asked for": f"{per_hour:,.0f} an hour",
        "Of all requests": human_rate(sketch.total / ledger.total),
        **{f"With m = {m:,}": human_rate(weights[m] / sketch.total) for m in asked[:_MOST_SIZES]},
        "Served by this kernel": human_rate(ours / sum(weights.values()) if weights else None),
    }


def life_words(record: Record, row: Row | None, *, is_pinned: bool, zone: tzinfo, now: float) -> dict[str, str]:
    """The kernel's compile time, size, hits and saved compile time, by label.

    Args:
        row: the kernel's row in the index.
        now: the present time in seconds since 1970.
    """
    words = {
        "Compiled": when(record.created_at, zone),
        "Compile time": human_ms(record.compile_ms),
        "Size on disk": human_bytes(stored_bytes(record)),
    }
    if row is not None:
        tiers = ", ".join(f"{tier} {row[f'{tier}_hits']:,}" for tier in TIERS if row[f"{tier}_hits"])
        saved = (row["hits"] - row["memory_hits"]) * record.compile_ms  # without this program's own memory
        words |= {
            "Hits": f"{row['hits']:,}",
            "By tier": tiers or "–",
            "Compile time saved": human_ms(saved) if saved else "–",
            "Last used": human_age(now - row["last_used_at"]),
        }
    return {**words, "Pinned": "yes: it is not evicted" if is_pinned else "no"}
