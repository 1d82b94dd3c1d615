"""Compile slots: so many at a time over all processes, in the order of the tickets, and free again however one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cache_engine.cache.queue import (
    HEAD_START_S,
    Priority,
    QueueState,
    State,
    Ticket,
    in_order,
    is_alive,
    queue_state,
    tickets,
)
from cache_engine.cache.queue.slots import GivenUp, Slots
from cache_engine.errors import LockTimeout
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure
from cache_engine.store.disk import DiskStore
from cache_engine.store.layout import StoreLayout, TicketName, ticket_of_name
from cache_engine.store.lock import file_lock
from cache_engine.upkeep.cleanup import abandoned_temporaries
from tests.remote.waiting import until

KEYS = tuple(CacheKey(f"{number:03x}" + 61 * "a") for number in range(40))

HOLD = (
    "import sys, time\n"
    "from pathlib import Path\n"
    "from cache_engine.model.key import CacheKey\n"
    "from cache_engine.cache.queue.slots import Slots\n"
    "from cache_engine.cache.queue import Priority\n"
    "from cache_engine.store.layout import StoreLayout\n"
    "slots = Slots(StoreLayout(Path(sys.argv[1])), 1, 60.0)\n"
    "with slots.turn(CacheKey(64 * 'b'), Priority(int(sys.argv[2]))) as failure:\n"
    "    print('has it', failure, flush=True)\n"
    "    time.sleep(600)\n"
)


def queued(layout: StoreLayout) -> list[TicketName]:
    return in_order(tickets(layout))


@contextmanager
def other_process(layout: StoreLayout, priority: Priority = Priority.CALLER) -> Iterator[subprocess.Popen[str]]:
    """A process that takes a slot and holds it."""
    command = [sys.executable, "-c", HOLD, str(layout.root), str(int(priority))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


class Workers:
    """Threads that each take a turn, and the order in which they got it."""

    def __init__(self, layout: StoreLayout, count: int = 1, timeout_s: float = 60.0) -> None:
        self.slots = Slots(layout, count, timeout_s)
        self.layout = layout
        self.got: list[CacheKey] = []
        self.failures: list[Failure | None] = []
        self._threads: list[threading.Thread] = []

    def start(self, key: CacheKey, priority: Priority) -> None:
        """Starts one, and waits until it is in the queue."""

        def work() -> None:
            with self.slots.turn(key, priority) as failure:
                self.got.append(key)
                self.failures.append(failure)

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()
        until(lambda: any(ticket.key == key for ticket in queued(self.layout)))

    def join(self) -> None:
        """Waits for the end of all."""
        for thread in self._threads:
            thread.join(600)
            assert not thread.is_alive()


def test_no_more_compile_at_a_time_than_there_are_slots(store: DiskStore) -> None:
    lock, both, now, most = threading.Lock(), threading.Barrier(2, timeout=600), 0, 0
    slots = Slots(store.layout, 2, 60.0)

    def work(key: CacheKey) -> None:
        nonlocal now, most
        with slots.turn(key, Priority.CALLER) as failure:
            assert failure is None
            with lock:
                now += 1
                most = max(most, now)
            both.wait()
            with lock:
                now -= 1

    threads = [threading.Thread(target=work, args=(key,)) for key in KEYS[:24]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
        assert not thread.is_alive()
    assert most == 2
    assert tickets(store.layout) == []


def test_the_most_urgent_goes_first_and_among_equals_the_first_that_came(store: DiskStore) -> None:
    workers = Workers(store.layout)
    with workers.slots.turn(KEYS[0], Priority.CALLER):
        workers.start(KEYS[1], Priority.SPECULATION)
        workers.start(KEYS[2], Priority.WARM)
        workers.start(KEYS[3], Priority.CALLER)
        workers.start(KEYS[4], Priority.PROMOTION)
        workers.start(KEYS[5], Priority.CALLER)
    workers.join()
    assert workers.got == [KEYS[3], KEYS[5], KEYS[4], KEYS[2], KEYS[1]]


def test_one_that_comes_while_the_first_is_found_gone_is_not_passed_over(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.layout.ticket(TicketName(State.QUEUED, 0, 0, KEYS[9], 1, "0" * 8)).touch()  # of a killed process
    with ExitStack() as urgent:

        def is_alive_after_one_came(layout: StoreLayout, ticket: TicketName) -> bool:
            if ticket.key == KEYS[9]:
                urgent.enter_context(Ticket(layout, KEYS[1], Priority.CALLER, State.QUEUED))
            return is_alive(layout, ticket)

        monkeypatch.setattr("cache_engine.cache.queue.slots.is_alive", is_alive_after_one_came)
        with Slots(store.layout, 1, 0.05).turn(KEYS[2], Priority.PROMOTION) as failure:
            assert failure is not None
            assert "no compile slot was free" in failure.reason


def test_who_waits_for_a_queued_compile_lends_it_the_priority(store: DiskStore) -> None:
    workers = Workers(store.layout)
    with workers.slots.turn(KEYS[0], Priority.CALLER):
        workers.start(KEYS[1], Priority.WARM)
        workers.start(KEYS[2], Priority.PROMOTION)
        with workers.slots.waiting(KEYS[1], Priority.CALLER):
            assert [ticket.key for ticket in queued(store.layout)] == [KEYS[1], KEYS[2]]
        assert [ticket.key for ticket in queued(store.layout)] == [KEYS[2], KEYS[1]]
    workers.join()


def test_a_stream_of_urgent_compiles_starves_no_other(store: DiskStore) -> None:
    def ticket(priority: Priority, at_s: float) -> TicketName:
        return TicketName(State.QUEUED, priority, round(at_s * 1e6), KEYS[0], 1, "00000000")

    warm = ticket(Priority.WARM, 1000.0)
    later = [ticket(Priority.CALLER, 1000.0 + second) for second in range(1, 100)]
    order = in_order([*later, warm])
    assert order.index(warm) == 2 * HEAD_START_S - 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_holder_that_is_killed_frees_its_slot(store: DiskStore, how: signal.Signals) -> None:
    workers = Workers(store.layout)
    with other_process(store.layout) as process:
        assert said(process) == "has it None\n"
        workers.start(KEYS[1], Priority.CALLER)
        assert workers.got == []
        process.send_signal(how)
        workers.join()
    assert (workers.got, workers.failures) == ([KEYS[1]], [None])


def test_one_that_is_killed_while_it_waits_is_passed_over(store: DiskStore) -> None:
    workers = Workers(store.layout)
    with workers.slots.turn(KEYS[0], Priority.CALLER), other_process(store.layout) as process:
        until(lambda: len(queued(store.layout)) == 1)
        workers.start(KEYS[1], Priority.CALLER)
        process.kill()
        process.wait()
        until(lambda: [ticket.key for ticket in queued(store.layout)] == [KEYS[1]])
    workers.join()
    assert tickets(store.layout) == []


def test_processes_take_turns_by_priority(store: DiskStore) -> None:
    workers = Workers(store.layout)
    with workers.slots.turn(KEYS[0], Priority.CALLER), other_process(store.layout, Priority.WARM) as process:
        until(lambda: len(queued(store.layout)) == 1)
        workers.start(KEYS[1], Priority.CALLER)
        assert [ticket.pid for ticket in queued(store.layout)] == [os.getpid(), process.pid]


def test_when_nothing_moves_for_too_long_it_is_done_without_a_slot(store: DiskStore) -> None:
    impatient = Slots(store.layout, 1, 0.05)
    with impatient.turn(KEYS[0], Priority.CALLER) as first, impatient.turn(KEYS[1], Priority.CALLER) as second:
        assert first is None
        assert second is not None
        assert "no compile slot was free" in second.reason
    with impatient.turn(KEYS[1], Priority.CALLER) as third:
        assert third is None


def test_without_rights_it_is_done_without_a_slot(store: DiskStore) -> None:
    for folder in (store.layout.temp, store.layout.locks):
        folder.rename(folder.with_name("gone"))
        folder.write_text("a file")
        folder.with_name("gone").rename(folder.with_name(f"gone-{folder.name}"))
        with Slots(store.layout, 1, 60.0).turn(KEYS[0], Priority.CALLER) as failure:
            assert failure is not None
            assert "cannot be used" in failure.reason


def test_what_is_no_longer_wanted_leaves_the_queue(store: DiskStore) -> None:
    slots = Slots(store.layout, 1, 60.0)
    with slots.turn(KEYS[0], Priority.CALLER):
        with pytest.raises(GivenUp), slots.turn(KEYS[1], Priority.PROMOTION, is_wanted=lambda: False):
            pytest.fail("it has a slot")
        assert [ticket.key for ticket in tickets(store.layout)] == [KEYS[0]]


def test_a_forked_child_leaves_the_tickets_and_slots_of_its_parent(store: DiskStore) -> None:
    slots = Slots(store.layout, 1, 0.0)
    with slots.turn(KEYS[0], Priority.CALLER) as failure:
        assert failure is None
        child = os.fork()
        if child == 0:
            try:
                with slots.turn(KEYS[1], Priority.CALLER) as inside:
                    os._exit(3 if inside is not None else 4)
            finally:
                os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        mine = [ticket for ticket in tickets(store.layout) if ticket.key == KEYS[0]]
        assert [is_alive(store.layout, ticket) for ticket in mine] == [True]


def test_a_child_that_leaves_its_parents_turn_ends_nothing(store: DiskStore) -> None:
    with ExitStack() as turn:
        turn.enter_context(Slots(store.layout, 1, 0.0).turn(KEYS[0], Priority.CALLER))
        child = os.fork()
        if child == 0:
            try:
                turn.close()
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [is_alive(store.layout, ticket) for ticket in tickets(store.layout)] == [True]
        with pytest.raises(LockTimeout), file_lock(store.layout.slot_lock(0), 0):
            pytest.fail("the slot is free")
    assert tickets(store.layout) == []


def test_tickets_say_what_their_names_say_and_nothing_else_is_one(store: DiskStore) -> None:
    before_us = time.time() * 1e6
    with Ticket(store.layout, KEYS[3], Priority.WARM, State.QUEUED) as ticket:
        (found,) = tickets(store.layout)
        assert found == ticket.name
        assert (found.state, found.priority, found.key, found.pid) == ("queued", 2, KEYS[3], os.getpid())
        assert before_us - 1 <= found.since_us <= time.time() * 1e6 + 1
        ticket.becomes(State.COMPILES)
        assert [one.state for one in tickets(store.layout)] == ["compiles"]
        assert list(abandoned_temporaries(store.layout)) == []
    good = store.layout.ticket(ticket.name).name
    for name in (
        "1234-abcd",
        good + "0",
        good.replace("-2-", "-22-"),
        good.replace("compiles", "../x"),
        good + "\n",
        "",
    ):
        assert ticket_of_name(name) is None


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_a_ticket_without_an_owner_holds_up_none(store: DiskStore, kind: str, tmp_path: Path) -> None:
    path = store.layout.ticket(TicketName(State.QUEUED, 0, 0, KEYS[9], 1, "0" * 8))
    if kind == "file":
        path.touch()
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.mkdir()
    with Slots(store.layout, 1, 30.0).turn(KEYS[0], Priority.CALLER) as failure:
        assert failure is None
    assert path.exists() == (kind == "folder")


def test_the_state_of_the_queue_is_who_compiles_who_is_next_and_who_waits(store: DiskStore) -> None:
    workers, before = Workers(store.layout), time.time()
    with workers.slots.turn(KEYS[0], Priority.CALLER), workers.slots.waiting(KEYS[0], Priority.CALLER):
        workers.start(KEYS[1], Priority.WARM)
        workers.start(KEYS[2], Priority.PROMOTION)
        store.layout.ticket(TicketName(State.QUEUED, 0, 0, KEYS[9], 1, "0" * 8)).touch()  # of a killed process
        state = queue_state(store.layout, 1)
        assert [turn.key for turn in state.compiling] == [KEYS[0]]
        assert [(turn.key, turn.priority) for turn in state.queued] == [
            (KEYS[2], Priority.PROMOTION),
            (KEYS[1], Priority.WARM),
        ]
        assert [(turn.state, turn.pid) for turn in state.waiting] == [(State.WAITS, os.getpid())]
        assert 0.0 <= state.queued[1].seconds <= time.time() - before
    workers.join()
    assert queue_state(store.layout, 1) == QueueState(1)
    store.layout.temp.rename(store.layout.root / "elsewhere")
    assert queue_state(store.layout, 1) == QueueState(1)


def test_names_that_no_version_wrote_are_no_tickets(store: DiskStore) -> None:
    for state, priority in (("sleeps", 0), ("queued", 9)):
        store.layout.ticket(TicketName(state, priority, 0, KEYS[0], 1, "0" * 8)).touch()
    assert tickets(store.layout) == []
