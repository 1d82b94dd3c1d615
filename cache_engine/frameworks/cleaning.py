"""A cleaning of other frameworks' caches as one document: the entries that go, those that stay, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from cache_engine.frameworks.deleting import Chosen, Deleted
from cache_engine.frameworks.values import DeletePlan, Place
from cache_engine.model.outcome import Failure


class CacheFinding(msgspec.Struct, kw_only=True):
    """Something that could not be read, or is not as it should be. ``id`` is empty for the directory itself."""

    kind: str
    path: str
    id: str
    fault: str
    detail: str


class CacheDeletion(msgspec.Struct, kw_only=True):
    """An entry of which all, or the IRs, is deleted, or would be, and why; ``size_bytes`` is what that frees."""

    kind: str
    path: str
    id: str
    name: str | None
    arch: str | None
    size_bytes: int
    reason: str


class CacheLeft(msgspec.Struct, kw_only=True):
    """An entry that stays, and why; with ``no_safe_way`` only ``--offline`` deletes it."""

    kind: str
    path: str
    id: str
    reason: str
    no_safe_way: bool


class CacheCleaned(msgspec.Struct, kw_only=True):
    """What is deleted from one directory, or would be; ``replaced_by`` is as of ``CacheDirectory``."""

    kind: str
    path: str
    entries: int
    size_bytes: int
    replaced_by: str


class CachesCleaning(msgspec.Struct, kw_only=True):
    """What ``caches clean`` prints: what it deleted, or would delete, and what of the chosen entries stays.

    ``directories`` are those that were looked at, and those that are not in use here.
    """

    entries: list[CacheDeletion]
    size_bytes: int
    directories: list[CacheCleaned]
    left: list[CacheLeft]
    findings: list[CacheFinding]


def cleaning(
    chosen: Iterable[Chosen],
    plans: Mapping[Place, DeletePlan | Failure],
    done: Mapping[Place, Deleted],
    findings: list[CacheFinding],
    places: Iterable[Place] = (),
) -> CachesCleaning:
    """What came of the plans; where nothing was done yet, what would. ``places``: those of ``directories``."""
    going: dict[Place, Mapping[str, int]] = {}
    staying: dict[Place, Mapping[str, str]] = {}
    for place, plan in plans.items():
        if isinstance(plan, Failure):
            continue
        sizes = {deletion.id: deletion.size_bytes for deletion in plan.deletions}
        going[place], staying[place] = sizes, plan.left
        if place in done:
            going[place], staying[place] = {each: sizes[each] for each in done[place].ids}, done[place].left
    entries, left = [], []
    for each in chosen:
        place, entry, plan = each.place, each.entry, plans[each.place]
        if entry.id in going.get(place, {}):
            row = CacheDeletion(
                **located(place), id=entry.id, name=entry.name, arch=entry.arch,
                size_bytes=going[place][entry.id], reason=each.reason,
            )  # fmt: skip
            entries.append(row)
        else:
            reason = plan.reason if isinstance(plan, Failure) else staying[place].get(entry.id, "it was not reached")
            left.append(CacheLeft(**located(place), id=entry.id, reason=reason, no_safe_way=isinstance(plan, Failure)))
    size = sum(row.size_bytes for row in entries)
    directories = [_cleaned(place, entries) for place in places]
    return CachesCleaning(entries=entries, size_bytes=size, directories=directories, left=left, findings=findings)


def _cleaned(place: Place, entries: Iterable[CacheDeletion]) -> CacheCleaned:
    sizes = [row.size_bytes for row in entries if (row.kind, row.path) == (place.kind, str(place.path))]
    return CacheCleaned(**located(place), entries=len(sizes), size_bytes=sum(sizes), replaced_by=place.replaced_by)


def located(place: Place) -> dict[str, str]:
    """The fields of a document that name a place."""
    return {"kind": place.kind, "path": str(place.path)}
