"""Lookups in a remote: what is served, what is refused, and that a remote that fails costs one short wait."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cache_engine.cache.remote.base import LOOKUP, Remote, name_of, packed
from cache_engine.cache.remote.client_process import ClientProcess
from cache_engine.cache.remote.tier import Breaker, RemoteTier
from cache_engine.cache.remote.transfer import push
from cache_engine.errors import CorruptEntry, RemoteError, Unproved
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.signatures.signers import TrustedSigners
from tests.helpers import fill
from tests.remote.conftest import S3
from tests.remote.waiting import until
from tests.trust.keys import Builder, signers_file


class Fake:
    """A remote that does what the test says."""

    url = "fake://remote?sig=secret"

    def __init__(self, get: Callable[[str], bytes | None]) -> None:
        self._get, self.asked = get, 0

    def get(self, name: str, most_bytes: int) -> bytes | None:
        """Counts, and does it."""
        self.asked += 1
        return self._get(name)

    def create(self, name: str, data: bytes) -> bool:
        """Not asked for."""
        pytest.fail("a lookup only gets")

    def ages(self, folder: str, on_some: Callable[[int], None] = lambda _: None) -> Iterator[tuple[str, int, float]]:
        """Not asked for."""
        pytest.fail("a lookup only gets")

    def delete(self, name: str) -> None:
        """Not asked for."""
        pytest.fail("a lookup only gets")

    def sizes(self, folder: str, on_some: Callable[[int], None] = lambda _: None) -> Iterator[tuple[str, int]]:
        """Not asked for."""
        pytest.fail("a lookup only gets")


def _failing(name: str) -> bytes | None:
    raise RemoteError("it is down")


@pytest.fixture
def signers(builder: Builder, tmp_path: Path) -> TrustedSigners:
    return TrustedSigners(signers_file(tmp_path, f"builder {builder.line}"))


@pytest.fixture
def keys(store: DiskStore) -> list[CacheKey]:
    return fill(store, 3)


@pytest.fixture
def opened() -> Iterator[Callable[..., RemoteTier]]:
    """Makes tiers, and closes them."""
    made: list[RemoteTier] = []

    def make(remote: Remote, prove: Callable[[bytes], None] = lambda _: None, **options: object) -> RemoteTier:
        made.append(RemoteTier(remote, prove, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for tier in made:
        tier.breaker.close(time.monotonic() + 60)


def test_what_was_pushed_is_served_and_a_miss_is_not_remembered(
    store: DiskStore, remote: Remote, keys: list[CacheKey], builder: Builder, signers: TrustedSigners,
    opened: Callable[..., RemoteTier],
) -> None:  # fmt: skip
    tier = opened(remote, signers.require)
    assert tier.get(keys[0]) is None
    push(store, remote, keys, sign=builder.key.sign)
    assert [tier.get(key) for key in keys] == [store.get(key) for key in keys]
    assert tier.breaker.why == ""


def test_nothing_that_a_poisoned_remote_has_is_served(
    store: DiskStore, tmp_path: Path, keys: list[CacheKey], builder: Builder, stranger: Builder,
    signers: TrustedSigners, opened: Callable[..., RemoteTier],
) -> None:  # fmt: skip
    (record, blob), (other_record, other_blob) = [store.stored(key) or (b"", b"") for key in keys[:2]]
    signed = builder.key.sign(record)
    poison = {
        "unsigned": packed(record, blob),
        "a stranger's": packed(stranger.key.sign(record), blob),
        "other code": packed(signed, other_blob),
        "another key's": packed(builder.key.sign(other_record), other_blob),
        "changed record": packed(signed.replace(b'"registers":', b'"registers":1', 1), blob),
        "changed log": packed(signed, blob[:-1] + bytes([blob[-1] ^ 1])),
        "cut": packed(signed, blob)[:-1],
        "longer": packed(signed, blob) + b"x",
        "empty": b"",
        "a header alone": b"GEMMRMTE" + bytes(16),
        "no record": packed(b"{}", blob),
        "record of a wrong type": packed(b'{"format":"x"}', blob),
        "of another format": packed(b'{"format":99,"checksum":"","record":{}}', blob),
        "text": b"<html>404</html>",
    }
    for what, data in poison.items():
        tier = opened(Fake({name_of(keys[0]): data}.get), signers.require)
        with pytest.raises(CorruptEntry):
            pytest.fail(f"served: {what}: {tier.get(keys[0])}")
        assert tier.breaker.why == "", what
    assert opened(Fake(lambda _: packed(signed, blob)), signers.require).get(keys[0]) == store.get(keys[0])


def test_a_revoked_key_is_refused_by_the_next_lookup(
    store: DiskStore, keys: list[CacheKey], builder: Builder, signers: TrustedSigners, tmp_path: Path,
    opened: Callable[..., RemoteTier],
) -> None:  # fmt: skip
    record, blob = store.stored(keys[0]) or (b"", b"")
    tier = opened(Fake(lambda _: packed(builder.key.sign(record), blob)), signers.require)
    assert tier.get(keys[0]) is not None
    signers_file(tmp_path, "# it was stolen")
    with pytest.raises(Unproved):
        tier.get(keys[0])


def test_a_remote_that_fails_is_asked_no_more_until_it_answers(opened: Callable[..., RemoteTier]) -> None:
    said: list[tuple[str, float]] = []
    is_down = threading.Event()
    is_down.set()
    remote = Fake(lambda name: _failing(name) if is_down.is_set() else None)
    breaker = Breaker(lambda: remote.get("", 1), lambda *change: said.append(change), first_pause_s=0.02)
    tier = opened(remote, breaker=breaker)
    with pytest.raises(OSError, match="it is down"):
        tier.get(CacheKey("ab" * 32))
    assert [why for why, _ in said] == ["it is down"]
    until(lambda: remote.asked > 2)  # by its own thread
    assert tier.get(CacheKey("ab" * 32)) is None
    assert tier.breaker.why == "it is down"
    is_down.clear()
    until(lambda: not tier.breaker.why)
    before = remote.asked
    assert tier.get(CacheKey("ab" * 32)) is None
    assert remote.asked == before + 1
    until(lambda: [why for why, _ in said] == ["it is down", ""])


def test_after_the_end_was_ordered_a_failure_opens_it_for_good() -> None:
    breaker = Breaker(lambda: _failing(""))
    breaker.end()
    breaker.failed("what was being sent then")
    assert breaker.why == "what was being sent then"
    assert breaker._queue.is_idle


def test_a_silent_server_costs_a_second_once(opened: Callable[..., RemoteTier]) -> None:
    """Its own client gives up in time, and says why."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with closing(ClientProcess("s3://bucket/x", LOOKUP, endpoint=address, **S3)) as remote:
            tier = opened(remote)
            with pytest.raises(OSError, match=r"cannot read .* of s3://bucket/x"):
                tier.get(CacheKey("ab" * 32))
            assert tier.get(CacheKey("ab" * 32)) is None


def test_a_name_is_not_below_another_folder() -> None:
    assert name_of(CacheKey("ab" * 32)) == f"gemm-cache/1/ab/{'ab' * 32}"
