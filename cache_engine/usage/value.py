"""Orders of eviction: three sort keys; the entry that sorts first is evicted first."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

LRU, LRU2, VALUE = ORDERS = ("lru", "lru2", "value")


class Worth(msgspec.Struct, frozen=True):
    """The facts about an entry that decide its eviction. Times are seconds since 1970.

    Attributes:
        last_used_at, used_before_at: the times of the last and of the second last use; minus infinity without one.
        hits: the number of hits, decayed with time.
        compile_s: the seconds of compiling it again.
        is_protected: whether it is pinned, or serves when no other kernel does; then it is evicted last in every order.
        is_demoted: whether it was compiled in advance and no longer pays; then it is evicted first in every order.
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
        """The seconds of compiling that each stored byte saves: decayed hits · compile seconds / stored bytes.

        This is the value of GreedyDual-Size-Frequency, with decay in place of its ageing term (Cherkasova,
        "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HP Laboratories 1998).
        """
        return self.hits * self.compile_s / max(self.stored_bytes, 1)


SortKey = Callable[[Worth], tuple[float | bool | str, ...]]


def order(name: str) -> SortKey:
    """The sort key of an order, one of ``ORDERS``.

    - ``lru``: the least recently used entry first.
    - ``lru2``: the entry whose second last use is oldest (O'Neil, O'Neil, Weikum: "The LRU-K Page Replacement
      Algorithm", SIGMOD 1993), so a single use does not save an entry.
    - ``value``: the entry with the least value; among equal ones, the least recently used.
    """
    return {LRU: _by_last_use, LRU2: _by_use_before, VALUE: _by_value}[name]


def _by_last_use(one: Worth) -> tuple[float | bool | str, ...]:
    return one.is_protected, not one.is_demoted, one.last_used_at, one.key


def _by_use_before(one: Worth) -> tuple[float | bool | str, ...]:
    return one.is_protected, not one.is_demoted, one.used_before_at, one.last_used_at, one.key


def _by_value(one: Worth) -> tuple[float | bool | str, ...]:
    return one.is_protected, not one.is_demoted, one.value, one.last_used_at, one.key
