"""Orders of eviction: three, each a sort key; the entry that sorts first goes first."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

LRU, LRU2, VALUE = ORDERS = ("lru", "lru2", "value")


class Worth(msgspec.Struct, frozen=True):
    """The facts known of an entry. Times are seconds since 1970.

    Attributes:
        last_used_at, used_before_at: the last use and the one before; minus infinity where there was none.
        hits: decayed with time.
        compile_s: what making it again takes.
        is_protected: pinned, or the kernel that serves when no other is there; it goes last, whatever the order.
        is_demoted: compiled ahead, and no longer worth its price; it goes first, whatever the order.
    """

    key: str
    stored_bytes: int
    last_used_at: float
    used_before_at: float = -math.inf
    hits: float = 0.0
    compile_s: float = 0.0
    is_protected: bool = False
    is_demoted: bool = False

    @property
    def value(self) -> float:
        """Seconds of compiling that a stored byte saves: decayed hits · compile seconds / stored bytes.

        It is the value of GreedyDual-Size-Frequency without its ageing term, which decay replaces (Cherkasova,
        "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HP Laboratories 1998).
        """
        return self.hits * self.compile_s / max(self.stored_bytes, 1)


SortKey = Callable[[Worth], tuple[float | bool | str, ...]]


def order(name: str) -> SortKey:
    """The sort key of an order, one of ``ORDERS``.

    ``lru``: the least recently used first. ``lru2``: the one whose last use but one is longest ago (O'Neil, O'Neil,
    Weikum: "The LRU-K Page Replacement Algorithm", SIGMOD 1993), so one use alone does not save an entry. ``value``:
    the one of the least value; where values are equal, the least recently used.
    """
    return {LRU: _by_last_use, LRU2: _by_use_before, VALUE: _by_value}[name]


def _by_last_use(one: Worth) -> tuple[float | bool | str, ...]:
    return one.is_protected, not one.is_demoted, one.last_used_at, one.key


def _by_use_before(one: Worth) -> tuple[float | bool | str, ...]:
    return one.is_protected, not one.is_demoted, one.used_before_at, one.last_used_at, one.key


def _by_value(one: Worth) -> tuple[float | bool | str, ...]:
    return one.is_protected, not one.is_demoted, one.value, one.last_used_at, one.key
