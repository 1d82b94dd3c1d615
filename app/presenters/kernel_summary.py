"""A kernel at a glance, in four tables: its resources, its speed, the demand for it, and its life in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo

from app.presenters.shared import Row, when
from cache_engine.cache.demand import KernelOf
from cache_engine.errors import GemmCacheError
from cache_engine.insight.inspection import Inspection
from cache_engine.insight.passes import Priced
from cache_engine.model.artifact import Record
from cache_engine.model.events import TIERS
from cache_engine.model.shapes import Shape
from cache_engine.store.codec import stored_bytes
from cache_engine.units import human_age, human_bytes, human_ms, human_rate, human_us
from cache_engine.usage.demand import Ledger, rate

_MOST_GPUS, _MOST_SIZES, _MOST_ASKED = 3, 3, 32


def resource_words(inspection: Inspection, known: Mapping[str, str]) -> dict[str, str]:
    """The kernel's registers, memory and occupancy, by label; ``known`` has its properties as ``described`` does."""
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
