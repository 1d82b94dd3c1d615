"""A remote as the last tier: lookups wait for it at most 1 s, and not while it fails; no caller waits for sends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom

from cache_engine.background import BackgroundQueue
from cache_engine.cache.remote.base import MOST_ENTRY_BYTES, Remote, name_of, unpacked, without_query
from cache_engine.errors import CorruptEntry, GemmCacheError, RemoteError
from cache_engine.model.artifact import CUBIN, Record
from cache_engine.model.events import REMOTE, REMOTE_DOWN, REMOTE_UP, Event
from cache_engine.model.key import CacheKey
from cache_engine.process import renew_after_fork, weak
from cache_engine.store.base import Loaded
from cache_engine.store.codec import UnknownFormat
from cache_engine.store.disk import DiskStore
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
            data = self._remote.get(name_of(key), MOST_ENTRY_BYTES)
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
"""Seconds after a remote's failure in one process for which other processes do not ask the remote either."""
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
    return Breaker(lambda: remote.get(name_of(_NO_KEY), MOST_ENTRY_BYTES), on_change)


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


# ---- Sends compiled kernels to a remote, in a background thread. No caller waits for this ----

_log = logging.getLogger(__name__)
MOST_WAITING = 256
"""The largest number of kernels in the queue, including the one being sent; further ones are dropped."""
_PAUSED_S = 1.0


@dataclass(frozen=True, slots=True)
class SendTarget:
    """The remote to send to, a function that signs a record's bytes, and the breaker of the remote."""

    remote: Remote
    sign: Callable[[bytes], bytes]
    breaker: Breaker


class SendQueue:
    """The kernels that wait to be sent. Safe to use from several threads; in a forked child it is empty."""

    def __init__(
        self,
        store: DiskStore,
        find_target: Callable[[], SendTarget],
        count: Callable[[int, int], None],
        most: int = MOST_WAITING,
    ) -> None:
        """Sends nothing yet.

        Args:
            find_target: returns the destination; the thread calls it once, before the first kernel. If it raises
                ``GemmCacheError``, no kernel is sent: all are dropped.
            count: a function called with the number of kernels sent and the number dropped.
            most: the largest number of kernels that wait.
        """
        self._store, self._find_target, self._count = store, find_target, count
        self._queue = BackgroundQueue(most=most)
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: forgets the waiting kernels, because the parent sends them."""
        self._lock = threading.RLock()
        self._unsent = 0
        self._way: SendTarget | None = None
        self._is_lost = False

    def put(self, key: CacheKey) -> None:
        """Queues the entry of a key to be sent. Returns at once; drops the entry if too many wait."""
        with self._lock:
            is_put = not self._is_lost and self._queue.put(weak(self._send, key))
            self._unsent += is_put
        if not is_put:
            self._count(0, 1)

    def end(self, at: float) -> None:
        """From the time ``at`` (of ``time.monotonic``) on, begins no further sends. Returns at once."""
        self._queue.end(at)

    def close(self, until: float) -> None:
        """As ``end``, and waits until the time ``until``; drops and counts the kernels that were not sent."""
        if not self._queue.is_closed:
            self.end(until)
        self._queue.settle(until - time.monotonic())
        with self._lock:
            dropped, self._unsent = self._unsent, 0
        if dropped:
            self._count(0, dropped)
            _log.info("%d kernels were not sent to the remote; gemm-cache remote push sends them", dropped)

    def _send(self, key: CacheKey) -> float | None:
        """Sends one kernel; if the remote fails, returns the seconds until the next try."""
        from cache_engine.cache.remote.base import name_of
        from cache_engine.cache.remote.transfer import sealed
        from cache_engine.upkeep.packs import Refused

        way = self._found_way()
        if way is None:
            self._ended(0, 1)
            return None
        if way.breaker.why:
            return _PAUSED_S
        started = time.monotonic()
        try:
            data = sealed(self._store, key, sign=way.sign)
            is_new = isinstance(data, bytes) and way.remote.create(name_of(key), data)
        except RemoteError as error:
            way.breaker.failed(str(error), time.monotonic() - started)
            return _PAUSED_S
        except (OSError, GemmCacheError) as error:
            data, is_new = Refused(key, str(error)), False
        is_counted = self._ended(int(is_new), int(isinstance(data, Refused)))
        if is_counted and isinstance(data, Refused):
            _log.warning("%s is not sent to the remote: %s", key[:12], data.cause)
        return None

    def _ended(self, sent: int, dropped: int) -> bool:
        """Counts a kernel as sent or dropped; returns ``False`` if ``close`` has already counted it as dropped."""
        with self._lock:
            if not self._unsent:
                return False
            self._unsent -= 1
        if sent or dropped:
            self._count(sent, dropped)
        return True

    def _found_way(self) -> SendTarget | None:
        if self._way is None and not self._is_lost:
            try:
                self._way = self._find_target()
            except (GemmCacheError, OSError) as error:
                self._is_lost = True
                _log.warning("kernels are not sent to the remote: %s", error)
        return self._way
