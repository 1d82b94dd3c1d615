"""Looking at other frameworks' caches again and again: what has not changed is not read again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock

from cache_engine.foreign.doctor import Diagnosis, examine, examine_entry, network_file_system
from cache_engine.foreign.registry import Sources, load_sources, surroundings
from cache_engine.foreign.survey import survey
from cache_engine.foreign.values import Entry, Finding, PartKind, Place, Unchanged


@dataclass(frozen=True, slots=True)
class Look:
    """What was in each place at one time: entries, and what could not be read."""

    places: dict[Place, tuple[Entry, ...]]
    findings: dict[Place, tuple[Finding, ...]]


class Remembered:
    """The caches of this machine, for several threads."""

    def __init__(self) -> None:
        self.sources: Sources = load_sources()
        self._entries: dict[Place, dict[str, Entry]] = {}
        self._diagnoses: dict[tuple[Place, str, str], tuple[Diagnosis, ...]] = {}
        self._lock = Lock()

    def look(self, given: Iterable[str] = (), on_entry: Callable[[int], None] = lambda _: None) -> Look:
        """What is in all places now.

        Args:
            given: further directories, as ``KIND=DIR``.
            on_entry: called with the number of entries seen so far.

        Raises:
            UsageError: when one of these is not of that form, or of a kind that there is not.
        """
        with self._lock:
            places = list(self.sources.places(surroundings(given)))
            before = {place: self._entries.get(place, {}) for place in places}
            stamps = {place: {entry.id: entry.stamp for entry in known.values()} for place, known in before.items()}
            now: dict[Place, dict[str, Entry]] = {place: {} for place in places}
            findings: dict[Place, list[Finding]] = {place: [] for place in places}
            for number, (place, seen) in enumerate(survey(self.sources, places, stamps), start=1):
                if isinstance(seen, Finding):
                    findings[place].append(seen)
                else:
                    now[place][seen.id] = before[place][seen.id] if isinstance(seen, Unchanged) else seen
                on_entry(number)
            self._entries = now
            return Look(
                {place: tuple(known.values()) for place, known in now.items()},
                {place: tuple(found) for place, found in findings.items()},
            )

    def examine(self, seen: Look, *, runs_here: Callable[[str], bool] | None, mounts: str) -> list[Diagnosis]:
        """What is wrong with what was seen; see ``doctor.examine``."""
        found: list[Diagnosis] = []
        known: dict[tuple[Place, str, str], tuple[Diagnosis, ...]] = {}
        for place, entries in seen.places.items():
            source, network = self.sources.by_kind[place.kind], network_file_system(place.path, mounts)
            found += examine(source, place, seen.findings[place], runs_here=runs_here, mounts=mounts)
            for entry in entries:
                key = place, entry.id, entry.stamp
                each = self._diagnoses.get(key)
                if each is None:
                    each = tuple(examine_entry(source, place, entry, runs_here, network))
                if entry.part(PartKind.TEMPORARY) is None:  # which become leftovers with time
                    known[key] = each
                found += each
        self._diagnoses = known
        return found
