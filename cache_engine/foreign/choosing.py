"""Which entries of other frameworks' caches a cleaning is to delete. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cache_engine.foreign.survey import EntryFilter
from cache_engine.foreign.values import Entry, Place

_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class CleaningRules:
    """What is deleted: of the entries that the filter takes, those to which any other rule applies; with none, all.

    Attributes:
        unused_days: entries neither made nor, as far as the file system notes that, used for so long.
        versions: entries that these versions of their framework made.
        max_bytes: entries until all that are taken have this size, the longest unused first.
    """

    takes: EntryFilter = EntryFilter()
    unused_days: float | None = None
    versions: tuple[str, ...] = ()
    max_bytes: int | None = None

    @property
    def is_everything(self) -> bool:
        """Whether no rule says which entries."""
        return self == CleaningRules()


@dataclass(frozen=True, slots=True)
class Chosen:
    """An entry to delete, and why."""

    place: Place
    entry: Entry
    reason: str


def choose(found: Iterable[tuple[Place, Entry]], rules: CleaningRules, now: float) -> list[Chosen]:
    """What to delete, the longest unused first. ``now``: seconds since 1970, UTC."""
    taken = sorted(
        ((place, entry) for place, entry in found if rules.takes.takes(place, entry)), key=lambda row: _used_at(row[1])
    )
    excess = None
    if rules.max_bytes is not None:
        excess = sum(entry.size_bytes for _, entry in taken) - rules.max_bytes
    has_rule = rules.unused_days is not None or rules.versions or excess is not None
    chosen = []
    for place, entry in taken:
        reason = _reason(entry, rules, now) or ("" if has_rule else "selected")
        if not reason and excess is not None and excess > 0:
            reason = "over the size"
        if reason:
            chosen.append(Chosen(place, entry, reason))
            excess = None if excess is None else excess - entry.size_bytes
    return chosen


def _reason(entry: Entry, rules: CleaningRules, now: float) -> str:
    used_at = _used_at(entry)
    if rules.unused_days is not None and used_at and used_at < now - rules.unused_days * _DAY_S:
        return f"unused for {(now - used_at) / _DAY_S:.0f} days"
    if entry.version is not None and entry.version in rules.versions:
        return f"version {entry.version}"
    return ""


def _used_at(entry: Entry) -> float:
    return max(entry.last_used_at or 0.0, entry.created_at or 0.0)
