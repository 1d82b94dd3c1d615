"""What a remote served is stored behind the caller, under the lock of its key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from cache_engine.cache.serving import backfill as module
from cache_engine.cache.serving.backfill import Backfill
from cache_engine.cache.serving.key_lock import KeyLock


class Key:
    """A lock of a key, as a caller holds it, and whether it is held still."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def put(self, backfill: Backfill, store: Callable[[], None]) -> None:
        """What a lookup does."""
        with (lock := KeyLock(lambda into: into.take(self.lock))):
            backfill.put(store, lock)

    @property
    def is_held(self) -> bool:
        """Whether another caller would wait."""
        return self.lock.locked()


@pytest.fixture
def backfill() -> Iterator[Backfill]:
    made = Backfill()
    yield made
    made.close(wait=True)


@pytest.fixture
def slow() -> Iterator[tuple[threading.Event, Callable[[], None]]]:
    """What stores until the event says that the disk answers."""
    disk = threading.Event()

    def store() -> None:
        assert disk.wait(600)

    yield disk, store
    disk.set()


def test_the_caller_goes_on_and_the_lock_is_held_until_it_is_stored(
    backfill: Backfill, slow: tuple[threading.Event, Callable[[], None]]
) -> None:
    disk, store = slow
    first, second, stored = Key(), Key(), list[str]()
    first.put(backfill, store)
    second.put(backfill, lambda: stored.append("second"))
    assert (first.is_held, second.is_held, stored) == (True, True, [])
    disk.set()
    backfill.settle()
    assert (first.is_held, second.is_held, stored) == (False, False, ["second"])


def test_the_lock_is_released_also_where_storing_fails(backfill: Backfill) -> None:
    def fail() -> None:
        raise MemoryError

    key, stored = Key(), list[int]()
    key.put(backfill, fail)
    Key().put(backfill, lambda: stored.append(threading.get_ident()))
    backfill.close(wait=True)
    assert not key.is_held
    assert len(stored) == 1
    assert stored != [threading.get_ident()]


def test_of_too_many_and_without_a_thread_the_caller_stores_its_own(
    backfill: Backfill, slow: tuple[threading.Event, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, store = slow
    stored: list[int] = []
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    for _ in range(3):  # the first may be taken by the thread at once, or not
        Key().put(backfill, store)
        if len(backfill._waiting) == 2:
            break
    own = Key()
    own.put(backfill, lambda: stored.append(threading.get_ident()))
    assert stored == [threading.get_ident()]
    assert not own.is_held

    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "Background", none)
    Key().put(Backfill(), lambda: stored.append(threading.get_ident()))
    assert stored == [threading.get_ident()] * 2
    disk.set()


def test_the_end_stores_what_waits_and_then_callers_store_their_own() -> None:
    backfill, stored = Backfill(), list[int]()
    keys = [Key() for _ in range(20)]
    for key in keys:
        key.put(backfill, lambda: stored.append(threading.get_ident()))
    backfill.close(wait=True)
    assert len(stored) == 20
    assert not any(key.is_held for key in keys)
    Key().put(backfill, lambda: stored.append(threading.get_ident()))
    assert stored[20:] == [threading.get_ident()]


def test_an_end_that_cannot_wait_stores_nothing_and_holds_no_lock(
    slow: tuple[threading.Event, Callable[[], None]],
) -> None:
    disk, store = slow
    backfill, stored, busy = Backfill(), list[int](), threading.Event()

    def begin() -> None:
        busy.set()
        store()

    Key().put(backfill, begin)
    assert busy.wait(600)
    key = Key()
    key.put(backfill, lambda: stored.append(1))
    backfill.close(wait=False)
    disk.set()
    backfill.settle()
    assert stored == []


def test_a_forked_child_stores_nothing_of_its_parent(slow: tuple[threading.Event, Callable[[], None]]) -> None:
    disk, store = slow
    backfill, stored = Backfill(), list[str]()
    Key().put(backfill, store)
    Key().put(backfill, lambda: stored.append("the parent's"))
    backfill.renew_after_fork()
    backfill.settle()
    Key().put(backfill, lambda: stored.append("its own"))
    backfill.close(wait=True)
    assert stored == ["its own"]
    disk.set()
