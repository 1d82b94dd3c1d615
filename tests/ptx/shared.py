"""Shared memory, and the asynchronous copies into it, of all blocks of a launch at once.

Each access is checked: inside the block's memory, aligned to its width, of bytes that have been written, and ordered
by a barrier after what other threads did to the same bytes. The last is checked whatever the order of execution was:
each granule of memory remembers which threads have read and written it since the block's last barrier.

A granule has as many bytes as the narrowest access of the kernel, so that an access is of whole ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tests.ptx.faults import Fault
from tests.ptx.order import GRANULE, Order

Array = npt.NDArray[Any]
BASE = 1024
"""Where dynamic shared memory begins: not at 0, so that an offset taken for an address shows."""
_NONE, _SEVERAL = -1, -2
# From here on down, a warp: what one of its threads did before its lanes met.
_OF_WARPS = -3
_WARP = 32


@dataclass(slots=True)
class _Copy:
    """One ``cp.async`` of several threads that has not landed: where to, what, and the group of each."""

    at: Array
    lanes: Array
    groups: Array
    words: Array


class Shared:
    """The shared memory of every block.

    Args:
        size: bytes of a block.
        granule: bytes that every access of the kernel is a multiple of.
        late: whether copies land when they are waited for, in place of at once.
    """

    def __init__(self, blocks: int, threads: int, size: int, granule: int, *, late: bool) -> None:
        self._size, self._granule, self._late = size, granule, late
        self._stride = -(-size // 16) * 16
        self._threads, self._order = threads, cast(Order | None, None)
        self._bytes = np.full(blocks * self._stride, 0xFF, dtype=np.uint8)
        self._block_of = np.repeat(np.arange(blocks, dtype=np.int64), threads)
        count = blocks * self._stride // granule
        self._is_written = np.zeros(count, dtype=bool)
        # Threads by number, over all blocks; or none, several, or a warp that has met since.
        self._writer, self._reader, self._copier = (np.full(count, _NONE, dtype=np.int32) for _ in range(3))
        self._is_barrier = np.zeros(count, dtype=bool)
        self._copies: list[_Copy] = []
        self._committed = np.zeros(blocks * threads, dtype=np.int64)

    @property
    def base(self) -> int:
        """Where dynamic shared memory begins."""
        return BASE

    def tracked(self, cluster: int) -> Order:
        """From now on accesses are checked against what is asynchronous, too; in clusters of so many blocks."""
        self._order = Order(len(self._bytes) // self._stride, self._threads, self._stride, cluster)
        return self._order

    def offset_of(self, address: int, width: int) -> int:
        """Of an access, in a block's memory."""
        if address % width:
            raise Fault(f"shared memory is accessed at {address}, which is no multiple of {width}")
        if not 0 <= address - BASE <= self._size - width:
            raise Fault(f"offset {address - BASE} is outside of the {self._size} bytes of shared memory")
        return address - BASE

    def look(self, block: int, offsets: Array) -> Array:
        """The 16 bytes at each offset of a block's memory."""
        spread = self._spread((offsets + block * self._stride).reshape(-1), 16)
        if not self._is_written[spread].all():
            raise Fault("shared memory is read that has not been written")
        found: Array = self._bytes[offsets[..., None] + block * self._stride + np.arange(16)]
        return found

    def put(self, block: int, offsets: Array, pieces: Array) -> None:
        """Pieces of 16 bytes have arrived."""
        self._bytes[offsets[..., None] + block * self._stride + np.arange(16)] = pieces
        spread = self._spread((offsets + block * self._stride).reshape(-1), 16)
        self._is_written[spread] = True
        self._writer[spread] = self._reader[spread] = _NONE

    def reserve(self, block: int, offset: int, width: int) -> None:
        """From now on a barrier lies there, which other instructions must not access."""
        first = (block * self._stride + offset) // self._granule
        self._is_barrier[first : first + -(-width // self._granule)] = True

    def check_met(self, block: int, offsets: Array, lane: int) -> None:
        """Whether a thread may have 16 bytes at each offset read: others have written there, but not since they met."""
        spread = self._spread((offsets + block * self._stride).reshape(-1), 16)
        self._check_others(self._writer[spread], np.int32(lane), "is read that another thread wrote since they met")

    def note_read(self, block: int, offsets: Array, lane: int) -> None:
        """What a thread had read asynchronously, it knows to have been read."""
        self._reader[self._spread((offsets + block * self._stride).reshape(-1), 16)] = lane

    def check_inside(self, offsets: Array) -> None:
        """Whether 16 bytes at each offset are a block's."""
        outside = (offsets < 0) | (offsets + 16 > self._size)
        if outside.any():
            raise Fault(f"offset {_first(offsets, outside)} is outside of the {self._size} bytes of shared memory")

    def read(self, addresses: Array, lanes: Array, width: int, word: int) -> Array:
        """What lies at each address: ``width`` bytes as little-endian words of ``word`` bytes, lanes × words."""
        at = self._places(addresses, lanes, width)
        spread = self._spread(at, width)
        threads = lanes[:, None].astype(np.int32)
        if self._order is not None:
            self._order.load(self._tracks(at, width), lanes)
        if self._is_barrier[spread].any():
            raise Fault("shared memory is read in which a barrier lies")
        if (self._copier[spread] != _NONE).any():
            raise Fault("shared memory is read while a copy into it is under way")
        if not self._is_written[spread].all():
            raise Fault("shared memory is read that has not been written")
        self._check_others(self._writer[spread], threads, "is read that another thread wrote since the last barrier")
        before = self._reader[spread]
        self._reader[spread] = threads
        others = (before != _NONE) & (before != threads) & (before != _OF_WARPS - threads // _WARP)
        shared = (self._reader[spread] != threads) | others
        self._reader[spread[shared]] = _SEVERAL
        words: Array = self._bytes.view(f"u{word}")[self._words(at, width, word)]
        return words

    def write(self, addresses: Array, lanes: Array, words: Array) -> None:
        """Writes words, lanes × words, of a type that has their size."""
        width = words.shape[1] * words.itemsize
        at = self._places(addresses, lanes, width)
        spread = self._spread(at, width)
        self._check_writable(spread, lanes)
        if self._order is not None:
            self._order.store(self._tracks(at, width), lanes)
        self._land(spread, lanes)
        self._bytes.view(words.dtype)[self._words(at, width, words.itemsize)] = words

    def copy(self, addresses: Array, lanes: Array, words: Array) -> None:
        """Starts copies of words, lanes × words: ``cp.async``."""
        width = words.shape[1] * words.itemsize
        at = self._places(addresses, lanes, width)
        spread = self._spread(at, width)
        self._check_writable(spread, lanes)
        threads = lanes[:, None].astype(np.int32)
        self._copier[spread] = threads
        if (self._copier[spread] != threads).any():
            raise Fault("two threads copy to the same shared memory at once")
        # Early or late, nothing may look before it is waited for; what is found by those who do depends on it.
        if not self._late:
            self._bytes.view(words.dtype)[self._words(at, width, words.itemsize)] = words
        self._copies.append(_Copy(at, lanes, self._committed[lanes], words))

    def commit(self, lanes: Array) -> None:
        """Ends each thread's group of copies: ``cp.async.commit_group``."""
        self._committed[lanes] += 1

    def wait(self, lanes: Array, pending: int) -> None:
        """Has all but the last groups of each thread land: ``cp.async.wait_group``."""
        limits = np.full(len(self._committed), np.iinfo(np.int64).min)
        limits[lanes] = self._committed[lanes] - pending
        left = []
        for copy in self._copies:
            ends = copy.groups < limits[copy.lanes]
            if ends.any():
                self._end(copy, ends)
            if not ends.all():
                left.append(_Copy(copy.at[~ends], copy.lanes[~ends], copy.groups[~ends], copy.words[~ends]))
        self._copies = left

    def pass_barrier(self, block: int) -> None:
        """What the block's threads did before comes before all they do after."""
        if self._order is not None:
            self._order.pass_barrier(block)
        granules = self._stride // self._granule
        part = slice(block * granules, (block + 1) * granules)
        self._writer[part] = self._reader[part] = _NONE

    def pass_warps(self, lanes: Array) -> None:
        """What each thread of these warps did before comes before all that its warp does after."""
        if self._order is not None:
            self._order.pass_warps(lanes)
        meets = np.zeros(len(self._block_of) // _WARP, dtype=bool)
        meets[lanes // _WARP] = True
        for found in (self._writer, self._reader):
            by = np.flatnonzero(found >= 0)
            by = by[meets[found[by] // _WARP]]
            found[by] = _OF_WARPS - found[by] // _WARP

    def _end(self, copy: _Copy, ends: Array) -> None:
        width = copy.words.shape[1] * copy.words.itemsize
        spread = self._spread(copy.at[ends], width)
        self._copier[spread] = _NONE
        self._land(spread, copy.lanes[ends])
        if self._late:
            words = copy.words[ends]
            self._bytes.view(words.dtype)[self._words(copy.at[ends], width, words.itemsize)] = words

    def _land(self, spread: Array, lanes: Array) -> None:
        threads = lanes[:, None].astype(np.int32)
        self._writer[spread] = threads
        if (self._writer[spread] != threads).any():
            raise Fault("two threads write to the same shared memory at once")
        self._is_written[spread] = True

    def _check_writable(self, spread: Array, lanes: Array) -> None:
        threads = lanes[:, None].astype(np.int32)
        if self._is_barrier[spread].any():
            raise Fault("shared memory is written in which a barrier lies")
        if (self._copier[spread] != _NONE).any():
            raise Fault("shared memory is written while a copy into it is under way")
        self._check_others(self._writer[spread], threads, "is written that another thread wrote since the last barrier")
        self._check_others(self._reader[spread], threads, "is written that another thread read since the last barrier")

    def _check_others(self, found: Array, threads: Any, what: str) -> None:
        if ((found != threads) & (found != _NONE) & (found != _OF_WARPS - threads // _WARP)).any():
            raise Fault(f"shared memory {what}")

    def _places(self, addresses: Array, lanes: Array, width: int) -> Array:
        """Offsets in the memory of all blocks."""
        if (addresses % width).any():
            raise Fault(f"shared memory is accessed at {_first(addresses, addresses % width != 0)}, {width} bytes wide")
        offsets = addresses.astype(np.int64) - BASE
        outside = (offsets < 0) | (offsets + width > self._size)
        if outside.any():
            raise Fault(f"offset {_first(offsets, outside)} is outside of the {self._size} bytes of shared memory")
        places: Array = offsets + self._block_of[lanes] * self._stride
        return places

    def _spread(self, at: Array, width: int) -> Array:
        """The granules of each access, lanes × granules."""
        spread: Array = at[:, None] // self._granule + np.arange(width // self._granule)
        return spread

    def _tracks(self, at: Array, width: int) -> Array:
        places: Array = at[:, None] // GRANULE + np.arange(-(-width // GRANULE))
        return places

    def _words(self, at: Array, width: int, word: int) -> Array:
        words: Array = at[:, None] // word + np.arange(width // word)
        return words


def _first(values: Array, which: Array) -> int:
    return int(values[which][0])
