"""The cost of each order of eviction for a store: the requests that it has counted, played at each size.

Requests are known by period, not one by one: an hour, then a day. So a kernel is taken to be made at most once in a
period; how often it would be evicted and made again within one is not known, and costs nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cache_engine.upkeep.plan import Worth, order

# As a store that is full makes room: down to this share of its size at once.
_DOWN_TO = 0.9


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that a store would hold.

    Attributes:
        stored_bytes: its size on disk.
        compile_s: seconds of making it.
        is_protected: pinned, or the kernel that serves when no other is there.
    """

    stored_bytes: int
    compile_s: float
    is_protected: bool = False


@dataclass(frozen=True, slots=True)
class Requests:
    """The number of requests for one kernel in one period.

    Attributes:
        at: the middle of the period, seconds since 1970.
    """

    at: float
    key: str
    count: float


@dataclass(frozen=True, slots=True)
class Played:
    """The cost of an order of eviction at one size.

    Attributes:
        order: one of ``usage.value.ORDERS``.
        size_bytes: what the store may hold.
        requests, hits: how many were asked for, and found.
        compile_s: seconds of compiling, first times included.
        again_s: of these, seconds of compiling what had been evicted.
        evictions: how many entries went.
    """

    order: str
    size_bytes: int
    requests: float
    hits: float
    compile_s: float
    again_s: float
    evictions: int

    @property
    def hit_rate(self) -> float | None:
        """Hits over requests; ``None`` without any."""
        return self.hits / self.requests if self.requests else None


@dataclass(slots=True)
class _Held:
    """An entry, and how it was used."""

    last_used_at: float
    used_before_at: float = float("-inf")
    hits: float = 0.0

    def used(self, at: float, count: float, half_life_s: float) -> None:
        """Counts hits in a period."""
        self.hits = self.hits * _decay(at - self.last_used_at, half_life_s) + count
        if count > 1:
            self.used_before_at = at
        elif count:
            self.used_before_at = self.last_used_at
        self.last_used_at = at


@dataclass(slots=True)
class _Store:
    """The entries of a store of limited size."""

    kernels: Mapping[str, Kernel]
    size_bytes: int
    half_life_s: float
    sort_key: Callable[[Worth], tuple[float | bool | str, ...]]
    held: dict[str, _Held] = field(default_factory=dict)
    held_bytes: int = 0
    evictions: int = 0

    def put(self, key: str, at: float) -> None:
        """Stores a kernel, unless it is larger than the store; where there is no room for it, others go first."""
        size = self.kernels[key].stored_bytes
        if size > self.size_bytes:
            return
        if self.held_bytes + size > self.size_bytes:
            self._make_room(size, at)
        self.held[key] = _Held(at)
        self.held_bytes += size

    def _make_room(self, needed: int, at: float) -> None:
        for worth in sorted((self._worth(key, at) for key in self.held), key=self.sort_key):
            if self.held_bytes + needed <= max(self.size_bytes * _DOWN_TO, needed):
                break
            del self.held[worth.key]
            self.held_bytes -= worth.stored_bytes
            self.evictions += 1

    def _worth(self, key: str, at: float) -> Worth:
        one, kernel = self.held[key], self.kernels[key]
        hits = one.hits * _decay(at - one.last_used_at, self.half_life_s)
        return Worth(
            key, kernel.stored_bytes, one.last_used_at, one.used_before_at, hits, kernel.compile_s, kernel.is_protected
        )


def play(
    requests: Sequence[Requests], kernels: Mapping[str, Kernel], name: str, size_bytes: int, half_life_s: float
) -> Played:
    """Plays requests, the earliest first, against a store that starts empty.

    Args:
        kernels: those asked for, by key.
        name: the order of eviction, one of ``usage.value.ORDERS``.
        half_life_s: seconds in which a hit loses half its weight.
    """
    store = _Store(kernels, size_bytes, half_life_s, order(name))
    asked = hits = compile_s = again_s = 0.0
    made: set[str] = set()
    for one in requests:
        asked += one.count
        served = one.count
        if one.key not in store.held:
            served = max(one.count - 1, 0.0)
            cost_s = kernels[one.key].compile_s
            compile_s += cost_s
            again_s += cost_s if one.key in made else 0.0
            made.add(one.key)
            store.put(one.key, one.at)
        hits += served
        if one.key in store.held:
            store.held[one.key].used(one.at, served, half_life_s)
    return Played(name, size_bytes, asked, hits, compile_s, again_s, store.evictions)


def _decay(seconds: float, half_life_s: float) -> float:
    return math.exp2(-max(seconds, 0.0) / half_life_s)
