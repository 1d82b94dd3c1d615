"""One ordered probe over the tiers, fastest first; what a slower one has is copied to memory."""

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
"""Asks for an entry in a place that is no tier of this machine."""


class Preloaded(msgspec.Struct, frozen=True):
    """The result of ``Cache.preload``. ``str`` says it in a sentence.

    Attributes:
        loaded: the kernels that are now in memory, each with the tier that had it: ``"memory"``, ``"pack"``,
            ``"disk"``, ``"remote"``.
        missing: those that no tier has whole.
        no_room: those that are stored, and do not fit in memory together with those that came before them.
        loaded_bytes: compiled code of those in memory.
        needed_bytes: what ``memory_bytes`` must be at least for all that are stored to fit.
        memory_bytes: what it is.
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
    """Memory, then the slower tiers in order."""

    def __init__(
        self, memory: Backfilled, slower: Sequence[Tier], on_failure: Callable[[str], None] = lambda _: None
    ) -> None:
        """Probes ``memory`` first, then ``slower`` one by one.

        Args:
            on_failure: called with the name of each tier that failed and was skipped.
        """
        self.memory = memory
        self._slower = tuple(slower)
        self._on_failure = on_failure
        self._complained: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """The tiers' names in the order of the probe."""
        return (self.memory.name, *(tier.name for tier in self._slower))

    def get(self, key: CacheKey, elsewhere: Find = lambda _: None) -> Found | None:
        """The entry from the first tier that has it whole. A tier that fails is skipped, with a warning.

        Args:
            elsewhere: asked where no tier has it.
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
        """Copies entries to memory, which holds so many bytes; see ``Cache.preload``.

        What does not fit is left where it is: it would only take the place of one that was asked for before it.

        Args:
            elsewhere: asked for what no tier has.
            each: calls for each key in order, maybe for several at once.
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
        """Counts the failure of a tier and warns of it; once is enough, and a disk that fails fails often.

        Args:
            is_said: whether its user has been warned of this failure.
        """
        self._on_failure(tier)
        level = DEBUG if is_said or tier in self._complained else WARNING
        if not is_said:
            self._complained.add(tier)
        _log.log(level, "%s tier skipped for %s: %s", tier, key[:12], error)


def _checked(keys: Iterable[str]) -> list[CacheKey]:
    """All keys, or a ``UsageError`` before anything is read."""
    if isinstance(keys, str):
        raise UsageError(f"preload takes keys in a list, not one text: [{keys[:64]!r}]")
    given = list(keys)
    for key in given:
        if not isinstance(key, str) or not is_key(key):
            raise UsageError(f"{str(key)[:80]!r} is not a whole key; cache.find(prefix).key is one")
    return [CacheKey(key) for key in given]
