"""Stores of boxes from shared to global memory by the copy engine: ``cp.async.bulk.tensor``, in groups of each thread.

A box is read when its thread waits for that, or at once; it arrives when the thread waits for all, or at once. Until
then its shared memory may not be written, and what it is stored to may not be accessed, whatever was executed first.

Source: PTX ISA 9.2, 9.7.9.27 "cp.async.bulk.tensor", "cp.async.bulk.commit_group" and "cp.async.bulk.wait_group". It
does not say that a thread may end before its stores are complete, so that is refused.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.ptx import maps
from tests.ptx.faults import Fault
from tests.ptx.memory import Memory
from tests.ptx.order import Order
from tests.ptx.shared import Shared

Array = npt.NDArray[Any]


@dataclass(slots=True)
class _Store:
    """One that has not ended.

    Attributes:
        offsets: where its pieces of 16 bytes lie in the block's shared memory; targets: of each element that is inside
            of the tensor, the bytes of the array; inside: which elements those are.
        found: the bytes, since they were read.
    """

    block: int
    address: int
    offsets: Array
    targets: Array
    inside: Array
    found: Array | None = None
    is_released: bool = False


class Stores:
    """Of one launch."""

    def __init__(self, threads: int, shared: Shared, memory: Memory, order: Order, *, late: bool) -> None:
        self._threads, self._shared, self._memory, self._order = threads, shared, memory, order
        self._late = late
        self._open: dict[int, list[_Store]] = defaultdict(list)
        self._groups: dict[int, list[list[_Store]]] = defaultdict(list)

    def start(self, lane: int, tensor: maps.TensorMap, first: tuple[int, ...], start: int) -> None:
        """A thread stores a box that begins at an address of shared memory."""
        self._shared.offset_of(start, 128)
        offsets = maps.offsets_of(tensor, start) - self._shared.base
        self._shared.check_inside(offsets)
        block = lane // self._threads
        self._order.begin_read(self._order.places(block, offsets.ravel()), np.array([lane // 32]), lane)
        self._shared.check_met(block, offsets, lane)
        targets, is_inside = maps.places_of(tensor, first)
        targets = targets[is_inside][:, None] + np.arange(tensor.element)
        self._memory.begin_store(tensor.address, targets, lane)
        store = _Store(block, tensor.address, offsets, targets, is_inside.ravel())
        self._open[lane].append(store)
        if not self._late:
            self._read(store)
            self._memory.put(store.address, store.targets, self._bytes(store))

    def commit(self, lanes: Array) -> None:
        """``cp.async.bulk.commit_group``."""
        for lane in lanes.tolist():
            self._groups[lane].append(self._open.pop(lane, []))

    def wait(self, pending: int, of_reads: bool, lanes: Array) -> None:
        """``cp.async.bulk.wait_group``, and of ``.read``."""
        for lane in lanes.tolist():
            groups = self._groups[lane]
            ended = groups[: max(len(groups) - pending, 0)]
            for store in (one for group in ended for one in group):
                self._release(store, lane)
                if not of_reads:
                    if self._late:
                        self._memory.put(store.address, store.targets, self._bytes(store))
                    self._memory.end_store(store.address, store.targets, lane)
            if not of_reads:
                del groups[: len(ended)]

    def end(self) -> None:
        """The kernel has ended.

        Raises:
            Fault: when something has not.
        """
        if any(self._open.values()) or any(store for groups in self._groups.values() for store in groups):
            raise Fault("the kernel has ended while boxes were being stored")

    def _release(self, store: _Store, lane: int) -> None:
        """Its shared memory may be written by those who learn of it from this thread."""
        if store.is_released:
            return
        if store.found is None:
            self._read(store)
        self._order.end_read(self._order.places(store.block, store.offsets.ravel()), np.array([lane // 32]))
        self._shared.note_read(store.block, store.offsets, lane)
        store.is_released = True

    def _read(self, store: _Store) -> None:
        store.found = self._shared.look(store.block, store.offsets)

    def _bytes(self, store: _Store) -> Array:
        """Of the elements that are inside of the tensor."""
        assert store.found is not None
        elements: Array = store.found.reshape(len(store.inside), -1)[store.inside]
        return elements
