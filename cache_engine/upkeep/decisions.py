"""Reads the log of decisions, and finds why lookups missed and how entries left the store."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from cache_engine.model.decision import EVICTED, EVICTION, MISS, QUARANTINE, Causes, Decision, request_of
from cache_engine.model.events import CORRUPT, EVICT, PUBLISH, SET_ASIDE
from cache_engine.model.key import check_prefix
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import DecisionReader, read_journal
from cache_engine.store.layout import StoreLayout
from cache_engine.units import human_age, printable

MOST_RECENT = 40_000
"""The most decisions kept in memory, to be listed. The log has about 30,000 when both of its files are full."""

MOST_MISSES = 2000
"""The most misses that are listed."""

# The last of these events says whether an entry should be in the store.
_ENDS = frozenset({PUBLISH, EVICT, CORRUPT, SET_ASIDE})


class Log:
    """The log of decisions of a store, each miss with its cause. Each call reads only the new lines."""

    def __init__(self, store: DiskStore) -> None:
        """Stores the argument; reads nothing yet."""
        self._reader = DecisionReader(store.layout)
        self._causes = Causes(_MadeBefore(store))

    @property
    def damaged(self) -> int:
        """The number of skipped lines: damaged ones, and ones dated in the future."""
        return self._reader.damaged

    def new(self, key: str = "", kinds: Collection[str] = (), since: float = -math.inf) -> list[Decision]:
        """The decisions logged since the last call, the oldest first; at the first call, the whole log.

        Args:
            key: only decisions about entries whose key starts with this.
            kinds: only decisions of these kinds.
            since: only decisions at this time or later, in seconds since 1970.

        Raises:
            UsageError: when ``key`` cannot be the start of a key.
        """
        prefix = check_prefix(key) if key else ""
        explained = map(self._causes.explained, self._reader.new())
        return [
            one
            for one in explained
            if one.key.startswith(prefix) and (not kinds or one.kind in kinds) and one.at >= since
        ]


@dataclass(frozen=True, slots=True)
class Departure:
    """The departure of an entry from the store.

    Attributes:
        at: the time when the entry left, in seconds since 1970, UTC.
        is_evicted: whether the entry was evicted; if not, it was damaged and quarantined.
        why: the reason in the journal or the log.
        by: who evicted it; empty if unknown.
    """

    key: str
    at: float
    is_evicted: bool
    why: str
    by: str

    @property
    def words(self) -> str:
        """The departure in words, such as ``"evicted 3 days ago: unused for 7 days, by automatic"``."""
        how = "evicted" if self.is_evicted else "damaged and quarantined"
        whose = f", by {self.by}" if self.by and self.is_evicted else ""
        return printable(f"{how} {human_age(time.time() - self.at)}: {self.why}{whose}")


def departure(store: DiskStore, prefix: str) -> Departure | None:
    """When and why the last entry with this key prefix left the store; ``None`` if unknown, or if it was stored again.

    Reads the journal and, if that does not have the key, the log, which goes back further.
    """
    recent = read_journal(store.layout.journal).recent  # newest first
    last = next((event for event in recent if event.key.startswith(prefix) and event.kind in _ENDS), None)
    if last is not None:
        return None if last.kind == PUBLISH else Departure(last.key, last.at, last.kind == EVICT, last.detail, last.by)
    logged = Log(store).new(prefix, (EVICTION, QUARANTINE))
    if not logged:
        return None
    one = logged[-1]
    return Departure(one.key, one.at, one.kind == EVICTION, one.reason, one.by)


@dataclass(frozen=True, slots=True)
class EarlyEviction:
    """A kernel that was evicted and then requested again.

    Attributes:
        name: the kernel's name, if the log has it.
        times: the number of times that the kernel was evicted and then requested again. The other fields are about the
            last time.
        rule: why the kernel was evicted.
        asked_at: the time when the kernel was requested again.
    """

    key: str
    name: str
    times: int
    evicted_at: float
    rule: str
    asked_at: float


def early_evictions(decisions: Iterable[Decision]) -> list[EarlyEviction]:
    """The kernels in a log that were evicted and then requested again, each once; the one requested last comes first.

    Args:
        decisions: the log, the oldest decision first, each miss with its cause.
    """
    evicted: dict[str, Decision] = {}
    found: dict[str, EarlyEviction] = {}
    for one in decisions:
        if one.kind == EVICTION:
            evicted[one.key] = one
        elif one.kind == MISS and one.reason == EVICTED and one.key in evicted:
            last, before = evicted.pop(one.key), found.get(one.key)
            times = 1 if before is None else before.times + 1
            found[one.key] = EarlyEviction(one.key, one.name, times, last.at, last.reason, one.at)
    return sorted(found.values(), key=lambda one: (-one.asked_at, one.key))


class RecentDecisions:
    """A store's last decisions; the log is read once, then only its new lines. Safe to use from several threads.

    Unlike ``Log`` it reads no records, so its time depends on the log and not on the store.
    """

    def __init__(self, layout: StoreLayout) -> None:
        """Stores the argument; reads nothing yet."""
        self._reader = DecisionReader(layout)
        self._causes = Causes()
        self._lock = threading.Lock()
        self._last: deque[Decision] = deque(maxlen=MOST_RECENT)

    @property
    def damaged(self) -> int:
        """The number of skipped lines: damaged ones, and ones dated in the future."""
        return self._reader.damaged

    def all(self) -> list[Decision]:
        """The last ``MOST_RECENT`` decisions, each miss with its cause, the latest first."""
        with self._lock:
            self._last.extend(map(self._causes.explained, self._reader.new()))
            return list(reversed(self._last))

    def misses(self) -> list[Decision]:
        """The last ``MOST_MISSES`` misses among the last ``MOST_RECENT`` decisions, the latest first."""
        return list(islice((one for one in self.all() if one.kind == MISS), MOST_MISSES))


class _MadeBefore:
    """Finds the toolchain that made an earlier kernel for a missed request. Reads all records at the first call."""

    def __init__(self, store: DiskStore) -> None:
        """Stores the argument; reads nothing yet."""
        self._store = store
        self._made: dict[str, list[tuple[float, str]]] | None = None

    def __call__(self, miss: Decision) -> str | None:
        """The toolchain of another entry for the same request, if one had been made before the miss; else ``None``."""
        if self._made is None:
            self._made = {}
            for record in self._store.records():
                request, toolchain = request_of(record.components)
                self._made.setdefault(request, []).append((record.created_at, toolchain))
        there = self._made.get(miss.request, ())
        return next((made for at, made in there if at <= miss.at and made != miss.toolchain), None)


# ---- Failures that a reader has seen: counts over time stay; only later failures are warned of ----

FAILURES = (
    "publish_failures", "corruptions", "tier_failures", "lock_waits", "lock_timeouts", "lock_wait_us",
)  # fmt: skip
"""The counters of failures that an admin can acknowledge, named as in ``model.events.Totals`` and in the index."""

_COUNT = re.compile(r"([a-z_]{1,40}) ([0-9]{1,18})")


def in_words(totals: Mapping[str, int]) -> str:
    """The counters of failures that an admin has seen, as text for the detail of the event that records this."""
    return ", ".join(f"{name} {totals[name]}" for name in FAILURES)


def of_words(detail: str) -> dict[str, int]:
    """The counters of failures in the text that ``in_words`` made; empty if one of the counters is missing."""
    found = {match[1]: int(match[2]) for part in detail.split(", ") if (match := _COUNT.fullmatch(part))}
    return found if set(found) == set(FAILURES) else {}


def since(lately: Mapping[str, int], totals: Mapping[str, int], seen: Mapping[str, int]) -> dict[str, int]:
    """For each counter, the number of failures of the last days that no admin has acknowledged.

    Args:
        lately: the counters of failures, summed over the last days.
        totals: the counters summed over all time, which only grow. If one is below that in ``seen``, the store has
            begun to count again from 0, and none of its failures was acknowledged.
        seen: the counters over all time at the last acknowledgement; empty if there was none.
    """
    if not seen or any(totals[name] < seen[name] for name in FAILURES):
        return {name: lately[name] for name in FAILURES}
    return {name: min(lately[name], totals[name] - seen[name]) for name in FAILURES}
