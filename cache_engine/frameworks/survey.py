"""Scanning many places, and sums over what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cache_engine.frameworks.registry import Sources
from cache_engine.frameworks.values import Entry, Fault, Finding, PartKind, Place, Seen, State

_NOTHING: Mapping[str, str] = {}


def survey(
    sources: Sources, places: Iterable[Place], known: Mapping[Place, Mapping[str, str]] | None = None
) -> Iterator[tuple[Place, Seen]]:
    """What is in each place. A place that cannot be scanned to its end is a finding, and the next is scanned.

    Args:
        known: of places seen before, the stamps of their entries by id; see ``Source.scan``.
    """
    for place in places:
        stamps = (known or {}).get(place, _NOTHING)
        try:
            for seen in sources.by_kind[place.kind].scan(place, stamps):
                yield place, seen
        except OSError as error:
            fault = Fault.FORBIDDEN if isinstance(error, PermissionError) else Fault.UNREADABLE
            yield place, Finding(fault, "", error.strerror or str(error))


@dataclass(slots=True)
class Sums:
    """What is in one place. Bytes are of files, as their sizes say; counters are by the text shown."""

    entries: int = 0
    size_bytes: int = 0
    partial: int = 0
    unread: int = 0
    part_bytes: Counter[str] = field(default_factory=Counter)
    archs: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    oldest: float | None = None
    newest: float | None = None
    last_used_at: float | None = None
    findings: list[Finding] = field(default_factory=list)

    def add(self, seen: Seen) -> None:
        """Counts an entry or a finding."""
        if isinstance(seen, Finding):
            self.findings.append(seen)
        if not isinstance(seen, Entry):
            return
        self.entries += 1
        self.partial += seen.state == State.PARTIAL
        self.unread += seen.state == State.UNREAD
        for part in seen.parts:
            self.size_bytes += part.size_bytes
            # Files that are no part of a kernel have names of their own, as many as there are.
            is_other = part.kind in (PartKind.OTHER, PartKind.TEMPORARY)
            self.part_bytes[part.kind if is_other else part.name] += part.size_bytes
        if seen.arch is not None:
            self.archs[seen.arch] += 1
        if seen.version is not None:
            self.versions[seen.version] += 1
        if seen.created_at is not None:
            self.oldest = min(self.oldest or seen.created_at, seen.created_at)
            self.newest = max(self.newest or seen.created_at, seen.created_at)
        if seen.last_used_at is not None:
            self.last_used_at = max(self.last_used_at or seen.last_used_at, seen.last_used_at)


def sums(places: Iterable[Place], found: Iterable[tuple[Place, Seen]]) -> dict[Place, Sums]:
    """The sums of each place, also of those in which nothing was found."""
    totals = {place: Sums() for place in places}
    for place, seen in found:
        totals[place].add(seen)
    return totals


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Selects entries that contain every word of ``text``, and of each list that is not empty have one value."""

    text: str = ""
    kinds: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    states: tuple[str, ...] = ()

    def takes(self, place: Place, entry: Entry) -> bool:
        """Whether it selects an entry."""
        if (self.kinds and place.kind not in self.kinds) or (self.archs and entry.arch not in self.archs):
            return False
        if self.states and entry.state not in self.states:
            return False
        where = search_text(place, entry)
        return all(word in where for word in self.text.lower().split())


def search_text(place: Place, entry: Entry) -> str:
    """What a search looks through, in lower case."""
    facts = (entry.name, entry.id, entry.arch, entry.version, entry.compiler, place.kind)
    config = (f"{name}={value}" for name, value in entry.config.items())
    return " ".join((*filter(None, facts), *config)).lower()
