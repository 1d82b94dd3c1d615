"""Kernels that are sent to a remote behind the back of those who compiled them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cache_engine.cache.remote.base import Remote, name_of
from cache_engine.cache.remote.clients import Objects
from cache_engine.cache.remote.tier import Breaker, RemoteTier, SendQueue, SendTarget
from cache_engine.errors import RemoteError, UsageError
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.signatures.signers import TrustedSigners
from tests.helpers import fill, record_file
from tests.remote.waiting import until
from tests.trust.keys import Builder, signers_file


class Counts:
    """What was sent and dropped."""

    def __init__(self) -> None:
        self.sent, self.dropped = 0, 0

    def add(self, sent: int, dropped: int) -> None:
        """Counts."""
        self.sent, self.dropped = self.sent + sent, self.dropped + dropped


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def keys(store: DiskStore) -> list[CacheKey]:
    return fill(store, 5)


@pytest.fixture
def behind(store: DiskStore, builder: Builder, counts: Counts) -> Iterator[Callable[..., SendQueue]]:
    """Makes what sends to a remote, and closes it."""
    made: list[SendQueue] = []

    def make(remote: Remote, most: int = 256, breaker: Breaker | None = None) -> SendQueue:
        way = SendTarget(remote, builder.key.sign, breaker or Breaker(lambda: None))
        made.append(SendQueue(store, lambda: way, counts.add, most))
        return made[-1]

    yield make
    for one in made:
        one.close(time.monotonic() + 60)


def test_what_is_put_is_sent_signed_once(
    store: DiskStore, remote: Remote, keys: list[CacheKey], builder: Builder, behind: Callable[..., SendQueue],
    counts: Counts, tmp_path: Path,
) -> None:  # fmt: skip
    one = behind(remote)
    for key in [*keys, keys[0]]:
        one.put(key)
    one.close(time.monotonic() + 60)
    assert (counts.sent, counts.dropped) == (5, 0)
    signers = TrustedSigners(signers_file(tmp_path, f"builder {builder.line}"))
    tier = RemoteTier(remote, signers.require)
    assert [tier.get(key) for key in keys] == [store.get(key) for key in keys]


def test_no_caller_waits_and_what_is_too_much_or_too_late_is_dropped_and_counted(
    tmp_path: Path, keys: list[CacheKey], behind: Callable[..., SendQueue], counts: Counts
) -> None:
    remote, hang, begun = Objects(f"file://{tmp_path}/remote"), threading.Event(), threading.Event()

    def slow(name: str, data: bytes) -> bool:
        begun.set()
        return hang.wait(60)

    remote.create = slow  # type: ignore[method-assign]
    one = behind(remote, most=3)
    one.put(keys[0])
    assert begun.wait(60)
    for key in keys[1:]:
        one.put(key)
    assert (counts.sent, counts.dropped) == (0, 2)
    one.close(time.monotonic())
    assert counts.dropped == 5
    hang.set()
    one.close(time.monotonic() + 60)
    assert (counts.sent, counts.dropped) == (0, 5)  # what was being sent counts once
    one.put(keys[0])
    assert counts.dropped == 6


def test_after_the_end_was_ordered_what_is_being_sent_is_sent_and_the_rest_dropped(
    tmp_path: Path, keys: list[CacheKey], behind: Callable[..., SendQueue], counts: Counts
) -> None:
    remote, go, begun = Objects(f"file://{tmp_path}/remote"), threading.Event(), threading.Event()
    create = remote.create

    def slow(name: str, data: bytes) -> bool:
        begun.set()
        return go.wait(60) and create(name, data)

    remote.create = slow  # type: ignore[method-assign]
    one = behind(remote)
    for key in keys:
        one.put(key)
    assert begun.wait(60)
    one.end(time.monotonic())
    go.set()
    one.close(time.monotonic() + 60)
    assert (counts.sent, counts.dropped) == (1, 4)


def test_a_remote_that_fails_gets_them_when_it_answers_again(
    tmp_path: Path,
    keys: list[CacheKey],
    behind: Callable[..., SendQueue],
    counts: Counts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cache_engine.cache.remote.tier._PAUSED_S", 0.01)
    remote, is_down = Objects(f"file://{tmp_path}/remote"), threading.Event()
    is_down.set()
    create = remote.create

    def ask(*given: object) -> bool:
        if is_down.is_set():
            time.sleep(0.01)
            raise RemoteError("it is full")
        return create(*given) if given else True  # type: ignore[arg-type]

    remote.create = ask  # type: ignore[assignment,method-assign]
    waited: list[float] = []
    breaker = Breaker(ask, lambda _, seconds: waited.append(seconds), first_pause_s=0.02)
    one = behind(remote, breaker=breaker)
    for key in keys:
        one.put(key)
    until(lambda: bool(waited))
    assert waited[0] >= 0.01
    assert counts.sent == counts.dropped == 0
    is_down.clear()
    until(lambda: counts.sent == 5)


def test_a_damaged_kernel_is_not_sent(
    store: DiskStore, tmp_path: Path, keys: list[CacheKey], behind: Callable[..., SendQueue], counts: Counts
) -> None:
    remote = Objects(f"file://{tmp_path}/remote")
    path = record_file(store, keys[0])
    path.write_bytes(path.read_bytes()[:-20])
    one = behind(remote)
    one.put(keys[0])
    one.close(time.monotonic() + 60)
    assert (counts.sent, counts.dropped, remote.get(name_of(keys[0]), 10)) == (0, 1, None)


def test_without_a_key_to_sign_with_nothing_is_sent_and_it_is_said_once(
    store: DiskStore, keys: list[CacheKey], counts: Counts, caplog: pytest.LogCaptureFixture
) -> None:
    def none() -> SendTarget:
        raise UsageError("name a private key in the setting signing_key")

    one = SendQueue(store, none, counts.add)
    for key in keys:
        one.put(key)
    until(lambda: counts.dropped == 5)
    one.close(time.monotonic() + 60)
    assert (counts.sent, counts.dropped) == (0, 5)
    assert [record.getMessage() for record in caplog.records] == [
        "kernels are not sent to the remote: name a private key in the setting signing_key"
    ]
