"""Compile slots of a store: the number of kernels that all its processes compile at a time, and the order of waiting.

A slot is a lock file, so it becomes free even if its holder is killed. The tickets decide which process may try to lock
a slot: only the first in the order of tickets. A process lists the tickets again and again, because locks know nothing
of this order; a process with more tickets before its own lists them less often.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from cache_engine.cache.queue import Priority, State, Ticket, in_order, is_alive, tickets
from cache_engine.errors import LockTimeout
from cache_engine.logs import fields
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure
from cache_engine.store.layout import StoreLayout, TicketName
from cache_engine.store.lock import Held, file_lock

_log = logging.getLogger(__name__)

# Seconds between two looks at the tickets: for each ticket that is ahead, and at most.
_LOOK_S, _LONGEST_LOOK_S = 0.01, 0.2


class GivenUp(Exception):
    """A compile in the queue is no longer wanted; the text, if any, says why."""


class Slots:
    """The compile slots of a store. Safe to use from several threads and processes, and after a fork.

    There is no deadlock as long as every caller locks its key first and then waits for a slot: the holder of a slot
    then waits for no lock.
    """

    def __init__(self, layout: StoreLayout, count: int, timeout_s: float) -> None:
        """Locks no slot yet.

        Args:
            count: the number of slots.
            timeout_s: the longest wait for a slot, in seconds, during which no slot changes its holder.
        """
        self._layout = layout
        self.count = count
        self._timeout_s = timeout_s
        # When each slot was taken last, and the time since which this process has seen these values.
        self._seen: tuple[tuple[int, ...], float] | None = None

    @contextmanager
    def turn(
        self, key: CacheKey, priority: Priority, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Failure | None]:
        """Waits for a slot, and holds it while the body of a ``with`` runs; ``as`` gives the reason if it got no slot.

        A caller never fails because it gets no slot. The body runs without a slot if no slot changed its holder for the
        timeout, as with a stopped process, or if locks do not work. Until a slot then becomes free or is
        taken, later callers do not wait.

        Args:
            key: the kernel that the body compiles. The caller must hold its lock.
            is_wanted: a function called while waiting: returns whether the kernel is still wanted.

        Raises:
            GivenUp: at the start of the ``with``, when the kernel is no longer wanted.
        """
        failure = None
        with Ticket(self._layout, key, priority, State.QUEUED) as ticket, ExitStack() as held:
            try:
                slot = self._wait(ticket, is_wanted)
            except OSError as error:
                failure = Failure(f"the store's compile slots cannot be used: {error}")
            else:
                if slot is not None:
                    held.push(slot)
                else:
                    failure = Failure(f"no compile slot was free for more than {self._timeout_s:g} s")
            if failure is not None:
                _log.info("%s is compiled without a slot: %s", key[:12], failure, extra=fields("no slot", key=key))
            ticket.becomes(State.COMPILES)
            yield failure

    def waiting(self, key: CacheKey, priority: Priority) -> Ticket:
        """Lends a priority to the compile of a key, in any process, while the body of a ``with`` runs.

        If no slot changes its holder while the body runs, this time is also part of the timeout of a later ``turn``.
        """
        self._unmoved_since()
        return Ticket(self._layout, key, priority, State.WAITS)

    def _wait(self, ticket: Ticket, is_wanted: Callable[[], bool]) -> Held | None:
        """Waits until this ticket is first; returns a locked slot, or ``None`` after the timeout."""
        while True:
            ahead = self._ahead(ticket)
            slot = self._free_slot() if not ahead else None
            if slot is not None:
                return slot
            # Not by the number of tickets ahead: these processes may give up.
            if time.monotonic() - self._unmoved_since() >= self._timeout_s:
                return None
            if not is_wanted():
                raise GivenUp
            time.sleep(min(_LONGEST_LOOK_S, _LOOK_S * (1 + ahead)))

    def _ahead(self, mine: Ticket) -> int:
        """The number of tickets before this one. Deletes tickets of killed processes at the head of the line."""
        gone: set[TicketName] = set()
        while True:
            others = [one for one in tickets(self._layout) if one.token != mine.name.token and one not in gone]
            order, known = in_order([*others, mine.name]), len(gone)
            while order[0] != mine.name and not is_alive(self._layout, order[0]):
                with suppress(OSError):
                    self._layout.ticket(order[0]).unlink()
                gone.add(order.pop(0))
            if len(gone) == known:
                return order.index(mine.name)
            # A killed process may have had its turn meanwhile, and a more urgent ticket may have come: look again.

    def _unmoved_since(self) -> float:
        """The time since which no slot has changed its holder, as far as this process has seen."""
        taken = tuple(_taken_at(self._layout.slot_lock(number)) for number in range(self.count))
        seen = self._seen
        if seen is None or seen[0] != taken:
            seen = self._seen = taken, time.monotonic()
        return seen[1]

    def _free_slot(self) -> Held | None:
        """A free slot, now locked; ``None`` if all are taken.

        Raises:
            OSError: when no slot can be locked.
        """
        failures: list[OSError] = []
        for number in range(self.count):
            try:
                slot = file_lock(self._layout.slot_lock(number), 0)
                slot.__enter__()
            except LockTimeout:
                pass
            except OSError as error:
                failures.append(error)
            else:
                with suppress(OSError):
                    os.utime(self._layout.slot_lock(number))  # its mtime tells waiters that the slot changed its holder
                return slot
        if len(failures) == self.count:
            raise failures[0]
        return None


def _taken_at(slot: Path) -> int:
    """The last time that a slot was taken, in nanoseconds since 1970; 0 if never."""
    with suppress(OSError):
        return os.stat(slot).st_mtime_ns
    return 0
