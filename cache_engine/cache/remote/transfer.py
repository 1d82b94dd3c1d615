"""Copies entries between a store and a remote. Every byte and each signature is checked on the way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cache_engine.cache.remote.base import (
    FOLDER,
    MOST_BUNDLE_BYTES,
    MOST_ENTRY_BYTES,
    Remote,
    is_bundle,
    key_in,
    name_of,
    packed,
    unpacked,
    without_query,
)
from cache_engine.errors import CorruptEntry, StoreError
from cache_engine.frameworks.bundle_packs import packed_row
from cache_engine.frameworks.bundles import Group, UnknownGroup, group_keys, read_stored
from cache_engine.model.artifact import Record
from cache_engine.model.events import IMPORT
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import UnknownFormat, signed_part
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.units import human_bytes, printable
from cache_engine.upkeep.packs import Imported, Refused, admit, admit_group, checked
from cache_engine.upkeep.parallel import in_threads

_T = TypeVar("_T")
_AT_A_TIME = 8  # entries in memory, each of up to the largest size
_MOST_AHEAD = 64  # finished results that wait, so that a slow request does not delay others


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push.

    Attributes:
        sent, sent_bytes: the number of kernels that were sent, and their bytes.
        present: the number of kernels that the remote had already.
        refused: the kernels that were not sent, with the reason for each.
        unknown_format: the number of entries that only another version of this program reads; they are not sent.
    """

    sent: int
    sent_bytes: int
    present: int
    refused: tuple[Refused, ...]
    unknown_format: int = 0


@dataclass(frozen=True, slots=True)
class Compared:
    """The differences between a store and a remote.

    Attributes:
        here, there: the entries that only the store has, and the entries that only the remote has.
        both: the number of entries that the store and the remote have.
        there_bytes: the bytes of all entries of the remote; objects too large to be an entry do not count.
        others: objects in the remote's folder that are not entries.
        all_there: all entries of the remote.
        bundles: the entries of the store or the remote that are bundles (kernels of other frameworks).
    """

    here: tuple[CacheKey, ...]
    there: tuple[CacheKey, ...]
    both: int
    there_bytes: int
    others: int
    all_there: tuple[CacheKey, ...] = ()
    bundles: frozenset[CacheKey] = frozenset()


def compare(store: DiskStore | None, remote: Remote, on_some: Callable[[int], None] = lambda _: None) -> Compared:
    """The differences between a store and a remote, by keys only. Without a store, the remote has all entries.

    Raises:
        RemoteError: when the remote cannot be listed.
    """
    sizes: dict[CacheKey, int] = {}
    bundles = set() if store is None else set(group_keys(store.layout))
    mine = bundles | set(store.keys()) if store is not None else set()
    others = 0
    for name, size in remote.sizes(FOLDER, on_some):
        key = key_in(name)
        if key is None:
            others += 1
            continue
        most = MOST_BUNDLE_BYTES if is_bundle(name) else MOST_ENTRY_BYTES
        sizes[key] = size if size <= most else 0  # then the object is not an entry, and a pull refuses it
        bundles |= {key} if is_bundle(name) else set()
    here, there = sorted(mine - sizes.keys()), sorted(sizes.keys() - mine)
    counts = len(mine) - len(here), sum(sizes.values()), others
    return Compared(tuple(here), tuple(there), *counts, tuple(sorted(sizes)), frozenset(bundles))


def push(
    store: DiskStore, remote: Remote, keys: Iterable[CacheKey], *,
    wanted: Callable[[Record], bool] = lambda _: True, bundles: Callable[[Group], bool] = lambda _: True,
    sign: Callable[[bytes], bytes] | None = None, host_code: bool = False,
    on_entry: Callable[[], None] = lambda: None,
) -> Pushed:  # fmt: skip
    """Sends entries to a remote. An entry that the remote already has stays unchanged.

    Args:
        wanted: says whether to send an entry, given the entry's record.
        bundles: says whether to send a bundle of another framework. Bundles are sent only with ``sign``.
        sign: a function that returns the bytes of a record with a signature. Without it, an entry is sent with the
            signature that it has, and an unsigned entry is left out.
        host_code: whether to send also bundles with code that runs on the CPU.
        on_entry: a function called after each entry.

    Raises:
        RemoteError: when the remote fails; entries sent before that are complete.
        OSError: when the store cannot be read.
    """
    sent = sent_bytes = present = 0
    refused: list[Refused] = []
    unknown: list[CacheKey] = []

    def send(key: CacheKey) -> tuple[int, bool] | Refused | None:
        data, is_group = sealed(store, key, wanted, sign), False
        if data is None and store.has_unknown_format(key):
            unknown.append(key)
        elif data is None and sign is not None:
            data, is_group = _sealed_bundle(store, key, bundles, sign, host_code), True
        return (len(data), remote.create(name_of(key, is_bundle=is_group), data)) if isinstance(data, bytes) else data

    for done in in_threads(send, keys, _AT_A_TIME, ahead=_MOST_AHEAD):
        if isinstance(done, Refused):
            refused.append(done)
        elif done is not None:
            size, is_new = done
            sent, sent_bytes, present = sent + is_new, sent_bytes + size * is_new, present + (not is_new)
        on_entry()
    return Pushed(sent, sent_bytes, present, tuple(refused), len(unknown))


def sealed(
    store: DiskStore,
    key: CacheKey,
    wanted: Callable[[Record], bool] = lambda _: True,
    sign: Callable[[bytes], bytes] | None = None,
) -> bytes | Refused | None:
    """The remote's object for a stored entry, checked and signed; ``None`` if the entry is gone or not wanted.

    Raises ``OSError``.
    """
    try:
        stored = store.unchecked(key)
        if stored is None or not wanted(checked(key, *stored)[0]):
            return None
        record_data = stored[0] if sign is None else sign(stored[0])
    except CorruptEntry as error:
        return Refused(key, str(error))
    if not signed_part(record_data)[1]:
        return Refused(key, "it is not signed; --sign KEY signs it")
    data = packed(record_data, stored[1])
    return data if len(data) <= MOST_ENTRY_BYTES else Refused(key, f"it has more than {human_bytes(MOST_ENTRY_BYTES)}")


def _sealed_bundle(
    store: DiskStore, key: CacheKey, wanted: Callable[[Group], bool], sign: Callable[[bytes], bytes], host_code: bool
) -> bytes | Refused | None:
    """The remote's object for a stored bundle, checked and signed; ``None`` if it is gone or not wanted."""
    try:
        stored = read_stored(store.layout, key, trust=store.layout.trust)
        if stored is None or not wanted(stored.group):
            return None
        record_data, blob_data = packed_row(stored, host_code=host_code)
    except (CorruptEntry, UnknownGroup) as error:
        return Refused(key, str(error))
    data = packed(sign(record_data), blob_data)
    if len(data) > MOST_BUNDLE_BYTES:
        return Refused(key, f"it has more than {human_bytes(MOST_BUNDLE_BYTES)}")
    return data


def pull(
    store: DiskStore, journal: Journal, remote: Remote, keys: Sequence[CacheKey], *,
    prove: Callable[[bytes], None], bundles: Collection[CacheKey] = (), host_code: bool = False,
    dry_run: bool = False, on_entry: Callable[[], None] = lambda: None, by: str = "",
) -> Imported:  # fmt: skip
    """Imports entries from a remote. Entries already present stay unchanged.

    Args:
        prove: a function called with the bytes of each record; raises ``Unproved`` unless a trusted signer signed it.
        bundles: the keys of bundles of other frameworks.
        host_code: whether to import also bundles with code that runs on the CPU; only if ``prove`` checks signers.
        dry_run: check all entries and report which would be imported, but change nothing.
        on_entry: a function called after each entry.
        by: the user who imports, for the audit.

    Raises:
        RemoteError: when the remote fails; entries imported before that stay, and are complete.
        OSError: when the disk fails; as with ``RemoteError``.
    """
    taken: list[int] = []
    present = 0
    refused: list[Refused] = []

    def take(key: CacheKey) -> bool | Refused:
        is_group = key in bundles
        try:
            data = remote.get(name_of(key, is_bundle=is_group), MOST_BUNDLE_BYTES if is_group else MOST_ENTRY_BYTES)
            if data is None:
                return Refused(key, "the remote no longer has it")
            record_data, blob_data = unpacked(key, data, prove)
            if is_group:
                is_new = admit_group(store, key, record_data, blob_data, dry_run=dry_run, host_code=host_code)
            else:
                is_new = admit(store, key, record_data, blob_data, dry_run=dry_run)
        except (StoreError, UnknownFormat) as error:
            return Refused(key, str(error))
        taken.extend([len(record_data) + len(blob_data)] if is_new else ())
        return is_new

    try:
        for outcome in in_threads(take, keys, _AT_A_TIME, ahead=_MOST_AHEAD):
            if isinstance(outcome, Refused):
                refused.append(outcome)
            else:
                present += not outcome
            on_entry()
    finally:
        if taken and not dry_run:
            detail = f"{len(taken)} entries of {printable(without_query(remote.url))}"
            journal.event(IMPORT, stored_bytes=sum(taken), detail=detail, by=by)
    return Imported(len(taken), sum(taken), present, tuple(refused))


def in_parallel(work: Callable[[CacheKey], _T], keys: Iterable[CacheKey]) -> Iterator[_T]:
    """The results of ``work`` in the order of the keys.

    Several calls run at a time, because most time is spent waiting.
    """
    return in_threads(work, keys, _AT_A_TIME)
