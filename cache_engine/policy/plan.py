"""Which entries to evict, and why. Pure: ``housekeeping`` gathers the facts and applies the plan."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

EXPIRED, TOO_MANY, TOO_LARGE, EVERYTHING = "expired", "too many entries", "store too large", "everything"

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """What eviction looks at. Times are seconds since 1970; an entry never used counts as used when published."""

    key: str
    stored_bytes: int
    last_used_at: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What a store may hold; ``None`` sets no limit.

    Attributes:
        expire_days: evict what was not used for so long.
        max_entries, max_bytes: when exceeded, evict the least recently used
        down_to: to this share of the limit.
        everything: evict all there is.
    """

    expire_days: float | None = None
    max_entries: int | None = None
    max_bytes: int | None = None
    down_to: float = 1.0
    everything: bool = False


@dataclass(frozen=True, slots=True)
class Victim:
    """An entry to be evicted."""

    key: str
    stored_bytes: int
    last_used_at: float
    reason: str


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """What would go, the least recently used first, and what would stay."""

    victims: tuple[Victim, ...]
    kept_entries: int
    kept_bytes: int

    @property
    def freed_bytes(self) -> int:
        """Bytes that would be freed."""
        return sum(victim.stored_bytes for victim in self.victims)


def plan(entries: Iterable[EntryFacts], limits: Limits, now: float) -> EvictionPlan:
    """The plan that brings ``entries`` within ``limits``.

    Clocks jump. A last use in the future counts as now: taking it for old could evict a whole store after a clock was
    set back.
    """
    by_age = sorted(entries, key=lambda entry: (min(entry.last_used_at, now), entry.key))
    victims: list[Victim] = []
    kept: list[EntryFacts] = []
    for entry in by_age:
        age_s = now - min(entry.last_used_at, now)
        if limits.everything:
            victims.append(_victim(entry, EVERYTHING))
        elif limits.expire_days is not None and age_s > limits.expire_days * DAY_S:
            victims.append(_victim(entry, EXPIRED))
        else:
            kept.append(entry)

    evicted = 0
    if limits.max_entries is not None and len(kept) > limits.max_entries:
        evicted = len(kept) - math.ceil(limits.max_entries * limits.down_to)
        victims += [_victim(entry, TOO_MANY) for entry in kept[:evicted]]
    kept_bytes = sum(entry.stored_bytes for entry in kept[evicted:])
    if limits.max_bytes is not None and kept_bytes > limits.max_bytes:
        while kept_bytes > limits.max_bytes * limits.down_to:
            victims.append(_victim(kept[evicted], TOO_LARGE))
            kept_bytes -= kept[evicted].stored_bytes
            evicted += 1
    return EvictionPlan(tuple(victims), len(kept) - evicted, kept_bytes)


def _victim(entry: EntryFacts, reason: str) -> Victim:
    return Victim(entry.key, entry.stored_bytes, entry.last_used_at, reason)
