"""Checks whether the entries of a remote may be served, and finds old entries to delete."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cache_engine.cache.remote.base import (
    FOLDER,
    MOST_BUNDLE_BYTES,
    MOST_ENTRY_BYTES,
    Remote,
    key_in,
    name_of,
    unpacked,
    without_query,
)
from cache_engine.cache.remote.transfer import in_parallel
from cache_engine.errors import CorruptEntry, StoreError, UsageError
from cache_engine.frameworks.bundle_packs import unpacked_row
from cache_engine.model.artifact import Record
from cache_engine.model.events import CLEAN_REMOTE
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import UnknownFormat
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.units import counted, printable
from cache_engine.upkeep.packs import Refused, checked

DIFFERENT = "this store has other code under the same key"


@dataclass(frozen=True, slots=True)
class Sound:
    """An entry of a remote that may be served: its record and its compiled code."""

    record: Record
    cubin: bytes


@dataclass(frozen=True, slots=True)
class Old:
    """An object of a remote: key, size in bytes, age in seconds by the clock of the remote, and name."""

    key: CacheKey
    size_bytes: int
    age_s: float
    name: str


@dataclass(frozen=True, slots=True)
class DeletionPlan:
    """The entries of a remote that are to be deleted.

    Attributes:
        going: the entries that are to be deleted, oldest first.
        entries, total_bytes: the number of all entries of the remote, and their bytes.
    """

    going: tuple[Old, ...]
    entries: int
    total_bytes: int

    @property
    def going_bytes(self) -> int:
        """The bytes of the entries to delete."""
        return sum(one.size_bytes for one in self.going)


def sample_of(keys: Iterable[CacheKey], share: float) -> list[CacheKey]:
    """A random share of the keys, at least one key; all keys if ``share`` is 1."""
    found = sorted(keys)
    count = min(len(found), max(1, round(share * len(found))))
    return sorted(random.SystemRandom().sample(found, count))


def verify(
    remote: Remote, keys: Sequence[CacheKey], *, prove: Callable[[bytes], None], store: DiskStore | None = None,
    bundles: Collection[CacheKey] = (),
) -> Iterator[Sound | Refused]:  # fmt: skip
    """Checks each entry as a lookup does, and compares it with the store's entry of the same key, if there is one.

    Args:
        prove: a function called with the bytes of each record; raises ``Unproved`` unless a trusted signer signed it.
        bundles: the keys of bundles, which are checked as in a pull; only refused bundles are in the results.

    Raises:
        RemoteError: when the remote fails.
    """

    def check(key: CacheKey) -> Sound | Refused | None:
        try:
            most = MOST_BUNDLE_BYTES if key in bundles else MOST_ENTRY_BYTES
            data = remote.get(name_of(key, is_bundle=key in bundles), most)
            if data is None:
                return None  # deleted since it was listed
            record_data, blob_data = unpacked(key, data, prove)
            if key in bundles:
                unpacked_row(key, record_data, blob_data, host_code=True)
                return None
            record, cubin = checked(key, record_data, blob_data)
        except (StoreError, UnknownFormat) as error:
            return Refused(key, str(error))
        try:
            own = store.get(key) if store is not None else None
        except (CorruptEntry, OSError):
            own = None  # ``gemm-cache verify`` reports it
        return Sound(record, cubin) if own is None or own.cubin == cubin else Refused(key, DIFFERENT)

    return (found for found in in_parallel(check, keys) if found is not None)


def plan(
    remote: Remote,
    *,
    older_than_s: float | None = None,
    max_bytes: int | None = None,
    on_some: Callable[[int], None] = lambda _: None,
) -> DeletionPlan:
    """Plans deletions: entries older than ``older_than_s`` seconds, then the oldest while over ``max_bytes``.

    Ages are by the remote's clock, so a wrong clock on this machine deletes nothing.

    Raises:
        UsageError: when neither limit is given, or the remote does not know ages.
        RemoteError: when the remote cannot be listed.
    """
    if older_than_s is None and max_bytes is None:
        raise UsageError("say what goes: --days, --max-bytes or both")
    found: list[Old] = []
    for name, size, age_s in remote.ages(FOLDER, on_some):
        key = key_in(name)
        if key is not None:
            found.append(Old(key, size, age_s, name))
    found.sort(key=lambda one: (one.age_s, one.key), reverse=True)
    total = left = sum(one.size_bytes for one in found)
    going: list[Old] = []
    for one in found:
        is_old = older_than_s is not None and one.age_s > older_than_s
        if is_old or (max_bytes is not None and left > max_bytes):
            going.append(one)
            left -= one.size_bytes
    return DeletionPlan(tuple(going), len(found), total)


def delete(
    remote: Remote,
    going: Iterable[Old],
    journal: Journal | None,
    *,
    by: str = "",
    on_entry: Callable[[], None] = lambda: None,
) -> None:
    """Deletes entries.

    Args:
        journal: where an event for the audit log is written, also if the remote fails half way; ``None`` without a
            store.
        by: the user who deletes, for the audit log.
        on_entry: a function called after each entry.

    Raises:
        RemoteError: when the remote fails.
    """
    sizes = {one.key: one.size_bytes for one in going}
    names = {one.key: one.name for one in going}
    gone: list[CacheKey] = []

    place = printable(without_query(remote.url))
    if sizes and journal is not None:  # first, so that it remains if the process is killed
        journal.event(CLEAN_REMOTE, detail=f"{counted(len(sizes), 'kernel')} of {place} to delete", by=by)

    def delete_one(key: CacheKey) -> None:
        remote.delete(names[key])
        gone.append(key)

    try:
        for _ in in_parallel(delete_one, sizes):
            on_entry()
    finally:
        if gone and journal is not None:
            detail = f"{counted(len(gone), 'kernel')} of {place}"
            journal.event(CLEAN_REMOTE, stored_bytes=sum(map(sizes.__getitem__, gone)), detail=detail, by=by)
