"""The outcome of a cleaning of other frameworks' caches, or of its plan: what is deleted, and what stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cache_engine.frameworks.deletion import Chosen, Deleted, Plans
from cache_engine.frameworks.values import Place
from cache_engine.model.outcome import Failure


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
