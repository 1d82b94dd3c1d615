"""A remote as the last tier of lookups, which wait at most one second for it, and not at all while it fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cache_engine.cache.remote.base import Remote
from cache_engine.cache.remote.breaker import Breaker, breaker_of
from cache_engine.cache.remote.entries import MOST_BYTES, name_of, unpacked
from cache_engine.errors import CorruptEntry, RemoteError
from cache_engine.model.artifact import CUBIN, Record
from cache_engine.model.events import REMOTE
from cache_engine.model.key import CacheKey
from cache_engine.store.base import Loaded
from cache_engine.store.codec import UnknownFormat
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
