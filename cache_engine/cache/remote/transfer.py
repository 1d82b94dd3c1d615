"""Copies entries between a store and a remote. Every byte and each signature is checked on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cache_engine.cache.remote.base import Remote, without_query
from cache_engine.cache.remote.entries import FOLDER, MOST_BYTES, key_in, name_of, packed, unpacked
from cache_engine.errors import CorruptEntry, StoreError
from cache_engine.model.artifact import Record
from cache_engine.model.events import IMPORT
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import UnknownFormat, signed_part
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.units import human_bytes, printable
from cache_engine.upkeep.packs import Imported, Refused, admit, checked
from cache_engine.upkeep.parallel import in_threads

_T = TypeVar("_T")
_AT_A_TIME = 8  # entries in memory, each of up to the largest size
_MOST_AHEAD = 64  # finished results that wait, so that a slow request does not delay others


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push: kernels sent and their bytes, kernels that the remote had already, and kernels left out."""

    sent: int
    sent_bytes: int
    present: int
    refused: tuple[Refused, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """The differences between a store and a remote.

    Attributes:
        here, there: the entries that only the store has, and those that only the remote has.
        both: the number of entries that both have.
        there_bytes: the bytes of all entries of the remote, without objects too large to be an entry.
        others: objects in the remote's folder that are not entries.
        all_there: all entries of the remote.
    """

    here: tuple[CacheKey, ...]
    there: tuple[CacheKey, ...]
    both: int
    there_bytes: int
    others: int
    all_there: tuple[CacheKey, ...] = ()


def compare(store: DiskStore | None, remote: Remote, on_some: Callable[[int], None] = lambda _: None) -> Compared:
    """The differences between a store and a remote, by keys only. Without a store, the remote has all entries.

    Raises:
        RemoteError: when the remote cannot be listed.
    """
    sizes: dict[CacheKey, int] = {}
    others = 0
    for name, size in remote.sizes(FOLDER, on_some):
        key = key_in(name)
        if key is None:
            others += 1
        else:
            sizes[key] = size if size <= MOST_BYTES else 0  # then the object is not an entry, and a pull refuses it
    mine = set(store.keys()) if store is not None else set()
    here, there = sorted(mine - sizes.keys()), sorted(sizes.keys() - mine)
    return Compared(tuple(here), tuple(there), len(mine) - len(here), sum(sizes.values()), others, tuple(sorted(sizes)))


def push(
    store: DiskStore,
    remote: Remote,
    keys: Iterable[CacheKey],
    *,
    wanted: Callable[[Record], bool] = lambda _: True,
    sign: Callable[[bytes], bytes] | None = None,
    on_entry: Callable[[], None] = lambda: None,
) -> Pushed:
    """Sends entries to a remote. An entry that the remote already has stays unchanged.

    Args:
        wanted: says, given its record, whether to send an entry.
        sign: a function that returns the bytes of a record with a signature. Without it, an entry is sent with the
            signature that it has, and an unsigned entry is left out.
        on_entry: a function called after each entry.

    Raises:
        RemoteError: when the remote fails; entries sent before that are complete.
        OSError: when the store cannot be read.
    """
    sent = sent_bytes = present = 0
    refused: list[Refused] = []

    def send(key: CacheKey) -> tuple[int, bool] | Refused | None:
        data = sealed(store, key, wanted, sign)
        return (len(data), remote.create(name_of(key), data)) if isinstance(data, bytes) else data

    for done in in_threads(send, keys, _AT_A_TIME, ahead=_MOST_AHEAD):
        if isinstance(done, Refused):
            refused.append(done)
        elif done is not None:
            size, is_new = done
            sent, sent_bytes, present = sent + is_new, sent_bytes + size * is_new, present + (not is_new)
        on_entry()
    return Pushed(sent, sent_bytes, present, tuple(refused))


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
    return data if len(data) <= MOST_BYTES else Refused(key, f"it has more than {human_bytes(MOST_BYTES)}")


def pull(
    store: DiskStore,
    journal: Journal,
    remote: Remote,
    keys: Sequence[CacheKey],
    *,
    prove: Callable[[bytes], None],
    dry_run: bool = False,
    on_entry: Callable[[], None] = lambda: None,
    by: str = "",
) -> Imported:
    """Imports entries from a remote. Entries already present stay unchanged.

    Args:
        prove: a function called with the bytes of each record; raises ``Unproved`` unless a trusted signer signed it.
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
        try:
            data = remote.get(name_of(key), MOST_BYTES)
            if data is None:
                return Refused(key, "the remote no longer has it")
            record_data, blob_data = unpacked(key, data, prove)
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
