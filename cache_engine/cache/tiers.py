"""Looks an entry up in the tiers in order, fastest first, and copies an entry of a slower tier to memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from cache_engine.errors import CorruptEntry, UsageError
from cache_engine.logs import DEBUG, WARNING, Log
from cache_engine.model.key import CacheKey, is_key
from cache_engine.store.base import Backfilled, Loaded, Tier

_log = Log(__name__)


class Found(msgspec.Struct, frozen=True):
    """An entry, and the tier that had it."""

    tier: str
    loaded: Loaded


Find = Callable[[CacheKey], Found | None]
"""A function that looks for an entry elsewhere than in the tiers of this machine, such as in a remote."""


class Preloaded(msgspec.Struct, frozen=True):
    """The result of ``Cache.preload``; ``str`` gives it as a sentence.

    Attributes:
        loaded: the keys that are now in memory, each with the tier that had its kernel: ``"memory"``, ``"pack"``,
            ``"disk"`` or ``"remote"``.
        missing: the keys that no tier has undamaged.
        no_room: the keys of kernels that do not fit in memory after the kernels before them.
        loaded_bytes: the bytes of compiled code of ``loaded``.
        needed_bytes: the value that ``memory_bytes`` needs so that all kernels fit.
        memory_bytes: the present limit of memory for kernels.
    """

    loaded: Mapping[CacheKey, str]
    missing: tuple[CacheKey, ...]
    no_room: tuple[CacheKey, ...]
    loaded_bytes: int
    needed_bytes: int
    memory_bytes: int

    def __str__(self) -> str:
        from cache_engine.units import counted, human_bytes

        parts = [f"{counted(len(self.loaded), 'kernel')} in memory, {human_bytes(self.loaded_bytes)}"]
        if self.missing:
            parts.append(f"{len(self.missing):,} in no tier")
        if self.no_room:
            parts.append(
                f"{len(self.no_room):,} without room in memory_bytes = {self.memory_bytes:,}; set it to at least "
                f"{self.needed_bytes:,}"
            )
        return "; ".join(parts)


class Tiers:
    """The tiers of this machine: memory, then the slower ones in order."""

    def __init__(
        self, memory: Backfilled, slower: Sequence[Tier], on_failure: Callable[[str], None] = lambda _: None
    ) -> None:
        """Looks in ``memory`` first, then in each of ``slower``.

        Args:
            on_failure: a function called with the name of a tier that failed and was skipped.
        """
        self.memory = memory
        self._slower = tuple(slower)
        self._on_failure = on_failure
        self._complained: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tiers, in the order of lookup."""
        return (self.memory.name, *(tier.name for tier in self._slower))

    def get(self, key: CacheKey, elsewhere: Find = lambda _: None) -> Found | None:
        """The entry from the first tier that has it undamaged; ``None`` if none has.

        Skips a tier that fails, with a warning.

        Args:
            elsewhere: a function asked if no tier has the entry.
        """
        loaded = self.memory.get(key)
        if loaded is not None:
            return Found(self.memory.name, loaded)
        found = self._slower_get(key) or elsewhere(key)
        if found is not None:
            self.memory.put(key, found.loaded)
        return found

    def preload(
        self,
        keys: Iterable[str],
        memory_bytes: int,
        elsewhere: Find = lambda _: None,
        each: Callable[[Find, Iterable[CacheKey]], Iterator[Found | None]] = map,
    ) -> Preloaded:
        """Copies entries to memory, up to ``memory_bytes``; see ``Cache.preload``.

        An entry that does not fit is not copied, because it would only replace one that came earlier in ``keys``.

        Args:
            elsewhere: a function asked for entries that no tier has.
            each: a function like ``map``, which may make several calls at a time.
        """

        def find(key: CacheKey) -> Found | None:
            in_memory = self.memory.get(key)
            if in_memory is not None:
                return Found(self.memory.name, in_memory)
            return self._slower_get(key) or elsewhere(key)

        loaded: dict[CacheKey, str] = {}
        missing, no_room, loaded_bytes, needed_bytes = [], [], 0, 0
        wanted = dict.fromkeys(_checked(keys))
        for key, found in zip(wanted, each(find, wanted), strict=True):
            if found is None:
                missing.append(key)
                continue
            size = len(found.loaded.cubin)
            needed_bytes += size
            if loaded_bytes + size > memory_bytes:
                no_room.append(key)
                continue
            if found.tier != self.memory.name:
                self.memory.put(key, found.loaded)
            loaded[key], loaded_bytes = found.tier, loaded_bytes + size
        return Preloaded(loaded, tuple(missing), tuple(no_room), loaded_bytes, needed_bytes, memory_bytes)

    def _slower_get(self, key: CacheKey) -> Found | None:
        for tier in self._slower:
            try:
                loaded = tier.get(key)
            except (CorruptEntry, OSError) as error:
                self.skip(tier.name, key, error)
                continue
            if loaded is not None:
                return Found(tier.name, loaded)
        return None

    def skip(self, tier: str, key: CacheKey, error: Exception, *, is_said: bool = False) -> None:
        """Counts the failure of a tier. Warns at its first failure only, since a failing disk fails often.

        Args:
            is_said: whether a warning about this failure was already logged.
        """
        self._on_failure(tier)
        level = DEBUG if is_said or tier in self._complained else WARNING
        if not is_said:
            self._complained.add(tier)
        _log.log(level, "%s tier skipped for %s: %s", tier, key[:12], error)


def _checked(keys: Iterable[str]) -> list[CacheKey]:
    """The keys as a list, after checking all of them. Raises ``UsageError`` before anything is read."""
    if isinstance(keys, str):
        raise UsageError(f"preload takes keys in a list, not one text: [{keys[:64]!r}]")
    given = list(keys)
    for key in given:
        if not isinstance(key, str) or not is_key(key):
            raise UsageError(f"{str(key)[:80]!r} is not a whole key; cache.find(prefix).key is one")
    return [CacheKey(key) for key in given]
