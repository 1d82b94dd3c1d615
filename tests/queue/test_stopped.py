"""A stopped process that holds a slot: nobody waits for it longer than the timeout, in all."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from cache_engine.cache.queue import Priority, State, Ticket
from cache_engine.cache.queue.slots import Slots
from cache_engine.store.disk import DiskStore
from tests.queue.test_slots import KEYS, Workers, other_process, said


class Clock:
    """A clock that sleeping moves; ``at`` says what happens when."""

    def __init__(self) -> None:
        self.now, self.at = 0.0, dict[float, Callable[[], object]]()

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Moves the clock."""
        self.now += seconds
        for due in [due for due in self.at if due <= self.now]:
            self.at.pop(due)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("cache_engine.cache.queue.slots.time", made)
    return made


def test_who_gives_up_behind_a_stopped_process_makes_no_other_wait_longer(store: DiskStore, clock: Clock) -> None:
    """Only a slot that somebody gets says that the queue moves."""
    stopped, mine = Slots(store.layout, 1, 60.0), Slots(store.layout, 1, 60.0)
    with stopped.turn(KEYS[0], Priority.CALLER), ExitStack() as other:
        other.enter_context(Ticket(store.layout, KEYS[1], Priority.CALLER, State.QUEUED))
        clock.at[59.0] = other.close
        with mine.turn(KEYS[2], Priority.CALLER) as failure:
            assert failure is not None
        assert 60 <= clock.now < 61
        with mine.turn(KEYS[3], Priority.CALLER) as failure:  # nor does this process wait for it again
            assert failure is not None
        assert clock.now < 61


def test_a_wait_for_a_key_counts_where_no_slot_moves_meanwhile(store: DiskStore, clock: Clock) -> None:
    mine = Slots(store.layout, 1, 60.0)
    with Slots(store.layout, 1, 60.0).turn(KEYS[0], Priority.CALLER):
        with mine.waiting(KEYS[0], Priority.CALLER):
            clock.now += 60.0
        with mine.turn(KEYS[0], Priority.CALLER) as failure:
            assert failure is not None
        assert clock.now < 61


def test_while_slots_change_hands_one_waits_however_long(store: DiskStore, clock: Clock) -> None:
    mine, theirs = Slots(store.layout, 1, 60.0), Slots(store.layout, 1, 60.0)
    with ExitStack() as holder, ExitStack() as ahead:

        def take() -> None:
            holder.close()
            slot = theirs._free_slot()
            assert slot is not None
            holder.push(slot.__exit__)

        take()
        ahead.enter_context(Ticket(store.layout, KEYS[1], Priority.CALLER, State.QUEUED))
        clock.at = {50.0: take, 100.0: take, 150.0: ahead.close, 151.0: holder.close}
        with mine.turn(KEYS[2], Priority.SPECULATION) as failure:
            assert failure is None
        assert 151 <= clock.now < 152
    with theirs.turn(KEYS[0], Priority.CALLER):  # and after a slot a new wait begins
        began = clock.now
        with mine.turn(KEYS[2], Priority.CALLER) as failure:
            assert failure is not None
        assert 60 <= clock.now - began < 61


def test_two_go_on_behind_a_process_that_is_stopped(store: DiskStore) -> None:
    with other_process(store.layout) as process:
        assert said(process) == "has it None\n"
        process.send_signal(signal.SIGSTOP)
        workers = Workers(store.layout, timeout_s=0.5)
        workers.start(KEYS[1], Priority.CALLER)
        workers.start(KEYS[2], Priority.CALLER)
        workers.join()
    assert [failure is not None for failure in workers.failures] == [True, True]
