"""The Overview's numbers and words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo

from app.presenters.shared import Row, Tile, kernel_address, moment, share, total
from cache_engine.engine.serving import LONG_WAIT_S
from cache_engine.model.events import (
    CLEAN,
    CLEAN_OTHER,
    CORRUPT,
    DISCARD,
    EVICT,
    IMPORT,
    PUBLISH,
    REPAIR,
    RESTORE,
    SET_ASIDE,
    TIERS,
    UNPUBLISHED,
    hit_rate,
    tier_hit_rates,
)
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.queue.tickets import Priority, QueueState
from cache_engine.store.journal.spans import distributions
from cache_engine.units import counted, human_age, human_bytes, human_ms, human_rate

LATELY_S = 7 * 86_400
FINE, LOOK, TROUBLE, PLAIN = "Fine", "Look", "Trouble", "None"

# Kinds of events, in words.
EVENTS = {
    PUBLISH: "compiled",
    UNPUBLISHED: "compiled, not saved",
    CORRUPT: "corrupt",
    EVICT: "evicted",
    CLEAN: "cleanup run",
    REPAIR: "repair run",
    IMPORT: "imported",
    SET_ASIDE: "quarantined",
    RESTORE: "restored from quarantine",
    DISCARD: "deleted from quarantine",
    CLEAN_OTHER: "deleted from another framework's cache",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One side of a store's health.

    Attributes:
        about: what was checked.
        state: ``FINE``, ``LOOK`` (a warning), ``TROUBLE``, or ``PLAIN`` (neither good nor bad).
        words: its state, in a sentence.
        cause: text of an error or a device; never markup.
    """

    about: str
    state: str
    words: str
    cause: str = ""


def health(row: Row, lately: Sequence[Row], events: Iterable[Row], now: float) -> list[Check]:
    """The health of the store.

    Args:
        row: the mirror's overview.
        lately: sums of the last 7 days, by time.
        events: the last events, newest first.
    """
    return [
        _publishing(row, total(lately, "publish_failures"), events, now),
        _integrity(row, total(lately, "corruptions")),
        _locks(lately),
        _tiers(total(lately, "tier_failures")),
        Check("Search index", FINE, f"Updated {human_age(now - row['synced_at'])}."),
    ]


def gpu_check(device: DeviceFingerprint | str) -> Check:
    """The local GPU, or why there is none."""
    if isinstance(device, str):
        return Check("GPU", PLAIN, f"No GPU found ({device}). Only running and timing kernels needs one.")
    return Check("GPU", FINE, f"{device.arch}, {human_bytes(device.memory_bytes)}.", device.name)


def queue_check(queue: QueueState) -> Check:
    """How many kernels are being compiled, and how many wait."""
    words = f"{len(queue.compiling):,} of {counted(queue.slots, 'slot')} in use"
    waiting = [*queue.queued, *queue.waiting]
    if not waiting:
        return Check("Compile queue", FINE, f"{words}; none waits.")
    callers = sum(turn.priority is Priority.CALLER for turn in waiting)
    longest = human_ms(1e3 * max(turn.seconds for turn in waiting))
    words = f"{words}; {len(waiting):,} waiting, {counted(callers, 'caller')} among them, the longest for {longest}."
    return Check("Compile queue", LOOK if callers else FINE, words)


def queue_table(queue: QueueState) -> list[Row]:
    """Who compiles and who waits now: compiles first, then those that wait, the next first."""
    return [
        {
            "State": turn.state,
            "Kernel": turn.key[:12],
            "For": turn.priority.name.lower(),
            "Seconds": turn.seconds,
            "Process": turn.pid,
        }
        for turn in (*queue.compiling, *queue.queued, *queue.waiting)
    ]


def _publishing(row: Row, failures: int, events: Iterable[Row], now: float) -> Check:
    last = row["last_publish_at"]
    published = f"Last kernel stored {human_age(now - last)}." if last else "Nothing stored yet."
    if not failures:
        return Check("Writes", FINE, published)
    cause = next((event["detail"] for event in events if event["kind"] == UNPUBLISHED), "")
    failed = f"{counted(failures, 'compiled kernel')} could not be saved in the last 7 days. {published}"
    return Check("Writes", TROUBLE, failed, cause)


def _integrity(row: Row, found: int) -> Check:
    words = []
    if row["unreadable"]:
        words.append(f"{counted(row['unreadable'], 'unreadable item')}; the integrity check names each.")
    if found:
        corrupt = counted(found, "corrupt entry", "corrupt entries")
        words.append(f"{corrupt} quarantined in the last 7 days.")
    if words:
        return Check("Integrity", TROUBLE, " ".join(words))
    return Check("Integrity", FINE, "No corruption found in the last 7 days; all records are readable.")


def _locks(lately: Sequence[Row]) -> Check:
    waits, timeouts = total(lately, "lock_waits"), total(lately, "lock_timeouts")
    if not waits:
        return Check("Locks", FINE, f"No lock waits over {LONG_WAIT_S:.0f} s in the last 7 days.")
    together = human_ms(total(lately, "lock_wait_us") / 1e3)
    words = f"{counted(waits, 'lock wait')} over {LONG_WAIT_S:.0f} s in the last 7 days, {together} in total."
    if not timeouts:
        return Check("Locks", LOOK, words)
    return Check("Locks", TROUBLE, f"{words} {timeouts:,} timed out: those kernels were compiled but not stored.")


def _tiers(failures: int) -> Check:
    if not failures:
        return Check("Pack and disk reads", FINE, "No pack or disk read failures in the last 7 days.")
    failed = f"{counted(failures, 'failed read')} of a pack or the disk in the last 7 days; the next tier took over."
    return Check("Pack and disk reads", TROUBLE, failed)


def overview_tiles(row: Row, max_entries: int, max_bytes: int) -> list[Tile]:
    """The numbers below the health checks."""
    hits = row["memory_hits"] + row["pack_hits"] + row["disk_hits"]
    return [
        Tile(
            "Kernels",
            f"{row['entries']:,}",
            "Kernels in the store, and the limit that cleanup enforces.",
            share(row["entries"], max_entries),
            f"of {max_entries:,}",
        ),
        Tile(
            "On disk",
            human_bytes(row["stored_bytes"]),
            "Cubins, PTX, sources, logs and records, compressed.",
            share(row["stored_bytes"], max_bytes),
            f"of {human_bytes(max_bytes)}",
        ),
        Tile(
            "Hit rate",
            human_rate(hit_rate(hits, row["misses"])),
            f"All tiers together: {counted(hits, 'hit')}, {counted(row['misses'], 'miss', 'misses')}.",
        ),
        Tile(
            "Compile time saved",
            human_ms(row["saved_us"] / 1e3),
            "Sum of the original compile times of all disk and pack hits. In-process hits are excluded: the process "
            "would have reused those kernels anyway.",
        ),
        Tile("Compile time spent", human_ms(row["compile_us"] / 1e3), f"{counted(row['compiles'], 'compile')}."),
    ]


def tier_table(row: Row, packs: bool) -> list[Row]:
    """Each tier's hits, over the lookups that no tier before it served.

    Args:
        packs: whether packs are mounted; without them, the table has the pack tier only if it ever hit.
    """
    hits = {tier: row[f"{tier}_hits"] for tier in TIERS}
    left = sum(hits.values()) + row["misses"]
    rows = []
    for tier, rate in tier_hit_rates(hits, row["misses"]).items():
        if tier == "pack" and not packs and not hits[tier]:
            continue
        rows.append({"Tier": tier.capitalize(), "Lookups": left, "Hits": hits[tier], "Hit rate": human_rate(rate)})
        left -= hits[tier]
    return rows


def event_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """The last events."""
    return [
        {
            "When": moment(row["happened_at"], zone),
            "Event": EVENTS.get(row["kind"], row["kind"]),
            "Kernel": row["name"] or row["key"][:12],
            "Open": kernel_address(row["key"]) if row["name"] else "",
            "Details": row["detail"] or (f"in {human_ms(row['compile_ms'])}" if row["compile_ms"] else ""),
        }
        for row in rows
    ]


LENGTHS = {
    "memory": "Lookup in memory",
    "pack": "Lookup in packs",
    "disk": "Lookup on disk",
    "lock": "Wait for the lock of a key",
    "queue": "Wait for a compile slot",
    "compile": "Compile",
    "module": "Load on a GPU",
}


def rate_words(row: Row, day: Sequence[Row]) -> str:
    """How often kernels were compiled in the last 24 hours, whose sums by time these are, and ahead of need."""
    compiles, ahead, demoted = (total(day, name) for name in ("compiles", "promotions", "demotions"))
    return (
        f"Last 24 hours: {counted(compiles, 'compile')} ({compiles / 24:.3g} an hour), "
        f"{counted(ahead, 'promotion')}, {counted(demoted, 'demotion')}. "
        f"Over all time: {counted(row['promotions'], 'promotion')}, {counted(row['demotions'], 'demotion')}."
    )


def length_table(row: Row) -> list[Row]:
    """How long lookups took by tier, and the work of misses: quantiles in milliseconds, at most 9 % off."""
    return [
        {
            "What": LENGTHS[span],
            "Count": one.count,
            "Half within": one.quantile_ms(0.5),
            "90 %": one.quantile_ms(0.9),
            "99 %": one.quantile_ms(0.99),
        }
        for span, one in distributions(row["spans"] or {}).items()
    ]
