"""Global memory of a launch: the arrays that it was given, each far from every other.

Each access is checked: inside one array, aligned to its width, and not a write to one that is for reading. Of arrays
that the kernel may write, each granule remembers who wrote it last, when, and who has read it: a read of what another
thread wrote must be ordered after it. Within a block a barrier does that. Between blocks it takes this chain, and
nothing less: the writer's fence, a barrier of its block, an atomic operation of that block, a later one of the
reader's block on the same word, a barrier there, and the reader's fence. Where the lanes of a warp meet (bar.warp.sync)
in place of a barrier, the chain holds for that warp alone.
Source: PTX ISA 9.2, chapter 8 "Memory Consistency Model"; the chain is its "Causality Order" for what our kernels do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.ptx.faults import Fault

Array = npt.NDArray[Any]
_APART = 40  # bits: offsets of an array never reach the next, however wrong
_START = 16  # within its part of the address space: as aligned as a launch asks for, and no more
_NONE, _SEVERAL = -1, -2
_WARP = 32


class _Buffer:
    def __init__(self, array: Array, granule: int, *, is_written: bool) -> None:
        raw = array.reshape(-1).view(np.uint8)
        self.raw, self.size, self.writable = raw, len(raw), bool(array.flags.writeable)
        # An operand for reading begins as far behind a multiple of _START as it does in this process.
        self.lead = 0 if self.writable else array.ctypes.data % _START
        self._views: dict[str, Array] = {}
        if self.writable:
            count = -(-self.size // granule)
            self.is_written = np.full(count, is_written)
            self.writer, self.reader = (np.full(count, _NONE, dtype=np.int64) for _ in range(2))
            self.written_at, self.read_at = (np.full(count, -1, dtype=np.int64) for _ in range(2))
            self.is_arriving = np.zeros(count, dtype=bool)

    def words(self, kind: str, width: int) -> Array:
        """Its bytes as words, from the last multiple of ``_START``; those at the end that make none are left out."""
        if kind not in self._views:
            raw = np.concatenate([np.zeros(self.lead, dtype=np.uint8), self.raw]) if self.lead else self.raw
            self._views[kind] = raw[: len(raw) // width * width].view(kind)
        return self._views[kind]


class Memory:
    """The arrays, and what orders accesses to them.

    Args:
        granule: bytes that every access of the kernel to arrays it may write is a multiple of.
    """

    def __init__(self, blocks: int, threads: int, granule: int) -> None:
        self._granule, self._threads = granule, threads
        self._buffers: dict[int, _Buffer] = {}
        self._now = 0
        self._warps = threads // _WARP  # of a block
        warps = blocks * self._warps
        # By thread: when it last passed a fence. By warp: when the last of its threads had, as of when its lanes last
        # met, and as of its block's last barrier; when they met. By block: when it last passed a barrier.
        self._fenced = np.full(blocks * threads, -1, dtype=np.int64)
        self._sealed, self._sealed_in_block = (np.full(warps, -1, dtype=np.int64) for _ in range(2))
        self._met, self._barrier = np.full(warps, -1, dtype=np.int64), np.full(blocks, -1, dtype=np.int64)
        # By pair of warps: until when one has heard of what the other wrote, by an atomic operation; until when all of
        # its lanes know, and since when they do.
        self._heard, self._known = (np.full((warps, warps), -1, dtype=np.int64) for _ in range(2))
        self._known_since = np.full((warps, warps), np.iinfo(np.int64).max)
        self._has_heard = np.zeros(warps, dtype=bool)
        # By word: the first warp of each block that counted there, and what it told.
        self._told: dict[int, list[tuple[int, Array]]] = {}

    def add(self, array: Array, *, is_written: bool = True) -> int:
        """Adds an array; returns its address.

        Args:
            is_written: else its bytes may not be read before the kernel has written them.
        """
        number = len(self._buffers) + 1
        buffer = self._buffers[number] = _Buffer(array, self._granule, is_written=is_written)
        return (number << _APART) + _START + buffer.lead

    def bytes_from(self, host_address: int) -> Array:
        """The bytes of the array that lies at an address of this process; the kernel may not write it."""
        return self._at_host(host_address, writable=False).raw

    def _at_host(self, host_address: int, *, writable: bool) -> _Buffer:
        for buffer in self._buffers.values():
            if buffer.raw.ctypes.data == host_address and buffer.writable is writable:
                return buffer
        raise Fault(f"a tensor map is of no array that the kernel was given for {'writing' if writable else 'reading'}")

    def read(self, addresses: Array, lanes: Array, width: int, word: int) -> Array:
        """What lies at each address: ``width`` bytes as little-endian words of ``word`` bytes, lanes × words."""
        found = np.empty((len(lanes), width // word), dtype=f"u{word}")
        for buffer, which, offsets in self._places(addresses, width):
            if buffer.writable:
                self._check_read(buffer, offsets, lanes[which], width)
            first = (offsets[:, None] + buffer.lead) // word
            found[which] = buffer.words(f"u{word}", word)[first + np.arange(width // word)]
        return found

    def write(self, addresses: Array, lanes: Array, words: Array) -> None:
        """Writes words, lanes × words, of a type that has their size."""
        width = words.shape[1] * words.itemsize
        for buffer, which, offsets in self._places(addresses, width):
            if not buffer.writable:
                raise Fault("an operand is written that is for reading")
            self._check_write(buffer, offsets, lanes[which], width)
            at = offsets[:, None] // words.itemsize + np.arange(words.shape[1])
            buffer.words(words.dtype.str[1:], words.itemsize)[at] = words[which]

    def begin_store(self, host_address: int, targets: Array, lane: int) -> None:
        """A thread has bytes stored asynchronously, elements × bytes, to the array at an address of this process."""
        buffer = self._at_host(host_address, writable=True)
        if targets.size and targets.max() >= buffer.size:
            raise Fault("a tensor map reaches beyond the array that it is of")
        spread = np.unique(targets // self._granule)[None]
        threads = np.array([[lane]])
        self._check_free(buffer, spread)
        self._check_readers(buffer, spread, threads)
        self._check_ordered(buffer, spread, threads, "is written that another thread wrote, with nothing to order them")
        buffer.is_arriving[spread] = True

    def put(self, host_address: int, targets: Array, found: Array) -> None:
        """The bytes arrive."""
        self._at_host(host_address, writable=True).raw[targets] = found

    def end_store(self, host_address: int, targets: Array, lane: int) -> None:
        """They have arrived, and the thread knows it."""
        buffer, spread = self._at_host(host_address, writable=True), np.unique(targets // self._granule)
        buffer.is_arriving[spread] = False
        buffer.writer[spread], buffer.written_at[spread] = lane, self._tick()
        buffer.is_written[spread] = True

    def add_atomically(self, addresses: Array, lanes: Array, values: Array) -> Array:
        """Adds to words of 32 bits, one lane after the other; returns what was there: ``atom.add``."""
        before = np.empty(len(lanes), dtype=np.uint32)
        for index, lane in enumerate(lanes):
            one = slice(index, index + 1)
            ((buffer, _, offsets),) = self._places(addresses[one], 4)
            if not buffer.writable:
                raise Fault("an operand is written that is for reading")
            word = buffer.words("u4", 4)[int(offsets[0]) // 4 :]
            before[index] = word[0]
            word[0] += values[index]
            spread = self._spread(offsets, 4)
            buffer.writer[spread], buffer.written_at[spread] = lane, self._tick()
            self._tell(int(addresses[index]), int(lane))
        return before

    def fence(self, lanes: Array) -> None:
        """``membar.gl``, or a fence of the GPU's scope."""
        self._fenced[lanes] = self._tick()

    def pass_barrier(self, block: int) -> None:
        """What the block's threads did before comes before all they do after."""
        self._barrier[block] = self._tick()
        warps = np.arange(block * self._warps, (block + 1) * self._warps)
        if self._has_heard[warps].any():
            self._heard[warps] = self._heard[warps].max(0)
        self.pass_warps(warps)
        self._sealed_in_block[warps] = self._sealed[warps]

    def pass_warps(self, warps: Array) -> None:
        """What each lane of these warps did before comes before all that its warp does after."""
        now = self._met[warps] = self._tick()
        self._sealed[warps] = self._fenced.reshape(-1, _WARP)[warps].min(1)
        if self._has_heard[warps].any():
            news = self._heard[warps] > self._known[warps]
            self._known_since[warps] = np.where(news, now, self._known_since[warps])
            self._known[warps] = np.maximum(self._known[warps], self._heard[warps])
            self._has_heard[warps] = False

    def _tell(self, address: int, lane: int) -> None:
        """An atomic operation on a word tells later ones what the lane knows of its block, and hears of the earlier."""
        own, first = lane // _WARP, lane // self._threads * self._warps
        for other, told in self._told.get(address, ()):
            part = self._heard[own, other : other + self._warps]
            np.maximum(part, told, out=part)
            self._has_heard[own] = True
        told = self._sealed_in_block[first : first + self._warps].copy()
        told[own - first] = self._sealed[own]
        self._told.setdefault(address, []).append((first, told))

    def _check_read(self, buffer: _Buffer, offsets: Array, lanes: Array, width: int) -> None:
        spread = self._spread(offsets, width)
        self._check_free(buffer, spread)
        if not buffer.is_written[spread].all():
            raise Fault("memory is read that has not been written")
        threads = lanes[:, None]
        self._check_ordered(buffer, spread, threads, "is read that another thread wrote, with nothing to order them")
        before = buffer.reader[spread]
        buffer.reader[spread], buffer.read_at[spread] = threads, self._tick()
        shared = (buffer.reader[spread] != threads) | ((before != _NONE) & (before != threads))
        buffer.reader[spread[shared]] = _SEVERAL

    def _check_write(self, buffer: _Buffer, offsets: Array, lanes: Array, width: int) -> None:
        spread, threads = self._spread(offsets, width), lanes[:, None]
        self._check_free(buffer, spread)
        self._check_readers(buffer, spread, threads)
        self._check_ordered(buffer, spread, threads, "is written that another thread wrote, with nothing to order them")
        buffer.writer[spread] = threads
        if (buffer.writer[spread] != threads).any():
            raise Fault("two threads write to the same memory at once")
        buffer.written_at[spread] = self._tick()
        buffer.is_written[spread] = True

    def _check_free(self, buffer: _Buffer, spread: Array) -> None:
        if buffer.is_arriving[spread].any():
            raise Fault("memory is accessed that a box is being stored to")

    def _check_readers(self, buffer: _Buffer, spread: Array, threads: Array) -> None:
        """Others than the thread itself may have been lanes of its warp, before they met."""
        reader, warps = buffer.reader[spread], threads // _WARP
        has_met = (reader // _WARP == warps) & (buffer.read_at[spread] < self._met[warps])
        if ((reader != _NONE) & (reader != threads) & ~has_met).any():
            raise Fault("memory is written that another thread has read")

    def _check_ordered(self, buffer: _Buffer, spread: Array, threads: Array, what: str) -> None:
        writer = buffer.writer[spread]
        if not (foreign := (writer != _NONE) & (writer != threads)).any():
            return
        when, writer, reader = (
            buffer.written_at[spread][foreign],
            writer[foreign],
            np.broadcast_to(threads, spread.shape)[foreign],
        )
        there, here = writer // self._threads, reader // self._threads
        in_block = (there == here) & (self._barrier[here] > when)
        pairs = reader // _WARP, writer // _WARP
        in_block |= (pairs[0] == pairs[1]) & (self._met[pairs[0]] > when)
        heard = (self._known[pairs] > when) & (self._fenced[reader] > self._known_since[pairs])
        if not (in_block | ((there != here) & heard)).all():
            raise Fault(f"memory {what}")

    def _places(self, addresses: Array, width: int) -> Iterator[tuple[_Buffer, Array, Array]]:
        """Each array that is accessed, by which lanes, and at which offsets."""
        if (addresses % width).any():
            raise Fault(f"memory is accessed at an address that is no multiple of {width}, so many bytes wide")
        numbers = addresses >> _APART
        every = np.unique(numbers) if len(numbers) > 1 and (numbers != numbers[0]).any() else numbers[:1]
        for number in every:
            buffer = self._buffers.get(int(number))
            if buffer is None:
                raise Fault("memory is accessed that no operand lies in")
            which: Any = slice(None) if len(every) == 1 else np.flatnonzero(numbers == number)
            offsets = (addresses[which] & ((1 << _APART) - 1)).astype(np.int64) - _START - buffer.lead
            outside = (offsets < 0) | (offsets + width > buffer.size)
            if outside.any():
                raise Fault(f"byte {int(offsets[outside][0])} is accessed of an operand of {buffer.size} bytes")
            yield buffer, which, offsets

    def _spread(self, offsets: Array, width: int) -> Array:
        spread: Array = offsets[:, None] // self._granule + np.arange(width // self._granule)
        return spread

    def _tick(self) -> int:
        self._now += 1
        return self._now
