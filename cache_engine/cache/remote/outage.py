"""Whether a remote has just cost another process of this store a wait, by the store's journal."""

from __future__ import annotations

from pathlib import Path

from cache_engine.cache.remote.base import without_query
from cache_engine.cache.remote.breaker import LONGEST_PAUSE_S
from cache_engine.model.events import REMOTE_DOWN, REMOTE_UP, Event
from cache_engine.store.journal import recent_events

YOUNG_S = LONGEST_PAUSE_S
"""Seconds for which a failure counts for other processes. Then one of them asks again, also if the first has ended."""
_COSTLY_US = 100_000
"""A failure that comes sooner costs less than a compile, and may be that process's own: its rights, or a fork."""


def outage(journal: Path, url: str, now: float) -> Event | None:
    """The last failure that was waited for, if it is young, and the remote has answered no process since."""
    events = recent_events(journal, (REMOTE_DOWN, REMOTE_UP), now - YOUNG_S)
    last = max((event for event in events if _counts(event, url, now)), key=lambda event: event.at, default=None)
    return last if last is not None and last.kind == REMOTE_DOWN else None


def _counts(event: Event, url: str, now: float) -> bool:
    is_costly = event.kind == REMOTE_UP or event.waited_us >= _COSTLY_US
    return is_costly and event.remote == without_query(url) and event.at <= now  # else a clock was ahead
