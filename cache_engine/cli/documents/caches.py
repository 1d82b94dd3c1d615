"""The documents of ``caches``: what is known of the caches of other frameworks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from cache_engine.cli.documents import filled
from cache_engine.frameworks.cleaning import CacheFinding, CachesCleaning, cleaning, located
from cache_engine.frameworks.groups import config_text
from cache_engine.frameworks.values import KeyFactors
from cache_engine.model.outcome import Failure

if TYPE_CHECKING:
    from cache_engine.frameworks.base import Source
    from cache_engine.frameworks.doctor import Diagnosis
    from cache_engine.frameworks.groups import Group
    from cache_engine.frameworks.registry import Sums
    from cache_engine.frameworks.values import Entry, Factor, Finding, Part, Place
    from cache_engine.model.events import EntryUsage

# Documents of verbs that pages use too.
__all__ = ["CacheFinding", "CachesCleaning", "cleaning"]


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
    where = located(place) if place else {"kind": "", "path": ""}
    return CacheFinding(**where, id=found.id, fault=found.fault, detail=found.detail)


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
