"""The documents of ``caches``: what is known of the caches of other frameworks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from cache_engine.adapted.facts import config_text
from cache_engine.foreign.values import KeyFactors
from cache_engine.model.outcome import Failure

if TYPE_CHECKING:
    from cache_engine.adapted.groups import Group
    from cache_engine.foreign.base import Source
    from cache_engine.foreign.doctor import Diagnosis
    from cache_engine.foreign.survey import Sums
    from cache_engine.foreign.values import Entry, Finding, Part, Place
    from cache_engine.model.events.usage import EntryUsage


class CacheFinding(msgspec.Struct, kw_only=True):
    """Something that could not be read, or is not as it should be. ``id`` is empty for the directory itself."""

    kind: str
    path: str
    id: str
    fault: str
    detail: str


class CacheDirectory(msgspec.Struct, kw_only=True):
    """A directory of one framework; see ``foreign.survey.Sums``. Times are seconds since 1970, UTC.

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
    """What ``caches`` prints."""

    directories: list[CacheDirectory]
    findings: list[CacheFinding]


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
    """One entry; see ``foreign.values.Entry``. What is not known is ``None``."""

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


class CachePart(msgspec.Struct, kw_only=True):
    """One file of an entry; ``file`` is its path below the directory, empty for what is no file."""

    name: str
    kind: str
    size_bytes: int
    file: str


class KeyFactor(msgspec.Struct, kw_only=True):
    """One of the inputs of a key."""

    group: str
    name: str
    value: str


class CacheEntryShown(CacheEntry, kw_only=True):
    """What ``caches show`` prints.

    Attributes:
        unknown: of each fact that is not known the reason.
        factors: the inputs of the key, as far as the cache states them; ``hidden`` names the others.
        no_factors: why there are none; else empty.
    """

    parts: list[CachePart]
    unknown: dict[str, str]
    factors: list[KeyFactor]
    hidden: list[str]
    no_factors: str


class CachePartText(msgspec.Struct, kw_only=True):
    """What ``caches show --part`` prints."""

    id: str
    part: str
    text: str


def directory(source: Source, place: Place, sums: Sums) -> CacheDirectory:
    """The row of a directory."""
    return CacheDirectory(
        kind=place.kind,
        title=source.title,
        path=str(place.path),
        origin=place.origin,
        replaced_by=place.replaced_by,
        entries=sums.entries,
        size_bytes=sums.size_bytes,
        partial=sums.partial,
        unread=sums.unread,
        part_bytes=dict(sums.part_bytes.most_common()),
        targets=dict(sums.archs.most_common()),
        versions=dict(sums.versions.most_common()),
        oldest=sums.oldest,
        newest=sums.newest,
        last_used_at=sums.last_used_at,
        findings=len(sums.findings),
    )


def finding(place: Place | None, found: Finding) -> CacheFinding:
    """The row of a finding; of no place for that of a plug-in."""
    return CacheFinding(
        kind=place.kind if place else "",
        path=str(place.path) if place else "",
        id=found.id,
        fault=found.fault,
        detail=found.detail,
    )


def entry(place: Place, found: Entry) -> CacheEntry:
    """The row of an entry."""
    return CacheEntry(**_fields(place, found))


def shown(source: Source, place: Place, found: Entry, factors: KeyFactors | Failure) -> CacheEntryShown:
    """Everything about an entry."""
    known = KeyFactors(()) if isinstance(factors, Failure) else factors
    return CacheEntryShown(
        **_fields(place, found),
        parts=[_part(part) for part in found.parts],
        unknown={**source.unknowable, **found.unread},
        factors=[KeyFactor(group=factor.group, name=factor.name, value=factor.value) for factor in known.factors],
        hidden=list(known.hidden),
        no_factors=factors.reason if isinstance(factors, Failure) else "",
    )


def _part(part: Part) -> CachePart:
    return CachePart(name=part.name, kind=part.kind, size_bytes=part.size_bytes, file=part.file)


def _fields(place: Place, found: Entry) -> dict[str, Any]:
    names = set(CacheEntry.__struct_fields__) - {"kind", "path", "config", "size_bytes"}
    return {
        **{name: getattr(found, name) for name in names},
        "kind": place.kind,
        "path": str(place.path),
        "config": dict(found.config),
        "size_bytes": found.size_bytes,
    }


class CacheDiagnosis(msgspec.Struct, kw_only=True):
    """Something that is wrong with another framework's cache; ``id`` is empty for the directory itself."""

    kind: str
    path: str
    id: str
    ailment: str
    detail: str
    cure: str


class CachesExamined(msgspec.Struct, kw_only=True):
    """What ``caches doctor`` prints; ``gpu`` is this machine's target, ``None`` without a GPU."""

    findings: list[CacheDiagnosis]
    gpu: str | None


def examined(plug_ins: Iterable[Finding], found: Iterable[Diagnosis], gpu: str | None) -> CachesExamined:
    """The document of all findings; those of plug-ins first."""
    update = "update its package, or remove it"
    return CachesExamined(
        findings=[
            *(
                CacheDiagnosis(kind="", path="", id=each.id, ailment=each.fault, detail=each.detail, cure=update)
                for each in plug_ins
            ),
            *(
                CacheDiagnosis(
                    kind=each.place.kind,
                    path=str(each.place.path),
                    id=each.id,
                    ailment=each.ailment,
                    detail=each.detail,
                    cure=each.cure,
                )
                for each in found
            ),
        ],
        gpu=gpu,
    )


def adapted_shown(
    group: Group, known: Entry, usage: EntryUsage | None, stored_bytes: int, *, is_pinned: bool
) -> AdaptedShown:
    """The document of an adapted kernel, from its files, what is known of them, and how it was used."""
    return AdaptedShown(
        key=group.key,
        framework=group.framework,
        name=known.name or "",
        version=known.version,
        compiler=known.compiler,
        arch=known.arch,
        registers=known.registers,
        shared_bytes=known.shared_bytes,
        stack_bytes=known.stack_bytes,
        spill_bytes=known.spill_bytes,
        code_bytes=known.code_bytes,
        size_bytes=known.size_bytes,
        stored_bytes=stored_bytes,
        compile_ms=known.compile_ms,
        stages_ms=group.stages_ms,
        created_at=group.made_at,
        config=config_text(known),
        hits=sum(usage.hits.values()) if usage else 0,
        last_used_at=max(group.made_at, usage.last_used_at if usage else 0.0),
        pinned=is_pinned,
        parts=[AdaptedPart(name=part.name, kind=part.kind, size_bytes=part.size_bytes) for part in known.parts],
        unknown=dict(known.unread),
    )
