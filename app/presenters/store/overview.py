"""The Overview's numbers and words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo

from app.presenters.shared import Row, Tile, kernel_address, moment, share, total
from cache_engine.model.events import (
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
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.units import counted, human_age, human_bytes, human_ms, human_rate

LATELY_S = 7 * 86_400
FINE, LOOK, TROUBLE, PLAIN = "Fine", "Look", "Trouble", "None"

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


@dataclass(frozen=True, slots=True)
class Check:
    """One side of a store's health.

    Attributes:
        about: what was looked at.
        state: ``FINE``, ``LOOK`` (worth a look), ``TROUBLE``, or ``PLAIN`` (neither good nor bad).
        words: how it is.
        cause: what somebody else's text says about it; never to be shown as markup.
    """

    about: str
    state: str
    words: str
    cause: str = ""


def health(row: Row, lately: Sequence[Row], events: Iterable[Row], now: float) -> list[Check]:
    """How the store is.

    Args:
        row: the mirror's overview.
        lately: sums of the last week, by time.
        events: what happened last, the latest first.
    """
    return [
        _publishing(row, total(lately, "publish_failures"), events, now),
        _integrity(row, total(lately, "corruptions")),
        _locks(lately),
        _tiers(total(lately, "tier_failures")),
        Check("Mirror", FINE, f"It last took over a change {human_age(now - row['synced_at'])}."),
    ]


def gpu_check(device: DeviceFingerprint | str) -> Check:
    """The local GPU, or why there is none."""
    if isinstance(device, str):
        return Check("GPU", PLAIN, f"None here: {device}. Only timing needs one.")
    return Check("GPU", FINE, f"{device.arch}, {human_bytes(device.memory_bytes)}.", device.name)


def _publishing(row: Row, failures: int, events: Iterable[Row], now: float) -> Check:
    last = row["last_publish_at"]
    published = f"Last kept a kernel {human_age(now - last)}." if last else "No kernel was kept yet."
    if not failures:
        return Check("Publishing", FINE, published)
    cause = next((event["detail"] for event in events if event["kind"] == UNPUBLISHED), "")
    kept = f"In the last week {counted(failures, 'kernel')} could not be kept after compiling. {published}"
    return Check("Publishing", TROUBLE, kept, cause)


def _integrity(row: Row, found: int) -> Check:
    words = []
    if row["unreadable"]:
        words.append(f"{counted(row['unreadable'], 'item')} cannot be read now; the integrity check names each.")
    if found:
        damaged = counted(found, "damaged entry", "damaged entries")
        words.append(f"In the last week {damaged} were found and set aside in the store's quarantine folder.")
    if words:
        return Check("Integrity", TROUBLE, " ".join(words))
    return Check("Integrity", FINE, "No damage met in the last week, and every record can be read.")


def _locks(lately: Sequence[Row]) -> Check:
    waits, in_vain = total(lately, "lock_waits"), total(lately, "lock_timeouts")
    if not waits:
        return Check("Locks", FINE, "No long wait for another process in the last week.")
    words = f"{counted(waits, 'long wait')} in the last week, {human_ms(total(lately, 'lock_wait_us') / 1e3)} together."
    if not in_vain:
        return Check("Locks", LOOK, words)
    return Check("Locks", TROUBLE, f"{words} {in_vain:,} in vain: those kernels were compiled and not kept.")


def _tiers(failures: int) -> Check:
    if not failures:
        return Check("Tiers", FINE, "Packs and the disk could always be read in the last week.")
    passed_over = f"A pack or the disk failed and was passed over {counted(failures, 'time')} in the last week."
    return Check("Tiers", TROUBLE, passed_over)


def overview_tiles(row: Row, max_entries: int, max_bytes: int) -> list[Tile]:
    """The numbers below the health."""
    hits = row["memory_hits"] + row["pack_hits"] + row["disk_hits"]
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
            f"{row['memory_hits']:,} from the memory of the process that asked; {row['misses']:,} had to compile.",
        ),
        Tile(
            "Compiling saved",
            human_ms(row["saved_us"] / 1e3),
            "What the kernels served from disk and packs took to compile. Hits in memory are not counted: without a "
            "cache, too, a process would keep what it has compiled.",
        ),
        Tile("Compiling spent", human_ms(row["compile_us"] / 1e3), f"{counted(row['compiles'], 'compile')}."),
    ]


def event_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """What happened last."""
    return [
        {
            "When": moment(row["happened_at"], zone),
            "What": EVENTS.get(row["kind"], row["kind"]),
            "Kernel": row["name"] or row["key"][:12],
            "Look into": kernel_address(row["key"]) if row["name"] else "",
            "Details": row["detail"] or (f"in {human_ms(row['compile_ms'])}" if row["compile_ms"] else ""),
        }
        for row in rows
    ]
