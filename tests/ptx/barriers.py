"""``mbarrier`` objects: phases that end when so many have arrived and so many bytes have landed.

Source: PTX ISA 9.2, 9.7.13.15 "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.ptx.faults import Fault
from tests.ptx.order import Order
from tests.ptx.shared import Shared

Array = npt.NDArray[Any]
_BYTES = 8
_MOST_ARRIVALS, _MOST_PENDING_BYTES = (1 << 20) - 1, (1 << 20) - 1


@dataclass(slots=True)
class _Barrier:
    """One barrier.

    Attributes:
        number: of the cluster's, from 0.
        made_by: the lane that initialised it; is_fenced: whether copies may count for it; is_announced: whether other
            blocks may use it.
        phase: how many have ended.
        missing: arrivals; bytes: expected, and not landed yet.
        told: what those know who arrived in this phase; ended: what those learn who wait for the last one.
        waiting: lanes, with the parity that each waits for.
    """

    number: int
    arrivals: int
    made_by: int
    is_made_known: Array
    missing: int
    told: Array
    ended: Array
    is_fenced: bool = False
    is_announced: bool = False
    phase: int = 0
    bytes: int = 0
    waiting: dict[int, int] = field(default_factory=dict)


class Barriers:
    """Those of all blocks.

    Attributes:
        woken: lanes whose phase has ended since this was last emptied.
    """

    def __init__(self, threads: int, shared: Shared, order: Order, cluster: int) -> None:
        self._threads, self._shared, self._order, self._cluster = threads, shared, order, cluster
        self._all: dict[tuple[int, int], _Barrier] = {}
        self.woken: list[int] = []

    def initialise(self, lane: int, address: int, arrivals: int) -> None:
        """``mbarrier.init``."""
        key = self._key(lane // self._threads, address)
        if key in self._all:
            raise Fault("a barrier is initialised that is one already")
        if not 1 <= arrivals <= _MOST_ARRIVALS:
            raise Fault(f"a barrier is to wait for {arrivals} arrivals; the least is 1, the most {_MOST_ARRIVALS:,}")
        self._shared.reserve(*key, _BYTES)
        number = sum(block // self._cluster == key[0] // self._cluster for block, _ in self._all)
        nothing = np.zeros_like(self._order.phase_known(number, 0))
        made = self._order.told(lane // 32)
        self._all[key] = _Barrier(number, arrivals, lane, made, arrivals, nothing, nothing.copy())

    def fence(self, lanes: Array) -> None:
        """What these lanes initialised is there for copies."""
        for barrier in self._made_by(lanes):
            barrier.is_fenced = True

    def announce(self, lanes: Array) -> None:
        """What these lanes initialised is there for other blocks: ``fence.mbarrier_init``."""
        for barrier in self._made_by(lanes):
            barrier.is_announced = True

    def arrive(self, lane: int, address: int, expected: int = 0, block: int | None = None) -> None:
        """``mbarrier.arrive``, and of ``expect_tx``; of a block's barrier, or the thread's own block's."""
        barrier = self._found(lane, address, block)
        if barrier.missing == 0:
            raise Fault("a thread more arrives at a barrier than it waits for")
        self._count(barrier, expected)
        barrier.missing -= 1
        np.maximum(barrier.told, self._order.told(lane // 32), out=barrier.told)
        self._end_phase(barrier)

    def expect(self, lane: int, address: int, block: int) -> tuple[int, int]:
        """The number and phase of the barrier of a block that a copy counts for."""
        barrier = self._found(lane, address, block)
        if not barrier.is_fenced:
            raise Fault("a copy counts for a barrier that was initialised with no proxy fence since")
        return barrier.number, barrier.phase

    def land(self, lane: int, address: int, block: int, landed: int) -> None:
        """Bytes have landed."""
        barrier = self._found(lane, address, block)
        self._count(barrier, -landed)
        self._end_phase(barrier)

    def has_ended(self, lane: int, address: int, parity: int) -> bool:
        """``mbarrier.try_wait.parity``: whether the phase has; then the lane's warp learns of it."""
        barrier = self._found(lane, address)
        if parity not in (0, 1):
            raise Fault(f"the parity of a phase is {parity}")
        if barrier.phase % 2 == parity:
            return False
        self._order.hear(lane // 32, barrier.ended)
        return True

    def wait(self, lane: int, address: int, parity: int) -> None:
        """A lane sleeps until the phase has ended."""
        self._found(lane, address).waiting[lane] = parity

    def overlaps(self, block: int, first: int, end: int) -> bool:
        """Whether a barrier of a block lies in these bytes."""
        return any(own == block and first < at + _BYTES and at < end for own, at in self._all)

    def _count(self, barrier: _Barrier, change: int) -> None:
        barrier.bytes += change
        if abs(barrier.bytes) > _MOST_PENDING_BYTES:
            raise Fault(f"a barrier waits for {barrier.bytes:,} bytes; the most is {_MOST_PENDING_BYTES:,}")

    def _end_phase(self, barrier: _Barrier) -> None:
        if barrier.missing or barrier.bytes:
            return
        landed = self._order.phase_known(barrier.number, barrier.phase)
        np.maximum(np.maximum(barrier.ended, barrier.told), landed, out=barrier.ended)
        barrier.told[:] = 0
        barrier.phase, barrier.missing = barrier.phase + 1, barrier.arrivals
        self.woken += barrier.waiting
        barrier.waiting = {}

    def _made_by(self, lanes: Array) -> Iterator[_Barrier]:
        given = set(lanes.tolist())
        return (barrier for barrier in self._all.values() if barrier.made_by in given)

    def _found(self, lane: int, address: int, block: int | None = None) -> _Barrier:
        own = lane // self._threads
        barrier = self._all.get(self._key(own if block is None else block, address))
        if barrier is None:
            raise Fault("there is no barrier that was initialised")
        if block not in (None, own) and not barrier.is_announced:
            raise Fault("a barrier of another block is used that was initialised with no fence.mbarrier_init since")
        self._order.check_told(lane // 32, barrier.is_made_known, barrier.made_by // 32)
        return barrier

    def _key(self, block: int, address: int) -> tuple[int, int]:
        return block, self._shared.offset_of(address, _BYTES)
