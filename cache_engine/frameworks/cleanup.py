"""The result of cleaning other frameworks' caches, or of a dry run: entries deleted, and entries that stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cache_engine.frameworks.deletion import Chosen, Deleted, Plans
from cache_engine.frameworks.values import Place
from cache_engine.model.outcome import Failure


@dataclass(frozen=True, slots=True)
class CleanedEntry:
    """A deleted entry, or one whose IRs are deleted, and the reason. ``size_bytes`` are the bytes freed.

    In a dry run: an entry that would be deleted.
    """

    kind: str
    path: str
    id: str
    name: str | None
    arch: str | None
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class LeftEntry:
    """A chosen entry that stays, and why. With ``no_safe_way``, delete it only while no process uses the cache."""

    kind: str
    path: str
    id: str
    reason: str
    no_safe_way: bool


@dataclass(frozen=True, slots=True)
class CleanedPlace:
    """The number of deleted entries in one cache, and their bytes. ``replaced_by`` is as in ``Place``."""

    kind: str
    path: str
    entries: int
    size_bytes: int
    replaced_by: str


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The result of a cleaning, or of a dry run: deleted entries, and chosen entries that stay."""

    entries: list[CleanedEntry]
    directories: list[CleanedPlace]
    left: list[LeftEntry]

    @property
    def size_bytes(self) -> int:
        """The bytes of the deleted entries or, in a dry run, of those that would be deleted."""
        return sum(one.size_bytes for one in self.entries)


def cleaning(
    chosen: Iterable[Chosen], plans: Plans, done: Mapping[Place, Deleted], places: Iterable[Place] = ()
) -> Cleaning:
    """The result of carrying out plans; for a plan that is not in ``done``, as in a dry run, what it would delete.

    ``places`` are the caches to list under ``directories``, also those from which nothing is deleted.
    """
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
