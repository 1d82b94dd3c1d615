"""Plans of eviction: the entries to evict, and why. Pure: ``survey`` finds the facts, ``cleanup`` evicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from cache_engine.settings import Settings, parse_bytes
from cache_engine.store.layout import Identities

EXPIRED, STALE, NAMED, NAMED_ARCH, TOO_MANY, TOO_LARGE, LITTLE_SPACE, FOREIGN, EVERYTHING = (
    "expired",
    "stale toolchain",
    "selected",
    "target selected",
    "too many entries",
    "store too large",
    "over disk-share limit",
    "another format version",
    "everything",
)

DAY_S = 86_400.0
DOWN_TO = 0.8
"""A store above a limit is reduced to this share of the limit, so that the next entry does not exceed it again."""
# A store is far above a limit if it exceeds it by this share or this number of entries, whichever is more.
SLACK_SHARE, SLACK_ENTRIES = 0.025, 5

LITTLE_FREE_BYTES, NO_FREE_BYTES = 1 << 30, 16 << 20
"""The free bytes of a disk below which it has little space, and below which it has none.

A kernel takes some 0.1 MB, the index and the journal some MB.
"""


class EntryFacts(msgspec.Struct, frozen=True):
    """The facts about an entry that decide about its eviction. Times are seconds since 1970.

    ``last_used_at`` is the time of publishing for an entry that was never used. ``stale`` means that no request on this
    machine can ever hit the entry, because the compiler or the template has changed. ``arch`` is its target, if the
    limits need it. ``foreign`` means that it has another format version.

    ``used_before_at`` is the time of the second last use, minus infinity without one. ``hits`` is the number of hits,
    each halved for every week that has passed since. ``compile_s`` is the time to compile the entry again, in seconds.
    ``is_floor`` says whether it serves any size (``dynamic``), and so serves when no better kernel is stored. ``hits``,
    ``compile_s`` and ``is_floor`` are known only if the record was read. ``is_demoted`` means that it was compiled
    ahead and is no longer worth its price, according to the log of decisions.
    """

    key: str
    stored_bytes: int
    last_used_at: float
    stale: bool = False
    arch: str = ""
    foreign: bool = False
    used_before_at: float = -math.inf
    hits: float = 0.0
    compile_s: float = 0.0
    is_floor: bool = False
    pinned: bool = False
    is_demoted: bool = False

    def worth(self, now: float) -> Worth:
        """The values that the order of eviction depends on.

        If the last use lies in the future, because a clock was ahead, its time is taken as ``now``.
        """
        last, before = min(self.last_used_at, now), min(self.used_before_at, now)
        return Worth(
            self.key, self.stored_bytes, last, before, self.hits, self.compile_s, self.is_floor, self.is_demoted
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a store; ``None`` sets no limit.

    Attributes:
        expire_days: evict entries unused for this many days.
        stale_toolchain: evict entries that can never be hit.
        keys: evict the entries with these keys.
        archs: evict entries for these targets.
        max_entries, max_bytes: the most entries and the most bytes in the store; above either, evict in the order
            ``order``. Bytes may be a text such as ``2GB``.
        max_disk_share: a limit on bytes too, as a share of the free disk space plus the store's size.
        down_to: when a limit is exceeded, evict down to this share of it.
        free_bytes: the free disk space.
        spare_s: do not evict entries published or used this recently, unless the store stays far above its limits; then
            evict those too, least recently used first, until the limits hold. Far above is more than 2.5 % of a limit,
            and more than five entries of average size.
        everything: evict every entry.
        foreign_format: evict entries of another format version. Without it no limit evicts these entries, not even
            ``everything``; they count against the limits.
        order: the order of eviction when a limit is exceeded, one of ``usage.value.ORDERS``. ``None`` means the order
            in the settings, else ``lru``, the least recently used first. Kernels that serve any size go last, and do
            not expire.
        pinned: evict pinned entries like others. Without it nothing evicts pinned entries, not even ``everything``;
            they count against the limits.
    """

    expire_days: float | None = None
    stale_toolchain: bool = False
    keys: frozenset[str] = frozenset()
    archs: frozenset[str] = frozenset()
    max_entries: int | None = None
    max_bytes: int | None = None
    max_disk_share: float | None = None
    down_to: float = 1.0
    free_bytes: int | None = None
    spare_s: float = 0.0
    everything: bool = False
    foreign_format: bool = False
    order: str | None = None
    pinned: bool = False

    def __post_init__(self) -> None:
        """Converts a ``max_bytes`` given as text, such as ``2GB``; raises ``UsageError`` if the text is not a size."""
        size: object = self.max_bytes
        if isinstance(size, str):
            object.__setattr__(self, "max_bytes", parse_bytes(size))

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """The limits in the settings."""
        s = settings
        return cls(
            expire_days=s.expire_days,
            max_entries=s.max_entries,
            max_bytes=s.max_bytes,
            max_disk_share=s.max_disk_share,
            down_to=DOWN_TO,
            order=s.eviction,
        )


@dataclass(frozen=True, slots=True)
class Victim:
    """An entry to be evicted."""

    key: str
    stored_bytes: int
    last_used_at: float
    reason: str
    compile_s: float = 0.0
    pinned: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class EvictionPlan:
    """The entries to evict, in the order of eviction, and the size of the rest.

    ``foreign`` is the number of remaining entries known to have another format version, and ``pinned`` is the number of
    remaining entries that are pinned. ``store`` identifies the store, as ``StoreLayout.identities`` does; the plan is
    applied to no other store.
    """

    victims: tuple[Victim, ...]
    kept_entries: int
    kept_bytes: int
    foreign: int = 0
    pinned: int = 0
    store: Identities = ()

    def __repr__(self) -> str:
        evicted = f"{len(self.victims)} entries to evict, {self.freed_bytes} bytes"
        return f"<EvictionPlan: {evicted}; {self.kept_entries} stay, {self.kept_bytes} bytes>"

    @property
    def freed_bytes(self) -> int:
        """The bytes that the plan would free."""
        return sum(victim.stored_bytes for victim in self.victims)

    @property
    def compile_s(self) -> float:
        """Seconds to compile all victims again, taken from their first compiles."""
        return sum(victim.compile_s for victim in self.victims)


def plan(entries: Iterable[EntryFacts], limits: Limits, now: float) -> EvictionPlan:
    """The plan of the evictions that bring ``entries`` within ``limits``.

    Clocks jump. The age of an entry whose last use lies in the future is 0: otherwise setting a clock back could evict
    a whole store.
    """
    sort_key = order(limits.order or LRU)
    by_worth = sorted(entries, key=lambda entry: sort_key(entry.worth(now)))
    victims: list[Victim] = []
    spared: list[EntryFacts] = []
    kept: list[EntryFacts] = []
    foreign: list[EntryFacts] = []
    pinned: list[EntryFacts] = []
    for entry in by_worth:
        age_s = max(0.0, now - entry.last_used_at)
        reason = _reason(entry, limits, age_s)
        if entry.pinned and not limits.pinned:
            pinned.append(entry)
        elif reason:
            victims.append(_victim(entry, reason))
        elif entry.foreign:
            foreign.append(entry)
        elif age_s < limits.spare_s:
            spared.append(entry)
        else:
            kept.append(entry)

    # Entries that stay count against the limits, and so do spared ones; the others are evicted first.
    entries_left = len(kept) + len(spared) + len(foreign) + len(pinned)
    bytes_left = sum(entry.stored_bytes for entry in (*kept, *spared, *foreign, *pinned))
    max_bytes, too_large = _byte_limit(limits, sum(entry.stored_bytes for entry in by_worth))
    for candidates, down_to in ((kept, limits.down_to), (spared, 1.0)):
        if candidates is spared and not _is_far_above(limits.max_entries, max_bytes, entries_left, bytes_left):
            break
        excess = _excess(candidates, entries_left, limits.max_entries, down_to)
        victims += [_victim(entry, TOO_MANY) for entry in candidates[:excess]]
        bytes_left -= sum(entry.stored_bytes for entry in candidates[:excess])
        entries_left -= len(candidates[:excess])
        if bytes_left > max_bytes:
            for entry in candidates[excess:]:
                if bytes_left <= max_bytes * down_to:
                    break
                victims.append(_victim(entry, too_large))
                bytes_left -= entry.stored_bytes
                entries_left -= 1
    return EvictionPlan(tuple(victims), entries_left, bytes_left, len(foreign), len(pinned))


def is_far_above(limits: Limits, entries: int, stored_bytes: int) -> bool:
    """Whether a store is so far above its limits that it must be cleaned at once.

    That means more than 2.5 % of a limit, and more than five entries of average size.
    """
    return _is_far_above(limits.max_entries, _byte_limit(limits, stored_bytes)[0], entries, stored_bytes)


def _is_far_above(max_entries: int | None, max_bytes: float, entries: int, stored_bytes: int) -> bool:
    if max_entries is not None and entries > max_entries + max(SLACK_ENTRIES, SLACK_SHARE * max_entries):
        return True
    average_bytes = stored_bytes / max(1, entries)
    return stored_bytes > max_bytes + max(SLACK_ENTRIES * average_bytes, SLACK_SHARE * max_bytes)


def _excess(candidates: list[EntryFacts], entries: int, max_entries: int | None, down_to: float) -> int:
    """The number of candidates to evict for ``max_entries``, down to its share ``down_to``; 0 if it is not exceeded."""
    if max_entries is None or entries <= max_entries:
        return 0
    return min(len(candidates), entries - math.ceil(max_entries * down_to))


def _reason(entry: EntryFacts, limits: Limits, age_s: float) -> str | None:
    """The reason to evict an entry whatever the store's size, such as its age; ``None`` if there is none."""
    if entry.foreign:
        return FOREIGN if limits.foreign_format else None
    if limits.everything:
        return EVERYTHING
    if age_s < limits.spare_s:
        return None
    if limits.stale_toolchain and entry.stale:
        return STALE
    if entry.key in limits.keys:
        return NAMED
    if entry.arch in limits.archs:
        return NAMED_ARCH
    if limits.expire_days is not None and not entry.is_floor and age_s > limits.expire_days * DAY_S:
        return EXPIRED
    return None


def _byte_limit(limits: Limits, stored_bytes: int) -> tuple[float, str]:
    """The smaller of the two limits on bytes, and the reason to give for evictions by that limit."""
    most = math.inf if limits.max_bytes is None else limits.max_bytes
    if limits.max_disk_share is not None and limits.free_bytes is not None:
        share = limits.max_disk_share * (limits.free_bytes + stored_bytes)
        if share < most:
            return share, LITTLE_SPACE
    return most, TOO_LARGE


def _victim(entry: EntryFacts, reason: str) -> Victim:
    return Victim(entry.key, entry.stored_bytes, entry.last_used_at, reason, entry.compile_s, entry.pinned)


# ---- Orders of eviction: the entry that sorts first is evicted first ----

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
