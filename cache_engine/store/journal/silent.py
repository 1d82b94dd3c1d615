"""The journal of a cache without a store."""

from __future__ import annotations

from cache_engine.model.key import CacheKey
from cache_engine.store.journal.writing import Journal


class NoJournal(Journal):
    """Counts nothing and writes nothing: the journal of a cache without a store."""

    def __init__(self) -> None:
        """Starts nothing."""

    def hit(self, key: CacheKey, tier: str, *, made_at: float = 0.0, saved_us: int = 0) -> None:
        """Counts nothing."""

    def miss(self, arch: str = "") -> None:
        """Counts nothing."""

    def failure(self, tier: str) -> None:
        """Counts nothing."""

    def lock_wait(self, seconds: float, *, timed_out: bool) -> None:
        """Counts nothing."""

    def event(self, kind: str, **fields: object) -> None:
        """Writes nothing."""

    def flush(self) -> None:
        """Writes nothing."""

    @property
    def is_interrupted(self) -> bool:
        """Never: it does nothing that a signal could interrupt."""
        return False

    def close(self) -> None:
        """Does nothing."""

    def __del__(self) -> None:
        pass
