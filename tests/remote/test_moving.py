"""Two stores and a remote as two machines of a team: what moves, and what is refused."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cache_engine.cache.remote import transfer
from cache_engine.cache.remote.base import FOLDER, Remote, name_of, packed, unpacked
from cache_engine.cache.remote.clients import Objects
from cache_engine.cache.remote.transfer import compare, pull, push
from cache_engine.cache.remote.verification import delete, plan, verify
from cache_engine.errors import RemoteError, Unproved
from cache_engine.frameworks.bundle_packs import CONFIG, HELION, packed_row
from cache_engine.frameworks.bundles import Group, group_keys, put_group, read_group, read_stored
from cache_engine.model.events import IMPORT
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, read_journal
from cache_engine.store.signatures.signers import TrustedSigners
from tests.helpers import fill
from tests.remote.conftest import S3
from tests.trust.keys import Builder, signers_file


@pytest.fixture
def journal(other: DiskStore) -> Journal:
    return Journal(other.layout.journal, 3600.0)


@pytest.fixture
def signers(builder: Builder, tmp_path: Path) -> TrustedSigners:
    return TrustedSigners(signers_file(tmp_path, f"builder {builder.line}"))


@pytest.fixture
def keys(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> list[CacheKey]:
    """More than are moved at a time, and than are held in memory."""
    monkeypatch.setattr(transfer, "_AT_A_TIME", 9)
    return sorted(fill(store, 12))


def test_what_one_machine_compiled_the_other_has_signed(
    store: DiskStore,
    other: DiskStore,
    journal: Journal,
    remote: Remote,
    keys: list[CacheKey],
    builder: Builder,
    signers: TrustedSigners,
) -> None:
    assert len(compare(store, remote).here) == 12
    sent = push(store, remote, keys, sign=builder.key.sign)
    assert (sent.sent, sent.present, sent.refused) == (12, 0, ())
    again = push(store, remote, keys, sign=builder.key.sign)
    assert (again.sent, again.present) == (0, 12)
    found = compare(other, remote)
    assert (found.there, found.both, found.there_bytes) == (tuple(keys), 0, sent.sent_bytes)
    would = pull(other, journal, remote, found.there, prove=signers.require, dry_run=True)
    assert list(other.keys()) == []
    done = pull(other, journal, remote, found.there, prove=signers.require, by="me")
    assert (done.taken, done.refused) == (12, ())
    assert would == done
    assert [other.get(key) for key in keys] == [store.get(key) for key in keys]
    stored = other.stored(keys[0])
    assert stored is not None
    assert str(signers.check(stored[0])) == "good, by builder"
    journal.flush()
    (event,) = [event for event in read_journal(other.layout.journal).recent if event.kind == IMPORT]
    assert remote.url in event.detail
    assert compare(other, remote).both == 12


def test_kernels_without_a_signature_are_not_sent(store: DiskStore, remote: Remote, keys: list[CacheKey]) -> None:
    sent = push(store, remote, keys[:3])
    assert (sent.sent, {refused.cause for refused in sent.refused}) == (0, {"it is not signed; --sign KEY signs it"})
    assert compare(store, remote).both == 0


def test_a_poisoned_remote_gives_nothing(
    store: DiskStore,
    other: DiskStore,
    journal: Journal,
    remote: Remote,
    keys: list[CacheKey],
    builder: Builder,
    stranger: Builder,
    signers: TrustedSigners,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever can write to it put in: other code, another key's signature, a swapped entry, none at all, no entry."""
    monkeypatch.setattr(transfer, "MOST_ENTRY_BYTES", 2**20)
    entries = [store.stored(key) for key in keys[:5]]
    (record, blob), (other_record, other_blob), third, fourth, _ = [entry for entry in entries if entry is not None]
    signed = builder.key.sign(record)
    poison = {
        keys[0]: packed(signed, other_blob),
        keys[1]: packed(signed, blob),  # sound, but of another key
        keys[2]: packed(stranger.key.sign(third[0]), third[1]),
        keys[3]: packed(*fourth),
        keys[4]: packed(signed, blob)[:-1],
        keys[5]: b"",
        keys[6]: b"GEMMRMTE" + bytes(16),
        keys[7]: packed(builder.key.sign(other_record), other_blob) + b"x",
        keys[8]: bytes(2**21),
    }
    for key, data in poison.items():
        remote.create(name_of(key), data)
    found = compare(other, remote)
    assert set(found.there) == set(poison)
    done = pull(other, journal, remote, found.there, prove=signers.require)
    assert (done.taken, len(done.refused)) == (0, len(poison))
    assert list(other.keys()) == []
    assert all(refused.cause for refused in done.refused)


def test_other_objects_are_counted_and_left_alone(store: DiskStore, remote: Remote, keys: list[CacheKey]) -> None:
    names = ("gemm-cache/1/readme", f"gemm-cache/1/00/{'f' * 64}", f"gemm-cache/1/{keys[0][:2]}/{keys[0]}x")
    for name in names:
        remote.create(name, b"x")
    remote.create("elsewhere", b"x")
    assert compare(store, remote).others == 3
    assert remote.get("gemm-cache/1/readme", 10) == b"x"


def test_an_entry_that_vanishes_is_named(
    store: DiskStore, other: DiskStore, journal: Journal, remote: Remote, keys: list[CacheKey], signers: TrustedSigners
) -> None:
    done = pull(other, journal, remote, keys[:1], prove=signers.require)
    assert [(refused.key, refused.cause) for refused in done.refused] == [(keys[0], "the remote no longer has it")]


def test_a_remote_that_fails_half_way_leaves_whole_entries(
    store: DiskStore,
    other: DiskStore,
    journal: Journal,
    keys: list[CacheKey],
    builder: Builder,
    signers: TrustedSigners,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote = Objects(f"file://{tmp_path}/remote")
    push(store, remote, keys, sign=builder.key.sign)
    get, asked = remote.get, []

    def failing(name: str, most: int) -> bytes | None:
        asked.append(name)
        if len(asked) > 10:
            raise RemoteError("the network is gone")
        return get(name, most)

    monkeypatch.setattr(remote, "get", failing)
    with pytest.raises(RemoteError, match="the network is gone"):
        pull(other, journal, remote, keys, prove=signers.require)
    taken = list(other.keys())
    assert 11 - transfer._AT_A_TIME <= len(taken) < 12
    assert all(other.stored(key) is not None for key in taken)
    journal.flush()
    assert any(event.kind == IMPORT for event in read_journal(other.layout.journal).recent)


def test_a_request_that_takes_long_holds_up_no_other(
    store: DiskStore,
    other: DiskStore,
    journal: Journal,
    keys: list[CacheKey],
    builder: Builder,
    signers: TrustedSigners,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first is answered when all others were asked for."""
    remote = Objects(f"file://{tmp_path}/remote")
    push(store, remote, keys, sign=builder.key.sign)
    get, asked, all_asked = remote.get, [], threading.Event()

    def slow(name: str, most: int) -> bytes | None:
        asked.append(name)
        if len(asked) == len(keys):
            all_asked.set()
        return get(name, most) if name != name_of(keys[0]) or all_asked.wait(60) else None

    monkeypatch.setattr(transfer, "_AT_A_TIME", 2)
    monkeypatch.setattr(remote, "get", slow)
    assert pull(other, journal, remote, keys, prove=signers.require).taken == len(keys)


def test_no_more_objects_are_in_memory_than_are_moved_at_a_time(keys: list[CacheKey]) -> None:
    """Each may have 65 MiB, whoever put it there."""
    fetched: list[CacheKey] = []
    most = 0
    for number, _ in enumerate(transfer.in_parallel(fetched.append, keys)):
        most = max(most, len(fetched) - number)
    assert len(fetched) == len(keys)
    assert most <= transfer._AT_A_TIME


def test_a_kernel_that_no_pull_would_take_is_not_sent(
    store: DiskStore, remote: Objects, keys: list[CacheKey], builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "MOST_ENTRY_BYTES", 100)
    (refused,) = push(store, remote, keys[:1], sign=builder.key.sign).refused
    assert refused.cause == "it has more than 100 B"


def test_sizes_that_cannot_be_are_not_added_up(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may say that an object has 2⁶⁴ bytes; no document has room for the sum of some."""
    remote = Objects("s3://bucket/x", **S3)
    names = [name_of(CacheKey(f"{number:064x}")) for number in range(3)]
    monkeypatch.setattr(remote, "sizes", lambda *_: [(name, 2**64 - 1) for name in names])
    found = compare(store, remote)
    assert (len(found.there), found.there_bytes) == (3, 0)


def test_an_object_reads_as_it_was_written() -> None:
    key = CacheKey("ab" * 32)
    assert unpacked(key, packed(b"record", b"blob")) == (b"record", b"blob")


def test_unsigned_kernels_are_refused_by_name(store: DiskStore, keys: list[CacheKey], signers: TrustedSigners) -> None:
    record, _ = store.stored(keys[0]) or (b"", b"")
    with pytest.raises(Unproved):
        signers.require(record)


def test_the_event_of_a_pull_names_the_remote_without_its_query(
    store: DiskStore, other: DiskStore, journal: Journal, tmp_path: Path, keys: list[CacheKey], builder: Builder
) -> None:
    url = f"file://{tmp_path}/remote"
    push(store, Objects(url), keys, sign=builder.key.sign)
    pull(other, journal, Objects(f"{url}?sig=secret"), keys, prove=lambda _: None)
    (event,) = read_journal(other.layout.journal).recent
    assert event.detail == f"12 entries of {url}"


# ---- Bundles of other frameworks ----


def _bundle(store: DiskStore, name: str = "1", data: bytes = b'{"config": "{}"}') -> CacheKey:
    group = Group(HELION, name, CONFIG, {CONFIG: data})
    put_group(store.layout, group, durable=False)
    return group.key


def test_bundles_travel_signed_beside_kernels_where_version_0_3_looks_for_none(
    store: DiskStore, other: DiskStore, journal: Journal, remote: Remote, builder: Builder, signers: TrustedSigners
) -> None:
    (kernel,) = fill(store, 1)
    bundle = _bundle(store)
    unsigned = push(store, remote, [bundle])
    assert (unsigned.sent, unsigned.refused) == (0, ()), "a store has no signature of a bundle"
    sent = push(store, remote, [kernel, bundle], sign=builder.key.sign)
    assert (sent.sent, sent.refused) == (2, ())
    names = {name for name, _ in remote.sizes(FOLDER)}
    assert names == {f"{FOLDER}/{kernel[:2]}/{kernel}", f"{FOLDER}/bundles/{bundle[:2]}/{bundle}"}
    found = compare(other, remote)
    assert (set(found.there), set(found.bundles), found.others) == ({kernel, bundle}, {bundle}, 0)
    taken = pull(other, journal, remote, found.there, prove=signers.require, bundles=found.bundles)
    assert (taken.taken, taken.refused) == (2, ())
    assert read_group(other.layout, bundle) == read_group(store.layout, bundle)
    assert pull(other, journal, remote, [bundle], prove=signers.require, bundles=[bundle]).present == 1
    assert [*verify(remote, [bundle], prove=signers.require, bundles=[bundle])] == []
    going = plan(remote, max_bytes=0) if not remote.url.startswith("redis") else None
    if going is not None:
        assert len(going.going) == 2
        delete(remote, going.going, None)
        assert list(remote.sizes(FOLDER)) == []


def test_a_bundle_that_a_stranger_changed_or_signed_is_refused(
    store: DiskStore, other: DiskStore, journal: Journal, remote: Remote, builder: Builder, signers: TrustedSigners
) -> None:
    bundle = _bundle(store)
    stored = read_stored(store.layout, bundle)
    assert stored is not None
    record_data, data = packed_row(stored)
    sign = builder.key.sign
    forged = {
        "1": packed(record_data, data), "2": packed(sign(record_data), data[:-1] + b"x"),
        "3": packed(sign(record_data), b"")[:-1], "4": b"x", "5": packed(sign(record_data), data),
    }  # fmt: skip
    keys = {number: CacheKey(number * 64) for number in forged}
    for number, object_data in forged.items():  # the last is sound, but under the key of another
        remote.create(name_of(keys[number], is_bundle=True), object_data)
    found = pull(other, journal, remote, list(keys.values()), prove=signers.require, bundles=set(keys.values()))
    assert (found.taken, len(found.refused)) == (0, 5)
    assert list(group_keys(other.layout)) == []
