"""What has happened in a store: events, their sums, and the frozen snapshot that readers get.

Pure arithmetic. Events are written and read by ``store.journal``; the mirror adds up the same events the same way.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from cache_engine.model.artifact import Count, Seconds

USE, PUBLISH, UNPUBLISHED, CORRUPT, EVICT, CLEAN, REPAIR, IMPORT, SET_ASIDE, RESTORE, DISCARD = (
    "use",
    "publish",
    "unpublished",
    "corrupt",
    "evict",
    "clean",
    "repair",
    "import",
    "set aside",
    "restore",
    "discard",
)
RECENT = 500  # how many events other than use are kept when a journal is folded
ACTS = (CLEAN, REPAIR, IMPORT, RESTORE, DISCARD)
"""What somebody did to a whole store, each run one event. Of these many more are kept: they are the audit log."""
RECENT_ACTS = 5000
AUTOMATIC = "automatic"
"""Who cleans when nobody asked for it."""


class Event(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One line of a journal.

    Attributes:
        kind: ``use`` (hits and misses of one key since the last such line), ``publish`` (compiled and kept),
            ``unpublished`` (compiled and served, but not kept; ``detail`` says why), ``corrupt`` (set aside),
            ``evict`` (deleted by cleaning; ``detail`` gives the reason), ``set aside`` (a file of no entry put into
            quarantine), or one of ``ACTS``: ``clean``, ``repair``, ``import``, ``restore`` (out of quarantine) and
            ``discard`` (deleted from quarantine), of which ``detail`` sums up the run.
        at: seconds since 1970, UTC; of the last use for ``use``.
        key: the entry concerned.
        made_at: for ``use``, when the entry was made. An entry evicted and made again starts with no hits.
        hits: hits by tier.
        misses: lookups that had to compile.
        failures: by tier, how often it failed and was passed over.
        saved_us: microseconds of compiling that hits on disk and in packs saved. Hits in memory save nothing: a process
            that has a kernel in hand would not compile it again without a cache either.
        compile_us: microseconds compiling took. Whole numbers, so that sums are exact in any order.
        stored_bytes: bytes published, evicted, taken in or deleted.
        detail: a reason or summary, for people.
        by: of an act, who did it: a user of this machine, whoever has logged in, or ``AUTOMATIC``.
    """

    kind: str
    at: Seconds
    key: str = ""
    made_at: Seconds = 0.0
    hits: dict[str, Count] = msgspec.field(default_factory=dict)
    misses: Count = 0
    failures: dict[str, Count] = msgspec.field(default_factory=dict)
    saved_us: Count = 0
    compile_us: Count = 0
    stored_bytes: Count = 0
    detail: str = ""
    by: str = ""


class EntryUsage(msgspec.Struct):
    """How one entry was used: hits by tier, and the last two times (seconds since 1970; 0 is never).

    The second last is what tells an entry in steady use from one that was met once.

    An entry is a key and when it was made: one made again after it was evicted is another.
    """

    key: str
    made_at: Seconds
    hits: dict[str, Count] = msgspec.field(default_factory=dict)
    last_used_at: Seconds = 0.0
    previous_used_at: Seconds = 0.0

    def used(self, at: float, count: int) -> None:
        """Notes uses at that time. The two last ones are kept, whatever order they are told in."""
        times = sorted((self.last_used_at, self.previous_used_at, at, at if count > 1 else 0.0))
        self.previous_used_at, self.last_used_at = times[-2:]


class Totals(msgspec.Struct):
    """Sums over all events."""

    hits: dict[str, Count] = msgspec.field(default_factory=dict)
    misses: Count = 0
    failures: dict[str, Count] = msgspec.field(default_factory=dict)
    saved_us: Count = 0
    compiles: Count = 0
    compile_us: Count = 0
    publish_failures: Count = 0
    corruptions: Count = 0
    evictions: Count = 0
    evicted_bytes: Count = 0
    last_publish_at: Seconds = 0.0


class Tally:
    """Adds events up."""

    def __init__(
        self,
        totals: Totals | None = None,
        usage: Iterable[EntryUsage] = (),
        recent: list[Event] | None = None,
    ) -> None:
        """Starts from earlier sums, which it takes over, or from nothing."""
        self.totals = totals or Totals()
        self._usage = {(used.key, used.made_at): used for used in usage}
        self._recent = recent or []

    def add(self, event: Event) -> None:
        """Counts one event."""
        totals = self.totals
        if event.kind == USE:
            if event.hits:
                entry = (event.key, event.made_at)
                usage = self._usage.setdefault(entry, EntryUsage(*entry))
                usage.used(event.at, sum(event.hits.values()))
                _add(usage.hits, event.hits)
                _add(totals.hits, event.hits)
            _add(totals.failures, event.failures)
            totals.misses += event.misses
            totals.saved_us += event.saved_us
            return
        if event.kind in (PUBLISH, UNPUBLISHED):
            totals.compiles += 1
            totals.compile_us += event.compile_us
        if event.kind == PUBLISH:
            totals.last_publish_at = max(totals.last_publish_at, event.at)
        elif event.kind == UNPUBLISHED:
            totals.publish_failures += 1
        elif event.kind == CORRUPT:
            totals.corruptions += 1
        elif event.kind == EVICT:
            totals.evictions += 1
            totals.evicted_bytes += event.stored_bytes
        self._recent.append(event)

    @property
    def usage(self) -> list[EntryUsage]:
        """How each entry was used."""
        return list(self._usage.values())

    @property
    def recent(self) -> list[Event]:
        """The last acts, and the last events other than these and use, the newest first."""
        acts = heapq.nlargest(RECENT_ACTS, (event for event in self._recent if event.kind in ACTS), key=_order)
        rest = heapq.nlargest(RECENT, (event for event in self._recent if event.kind not in ACTS), key=_order)
        return sorted((*acts, *rest), key=_order, reverse=True)


def _order(event: Event) -> tuple[float, str, str, str]:
    return event.at, event.kind, event.key, event.detail


def _add(counts: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count


@dataclass(frozen=True, slots=True)
class Statistics:
    """A store's state and history at one moment.

    Attributes:
        entries, stored_bytes: what is on disk.
        max_entries, max_bytes: the limits in force.
        totals: sums over the store's history, across restarts.
    """

    entries: int
    stored_bytes: int
    max_entries: int
    max_bytes: int
    totals: Totals

    @property
    def hits(self) -> int:
        """Hits over all tiers."""
        return sum(self.totals.hits.values())

    @property
    def hit_rate(self) -> float | None:
        """Hits over lookups; ``None`` before the first lookup."""
        return hit_rate(self.hits, self.totals.misses)


def hit_rate(hits: int, misses: int) -> float | None:
    """Hits over lookups; ``None`` when there were none."""
    return hits / (hits + misses) if hits + misses else None
