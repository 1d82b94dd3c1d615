"""What orders accesses to shared memory where barriers of the whole block do not: who knows of what.

Each warp has a clock, and a vector of what it knows of the clocks of others. An mbarrier hands on the knowledge of
those who arrive to those who wait for the end of the phase; what a copy writes is known to those who have waited for
the phase that counted its bytes. Every access to 16 bytes is checked against what the one who makes it knows of earlier
ones, so a missing wait shows whatever the order of execution was. A copy, or a product, occupies its bytes until it has
ended. All this holds for the blocks of a cluster together: they access each other's shared memory.

Memory is accessed through two proxies: by loads and stores, and by what is asynchronous. What a thread has stored is
there for the second only behind its fence.

Source: PTX ISA 9.2, 8 "Memory Consistency Model" with "Proxies", and 9.7.13.15 "mbarrier". A lane that waits lets
its whole warp know.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tests.ptx.faults import Fault

Array = npt.NDArray[Any]
GRANULE = 16
_MOST_BARRIERS = 64
_NONE = -1


class Order:
    """Of the shared memory of all blocks.

    Args:
        size: bytes of a block.
        cluster: how many blocks, one after the other, are one.
    """

    def __init__(self, blocks: int, threads: int, size: int, cluster: int = 1) -> None:
        self._of_block, self._threads = threads // 32, threads
        self._warps = self._of_block * cluster
        self._granules = -(-size // GRANULE)
        count = blocks * self._granules
        # The last writer, a warp or a barrier of the cluster, and its clock then; the lane, where it was a store.
        self._writer = np.full(count, _NONE, dtype=np.int16)
        self._written_at = np.zeros(count, dtype=np.int64)
        self._stored_by = np.full(count, _NONE, dtype=np.int64)
        self._stored_at = np.zeros(count, dtype=np.int64)
        # Each warp's clock when it last read; and what is under way.
        self._read_at = np.zeros((count, self._warps), dtype=np.int64)
        self._arriving = np.zeros(count, dtype=bool)
        self._leaving = np.zeros(count, dtype=np.int32)
        self._known = np.zeros((blocks * self._of_block, self._warps + _MOST_BARRIERS), dtype=np.int64)
        every = np.arange(blocks * self._of_block)
        self._own = every % self._warps
        self._known[every, self._own] = 1
        # Each lane's last fence; and the last one before its warp met, or its block.
        self._fenced_at, self._fence_known = (np.zeros(blocks * threads, dtype=np.int64) for _ in range(2))
        self._now = 0

    def places(self, block: int, offsets: Array) -> Array:
        """The granules that offsets in a block's memory lie in."""
        spots: Array = np.unique(offsets // GRANULE) + block * self._granules
        return spots

    # ---- What warps know ----

    def told(self, warp: int) -> Array:
        """All that a warp knows, itself included; what it does from now on is not part of it."""
        known: Array = self._known[warp].copy()
        self._known[warp, self._own[warp]] += 1
        return known

    def hear(self, warp: int, known: Array) -> None:
        """A warp learns what was told."""
        np.maximum(self._known[warp], known, out=self._known[warp])

    def is_known(self, block: int, told: Array) -> bool:
        """Whether the warps of a block, taken together, know what was told."""
        return bool((self._known[block * self._of_block : (block + 1) * self._of_block].max(0) >= told).all())

    def pass_barrier(self, block: int) -> None:
        """All warps of a block learn what each knows."""
        warps = slice(block * self._of_block, (block + 1) * self._of_block)
        self._known[warps] = self._known[warps].max(0)
        every = np.arange(warps.start, warps.stop)
        self._known[every, self._own[every]] += 1
        self.pass_warps(np.arange(block * self._threads, (block + 1) * self._threads))

    def fence(self, lanes: Array) -> None:
        """``fence.proxy.async``."""
        self._now += 1
        self._fenced_at[lanes] = self._now

    def pass_warps(self, lanes: Array) -> None:
        """Lanes of these warps learn of each other's fences."""
        self._fence_known[lanes] = self._fenced_at[lanes]

    # ---- Loads and stores ----

    def load(self, places: Array, lanes: Array) -> None:
        """Lanes × places are loaded from."""
        if not self._writer.max() >= 0 and not self._arriving.any():
            return
        warps = np.broadcast_to(lanes[:, None] // 32, places.shape)
        self._check_free(places, reading=True)
        self._check_known(places.ravel(), warps.ravel(), "is read")
        self._read_at[places, self._own[warps]] = self._known[warps, self._own[warps]]

    def store(self, places: Array, lanes: Array) -> None:
        """Lanes × places are stored to."""
        warps = np.broadcast_to(lanes[:, None] // 32, places.shape)
        self._check_free(places, reading=False)
        self._check_others_done(places.ravel(), warps.ravel())
        self._now += 1
        self._writer[places], self._written_at[places] = self._own[warps], self._known[warps, self._own[warps]]
        self._stored_by[places], self._stored_at[places] = lanes[:, None], self._now

    # ---- What is asynchronous ----

    def begin_read(self, places: Array, warps: Array, lane: int | None = None) -> None:
        """Warps, together, begin to read; or one of their lanes alone, which knows of others' fences where they met."""
        self._check_free(places, reading=True)
        for warp in warps:
            self._check_known(places, np.full(len(places), warp), "is read")
        self._check_fenced(places, lane)
        self._leaving[places] += 1

    def end_read(self, places: Array, warps: Array) -> None:
        """They have ended, and know it."""
        self._leaving[places] -= 1
        for warp in warps:
            self._read_at[places, self._own[warp]] = self._known[warp, self._own[warp]]

    def begin_write(self, places: Array, warp: int) -> None:
        """A warp starts a copy to there."""
        self._check_free(places, reading=False)
        self._check_others_done(places, np.full(len(places), warp))
        self._check_fenced(places)
        self._arriving[places] = True

    def end_write(self, places: Array, barrier: int, phase: int) -> None:
        """It has landed, and counts for a phase of a barrier."""
        self._arriving[places] = False
        self._writer[places], self._written_at[places] = self._warps + barrier, phase + 1
        self._stored_by[places] = _NONE
        self._read_at[places] = 0

    def phase_known(self, barrier: int, phase: int) -> Array:
        """What those learn who see a phase of a barrier ended, of what was copied in it."""
        if barrier >= _MOST_BARRIERS:
            raise Fault(f"more than {_MOST_BARRIERS} barriers of a cluster are not known here")
        known = np.zeros(self._known.shape[1], dtype=np.int64)
        known[self._warps + barrier] = phase + 1
        return known

    # ---- Checks ----

    def _check_free(self, places: Array, *, reading: bool) -> None:
        if self._arriving[places].any():
            raise Fault(f"shared memory is {'read' if reading else 'written'} while a copy into it is under way")
        if not reading and self._leaving[places].any():
            raise Fault("shared memory is written while it is being read asynchronously")

    def _check_known(self, places: Array, warps: Array, what: str) -> None:
        writer = self._writer[places]
        clocks = self._known[warps, np.maximum(writer, 0)]
        if ((writer != _NONE) & (clocks < self._written_at[places])).any():
            raise Fault(f"shared memory {what} by a warp that has not waited for who wrote it")

    def _check_others_done(self, places: Array, warps: Array) -> None:
        self._check_known(places, warps, "is written")
        if (self._read_at[places] > self._known[warps, : self._warps]).any():
            raise Fault("shared memory is written by a warp that has not waited for who reads it")

    def _check_fenced(self, places: Array, lane: int | None = None) -> None:
        lanes = self._stored_by[places]
        fenced = self._fenced_at[np.maximum(lanes, 0)]
        if lane is not None:
            fenced = np.where(lanes == lane, fenced, self._fence_known[np.maximum(lanes, 0)])
        if ((lanes != _NONE) & (fenced < self._stored_at[places])).any():
            raise Fault("shared memory that was stored to is accessed asynchronously, with no proxy fence between")

    def check_told(self, warp: int, told: Array, by: int) -> None:
        """Whether a warp knows what another one knew then."""
        if warp != by and self._known[warp, self._own[by]] < told[self._own[by]]:
            raise Fault("a barrier is used by a warp that has not waited for who initialised it")
