"""Compile slots of a store: how many kernels all its processes compile at a time, and who is next.

A slot is a lock file, so it is free again however its holder ends. Who may try for one, the tickets say: only the first
in their order. It looks again and again, as a lock cannot be waited for out of turn; who is further behind looks less
often.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from cache_engine.errors import LockTimeout
from cache_engine.logs import fields
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure
from cache_engine.queue.tickets import Priority, State, Ticket, in_order, is_alive, tickets
from cache_engine.store.layout import StoreLayout
from cache_engine.store.lock import file_lock

_log = logging.getLogger(__name__)

# Between two looks: for each that is ahead, and at most.
_LOOK_S, _LONGEST_LOOK_S = 0.01, 0.2


class GivenUp(Exception):
    """A compile in the queue that is no longer wanted."""


class Slots:
    """The compile slots of a store. Safe to use from several threads and processes, and after a fork.

    Deadlocks are impossible while every caller locks its key first and then waits for a slot: who holds a slot waits
    for no lock.
    """

    def __init__(self, layout: StoreLayout, count: int, timeout_s: float) -> None:
        """So many slots; no caller waits longer than the timeout for the queue to move."""
        self._layout = layout
        self.count = count
        self._timeout_s = timeout_s

    @contextmanager
    def turn(
        self, key: CacheKey, priority: Priority, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Failure | None]:
        """Holds a slot for the body of a ``with``, after waiting for it; yields why there is none, where that is so.

        A caller never fails for want of a slot: when the queue has not moved for the timeout, or locks do not work, the
        body runs without.

        Args:
            key: the kernel that the body compiles. The caller holds its lock.
            is_wanted: asked while waiting.

        Raises:
            GivenUp: when it is no longer wanted.
        """
        with ExitStack() as held:
            ticket = held.enter_context(Ticket(self._layout, key, priority, State.QUEUED))
            failure = None
            try:
                slot = self._wait(ticket, is_wanted)
            except (OSError, MemoryError) as error:
                failure = Failure(f"the store's compile slots cannot be used: {error}")
            else:
                if slot is None:
                    failure = Failure(f"no compile slot was free for more than {self._timeout_s:g} s")
                else:
                    held.push(slot)
            if failure is not None:
                _log.info("%s is compiled without a slot: %s", key[:12], failure, extra=fields("no slot", key=key))
            ticket.becomes(State.COMPILES)
            yield failure

    @contextmanager
    def waiting(self, key: CacheKey, priority: Priority) -> Iterator[None]:
        """Lends this priority to the compile of a key, in whichever process, for the body of a ``with``."""
        with Ticket(self._layout, key, priority, State.WAITS):
            yield

    def _wait(self, ticket: Ticket, is_wanted: Callable[[], bool]) -> ExitStack | None:
        """A slot, when it is this ticket's turn; ``None`` when nothing has moved for too long."""
        fewest, deadline = None, 0.0
        while True:
            ahead = self._ahead(ticket)
            slot = self._free_slot() if not ahead else None
            if slot is not None:
                return slot
            now = time.monotonic()
            if fewest is None or ahead < fewest:
                fewest, deadline = ahead, now + self._timeout_s
            if now >= deadline:
                return None
            if not is_wanted():
                raise GivenUp
            time.sleep(min(_LONGEST_LOOK_S, _LOOK_S * (1 + ahead)))

    def _ahead(self, mine: Ticket) -> int:
        """How many are before this ticket. Deletes those at the head whose owners are gone."""
        there = [ticket for ticket in tickets(self._layout) if ticket.token != mine.name.token]
        order = in_order([*there, mine.name])
        while order[0] != mine.name and not is_alive(self._layout, order[0]):
            with suppress(OSError):
                self._layout.ticket(order[0]).unlink()
            del order[0]
        return order.index(mine.name)

    def _free_slot(self) -> ExitStack | None:
        """A slot that is free, locked.

        Raises:
            OSError: when none can be locked.
        """
        failures: list[OSError] = []
        for number in range(self.count):
            slot = ExitStack()
            try:
                slot.enter_context(file_lock(self._layout.slot_lock(number), 0))
            except LockTimeout:
                pass
            except OSError as error:
                failures.append(error)
            else:
                return slot
        if len(failures) == self.count:
            raise failures[0]
        return None
