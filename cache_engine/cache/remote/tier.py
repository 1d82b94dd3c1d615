"""A remote as the last tier of lookups, which wait at most one second for it, and not at all while it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom

from cache_engine.background import BackgroundQueue
from cache_engine.cache.remote.base import Remote, without_query
from cache_engine.cache.remote.entries import MOST_BYTES, name_of, unpacked
from cache_engine.errors import CorruptEntry, RemoteError
from cache_engine.model.artifact import CUBIN, Record
from cache_engine.model.events import REMOTE, REMOTE_DOWN, REMOTE_UP, Event
from cache_engine.model.key import CacheKey
from cache_engine.process import renew_after_fork, weak
from cache_engine.store.base import Loaded
from cache_engine.store.codec import UnknownFormat
from cache_engine.store.journal import recent_events
from cache_engine.upkeep.packs import checked


@dataclass(frozen=True, slots=True)
class Fetched:
    """A checked entry of a remote, and its bytes as a store has them."""

    record: Record
    cubin: bytes = field(repr=False)
    record_data: bytes = field(repr=False)
    blob_data: bytes = field(repr=False)


class RemoteTier:
    """Looks entries up in a remote. Safe to use from several threads.

    A miss is not remembered, because another machine may push the kernel at any moment.
    """

    name = REMOTE

    def __init__(
        self,
        remote: Remote,
        prove: Callable[[bytes], None],
        breaker: Breaker | None = None,
    ) -> None:
        """Makes no request yet.

        Args:
            prove: a function called with the bytes of each record; raises ``Unproved`` unless a trusted signer signed
                it.
            breaker: decides whether the remote is asked; by default a new one.
        """
        self._remote, self._prove = remote, prove
        self.breaker = breaker or breaker_of(remote)

    def get(self, key: CacheKey) -> Loaded | None:
        """The entry, with every byte and its signature checked; ``None`` if the remote has none or is not asked now.

        Raises:
            CorruptEntry: when the entry must not be served.
            OSError: when the remote fails, or has not answered within a second.
        """
        found = self.fetch(key)
        return None if found is None else Loaded(found.record, found.cubin)

    def fetch(self, key: CacheKey) -> Fetched | None:
        """As ``get``, but returns the bytes of the record and blob too, so that the caller can store them."""
        if self.breaker.why:
            return None
        started = time.monotonic()
        try:
            data = self._remote.get(name_of(key), MOST_BYTES)
        except RemoteError as error:
            self.breaker.failed(str(error), time.monotonic() - started)
            raise OSError(str(error)) from error
        if data is None:
            return None
        record_data, blob_data = unpacked(key, data, self._prove)
        try:
            # The other sections are covered by the digest, which was signed; they are decoded when they are read.
            record, cubin = checked(key, record_data, blob_data, (CUBIN,))
        except UnknownFormat as error:
            raise CorruptEntry(str(error)) from error
        return Fetched(record, cubin, record_data, blob_data)


# ---- The breaker ----
# It stops requests to a remote while the remote fails, so that no lookup waits for it. A background thread finds out
# when the remote answers again. A process also stops asking for a minute after the store's journal says that another
# process waited for a failed request.

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
"""Seconds between a failure and the first new request, and the longest pause between two such requests."""
YOUNG_S = LONGEST_PAUSE_S
"""Seconds for which other processes do not ask a remote either after it has failed for one process."""
_COSTLY_US = 100_000
"""The shortest wait for a failed request, in microseconds, after which other processes stop asking too.

A request that fails sooner costs less than a compile, and its cause may be in one process, such as missing rights.
"""
_random = SystemRandom()
_UNKNOWN = "it failed"
_NO_KEY = CacheKey("0" * 64)


class Breaker:
    """Decides whether the remote is asked: open after a failure (no requests), closed after the next answer.

    While it is open, a thread asks the remote after 5 seconds, and then after pauses that double up to a minute. Each
    pause is made up to a quarter longer or shorter at random, so that the processes of a fleet do not all ask at once.
    Safe to use from several threads and after a fork.
    """

    def __init__(
        self,
        ask: Callable[[], object],
        on_change: Callable[[str, float], None] = lambda _, __: None,
        *,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """Starts closed: the remote is asked.

        Args:
            ask: a function that makes a small request; raises ``RemoteError`` when the remote does not answer.
            on_change: called when the breaker opens, with the reason and the seconds that the failure took, and when it
                closes, with an empty text.
            first_pause_s: the seconds between a failure and the first new request.
        """
        self._ask, self._on_change, self._first_pause_s = ask, on_change, first_pause_s
        self._queue = BackgroundQueue()
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: closes the breaker, because only the parent has the thread that asks again."""
        self._lock = threading.RLock()
        self._why = ""
        self._pause_s = self._first_pause_s

    @property
    def why(self) -> str:
        """The reason why the remote is not asked; empty if it is."""
        return self._why

    def failed(self, why: str, waited_s: float = 0.0) -> None:
        """Opens the breaker after a failed request that took ``waited_s`` seconds, and calls ``on_change``."""
        if self.hold(why):
            self._on_change(why or _UNKNOWN, waited_s)

    def hold(self, why: str) -> bool:
        """Opens the breaker if it is closed, without calling ``on_change``; returns whether it did."""
        with self._lock:
            if self._why:
                return False
            is_asked_again = self._queue.put(weak(self._ask_again), self._wait_s())
            if not is_asked_again and not self._queue.is_closed:
                return False  # this process can start no thread, and nothing else would close it
            self._why = why or _UNKNOWN
        return True

    def _ask_again(self) -> float | None:
        try:
            self._ask()
        except RemoteError:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            return self._wait_s()
        except CorruptEntry:
            pass  # the remote answers again
        with self._lock:
            self._why, self._pause_s = "", self._first_pause_s
        self._on_change("", 0.0)
        return None

    def end(self) -> None:
        """Stops asking the remote whether it answers again. Returns at once."""
        self._queue.end()

    def close(self, until: float) -> None:
        """As ``end``, and waits for a request in progress until ``until``, a time of ``time.monotonic``."""
        self._queue.close(max(0.0, until - time.monotonic()))

    def _wait_s(self) -> float:
        return self._pause_s * _random.uniform(0.75, 1.25)


def breaker_of(remote: Remote, on_change: Callable[[str, float], None] = lambda _, __: None) -> Breaker:
    """A breaker for a remote. To learn whether it answers again, it asks for a key that no kernel has."""
    return Breaker(lambda: remote.get(name_of(_NO_KEY), MOST_BYTES), on_change)


def outage(journal: Path, url: str, now: float) -> Event | None:
    """The last event in a journal of a failure for which a process waited; ``None`` if it is old.

    Also ``None`` if the remote has answered since.
    """
    events = recent_events(journal, (REMOTE_DOWN, REMOTE_UP), now - YOUNG_S)
    last = max((event for event in events if _counts(event, url, now)), key=lambda event: event.at, default=None)
    return last if last is not None and last.kind == REMOTE_DOWN else None


def _counts(event: Event, url: str, now: float) -> bool:
    is_costly = event.kind == REMOTE_UP or event.waited_us >= _COSTLY_US
    return is_costly and event.remote == without_query(url) and event.at <= now  # later: its clock was ahead
