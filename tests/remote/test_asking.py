"""Threads that ask for callers: used again, left when they are late, and ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import Empty

import pytest

from cache_engine.remote import asking
from cache_engine.remote.asking import Askers
from tests.remote.waiting import until


@pytest.fixture
def askers() -> Iterator[Askers]:
    some = Askers()
    yield some
    some.close(time.monotonic() + 600)


def test_one_thread_asks_again_and_again_and_each_caller_at_the_same_time_has_its_own(askers: Askers) -> None:
    first = {askers.ask(threading.get_ident, 600) for _ in range(20)}
    assert len(first) == 1
    assert first != {(threading.get_ident(), None)}
    together, found = threading.Barrier(2), set[int | None]()

    def ask() -> int:
        together.wait(600)
        return threading.get_ident()

    callers = [threading.Thread(target=lambda: found.add(askers.ask(ask, 600)[0])) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(found) == 2


def test_one_that_is_late_is_asked_no_more_and_ends(askers: Askers) -> None:
    go_on = threading.Event()
    with pytest.raises(Empty):
        askers.ask(lambda: go_on.wait(60), 0.02)
    assert askers.are_asking
    assert askers.ask(lambda: "at once", 600) == ("at once", None)
    go_on.set()
    until(lambda: not askers.are_asking)


def test_what_is_raised_comes_back_and_the_thread_asks_on(askers: Askers) -> None:
    threads: list[int] = []

    def fail() -> None:
        threads.append(threading.get_ident())
        raise SystemExit(3)

    for _ in range(2):
        answer, error = askers.ask(fail, 600)
        assert answer is None
        assert isinstance(error, SystemExit)
    assert len(set(threads)) == 1


def test_an_idle_thread_ends_and_the_next_question_gets_another(
    askers: Askers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "IDLE_S", 0.01)
    assert askers.ask(lambda: 1, 600) == (1, None)
    until(lambda: not askers._idle)
    assert askers.ask(lambda: 2, 600) == (2, None)


def test_a_thread_that_was_taken_and_gets_no_question_ends(askers: Askers, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-C between the two."""
    monkeypatch.setattr(asking, "IDLE_S", 0.01)
    askers.ask(lambda: 1, 600)
    taken = askers._free()
    until(lambda: not taken.thread.is_alive)
    assert askers.ask(lambda: 2, 600) == (2, None)


def test_closing_ends_the_idle_ones(askers: Askers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "IDLE_S", 1200.0)
    askers.ask(lambda: 1, 600)
    (asker,) = askers._idle
    askers.close(time.monotonic() + 600)
    asker.thread.join(600)
    assert not asker.thread.is_alive
