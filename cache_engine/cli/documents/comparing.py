"""Documents that compare kernels: two of them, a request with the nearest entry, and two of other frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from cache_engine.cli.documents import filled
from cache_engine.cli.documents.caches import CacheEntry, entry

if TYPE_CHECKING:
    from cache_engine.frameworks.comparison import Difference as ForeignDifference
    from cache_engine.frameworks.comparison import DirectoriesCompared, EntriesCompared, Miss
    from cache_engine.frameworks.values import Entry, Place


# ---- From the engine's values ----


class CacheDifference(msgspec.Struct, kw_only=True):
    """An input of a key that differs; ``None`` where one side does not state it. ``meaning`` says what that tells."""

    group: str
    name: str
    a: str | None
    b: str | None
    meaning: str


class CacheEntriesCompared(msgspec.Struct, kw_only=True):
    """What ``caches diff`` prints of two entries; ``unknown`` says why the inputs are not known, else it is empty."""

    first: CacheEntry
    second: CacheEntry
    differences: list[CacheDifference]
    hidden: Sequence[str]
    parts: Sequence[str]
    unknown: str


class CacheChanged(msgspec.Struct, kw_only=True):
    """An entry that both directories have, and its parts with other bytes."""

    id: str
    name: str | None
    parts: list[str]


class CacheAlone(msgspec.Struct, kw_only=True):
    """An entry that one directory has alone, the nearest of the other (empty for none), and what differs."""

    id: str
    name: str | None
    nearest: str
    differences: list[CacheDifference]
    unknown: str


class CacheCause(CacheDifference, kw_only=True):
    """An input that differs, with the values of one entry, and for how many entries of A it does."""

    entries: int


class CachesCompared(msgspec.Struct, kw_only=True):
    """What ``caches diff`` prints of two directories. ``same`` counts entries that are in both, byte for byte."""

    a: str
    b: str
    same: int
    changed: list[CacheChanged]
    only_a: list[CacheAlone]
    only_b: list[CacheAlone]
    causes: list[CacheCause]


def entries_compared(
    one: tuple[Place, Entry], other: tuple[Place, Entry], found: EntriesCompared
) -> CacheEntriesCompared:
    """The document of two entries."""
    return filled(
        CacheEntriesCompared,
        found,
        first=entry(*one),
        second=entry(*other),
        differences=[_cache_difference(each) for each in found.differences],
    )


def directories_compared(one: Place, other: Place, found: DirectoriesCompared) -> CachesCompared:
    """The document of two directories."""
    return CachesCompared(
        a=str(one.path),
        b=str(other.path),
        same=found.same,
        changed=[CacheChanged(id=each.id, name=each.name, parts=list(parts)) for each, parts in found.changed],
        only_a=[_alone(miss) for miss in found.only_one],
        only_b=[_alone(miss) for miss in found.only_other],
        causes=[filled(CacheCause, each, a=each.one, b=each.other, entries=count) for each, count in found.causes],
    )


def _cache_difference(each: ForeignDifference) -> CacheDifference:
    return filled(CacheDifference, each, a=each.one, b=each.other)


def _alone(miss: Miss) -> CacheAlone:
    return CacheAlone(
        id=miss.entry.id,
        name=miss.entry.name,
        nearest=miss.nearest.id if miss.nearest else "",
        differences=[_cache_difference(each) for each in miss.differences],
        unknown=miss.unknown,
    )
