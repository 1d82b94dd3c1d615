"""What ``remote verify`` finds, and what ``remote clean`` deletes."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from cache_engine.cache.remote import verification
from cache_engine.cache.remote.base import FOLDER, Remote, name_of, packed, unpacked, without_query
from cache_engine.cache.remote.clients import Objects
from cache_engine.cache.remote.transfer import compare, push
from cache_engine.errors import RemoteError, UsageError
from cache_engine.model.events import CLEAN_REMOTE
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, read_journal
from cache_engine.store.signatures.signers import TrustedSigners
from cache_engine.upkeep.packs import Refused
from tests.helpers import fill
from tests.trust.keys import Builder, signers_file

DAY_S = 86_400.0


@pytest.fixture
def signers(builder: Builder, tmp_path: Path) -> TrustedSigners:
    return TrustedSigners(signers_file(tmp_path, f"builder {builder.line}"))


@pytest.fixture
def keys(store: DiskStore) -> list[CacheKey]:
    return sorted(fill(store, 5))


@pytest.fixture
def dated(tmp_path: Path, store: DiskStore, keys: list[CacheKey], builder: Builder) -> Objects:
    """A directory whose entries were sent 0, 10, 20, 30 and 40 days ago."""
    remote = Objects(f"file://{tmp_path}/remote")
    push(store, remote, keys, sign=builder.key.sign)
    for number, key in enumerate(keys):
        at = time.time() - 10 * number * DAY_S
        os.utime(tmp_path / "remote" / name_of(key), (at, at))
    return remote


def test_what_may_not_be_served_is_named(
    store: DiskStore, other: DiskStore, remote: Remote, keys: list[CacheKey], builder: Builder, stranger: Builder,
    signers: TrustedSigners,
) -> None:  # fmt: skip
    push(store, remote, keys[:3], sign=builder.key.sign)
    push(store, remote, keys[3:4], sign=stranger.key.sign)
    sound = remote.get(name_of(keys[0]), 10**6) or b""
    remote.create(name_of(keys[4]), sound)
    found = list(verification.verify(remote, [*keys, CacheKey("ab" * 32)], prove=signers.require, store=other))
    refused = {one.key: one.cause for one in found if isinstance(one, Refused)}
    assert set(refused) == {keys[3], keys[4]}
    assert "unknown signer" in refused[keys[3]]
    assert [one.record.key for one in found if isinstance(one, verification.Sound)] == keys[:3]


def test_other_code_under_a_key_that_the_store_has_is_a_finding(
    store: DiskStore, other: DiskStore, tmp_path: Path, builder: Builder, signers: TrustedSigners
) -> None:
    """Both are signed and sound: two machines compiled the same inputs to different code."""
    from tests.helpers import make_entry

    remote = Objects(f"file://{tmp_path}/remote")
    key, artifact, describe = make_entry(0)
    store.publish(key, artifact, describe)
    push(store, remote, [key], sign=builder.key.sign)
    _, different, describe = make_entry(0, cubin_bytes=4000)
    other.publish(key, different, describe)
    (found,) = verification.verify(remote, [key], prove=signers.require, store=other)
    assert found == Refused(key, verification.DIFFERENT)
    (found,) = verification.verify(remote, [key], prove=signers.require, store=store)
    assert isinstance(found, verification.Sound)


def test_a_sample_is_a_share_and_never_empty(keys: list[CacheKey]) -> None:
    assert verification.sample_of(keys, 1.0) == keys
    assert len(verification.sample_of(keys, 0.4)) == 2
    assert len(verification.sample_of(keys, 0.001)) == 1
    assert verification.sample_of([], 0.5) == []


def test_what_is_old_goes_first_and_then_the_oldest(dated: Objects, store: DiskStore, keys: list[CacheKey]) -> None:
    dated.create(f"{FOLDER}/readme", b"x")
    old = verification.plan(dated, older_than_s=25 * DAY_S)
    assert (going(old), old.entries) == ([keys[4], keys[3]], 5)
    assert [round(one.age_s / DAY_S) for one in old.going] == [40, 30]
    assert old.total_bytes == compare(store, dated).there_bytes
    smaller = verification.plan(dated, max_bytes=old.total_bytes - 1)
    assert going(smaller) == [keys[4]]
    both = verification.plan(dated, older_than_s=35 * DAY_S, max_bytes=old.total_bytes // 2)
    assert going(both) == [keys[4], keys[3], keys[2]]
    assert verification.plan(dated, older_than_s=50 * DAY_S).going == ()
    verification.delete(dated, both.going, None)
    assert compare(store, dated).all_there == tuple(keys[:2])
    assert compare(store, dated).others == 1
    with pytest.raises(UsageError, match="say what goes"):
        verification.plan(dated)


def going(planned: verification.DeletionPlan) -> list[CacheKey]:
    return [one.key for one in planned.going]


def test_a_deletion_that_fails_half_way_leaves_an_event_of_what_went(
    dated: Objects, store: DiskStore, keys: list[CacheKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = verification.plan(dated, max_bytes=0)
    delete, refused = dated.delete, name_of(keys[1])

    def fail(name: str) -> None:
        if name == refused:
            raise RemoteError("the remote is gone")
        delete(name)

    monkeypatch.setattr(dated, "delete", fail)
    with closing(Journal(store.layout.journal, 3600.0)) as journal, pytest.raises(RemoteError):
        verification.delete(dated, planned.going, journal, by="some user")
    left = compare(store, dated)
    event, begun = sorted(read_journal(store.layout.journal).recent, key=lambda one: one.at, reverse=True)
    assert (begun.kind, begun.stored_bytes, begun.by) == (CLEAN_REMOTE, 0, "some user")
    assert begun.detail == f"5 kernels of {dated.url} to delete"  # which a kill leaves
    assert (event.kind, event.by) == (CLEAN_REMOTE, "some user")
    gone = 5 - len(left.all_there)
    assert event.detail == f"{gone} kernels of {dated.url}"
    assert event.stored_bytes == planned.total_bytes - left.there_bytes > 0


def test_no_query_of_a_url_is_written_to_a_store() -> None:
    assert without_query("https://host/folder?sig=secret") == "https://host/folder"
    assert without_query("s3://bucket/folder") == "s3://bucket/folder"


def test_a_clock_here_that_is_off_by_a_year_deletes_nothing(
    remote: Remote, store: DiskStore, keys: list[CacheKey], builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(store, remote, keys, sign=builder.key.sign)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 365 * DAY_S)
    if remote.url.startswith("redis://"):
        with pytest.raises(UsageError, match="Redis does not say how old"):
            verification.plan(remote, older_than_s=DAY_S)
        return
    assert verification.plan(remote, older_than_s=DAY_S).going == ()
    assert compare(store, remote).others == 0


def test_an_entry_that_is_cut_is_none() -> None:
    with pytest.raises(Exception, match="damaged or cut short"):
        unpacked(CacheKey("ab" * 32), packed(b"record", b"blob")[:-1])
