"""How chosen entries are deleted, or why they cannot be: what a cleaning shows before it does anything."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cache_engine.foreign.base import Source, Thinning
from cache_engine.foreign.choosing import Chosen
from cache_engine.foreign.deleting import plan_offline
from cache_engine.foreign.values import DeletePlan, Entry, PartKind, Place
from cache_engine.model.outcome import Failure

Plans = dict[Place, DeletePlan | Failure]
"""Of each place how its entries, or their IRs, are deleted, or why they cannot be."""


def plan_cleaning(
    sources: Mapping[str, Source], chosen: Sequence[Chosen], *, irs_only: bool = False, offline: bool = False,
    known: Sequence[Place] = (),
) -> Plans:  # fmt: skip
    """Looks at the entries as they are now, and changes nothing.

    Args:
        sources: by kind.
        irs_only: their IRs alone.
        offline: no process uses the caches, so that each entry's files are deleted at once.
        known: all places; offline, of one that is in another only its own files go.
    """
    plans: Plans = {}
    by_place: dict[Place, list[Entry]] = {}
    for each in chosen:
        by_place.setdefault(each.place, []).append(each.entry)
    for place, entries in by_place.items():
        source = sources[place.kind]
        try:
            status = os.stat(place.path)
            if offline:
                plans[place] = plan_offline(entries, _below(place, known))
            elif not irs_only:
                plans[place] = source.plan_delete(place, entries)
            elif isinstance(source, Thinning):
                plans[place] = source.plan_thinning(place, entries)
            else:
                plans[place] = Failure(f"whether {source.title} uses an entry without its IRs is not known")
        except OSError as error:  # the directory has vanished
            plans[place] = Failure(error.strerror or str(error))
            continue
        planned = plans[place]
        if isinstance(planned, DeletePlan):
            plans[place] = replace(planned, directory=(status.st_dev, status.st_ino))
    return plans


def _below(place: Place, known: Sequence[Place]) -> list[str]:
    """The paths below a place of the others that are in it."""
    top = os.path.realpath(place.path)
    paths = (os.path.relpath(os.path.realpath(other.path), top) for other in known)
    return [path for path in paths if path.partition("/")[0] not in (os.curdir, os.pardir)]


def with_irs(found: Iterable[tuple[Place, Entry]]) -> list[tuple[Place, Entry]]:
    """The entries that have IRs."""
    return [(place, entry) for place, entry in found if entry.part(PartKind.IR) is not None]
