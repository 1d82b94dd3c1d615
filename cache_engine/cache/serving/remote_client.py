"""A process's client of the team's remote. Imported at the first miss: no hit needs it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from cache_engine.background import CLOSE_S, BackgroundQueue
from cache_engine.cache.serving import KeyLock
from cache_engine.cache.tiers import Found, Tiers
from cache_engine.errors import CorruptEntry, ExtraMissing, LockTimeout, StoreError, UsageError
from cache_engine.model.events import REMOTE, REMOTE_DOWN, REMOTE_UP
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure, in_words
from cache_engine.process import run_at_end, weak
from cache_engine.settings import Settings
from cache_engine.store.base import Loaded
from cache_engine.store.codec import stored_bytes
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.lock import file_lock
from cache_engine.units import printable

if TYPE_CHECKING:
    from cache_engine.cache.remote.client_process import ClientProcess
    from cache_engine.cache.remote.tier import Breaker, Fetched, RemoteTier, SendQueue, SendTarget

_log = logging.getLogger(__name__)
MOST_STORING = 64
"""The largest number of fetched entries that wait to be stored, each with the lock of its key.

If more are fetched, the caller stores its entry itself.
"""
_SEND_S, _END_S = 1.0, 2.0
"""Seconds at the end of a process: the time in which it still starts sends, and the time that it waits for threads.

A request in progress ends within a second by the client's own limits, unless the client hangs.
"""


class RemoteClient:
    """Asks the remote of the settings, and sends kernels to it.

    Its errors are logged, not raised. Safe in several threads.
    """

    def __init__(
        self, store: DiskStore | None, settings: Settings, journal: Journal, stored: Callable[[int], None],
        tiers: Tiers,
    ) -> None:  # fmt: skip
        """Opens nothing yet.

        Args:
            stored: a function called with the size in bytes of each entry that is stored here.
            tiers: the tiers of this machine; they count and log failures of the remote.
        """
        self._store, self._settings, self._journal, self._stored = store, settings, journal, stored
        self._tiers = tiers
        self._opening = threading.Lock()
        self._connection: tuple[ClientProcess, Breaker] | None = None
        self._is_opened = not settings.reads_remote
        self._tier: RemoteTier | None = None
        self._behind: SendQueue | None = None
        # Storing an entry durably takes longer than fetching it. Another process that asks for it waits for the lock.
        self._storing = BackgroundQueue(most=MOST_STORING)
        self._forget_end: Callable[[], None] | None = None

    def find(self, key: CacheKey, lock: KeyLock | None) -> Found | None:
        """The entry of a key that no local tier has.

        It is also put in memory and, if ``lock`` is given, stored on disk.

        Args:
            lock: the key's lock, if this process holds it. The entry is stored in the background, and this method keeps
                the lock until then. Without the lock nothing is written to disk.
        """
        found = self._fetch(key, lock)
        if found is not None:
            self._tiers.memory.put(key, found.loaded)
        return found

    def get(self, key: CacheKey) -> Found | None:
        """As ``find``, for a caller without the key's lock that puts the entry in memory itself.

        Waits for no other process.
        """
        if not self._settings.reads_remote:
            return None
        lock = KeyLock(partial(self._try_key, key))
        with lock as no_lock:
            return self._fetch(key, lock if no_lock is None else None)

    @property
    def each(self) -> Callable[[Callable[[CacheKey], Found | None], Iterable[CacheKey]], Iterator[Found | None]]:
        """A function like ``map`` over keys; if the remote may be asked, several calls run at a time."""
        if not self._settings.reads_remote:
            return map
        from cache_engine.cache.remote.transfer import in_parallel

        return in_parallel

    def _fetch(self, key: CacheKey, lock: KeyLock | None) -> Found | None:
        tier = self._opened()
        if tier is None:
            return None
        try:
            fetched = tier.fetch(key)
        except (CorruptEntry, OSError) as error:
            is_said = isinstance(error, OSError) and bool(tier.breaker.why)  # ``_changed`` has already logged it
            self._tiers.skip(tier.name, key, error, is_said=is_said)
            return None
        if fetched is None:
            return None
        if lock is not None and self._store is not None:
            keep = partial(self._keep, self._store, key, fetched, lock.hand_over())
            if self._storing.put(keep):
                self._close_at_end()
            else:
                keep()
        return Found(tier.name, Loaded(fetched.record, fetched.cubin))

    def published(self, key: CacheKey) -> None:
        """Queues a kernel that was compiled and stored, to be sent to the remote. Returns at once."""
        if self._store is None or not self._settings.writes_remote:
            return
        with self._opening:
            if self._behind is None:
                from cache_engine.cache.remote.tier import SendQueue

                self._behind = SendQueue(self._store, self._way, self._journal.shared)
                self._close_at_end()
        self._behind.put(key)

    def settle(self) -> None:
        """Waits until all entries that were served from the remote are on disk."""
        self._storing.settle()

    def close(self, *, wait: bool) -> None:
        """Ends the threads of this client.

        Args:
            wait: whether to wait until fetched entries are stored, and about a second for requests and sends.
        """
        if self._forget_end is not None:
            self._forget_end()
            self._forget_end = None
        now = time.monotonic()
        if self._behind is not None:
            self._behind.end(now + _SEND_S if wait else now)
        if self._connection is not None:
            self._connection[1].end()
        self._storing.end(math.inf if wait else now)
        if wait:
            self._storing.settle(CLOSE_S)
        until = now + _END_S if wait else now
        if self._behind is not None:
            self._behind.close(until)
        if self._connection is not None:
            client, breaker = self._connection
            breaker.close(until)
            client.close()

    def _try_key(self, key: CacheKey, into: KeyLock) -> Failure | None:
        if self._store is None:
            return Failure("there is no store")
        try:
            into.take(file_lock(self._store.layout.key_lock(key), 0))
        except (LockTimeout, OSError) as error:
            into.release()
            return Failure(in_words(error))
        return None

    def _close_at_end(self) -> None:
        """Has ``close`` called at the end of the process, in case the program does not call it."""
        if self._forget_end is None:
            self._forget_end = run_at_end(weak(self.close, wait=True))

    def _keep(self, store: DiskStore, key: CacheKey, fetched: Fetched, lock: KeyLock) -> None:
        """Stores a fetched entry, or counts and logs why it cannot; then releases the lock of its key."""
        try:
            if store.has_unknown_format(key):
                raise StoreError("the existing entry has another format version")
            store.place(fetched.record, fetched.record_data, fetched.blob_data)
            self._stored(stored_bytes(fetched.record))
        except (OSError, StoreError) as error:
            self._tiers.skip(store.name, key, error)
        finally:
            lock.release()

    def _opened(self) -> RemoteTier | None:
        if not self._is_opened:
            with self._opening:
                if not self._is_opened:
                    try:
                        self._tier = self._open()
                    except (UsageError, ExtraMissing) as error:
                        self._journal.failure(REMOTE)
                        _log.warning("the remote is not asked: %s", error)
                    self._is_opened = True
        return self._tier

    def _open(self) -> RemoteTier:
        from cache_engine.cache.remote.tier import RemoteTier
        from cache_engine.store.signatures import proof_for

        prove = proof_for(self._settings)
        if prove is None:
            raise UsageError(
                "whoever can write to it would decide what runs here; name the keys that you trust in the setting "
                "trusted_signers (docs/trust.md), or set remote_mode to write or off"
            )
        remote, breaker = self._connected()
        return RemoteTier(remote, prove, breaker)

    def _connected(self) -> tuple[ClientProcess, Breaker]:
        """The remote, and the breaker that says whether it is asked. Call it with ``_opening`` held."""
        if self._connection is None:
            from cache_engine.cache.remote.base import LOOKUP
            from cache_engine.cache.remote.client_process import open_remote
            from cache_engine.cache.remote.tier import breaker_of, outage

            remote = open_remote(self._settings.remote or "", LOOKUP)
            breaker = breaker_of(remote, self._changed)
            # Wrong settings are reported before this, since the user may have changed them.
            failed = None if self._store is None else outage(self._store.layout.journal, remote.url, time.time())
            if failed is not None and breaker.hold(failed.detail):
                _log.info("the remote is not asked yet; it has just failed another process: %s", printable(breaker.why))
            self._connection = remote, breaker
        return self._connection

    def _way(self) -> SendTarget:
        """The remote, signing function and breaker for sending compiled kernels; the sending thread calls this."""
        from cache_engine.cache.remote.tier import SendTarget
        from cache_engine.store.signatures.signers import SigningKey

        if self._settings.signing_key is None:
            raise UsageError("kernels are sent with a signature; name a private key in the setting signing_key")
        sign = SigningKey.read(self._settings.signing_key).sign
        with self._opening:
            remote, breaker = self._connected()
        return SendTarget(remote, sign, breaker)

    def _changed(self, why: str, waited_s: float) -> None:
        """Logs that the remote is not asked any more; or, if ``why`` is empty, that it answers again."""
        remote = (self._settings.remote or "").partition("?")[0]  # a query may hold a secret
        if why:
            _log.warning("%s is not asked until it answers: %s", printable(remote), why)
        else:
            _log.warning("%s answers again", printable(remote))
        kind, waited_us = REMOTE_DOWN if why else REMOTE_UP, round(waited_s * 1e6)
        self._journal.event(kind, detail=why, remote=remote, waited_us=waited_us)
