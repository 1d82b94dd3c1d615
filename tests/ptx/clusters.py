"""Clusters of blocks: addresses in each other's shared memory, the barrier of a cluster, and blocks that end.

What a block has ended, others must not access: its shared memory is another's by then. So each access from outside must
be known to a thread of the block when the last of them ends, whatever was executed first.

The barrier of a cluster orders what ``order.py`` knows of: mbarriers, copies and products. Ordinary loads and stores
take a barrier of the block here. An arrival at another block's mbarrier hands on what its warp knows, though its scope
is the block: CUTLASS hands buffers over so, and what it says is that products and copies have ended.

Source: PTX ISA 9.2, 9.7.13.5 "barrier.cluster", 9.7.9.24 "mapa", and 5.1.7 "Shared State Space". That a block must not
end before others have done with its shared memory, the CUDA C++ Programming Guide says, "Distributed Shared Memory".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tests.ptx.faults import Fault
from tests.ptx.order import Order

Array = npt.NDArray[Any]
_RANKS = 24  # bits before it: an address of a block by itself has nothing beyond them


class Clusters:
    """Of one launch.

    Args:
        size: how many blocks, one after the other, are one.

    Attributes:
        is_waiting: threads that wait at the barrier of their cluster.
    """

    def __init__(self, blocks: int, threads: int, size: int, order: Order) -> None:
        self._threads, self._size, self._order = threads, size, order
        self.is_waiting = np.zeros(blocks * threads, dtype=bool)
        # By thread: how often it has arrived and waited. By cluster: how often all have, and what those have told who
        # arrive now, and those who arrived last.
        self._arrived, self._waited = (np.zeros(blocks * threads, dtype=np.int64) for _ in range(2))
        self._phase = np.zeros(blocks // size, dtype=np.int64)
        nothing = np.zeros_like(order.phase_known(0, 0))
        self._told, self._ended = (np.tile(nothing, (blocks // size, 1)) for _ in range(2))
        self._has_left = np.zeros(blocks * threads, dtype=bool)
        # By block: what must be known before it may end.
        self._reached = np.tile(nothing, (blocks, 1))

    # ---- Addresses ----

    def mapped(self, address: int, rank: int) -> int:
        """``mapa``: the address, for all of the cluster, of what has this one in the block of a rank."""
        if not 0 <= rank < self._size:
            raise Fault(f"an address is mapped to block {rank} of a cluster of {self._size}")
        if address >> _RANKS:
            raise Fault("an address is mapped that is none of the block's own shared memory")
        return (rank + 1) << _RANKS | address

    def placed(self, lane: int, address: int) -> tuple[int, int]:
        """The block, and the address in it. An address that was not mapped is of the thread's own."""
        block, rank = lane // self._threads, address >> _RANKS
        if rank:
            block = block // self._size * self._size + rank - 1
        return block, address & (1 << _RANKS) - 1

    def named(self, lane: int, mask: int) -> list[int]:
        """The blocks of a cluster that the bits of a mask name."""
        if not 0 < mask < 1 << self._size:
            raise Fault(f"a copy is to land in blocks {mask:#x} of a cluster of {self._size}")
        first = lane // self._threads // self._size * self._size
        return [first + rank for rank in range(self._size) if mask >> rank & 1]

    # ---- Blocks that end ----

    def reach(self, block: int, told: Array) -> None:
        """What is told was done to a block's shared memory, maybe from outside."""
        here = slice(block * self._threads, (block + 1) * self._threads)
        if self._has_left[here].all():
            raise Fault("shared memory is accessed of a block that has ended")
        np.maximum(self._reached[block], told, out=self._reached[block])

    def leave(self, lanes: Array) -> None:
        """Threads end."""
        self._has_left[lanes] = True
        for block in np.unique(lanes // self._threads):
            here = slice(block * self._threads, (block + 1) * self._threads)
            if self._has_left[here].all() and not self._order.is_known(int(block), self._reached[block]):
                raise Fault("a block has ended that has not waited for who accesses its shared memory")

    # ---- The barrier of a cluster ----

    def arrive(self, *, releases: bool, lanes: Array) -> None:
        """``barrier.cluster.arrive``."""
        if (self._arrived[lanes] > self._waited[lanes]).any():
            raise Fault("a thread arrives at the barrier of its cluster again before it has waited")
        self._arrived[lanes] += 1
        for warp in np.unique(lanes // 32) if releases else ():
            told = self._told[warp * 32 // self._threads // self._size]
            np.maximum(told, self._order.told(int(warp)), out=told)

    def wait(self, lanes: Array) -> None:
        """``barrier.cluster.wait``."""
        if (self._arrived[lanes] == self._waited[lanes]).any():
            raise Fault("a thread waits at the barrier of its cluster where it has not arrived")
        self._waited[lanes] += 1
        self.is_waiting[lanes] = True

    def pass_barriers(self) -> bool:
        """Threads go on for whom all of their cluster have arrived; whether there were any. Who has ended has."""
        arrived = (self._arrived > self._phase.repeat(self._size * self._threads)) | self._has_left
        whole = arrived.reshape(len(self._phase), -1).all(1)
        whole &= self.is_waiting.reshape(len(self._phase), -1).any(1)
        for cluster in np.flatnonzero(whole):
            self._phase[cluster] += 1
            self._ended[cluster], self._told[cluster] = self._told[cluster], 0
        goes = self.is_waiting & (self._waited <= self._phase.repeat(self._size * self._threads))
        for warp in np.unique(np.flatnonzero(goes) // 32):
            self._order.hear(int(warp), self._ended[warp * 32 // self._threads // self._size])
        self.is_waiting[goes] = False
        return bool(goes.any())
