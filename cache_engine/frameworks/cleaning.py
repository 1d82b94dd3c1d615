"""The plan of a cleaning of other frameworks' caches: entries to delete, and how; shown before anything is done."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cache_engine.frameworks.base import Source, Thinning
from cache_engine.frameworks.deleting import Deleted, plan_offline
from cache_engine.frameworks.survey import EntryFilter
from cache_engine.frameworks.values import DeletePlan, Entry, PartKind, Place
from cache_engine.model.outcome import Failure

_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class CleaningRules:
    """Rules of deletion: of the entries that the filter takes, those to which any other rule applies; with none, all.

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
    """The entries to delete, the longest unused first. ``now``: seconds since 1970, UTC."""
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


Plans = dict[Place, DeletePlan | Failure]
"""Of each place how its entries, or their IRs, are deleted, or why they cannot be."""


def plan_cleaning(
    sources: Mapping[str, Source], chosen: Sequence[Chosen], *, irs_only: bool = False, offline: bool = False,
    known: Sequence[Place] = (),
) -> Plans:  # fmt: skip
    """Looks at the entries as they are now, and changes nothing.

    Args:
        sources: by kind.
        irs_only: their IRs alone.
        offline: no process uses the caches, so that each entry's files are deleted at once.
        known: all places; offline, of one that is in another only its own files go.
    """
    plans: Plans = {}
    by_place: dict[Place, list[Entry]] = {}
    for each in chosen:
        by_place.setdefault(each.place, []).append(each.entry)
    for place, entries in by_place.items():
        source = sources[place.kind]
        try:
            status = os.stat(place.path)
            if offline:
                plans[place] = plan_offline(entries, _below(place, known))
            elif not irs_only:
                plans[place] = source.plan_delete(place, entries)
            elif isinstance(source, Thinning):
                plans[place] = source.plan_thinning(place, entries)
            else:
                plans[place] = Failure(f"whether {source.title} uses an entry without its IRs is not known")
        except OSError as error:  # the directory has vanished
            plans[place] = Failure(error.strerror or str(error))
            continue
        planned = plans[place]
        if isinstance(planned, DeletePlan):
            plans[place] = replace(planned, directory=(status.st_dev, status.st_ino))
    return plans


def _below(place: Place, known: Sequence[Place]) -> list[str]:
    """The paths below a place of the others that are in it."""
    top = os.path.realpath(place.path)
    paths = (os.path.relpath(os.path.realpath(other.path), top) for other in known)
    return [path for path in paths if path.partition("/")[0] not in (os.curdir, os.pardir)]


def with_irs(found: Iterable[tuple[Place, Entry]]) -> list[tuple[Place, Entry]]:
    """The entries that have IRs."""
    return [(place, entry) for place, entry in found if entry.part(PartKind.IR) is not None]


@dataclass(frozen=True, slots=True)
class CleanedEntry:
    """An entry of which all, or the IRs, is deleted, or would be, and why; ``size_bytes`` is what that frees."""

    kind: str
    path: str
    id: str
    name: str | None
    arch: str | None
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class LeftEntry:
    """An entry that stays, and why; with ``no_safe_way`` it is deleted only where no process uses the cache."""

    kind: str
    path: str
    id: str
    reason: str
    no_safe_way: bool


@dataclass(frozen=True, slots=True)
class CleanedPlace:
    """The sum of what is deleted from one place, or would be; ``replaced_by`` is as of ``Place``."""

    kind: str
    path: str
    entries: int
    size_bytes: int
    replaced_by: str


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The outcome of a cleaning, or of its plan: what is deleted, and what of the chosen entries stays."""

    entries: list[CleanedEntry]
    directories: list[CleanedPlace]
    left: list[LeftEntry]

    @property
    def size_bytes(self) -> int:
        """The size of what is deleted."""
        return sum(one.size_bytes for one in self.entries)


def cleaning(
    chosen: Iterable[Chosen], plans: Plans, done: Mapping[Place, Deleted], places: Iterable[Place] = ()
) -> Cleaning:
    """The outcome of the plans; where nothing was done yet, what it would be. ``places``: those of ``directories``."""
    going: dict[Place, Mapping[str, int]] = {}
    staying: dict[Place, Mapping[str, str]] = {}
    for place, plan in plans.items():
        if isinstance(plan, Failure):
            continue
        sizes = {deletion.id: deletion.size_bytes for deletion in plan.deletions}
        going[place], staying[place] = sizes, plan.left
        if place in done:
            going[place], staying[place] = {each: sizes[each] for each in done[place].ids}, done[place].left
    entries, left, freed = [], [], dict[Place, list[int]]()
    for each in chosen:
        place, entry, plan = each.place, each.entry, plans[each.place]
        at = (place.kind, str(place.path), entry.id)
        if entry.id in going.get(place, {}):
            size = going[place][entry.id]
            entries.append(CleanedEntry(*at, entry.name, entry.arch, size, each.reason))
            freed.setdefault(place, []).append(size)
        else:
            is_unsafe = isinstance(plan, Failure)
            reason = plan.reason if isinstance(plan, Failure) else staying[place].get(entry.id, "it was not reached")
            left.append(LeftEntry(*at, reason, is_unsafe))
    directories = []
    for place in places:
        sizes_of = freed.get(place, [])
        at_place = (place.kind, str(place.path), len(sizes_of), sum(sizes_of), place.replaced_by)
        directories.append(CleanedPlace(*at_place))
    return Cleaning(entries, directories, left)
