"""The document of ``caches clean``: what is deleted from the caches of other frameworks, or would be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from cache_engine.cli.documents.caches import CacheFinding
from cache_engine.model.outcome import Failure

if TYPE_CHECKING:
    from cache_engine.foreign.choosing import Chosen
    from cache_engine.foreign.deleting import Deleted
    from cache_engine.foreign.values import DeletePlan, Place


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


class CachePlace(msgspec.Struct, kw_only=True):
    """A directory that is not in use here; ``replaced_by`` is the variable that names another."""

    kind: str
    path: str
    replaced_by: str


class CacheCleaned(msgspec.Struct, kw_only=True):
    """The entries of one directory that are deleted, or would be, and the bytes that frees."""

    kind: str
    path: str
    entries: int
    size_bytes: int


class CachesCleaning(msgspec.Struct, kw_only=True):
    """What ``caches clean`` prints: what it deleted, or would delete, and what of the chosen entries stays.

    Attributes:
        directories: the sums of ``entries``.
        not_in_use: directories that were left out.
    """

    entries: list[CacheDeletion]
    size_bytes: int
    directories: list[CacheCleaned]
    left: list[CacheLeft]
    findings: list[CacheFinding]
    not_in_use: list[CachePlace]


def cleaning(
    chosen: Iterable[Chosen],
    plans: Mapping[Place, DeletePlan | Failure],
    done: Mapping[Place, Deleted],
    findings: list[CacheFinding],
    places: Iterable[Place] = (),
) -> CachesCleaning:
    """What came of the plans; where nothing was done yet, what would. ``places``: all that there are."""
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
                kind=place.kind, path=str(place.path), id=entry.id, name=entry.name, arch=entry.arch,
                size_bytes=going[place][entry.id], reason=each.reason,
            )  # fmt: skip
            entries.append(row)
        else:
            reason = plan.reason if isinstance(plan, Failure) else staying[place].get(entry.id, "it was not reached")
            left.append(
                CacheLeft(
                    kind=place.kind, path=str(place.path), id=entry.id, reason=reason,
                    no_safe_way=isinstance(plan, Failure),
                )
            )  # fmt: skip
    return CachesCleaning(
        entries=entries,
        size_bytes=sum(row.size_bytes for row in entries),
        directories=_sums(entries),
        left=left,
        findings=findings,
        not_in_use=[
            CachePlace(kind=place.kind, path=str(place.path), replaced_by=place.replaced_by)
            for place in places
            if place.replaced_by
        ],
    )


def _sums(entries: Iterable[CacheDeletion]) -> list[CacheCleaned]:
    found: dict[tuple[str, str], CacheCleaned] = {}
    for row in entries:
        new = CacheCleaned(kind=row.kind, path=row.path, entries=0, size_bytes=0)
        total = found.setdefault((row.kind, row.path), new)
        total.entries += 1
        total.size_bytes += row.size_bytes
    return list(found.values())
