"""Reads the log of decisions, and finds the causes of misses."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from cache_engine.model.decision import EVICTED, EVICTION, MISS, Causes, Decision, request_of
from cache_engine.model.key import check_prefix
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import DecisionReader
from cache_engine.store.layout import StoreLayout

MOST_MISSES = 2000
"""How many misses are held to be listed."""


class Log:
    """The log of a store, read once and then as it grows; each miss with its cause."""

    def __init__(self, store: DiskStore) -> None:
        """Reads nothing yet."""
        self._reader = DecisionReader(store.layout)
        self._causes = Causes(_MadeBefore(store))

    @property
    def damaged(self) -> int:
        """How many lines were skipped, because they are damaged or from the future."""
        return self._reader.damaged

    def new(self, key: str = "", kinds: Collection[str] = (), since: float = -math.inf) -> list[Decision]:
        """The decisions since the last call, the oldest first; at first all.

        Args:
            key: only of entries whose key starts with this.
            kinds: only these.
            since: only at this time or later, in seconds since 1970.

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
class EarlyEviction:
    """A kernel that was evicted and asked for again.

    Attributes:
        name: the kernel's, where the log has it.
        times: how often that happened. The rest is of the last time.
        rule: why it was evicted.
        asked_at: when it was asked for again.
    """

    key: str
    name: str
    times: int
    evicted_at: float
    rule: str
    asked_at: float


class EarlyEvictions:
    """What a store evicted too early, read once from its log and then as that grows. Safe to use from several threads.

    Reads no record, as ``Log`` does, so a large store costs no more than its log.
    """

    def __init__(self, layout: StoreLayout) -> None:
        """Reads nothing yet."""
        self._reader = DecisionReader(layout)
        self._causes = Causes()
        self._lock = threading.Lock()
        self._evicted: dict[str, Decision] = {}
        self._found: dict[str, EarlyEviction] = {}

    def all(self) -> list[EarlyEviction]:
        """One for each kernel, as far back as the log goes; the one asked for last is first."""
        with self._lock:
            for one in map(self._causes.explained, self._reader.new()):
                if one.kind == EVICTION:
                    self._evicted[one.key] = one
                elif one.kind == MISS and one.reason == EVICTED and one.key in self._evicted:
                    evicted, before = self._evicted.pop(one.key), self._found.get(one.key)
                    times = 1 if before is None else before.times + 1
                    self._found[one.key] = EarlyEviction(one.key, one.name, times, evicted.at, evicted.reason, one.at)
            return sorted(self._found.values(), key=lambda one: (-one.asked_at, one.key))


class Misses:
    """A store's last misses, read once from its log and then as that grows. Safe to use from several threads."""

    def __init__(self, layout: StoreLayout) -> None:
        """Reads nothing yet."""
        self._reader = DecisionReader(layout)
        self._causes = Causes()
        self._lock = threading.Lock()
        self._last: deque[Decision] = deque(maxlen=MOST_MISSES)

    def all(self) -> list[Decision]:
        """The last ``MOST_MISSES``, the latest first."""
        with self._lock:
            self._last.extend(one for one in map(self._causes.explained, self._reader.new()) if one.kind == MISS)
            return list(reversed(self._last))


class _MadeBefore:
    """Finds what the store's own entries were made by. Reads their records when it is first asked."""

    def __init__(self, store: DiskStore) -> None:
        """Reads nothing yet."""
        self._store = store
        self._made: dict[str, list[tuple[float, str]]] | None = None

    def __call__(self, miss: Decision) -> str | None:
        """The toolchain of another entry for the same request that had been made by then."""
        if self._made is None:
            self._made = {}
            for record in self._store.records():
                request, toolchain = request_of(record.components)
                self._made.setdefault(request, []).append((record.created_at, toolchain))
        there = self._made.get(miss.request, ())
        return next((made for at, made in there if at <= miss.at and made != miss.toolchain), None)
