"""What sm_90a adds: barriers that count bytes, copies of boxes, products by warp groups, clusters, and more.

Copies land when nothing else can be done, the newest first, or at once. A thread that waits for a phase sleeps until it
has ended; before that, where copies are late, its first attempt ends in vain, as the ISA allows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.ptx import maps, tiles
from tests.ptx.barriers import Barriers
from tests.ptx.clusters import Clusters
from tests.ptx.faults import Fault
from tests.ptx.memory import Memory
from tests.ptx.order import Order
from tests.ptx.shared import Shared
from tests.ptx.stores import Stores

Array = npt.NDArray[Any]
GROUP, _WARP = 128, 32
_POISON = np.uint32(0xFFF7A55A).view(np.float32)
_REGISTERS = 64 * 1024
PARAMETERS = 0x7F << 56
"""Where addresses of parameters begin: those of kernels' tensor maps, ``maps.SIZE`` apart."""


@dataclass(slots=True)
class _Copy:
    """One that has not landed, in one block."""

    lane: int
    block: int
    tensor: maps.TensorMap
    first: tuple[int, ...]
    offsets: Array
    places: Array
    barrier: int


@dataclass(slots=True)
class _Group:
    """The products of a warp group that have not ended.

    Attributes:
        open: what those read that are in no committed group; committed: of each group, the oldest first.
        sums: of each set of registers, its rows and the values it will have.
        is_fenced: whether registers were not accessed since ``wgmma.fence``.
    """

    open: list[Array] = field(default_factory=list)
    committed: list[list[Array]] = field(default_factory=list)
    sums: dict[tuple[int, ...], tuple[tuple[Array, ...], Array]] = field(default_factory=dict)
    is_fenced: bool = False


class Hopper:
    """Of one launch.

    Args:
        cluster: how many blocks, one after the other, are one.

    Attributes:
        clusters: of blocks.
        is_asleep: threads that wait for a phase.
        stores: boxes that are being stored.
    """

    def __init__(
        self, blocks: int, threads: int, cluster: int, shared: Shared, memory: Memory, parameters: list[Array], *,
        late: bool,
    ) -> None:  # fmt: skip
        self._threads, self._shared, self._memory, self._late = threads, shared, memory, late
        self._order: Order = shared.tracked(cluster)
        self._barriers = Barriers(threads, shared, self._order, cluster)
        self.clusters = Clusters(blocks, threads, cluster, self._order)
        self._maps = [maps.decode(one) for one in parameters]
        self._copies: list[_Copy] = []
        self.stores = Stores(threads, shared, memory, self._order, late=late)
        self._groups = [_Group() for _ in range(blocks * threads // GROUP)] if threads % GROUP == 0 else []
        self._registers: dict[int, int] = {}
        self.is_asleep = np.zeros(blocks * threads, dtype=bool)
        self._has_tried = np.zeros(blocks * threads, dtype=bool)

    # ---- Barriers ----

    def initialise(self, addresses: Array, arrivals: Array, lanes: Array) -> None:
        """``mbarrier.init``."""
        for lane, address, count in zip(lanes, addresses, arrivals, strict=True):
            self._barriers.initialise(int(lane), int(address), int(count))

    def arrive(self, addresses: Array, expected: Array, lanes: Array) -> None:
        """``mbarrier.arrive``, with bytes to be expected."""
        for lane, address, count in zip(lanes, addresses, expected, strict=True):
            self._barriers.arrive(int(lane), int(address), int(count))
        self._wake()

    def arrive_afar(self, addresses: Array, lanes: Array) -> None:
        """``mbarrier.arrive`` at an address for all of the cluster."""
        for lane, given in zip(lanes.tolist(), addresses.tolist(), strict=True):
            block, address = self.clusters.placed(lane, given)
            self.clusters.reach(block, self._order.told(lane // 32))
            self._barriers.arrive(lane, address, block=block)
        self._wake()

    def map_address(self, target: Array, addresses: Array, ranks: Array, lanes: Array) -> None:
        """``mapa``."""
        for lane, address, rank in zip(lanes, addresses, ranks, strict=True):
            target[lane] = self.clusters.mapped(int(address), int(rank))

    def wait(self, target: Array, addresses: Array, parities: Array, lanes: Array) -> None:
        """``mbarrier.try_wait.parity``."""
        for lane, address, parity in zip(lanes, addresses, parities, strict=True):
            ended = self._barriers.has_ended(int(lane), int(address), int(parity))
            if not ended and (self._has_tried[lane] or not self._late):
                self._barriers.wait(int(lane), int(address), int(parity))
                self.is_asleep[lane] = True
                continue
            self._has_tried[lane] = not ended
            target[lane] = ended

    def fence(self, lanes: Array) -> None:
        """``fence.proxy.async``."""
        self._order.fence(lanes)
        self._barriers.fence(lanes)

    def announce(self, lanes: Array) -> None:
        """``fence.mbarrier_init``."""
        self._barriers.announce(lanes)

    def _wake(self) -> None:
        self.is_asleep[self._barriers.woken] = False
        self._barriers.woken.clear()

    # ---- Copies ----

    def copy(
        self, targets: Array, sources: Array, first: tuple[Array, ...], barriers: Array, masks: Array | None,
        lanes: Array,
    ) -> None:  # fmt: skip
        """``cp.async.bulk.tensor`` to shared memory: of the thread's block, or of those of its cluster in a mask."""
        for index, lane in enumerate(lanes.tolist()):
            tensor = self._map_at(int(sources[index]), len(first))
            start = int(targets[index])
            self._shared.offset_of(start, 128)
            pieces = maps.offsets_of(tensor, start)
            end = self._shared.offset_of(start + tensor.box_bytes - 16, 16) + 16
            offsets = pieces - self._shared.base
            coordinates, barrier = tuple(int(one[index]) for one in first), int(barriers[index])
            own = [lane // self._threads]
            for block in own if masks is None else self.clusters.named(lane, int(masks[index])):
                if self._barriers.overlaps(block, self._shared.offset_of(start, 128), end):
                    raise Fault("a copy is to overwrite a barrier")
                places = self._order.places(block, offsets.ravel())
                self._order.begin_write(places, lane // 32)
                self._barriers.expect(lane, barrier, block)
                self._copies.append(_Copy(lane, block, tensor, coordinates, offsets, places, barrier))
                if not self._late:
                    self.land()

    def store(self, sources: Array, targets: Array, first: tuple[Array, ...], lanes: Array) -> None:
        """``cp.async.bulk.tensor`` from shared memory."""
        for index, lane in enumerate(lanes.tolist()):
            tensor = self._map_at(int(targets[index]), len(first))
            self.stores.start(lane, tensor, tuple(int(one[index]) for one in first), int(sources[index]))

    def _map_at(self, address: int, dimensions: int) -> maps.TensorMap:
        number, rest = divmod(address - PARAMETERS, maps.SIZE)
        if rest or not 0 <= number < len(self._maps):
            raise Fault("a copy is of no tensor map")
        if dimensions != len(self._maps[number].sizes):
            raise Fault(f"a copy is of {dimensions} dimensions, its tensor of {len(self._maps[number].sizes)}")
        return self._maps[number]

    def land(self) -> bool:
        """The newest copy lands, in one block; whether there was one."""
        if not self._copies:
            return False
        copy = self._copies.pop()
        number, phase = self._barriers.expect(copy.lane, copy.barrier, copy.block)
        self.clusters.reach(copy.block, self._order.phase_known(number, phase))
        raw = maps.box_of(copy.tensor, self._memory.bytes_from(copy.tensor.address), copy.first)
        self._shared.put(copy.block, copy.offsets, raw.reshape(*copy.offsets.shape, 16))
        self._order.end_write(copy.places, number, phase)
        self._barriers.land(copy.lane, copy.barrier, copy.block, copy.tensor.box_bytes)
        self._wake()
        return True

    # ---- Products ----

    def begin(self, warps: Array) -> None:
        """``wgmma.fence``."""
        for group in self._whole(warps):
            self._groups[group].is_fenced = True

    def touch(self, lanes: Array) -> None:
        """Registers that hold sums are accessed by other instructions."""
        for number in np.unique(lanes // GROUP):
            group = self._groups[number]
            if group.sums:
                raise Fault("sums are accessed while products that they are of are under way")
            group.is_fenced = False

    def multiply(
        self, form: str, count: int, d: tuple[Array, ...], a: Array, b: Array, adds: Array, across: tuple[bool, bool],
        lanes: Array,
    ) -> None:  # fmt: skip
        """``wgmma.mma_async`` of 64 × ``count``."""
        for number in self._whole(lanes):
            group, first = self._groups[number], number * GROUP
            if not group.is_fenced:
                raise Fault("products are started with no wgmma.fence since their sums were accessed")
            given = [np.unique(one[lanes // GROUP == number]) for one in (a, b, adds)]
            if any(len(one) != 1 for one in given):
                raise Fault("threads of a warp group give different matrices")
            kind, size = tiles.FORMS[form]
            parts = []
            for bits, rows, turned in zip(given[:2], (tiles.ROWS, count), across, strict=True):
                parts.append(tiles.matrix(kind, self._read(group, number, int(bits[0]), rows, size, turned), turned))
            before, key = None, tuple(id(row) for row in d)
            lanes_here = np.arange(first, first + GROUP)
            overlapping = [other for other in group.sums if other != key and set(other) & set(key)]
            if overlapping:
                raise Fault("products of another shape are still to be added to some of these sums")
            if given[2][0]:
                before = group.sums[key][1] if key in group.sums else np.stack([row[lanes_here] for row in d], 1)
            if key not in group.sums:
                for row in d:
                    row[lanes_here] = _POISON
            group.sums[key] = (d, tiles.sums(parts[0], parts[1], before))

    def _read(self, group: _Group, number: int, bits: int, rows: int, size: int, turned: bool) -> Array:
        chunks = tiles.Descriptor.of(bits).chunks(rows, size, turned)
        block = number * GROUP // self._threads
        offsets = chunks - self._shared.base
        self._shared.check_inside(offsets)
        places = self._order.places(block, offsets.ravel())
        self._order.begin_read(places, np.arange(4) + number * 4)
        group.open.append(places)
        return self._shared.look(block, offsets)

    def commit(self, lanes: Array) -> None:
        """``wgmma.commit_group``."""
        for number in self._whole(lanes):
            group = self._groups[number]
            group.committed.append(group.open)
            group.open = []

    def wait_products(self, pending: int, lanes: Array) -> None:
        """``wgmma.wait_group``."""
        for number in self._whole(lanes):
            group = self._groups[number]
            ended = group.committed[: len(group.committed) - pending] if pending else group.committed
            for places in (each for one in ended for each in one):
                self._order.end_read(places, np.arange(4) + number * 4)
            group.committed = group.committed[len(ended) :]
            if group.committed or group.open:
                continue
            here = np.arange(number * GROUP, (number + 1) * GROUP)
            for rows, values in group.sums.values():
                for index, row in enumerate(rows):
                    row[here] = values[:, index]
            group.sums = {}

    def _whole(self, lanes: Array) -> list[int]:
        groups = np.unique(lanes // GROUP)
        if len(groups) * GROUP != len(lanes) or not self._groups:
            raise Fault("a part of a warp group executes what all of it must")
        return [int(group) for group in groups]

    # ---- Warps ----

    def elect(self, target: Array, lanes: Array) -> None:
        """``elect.sync`` of whole warps."""
        target[lanes] = lanes % 32 == (31 if self._late else 0)

    def vote(self, target: Array, values: Array, members: Array, lanes: Array) -> None:
        """``vote.sync.any`` of whole warps. It orders no accesses to memory."""
        if (members != np.uint32(0xFFFFFFFF)).any():
            raise Fault("a part of a warp is to vote")
        target[lanes] = np.repeat(values.reshape(-1, _WARP).any(1), _WARP)

    def resize(self, registers: int, grows: bool, lanes: Array) -> None:
        """``setmaxnreg``."""
        initial = min(_REGISTERS // self._threads // 8 * 8, 255)
        for number in self._whole(lanes):
            before = self._registers.get(number, initial)
            if (registers < before) if grows else (registers > before):
                raise Fault(f"setmaxnreg makes {registers} of {before} registers, which is the other way")
            self._registers[number] = registers
        of_block = self._threads // GROUP
        for block in {number // of_block for number in self._registers}:
            own = [self._registers.get(block * of_block + one) for one in range(of_block)]
            if None not in own and sum(one or 0 for one in own) * GROUP > _REGISTERS:
                raise Fault(f"warp groups take {own} registers a thread, more than there are")

    def end(self) -> None:
        """The kernel has ended.

        Raises:
            Fault: when something has not.
        """
        if self._copies:
            raise Fault("the kernel has ended while copies were under way")
        if any(group.sums or group.open for group in self._groups):
            raise Fault("the kernel has ended while products were under way")
        self.stores.end()
