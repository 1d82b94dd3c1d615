"""Tickets: who compiles, who waits for a slot, and who waits for a kernel that another compiles.

A ticket is an empty file among the temporaries. Its name says everything, so one look at the folder shows the queue,
and no content has to be trusted. Its owner holds its lock until it deletes it: a ticket whose lock is free is that of a
process that was killed, and is deleted by the next that finds it first in line, or with the temporaries.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from cache_engine.errors import CorruptEntry
from cache_engine.model.key import CacheKey
from cache_engine.process import OwnFile
from cache_engine.store.layout import StoreLayout, TicketName, ticket_of_name
from cache_engine.store.lock import try_lock
from cache_engine.store.ownership import own_file
from cache_engine.store.publish import delete, stage


class Priority(IntEnum):
    """The purpose of a compile, the most urgent first."""

    CALLER = 0
    """A caller waits for it."""
    PROMOTION = 1
    """Another kernel serves meanwhile."""
    WARM = 2
    """It was asked for in advance."""
    SPECULATION = 3
    """It may be asked for."""


class State(StrEnum):
    """The activity of a ticket's owner."""

    COMPILES = "compiles"
    QUEUED = "queued"
    """It waits for a slot."""
    WAITS = "waits"
    """It waits for the kernel that another compiles, or has in the queue."""


_STATES, _PRIORITIES = frozenset(State), frozenset(Priority)

HEAD_START_S = 30.0
"""Seconds by which a more urgent compile may come later and still go first, for each step of priority.

A bound, so that a stream of urgent compiles starves no other.
"""


class Ticket:
    """A ticket of this process, for the body of a ``with``.

    It may have no file, as on a full disk: its owner then waits like the others, and only they do not see it.
    """

    def __init__(self, layout: StoreLayout, key: CacheKey, priority: Priority, state: State) -> None:
        """Makes no file yet."""
        self._layout = layout
        now_us = time.time_ns() // 1000
        self.name = TicketName(state, priority, now_us, key, os.getpid(), secrets.token_hex(4))
        self._path = layout.ticket(self.name)
        self._file: OwnFile | None = None

    def __enter__(self) -> Ticket:
        with suppress(OSError):
            path, file = stage(self._layout.temp)
            try:
                # Locked before it has the name of a ticket, so that no look finds one with a free lock.
                os.rename(path, self._path)
            except BaseException:
                delete(path)
                file.close()
                raise
            self._file = file
        return self

    def __exit__(self, *_: object) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                if file.is_ours:  # else this is a forked child
                    delete(self._path)
            finally:
                file.close()

    def becomes(self, state: State) -> None:
        """Says that its owner now does something else."""
        if self._file is not None:
            with suppress(OSError):
                name = self.name._replace(state=state)
                path = self._layout.ticket(name)
                os.rename(self._path, path)
                self._path, self.name = path, name


@dataclass(frozen=True, slots=True)
class Turn:
    """A compile or a wait that is under way.

    Attributes:
        state: what its owner does.
        priority: its own, not one that is lent.
        key: the kernel.
        pid: the process.
        seconds: for how long, by the clock of this machine.
    """

    state: State
    priority: Priority
    key: CacheKey
    pid: int
    seconds: float


@dataclass(frozen=True, slots=True)
class QueueState:
    """The compile queue of a store at one moment.

    Attributes:
        slots: how many may compile at a time, by the settings of who asks.
        compiling: the kernels that are compiled now.
        queued: those that wait for a slot, the next first.
        waiting: who waits for a kernel that another compiles or has in the queue.
    """

    slots: int
    compiling: tuple[Turn, ...] = ()
    queued: tuple[Turn, ...] = ()
    waiting: tuple[Turn, ...] = ()


def queue_state(layout: StoreLayout, slots: int) -> QueueState:
    """The compiles that run and those that wait now, without those that were killed. Changes nothing."""
    now_us = time.time_ns() // 1000
    try:
        alive = [ticket for ticket in tickets(layout) if is_alive(layout, ticket)]
    except OSError:
        return QueueState(slots)

    def turns(found: Iterable[TicketName]) -> tuple[Turn, ...]:
        return tuple(
            Turn(State(one.state), Priority(one.priority), one.key, one.pid, max(0.0, (now_us - one.since_us) / 1e6))
            for one in found
        )

    oldest_first = sorted(alive, key=lambda one: one.since_us)
    compiling, waiting = (
        turns(one for one in oldest_first if one.state == state) for state in (State.COMPILES, State.WAITS)
    )
    return QueueState(slots, compiling, turns(in_order(alive)), waiting)


def tickets(layout: StoreLayout) -> list[TicketName]:
    """All tickets, those of killed processes included."""
    found = (ticket_of_name(name) for name in os.listdir(layout.temp))
    return [ticket for ticket in found if ticket and ticket.state in _STATES and ticket.priority in _PRIORITIES]


def is_alive(layout: StoreLayout, ticket: TicketName) -> bool:
    """Whether the owner of a ticket holds it still; where locks do not work, it counts as held."""
    try:
        file = own_file(layout.ticket(ticket), os.O_RDWR)
    except (FileNotFoundError, CorruptEntry):
        return False
    except OSError:
        return True
    try:
        return not try_lock(file.descriptor)
    except OSError:
        return True
    finally:
        file.close()


def in_order(found: Iterable[TicketName]) -> list[TicketName]:
    """Those that wait for a slot, the next first.

    The oldest goes first, but a compile of less priority lets others pass that come up to ``HEAD_START_S`` later for
    each step. Who waits for a key's lock lends its priority to the compile it waits for: that of any key of this lock.
    """
    found = list(found)
    lent: dict[str, int] = {}
    for ticket in found:
        if ticket.state == State.WAITS:
            lock = _lock_of(ticket)
            lent[lock] = min(ticket.priority, lent.get(lock, ticket.priority))

    def turn(ticket: TicketName) -> tuple[float, int, str]:
        priority = min(ticket.priority, lent.get(_lock_of(ticket), ticket.priority))
        return ticket.since_us + priority * HEAD_START_S * 1e6, ticket.since_us, ticket.token

    return sorted((ticket for ticket in found if ticket.state == State.QUEUED), key=turn)


def _lock_of(ticket: TicketName) -> str:
    """The part of a key that keys with the same lock have in common."""
    return ticket.key[:3]
