"""The Overview's numbers and words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import tzinfo

from app.presenters.shared import Row, Tile, moment, share
from cache_engine.stats import (
    CLEAN,
    CORRUPT,
    DISCARD,
    EVICT,
    IMPORT,
    PUBLISH,
    REPAIR,
    RESTORE,
    SET_ASIDE,
    UNPUBLISHED,
    hit_rate,
)
from cache_engine.units import counted, human_bytes, human_ms, human_rate

_LATELY_S = 7 * 86_400.0

# What happened, in words.
EVENTS = {
    PUBLISH: "compiled",
    UNPUBLISHED: "compiled, not kept",
    CORRUPT: "found damaged",
    EVICT: "evicted",
    CLEAN: "cleaned",
    REPAIR: "repaired",
    IMPORT: "imported",
    SET_ASIDE: "set aside",
    RESTORE: "put back from quarantine",
    DISCARD: "deleted from quarantine",
}


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
            share(row["entries"], max_entries),
            f"of {max_entries:,}",
        ),
        Tile(
            "On disk",
            human_bytes(row["stored_bytes"]),
            "Compiled code with PTX, source and log, compressed, and its records.",
            share(row["stored_bytes"], max_bytes),
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
