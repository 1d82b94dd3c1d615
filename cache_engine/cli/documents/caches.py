"""The documents of ``caches``: what is known of the caches of other frameworks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from cache_engine.cli.documents import filled
from cache_engine.frameworks.groups import config_text
from cache_engine.frameworks.values import KeyFactors
from cache_engine.model.outcome import Failure

if TYPE_CHECKING:
    from cache_engine.frameworks.base import Source
    from cache_engine.frameworks.deleting import Chosen, Deleted
    from cache_engine.frameworks.doctor import Diagnosis
    from cache_engine.frameworks.groups import Group
    from cache_engine.frameworks.registry import Sums
    from cache_engine.frameworks.values import DeletePlan, Entry, Factor, Finding, Part, Place
    from cache_engine.model.events import EntryUsage


class CacheFinding(msgspec.Struct, kw_only=True):
    """Something that could not be read, or is not as it should be. ``id`` is empty for the directory itself."""

    kind: str
    path: str
    id: str
    fault: str
    detail: str


class CacheDirectory(msgspec.Struct, kw_only=True):
    """A directory of one framework; see ``frameworks.registry.Sums``. Times are seconds since 1970, UTC.

    ``replaced_by`` is the variable that has the framework use another directory here; empty if this one is in use.
    """

    kind: str
    title: str
    path: str
    origin: str
    replaced_by: str
    entries: int
    size_bytes: int
    partial: int
    unread: int
    part_bytes: dict[str, int]
    targets: dict[str, int]
    versions: dict[str, int]
    oldest: float | None
    newest: float | None
    last_used_at: float | None
    findings: int


class CachesOverview(msgspec.Struct, kw_only=True):
    """What ``caches`` prints. ``in_memory``: frameworks that are installed here and keep nothing on disk."""

    directories: list[CacheDirectory]
    findings: list[CacheFinding]
    in_memory: list[str]


class AdaptedRow(msgspec.Struct, kw_only=True):
    """A kernel of another framework in a list; times are seconds since 1970. ``None`` is what is not known."""

    key: str
    framework: str
    name: str
    version: str | None
    compiler: str | None
    arch: str | None
    registers: int | None
    shared_bytes: int | None
    stack_bytes: int | None
    code_bytes: int | None
    size_bytes: int
    stored_bytes: int
    compile_ms: float | None
    created_at: float
    config: str
    hits: int
    last_used_at: float


class AdaptedList(msgspec.Struct, kw_only=True):
    """One page of ``total`` kernels of other frameworks."""

    total: int
    rows: list[AdaptedRow]


class AdaptedPart(msgspec.Struct, kw_only=True):
    """One file of a kernel of another framework."""

    name: str
    kind: str
    size_bytes: int


class AdaptedShown(AdaptedRow, kw_only=True):
    """What ``show`` prints of a kernel of another framework that the store has.

    Attributes:
        unknown: of facts that are not known the reason.
    """

    spill_bytes: int | None
    stages_ms: dict[str, float]
    pinned: bool
    parts: list[AdaptedPart]
    unknown: dict[str, str]


class CacheEntry(msgspec.Struct, kw_only=True):
    """One entry; see ``frameworks.values.Entry``. What is not known is ``None``."""

    kind: str
    path: str
    id: str
    state: str
    name: str | None
    version: str | None
    compiler: str | None
    arch: str | None
    registers: int | None
    shared_bytes: int | None
    stack_bytes: int | None
    spill_bytes: int | None
    code_bytes: int | None
    compile_ms: float | None
    created_at: float | None
    last_used_at: float | None
    digest: str | None
    config: dict[str, str | int | float | bool]
    size_bytes: int


class CacheEntries(msgspec.Struct, kw_only=True):
    """What ``caches ls`` prints. ``total`` counts all that match, printed or not."""

    entries: list[CacheEntry]
    total: int
    findings: list[CacheFinding]


class CacheEntryShown(CacheEntry, kw_only=True):
    """What ``caches show`` prints.

    Attributes:
        unknown: of each fact that is not known the reason.
        factors: the inputs of the key, as far as the cache states them; ``hidden`` names the others.
        no_factors: why there are none; else empty.
    """

    parts: Sequence[Part]
    unknown: dict[str, str]
    factors: Sequence[Factor]
    hidden: list[str]
    no_factors: str


class CachePartText(msgspec.Struct, kw_only=True):
    """What ``caches show --part`` prints."""

    id: str
    part: str
    text: str


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
                **_at(place), id=entry.id, name=entry.name, arch=entry.arch,
                size_bytes=going[place][entry.id], reason=each.reason,
            )  # fmt: skip
            entries.append(row)
        else:
            reason = plan.reason if isinstance(plan, Failure) else staying[place].get(entry.id, "it was not reached")
            left.append(CacheLeft(**_at(place), id=entry.id, reason=reason, no_safe_way=isinstance(plan, Failure)))
    size = sum(row.size_bytes for row in entries)
    directories = [_cleaned(place, entries) for place in places]
    return CachesCleaning(entries=entries, size_bytes=size, directories=directories, left=left, findings=findings)


def _cleaned(place: Place, entries: Iterable[CacheDeletion]) -> CacheCleaned:
    sizes = [row.size_bytes for row in entries if (row.kind, row.path) == (place.kind, str(place.path))]
    return CacheCleaned(**_at(place), entries=len(sizes), size_bytes=sum(sizes), replaced_by=place.replaced_by)


def directory(source: Source, place: Place, sums: Sums) -> CacheDirectory:
    """The row of a directory."""
    return filled(
        CacheDirectory,
        place,
        sums,
        title=source.title,
        path=str(place.path),
        part_bytes=dict(sums.part_bytes.most_common()),
        targets=dict(sums.archs.most_common()),
        versions=dict(sums.versions.most_common()),
        findings=len(sums.findings),
    )


def finding(place: Place | None, found: Finding) -> CacheFinding:
    """The row of a finding; of no place for that of a plug-in."""
    where = _at(place) if place else {"kind": "", "path": ""}
    return CacheFinding(**where, id=found.id, fault=found.fault, detail=found.detail)


def _at(place: Place) -> dict[str, str]:
    return {"kind": place.kind, "path": str(place.path)}


def entry(place: Place, found: Entry) -> CacheEntry:
    """The row of an entry."""
    return filled(CacheEntry, place, found, path=str(place.path), config=dict(found.config))


def shown(source: Source, place: Place, found: Entry, factors: KeyFactors | Failure) -> CacheEntryShown:
    """Everything about an entry."""
    known = KeyFactors(()) if isinstance(factors, Failure) else factors
    return filled(
        CacheEntryShown,
        place,
        found,
        path=str(place.path),
        config=dict(found.config),
        parts=found.parts,
        unknown={**source.unknowable, **found.unread},
        factors=known.factors,
        hidden=list(known.hidden),
        no_factors=factors.reason if isinstance(factors, Failure) else "",
    )


class CacheDiagnosis(msgspec.Struct, kw_only=True):
    """Something that is wrong with another framework's cache; ``id`` is empty for the directory itself."""

    kind: str
    path: str
    id: str
    ailment: str
    detail: str
    cure: str


class CachesExamined(msgspec.Struct, kw_only=True):
    """What ``caches doctor`` prints.

    Attributes:
        gpu: this machine's target, ``None`` without a GPU.
        in_memory: frameworks that are installed here and keep nothing on disk.
    """

    findings: list[CacheDiagnosis]
    gpu: str | None
    in_memory: list[str]


def examined(
    plug_ins: Iterable[Finding], found: Iterable[Diagnosis], gpu: str | None, in_memory: list[str]
) -> CachesExamined:
    """The document of all findings; those of plug-ins first."""
    update = "update its package, or remove it"
    return CachesExamined(
        findings=[
            *(
                CacheDiagnosis(kind="", path="", id=each.id, ailment=each.fault, detail=each.detail, cure=update)
                for each in plug_ins
            ),
            *(filled(CacheDiagnosis, each, kind=each.place.kind, path=str(each.place.path)) for each in found),
        ],
        gpu=gpu,
        in_memory=in_memory,
    )


def adapted_shown(
    group: Group, known: Entry, usage: EntryUsage | None, stored_bytes: int, *, is_pinned: bool
) -> AdaptedShown:
    """The document of an adapted kernel, from its files, what is known of them, and how it was used."""
    return filled(
        AdaptedShown,
        known,
        group,
        name=known.name or "",
        stored_bytes=stored_bytes,
        created_at=group.made_at,
        config=config_text(known),
        hits=sum(usage.hits.values()) if usage else 0,
        last_used_at=max(group.made_at, usage.last_used_at if usage else 0.0),
        pinned=is_pinned,
        parts=[filled(AdaptedPart, part) for part in known.parts],
        unknown=dict(known.unread),
    )
