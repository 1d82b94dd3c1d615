"""The history of a store: events, their sums, and snapshots of the sums.

Arithmetic only. ``store.journal`` writes and reads the events; the index computes the same sums.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from cache_engine.model.artifact import MOST_COUNT, Count, Seconds

USE, PUBLISH, UNPUBLISHED, CORRUPT, EVICT, CLEAN, REPAIR, IMPORT, SET_ASIDE, RESTORE, DISCARD, CLEAN_OTHER, SEEN = (
    "use", "publish", "unpublished", "corrupt", "evict", "clean", "repair", "import", "set aside",
    "restore", "discard", "clean other", "seen",
)  # fmt: skip
REMOTE_DOWN, REMOTE_UP = "remote down", "remote up"
PRUNE, CLEAN_REMOTE = "prune", "clean remote"
RECENT = 500  # the events other than use that a folded journal keeps
ACTS = (CLEAN, REPAIR, IMPORT, RESTORE, DISCARD, CLEAN_OTHER, SEEN, PRUNE, CLEAN_REMOTE)
"""The kinds of events for an action on a whole store, one event per run.

These events are the audit log, so more of them are stored than of other events.
"""
RECENT_ACTS = 5000
REMOTE = "remote"
"""The name of the tier that is the team's remote."""
TIERS = ("memory", "pack", "disk", REMOTE)
"""The tiers, in the order in which a lookup asks them."""
AUTOMATIC = "automatic"
"""The value of ``Event.by`` for an automatic cleaning."""

HOUR_S, DAY_S = 3600, 86_400
# The buckets of ``store.journal.spans`` that begin at 4 µs, 66 µs, 1 ms, 17 ms and 268 ms.
_LOOKUP_LIMITS = (48, 64, 80, 96, 112)
# For each length of a period, the age up to which periods keep it, in seconds. Each length is a multiple of the one
# before, so that periods never overlap in part. Older periods have the longest length.
_KEPT_FOR_S = ((HOUR_S, 8 * DAY_S), (DAY_S, 400 * DAY_S))
_LONGEST_S = 28 * DAY_S
MOST_PERIODS = 2000


class UseCounts(msgspec.Struct, kw_only=True, repr_omit_defaults=True):
    """The counters in a line about use, and in sums of such lines. Each counter is declared only here.

    Attributes:
        hits: hits by tier.
        misses: lookups after which a kernel had to be compiled.
        failures: by tier, the number of times that it failed and was skipped.
        saved_us: the compile time saved by hits on disk, in packs and in a remote, in microseconds. Hits in memory save
            nothing: a process keeps its kernels in memory even without a cache.
        lock_waits, lock_timeouts, lock_wait_us: the number of waits of over a second for a key's lock, the number of
            these that timed out, and the sum of their microseconds.
        remote_sent, remote_dropped: compiled kernels that were sent to the remote, and those that were dropped because
            too many waited or the process ended.
        passed: by reason, the commands that the launcher of nvcc passed on to nvcc.
    """

    hits: dict[str, Count] = msgspec.field(default_factory=dict)
    misses: Count = 0
    failures: dict[str, Count] = msgspec.field(default_factory=dict)
    saved_us: Count = 0
    lock_waits: Count = 0
    lock_timeouts: Count = 0
    lock_wait_us: Count = 0
    promotions: Count = 0
    demotions: Count = 0
    remote_sent: Count = 0
    remote_dropped: Count = 0
    passed: dict[str, Count] = msgspec.field(default_factory=dict)


class EventCounts(UseCounts, kw_only=True):
    """All counters, summed over a span of time or over all time.

    Attributes:
        lookups: the lookups that a tier served, by class of duration: ``"0"`` for less than 4 µs, then up to 66 µs,
            1 ms, 17 ms and 268 ms; ``"5"`` for longer.
    """

    lookups: dict[str, Count] = msgspec.field(default_factory=dict)
    compiles: Count = 0
    compile_us: Count = 0
    publish_failures: Count = 0
    corruptions: Count = 0

    @property
    def compile_ms(self) -> float:
        """The sum of all compile times, in milliseconds."""
        return self.compile_us / 1e3

    @property
    def saved_ms(self) -> float:
        """The sum of compile times saved by hits on disk, in packs and in a remote, in milliseconds."""
        return self.saved_us / 1e3

    @property
    def lock_wait_ms(self) -> float:
        """The sum of all waits of over a second for a key's lock, in milliseconds."""
        return self.lock_wait_us / 1e3

    def add(self, more: EventCounts | UseCounts) -> None:
        """Adds other counts to these; ``UseCounts`` has only some of the counters."""
        for name in (EventCounts if isinstance(more, EventCounts) else UseCounts).__struct_fields__:
            if added := getattr(more, name):  # most are 0
                there = getattr(self, name)
                if isinstance(there, dict):
                    _add(there, added)
                else:
                    setattr(self, name, capped_sum(there, added))


class Event(UseCounts, omit_defaults=True):
    """One line of a journal.

    Attributes:
        kind: ``use`` (hits and misses of one key since the last such line), ``publish`` (compiled and stored),
            ``unpublished`` (compiled and served, but not stored; ``detail`` says why), ``corrupt`` (quarantined),
            ``evict`` (deleted by cleaning; ``detail`` gives the reason), ``remote down`` (a process stops asking the
            remote; ``detail`` says why), ``remote up`` (it asks again), ``set aside`` (a file that belongs to no entry
            was moved to quarantine), or one of ``ACTS``: ``clean``, ``repair``, ``import``, ``restore`` (out of
            quarantine), ``discard`` (deleted from quarantine), ``clean other`` (deleted from another framework's
            cache), ``seen`` (failures acknowledged, see ``upkeep.decisions``), ``prune`` (results of the evaluator
            deleted) and ``clean remote`` (kernels deleted from a remote). The ``detail`` of an action sums up the run.
        at: the time, in seconds since 1970, UTC; for ``use``, that of the last use.
        key: the key of the entry.
        made_at: for ``use``, the time when the entry was made. An entry that is evicted and made again starts with no
            hits.
        arch: the target of ``misses``; empty in old journals.
        compile_us: the microseconds of compiling. An integer, so that sums are exact in any order.
        stored_bytes: bytes published, evicted, imported or deleted.
        detail: a reason or summary, for people.
        by: for an action or an eviction, who did it: a user of this machine, a user who has logged in, or
            ``AUTOMATIC``.
        remote: for ``remote down`` and ``remote up``, the remote's URL; empty if an older version wrote the event.
        waited_us: for ``remote down``, the microseconds until the request failed.
        spans: for ``use``, the durations of lookups and of the steps of misses; see ``store.journal.spans``.
        hits and the other counters: as in ``UseCounts``.
    """

    kind: str
    at: Seconds
    key: str = ""
    made_at: Seconds = 0.0
    arch: str = ""
    compile_us: Count = 0
    stored_bytes: Count = 0
    detail: str = ""
    by: str = ""
    remote: str = ""
    waited_us: Count = 0
    spans: dict[str, Count] = msgspec.field(default_factory=dict)


class Totals(EventCounts):
    """Sums over the whole history of a store, of all its processes. Counts never decrease.

    Attributes:
        hits: lookups served, by tier: ``"memory"``, ``"pack"``, ``"disk"``, ``"remote"``.
        misses: lookups that no tier served.
        failures: by tier, the number of times that it failed and was skipped.
        saved_us: the compile time saved by hits on disk, in packs and in a remote, in microseconds; also as
            ``saved_ms``.
        lock_waits, lock_timeouts, lock_wait_us: the number of waits of over a second for a key's lock, the number of
            these that timed out, and the sum of their microseconds; the sum also as ``lock_wait_ms``.
        promotions, demotions: kernels compiled ahead or promoted again, and kernels demoted.
        remote_sent, remote_dropped: compiled kernels sent to the remote, and those dropped.
        compiles: the number of kernels compiled.
        compile_us: the sum of the microseconds of compiling; also as ``compile_ms``.
        publish_failures: compiled kernels that could not be stored.
        corruptions, evictions, evicted_bytes: damaged entries found; entries evicted by cleaning, and their bytes on
            disk.
        last_publish_at: the time when a kernel was last stored, in seconds since 1970 (UTC); 0 before the first.
        misses_by_arch: misses by target.
        spans: the durations of lookups and of the steps of misses; ``store.journal.spans`` reads it.
    """

    evictions: Count = 0
    evicted_bytes: Count = 0
    last_publish_at: Seconds = 0.0
    misses_by_arch: dict[str, Count] = msgspec.field(default_factory=dict)
    spans: dict[str, Count] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        """The sums on one line, without the counts of durations."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("spans", "lookups")}
        return f"Totals({', '.join(f'{name}={value!r}' for name, value in values.items() if value)})"


class EventPeriod(EventCounts, omit_defaults=True):
    """Sums over the events in a span of time.

    Attributes:
        start: the start of the span, in seconds since 1970, UTC; a multiple of ``seconds``.
        seconds: the length of the span in seconds.
    """

    start: Count
    seconds: Count

    def copied(self, start: int, seconds: int) -> EventPeriod:
        """A copy of the sums for another span of time; adding to the copy does not change this object."""
        counts = {
            name: value.copy() for name in self.__struct_fields__ if isinstance(value := getattr(self, name), dict)
        }
        return msgspec.structs.replace(self, start=start, seconds=seconds, **counts)


class Tally:
    """Running sums over events; each ``add`` adds one event to them."""

    def __init__(
        self,
        totals: Totals | None = None,
        usage: Iterable[EntryUsage] = (),
        recent: list[Event] | None = None,
        periods: Iterable[EventPeriod] = (),
    ) -> None:
        """Starts from earlier sums, which this object then changes; or from nothing."""
        self.totals = totals or Totals()
        self._usage = {(used.key, used.made_at): used for used in usage}
        self._recent = recent or []
        self._periods: dict[tuple[int, int], EventPeriod] = {}
        for period in periods:
            _add_period(self._periods, period)

    def add(self, event: Event) -> None:
        """Counts one event."""
        start = int(event.at) // HOUR_S * HOUR_S
        period = self._periods.get((start, HOUR_S))
        if period is None:
            period = self._periods[start, HOUR_S] = EventPeriod(start, HOUR_S)
        if event.kind == USE:
            if event.hits:
                entry = (event.key, event.made_at)
                usage = self._usage.setdefault(entry, EntryUsage(*entry))
                usage.used(event.at, sum(event.hits.values()))
                _add(usage.hits, event.hits)
            if event.misses and event.arch:
                _add(self.totals.misses_by_arch, {event.arch: event.misses})
            _add(self.totals.spans, event.spans)
            lookups = _by_length(event.spans)
            for sums in (self.totals, period):
                sums.add(event)
                _add(sums.lookups, lookups)
            return
        if event.kind == PUBLISH:
            self.totals.last_publish_at = max(self.totals.last_publish_at, event.at)
        elif event.kind == EVICT:
            self.totals.evictions += 1
            self.totals.evicted_bytes = capped_sum(self.totals.evicted_bytes, event.stored_bytes)
        for sums in (self.totals, period):
            if event.kind in (PUBLISH, UNPUBLISHED):
                sums.compiles += 1
                sums.compile_us = capped_sum(sums.compile_us, event.compile_us)
            if event.kind == UNPUBLISHED:
                sums.publish_failures += 1
            elif event.kind == CORRUPT:
                sums.corruptions += 1
        self._recent.append(event)

    @property
    def usage(self) -> list[EntryUsage]:
        """The usage of each entry that has any."""
        return list(self._usage.values())

    @property
    def periods(self) -> list[EventPeriod]:
        """The sums of each span of time, earliest first."""
        return [self._periods[place] for place in sorted(self._periods)]

    @property
    def recent(self) -> list[Event]:
        """The last actions on the whole store, and the last other events except uses; newest first."""
        acts = heapq.nlargest(RECENT_ACTS, (event for event in self._recent if event.kind in ACTS), key=_order)
        rest = heapq.nlargest(RECENT, (event for event in self._recent if event.kind not in ACTS), key=_order)
        return sorted((*acts, *rest), key=_order, reverse=True)


def _order(event: Event) -> tuple[float, str, str, str]:
    return event.at, event.kind, event.key, event.detail


def coarsened(periods: Iterable[EventPeriod], now: float) -> list[EventPeriod]:
    """The same sums in fewer periods, which are longer the farther they are from ``now``; at most ``MOST_PERIODS``.

    This holds for past and future: the hourly period of an event from a clock that was ahead must not remain for
    ever. Periods never become shorter, even if the clock was set back since.
    """
    merged: dict[tuple[int, int], EventPeriod] = {}
    for period in periods:
        age = abs(now - period.start)
        seconds = next((length for length, kept_s in _KEPT_FOR_S if age < kept_s), _LONGEST_S)
        seconds = max(seconds, period.seconds)
        _add_period(merged, period.copied(period.start // seconds * seconds, seconds))
    kept = heapq.nsmallest(MOST_PERIODS, merged.values(), key=lambda period: abs(now - period.start))
    return sorted(kept, key=lambda period: (period.start, period.seconds))


def _add_period(periods: dict[tuple[int, int], EventPeriod], period: EventPeriod) -> None:
    there = periods.setdefault((period.start, period.seconds), period)
    if there is not period:
        there.add(period)


def _by_length(spans: Mapping[str, int]) -> dict[str, int]:
    """The number of lookups among the durations ``Event.spans``, as in ``EventCounts.lookups``."""
    found: dict[str, int] = {}
    for name, count in spans.items():
        tier, _, bucket = name.partition("/")
        if tier in TIERS and bucket.isascii() and bucket.isdecimal():
            place = str(bisect_right(_LOOKUP_LIMITS, int(bucket[:4])))
            found[place] = found.get(place, 0) + count
    return found


def _add(counts: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        counts[name] = capped_sum(counts.get(name, 0), count)


class Statistics(msgspec.Struct, frozen=True):
    """A store's state and history at one moment.

    Attributes:
        entries, stored_bytes: the entries on disk, and their bytes.
        journal_bytes: the bytes of the journal, which ``stored_bytes`` does not include and which have their own limit.
        max_entries, max_bytes: the limits in force.
        totals: sums over the store's history, across restarts.
        last_24h: sums over the last 24 hours; without a store, those of this process.
        asks_remote: whether the settings let lookups ask a remote.
        memory_entries, memory_bytes: kernels in the memory tier of this process, and the bytes of their code.
        max_memory_bytes: the limit of ``memory_bytes``.

    Example:
        ```python
        with open_cache(create=False) as cache:
            stats = cache.stats()
            print(stats.entries, stats.hit_rate, stats.totals.hits.get("disk", 0), stats.totals.compile_ms)
        ```
    """

    entries: int
    stored_bytes: int
    max_entries: int
    max_bytes: int
    journal_bytes: int
    totals: Totals
    last_24h: EventCounts = msgspec.field(default_factory=EventCounts)
    asks_remote: bool = False
    memory_entries: int = 0
    memory_bytes: int = 0
    max_memory_bytes: int = 0

    def __repr__(self) -> str:
        held = f"{self.entries} of {self.max_entries} entries, {self.stored_bytes} of {self.max_bytes} bytes"
        return f"<Statistics: {held}, {self.hits} hits, {self.totals.misses} misses>"

    @property
    def hits(self) -> int:
        """The number of hits in all tiers."""
        return sum(self.totals.hits.values())

    @property
    def hit_rate(self) -> float | None:
        """Hits divided by lookups; ``None`` before the first lookup."""
        return hit_rate(self.hits, self.totals.misses)

    @property
    def tier_hit_rates(self) -> dict[str, float | None]:
        """For each tier, its hits divided by the lookups that reached it; see the function ``tier_hit_rates``."""
        has_remote = self.asks_remote or bool(self.totals.failures.get(REMOTE))
        return tier_hit_rates(self.totals.hits, self.totals.misses, has_remote=has_remote)


def hit_rate(hits: int, misses: int) -> float | None:
    """Hits divided by lookups; ``None`` if there were no lookups."""
    return hits / (hits + misses) if hits + misses else None


def tier_hit_rates(hits: Mapping[str, int], misses: int, *, has_remote: bool = False) -> dict[str, float | None]:
    """The hit rate of each tier, in the order of lookups: its hits divided by the lookups that no earlier tier served.

    A single rate for all tiers would hide that the disk never hits, if memory always does. ``None`` if no lookup
    reached the tier. Most stores have no remote, so the remote is listed only with ``has_remote`` or if it had a hit.
    """
    rates: dict[str, float | None] = {}
    left = sum(hits.get(tier, 0) for tier in TIERS) + misses
    for tier in TIERS:
        served = hits.get(tier, 0)
        if tier == REMOTE and not served and not has_remote:
            continue
        rates[tier] = hit_rate(served, left - served)
        left -= served
    return rates


# ---- Usage of one entry of a store ----

_WEEK_S, _KEPT_WEEKS = 7 * 86_400, 8


class EntryUsage(msgspec.Struct):
    """The usage of an entry: hits by tier, and the times of its last two uses (seconds since 1970; 0 for never).

    The second last time distinguishes an entry in steady use from one that was used once.

    An entry is identified by its key and the time when it was made. After an eviction, the same key is a new entry.
    """

    key: str
    made_at: Seconds
    hits: dict[str, Count] = msgspec.field(default_factory=dict)
    last_used_at: Seconds = 0.0
    previous_used_at: Seconds = 0.0
    # By week since 1970, so that decayed sums do not depend on the order of events; only the latest weeks.
    weeks: dict[Annotated[int, msgspec.Meta(ge=0, le=2_000_000)], Count] = msgspec.field(default_factory=dict)

    def used(self, at: float, count: int) -> None:
        """Records ``count`` uses at the time ``at``. Keeps the two latest times; calls may come in any order."""
        times = sorted((self.last_used_at, self.previous_used_at, at, at if count > 1 else 0.0))
        self.previous_used_at, self.last_used_at = times[-2:]
        week = _week(at)
        self.weeks[week] = capped_sum(self.weeks.get(week, 0), count)

    def recent_hits(self, now: float) -> float:
        """The number of hits, each halved once for every week that has passed since the end of the hit's week.

        Hits dated in the future count fully.
        """
        weeks = self._every_week().items()
        return sum(count * math.exp2(-max(0.0, now / _WEEK_S - (week + 1))) for week, count in weeks)

    def without_old_weeks(self, now: float) -> EntryUsage:
        """The same usage; hits many weeks before or after ``now``, which hardly count, are moved to week 0."""
        weeks: dict[int, int] = {}
        for week, count in self._every_week().items():
            kept = week if abs(week - _week(now)) <= _KEPT_WEEKS else 0
            weeks[kept] = capped_sum(weeks.get(kept, 0), count)
        return msgspec.structs.replace(self, weeks=weeks)

    def _every_week(self) -> dict[int, int]:
        """Hits by week.

        Hits that an older version counted without a week are put in the week before the earliest known one.
        """
        weeks: dict[int, int] = dict(self.weeks)
        unknown = sum(self.hits.values()) - sum(weeks.values())
        if unknown > 0:
            before = min((week for week in weeks if week), default=_week(self.last_used_at) + 1) - 1
            weeks[before] = weeks.get(before, 0) + unknown
        return weeks


def _week(at: float) -> int:
    return max(0, int(at // _WEEK_S))


def capped_sum(one: int, other: int) -> int:
    """The sum of two counts, limited to the largest count that readers of ``snapshot.json`` accept."""
    return min(MOST_COUNT, one + other)
