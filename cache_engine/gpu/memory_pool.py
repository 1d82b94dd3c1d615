"""Device memory for operands and workspaces: CuPy's pool with statistics, and errors that say how much memory is free.

Launching and timing use ``shared_pool`` inside ``with pool.serving():``; there, everything that CuPy allocates in this
thread comes from the pool. Freed memory stays in the pool for later requests, until ``free_all``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from cache_engine.errors import OutOfDeviceMemory, UsageError
from cache_engine.gpu.probe import gpu, memory_bytes, pci_bus_id, require_gpu
from cache_engine.settings.kinds import parse_bytes

MOST_ALLOCATIONS = 1000
"""The number of allocations that a pool remembers."""

_MOST_RESERVED = 1.1  # the memory of a GPU divided by the memory that programs can use


class Allocator(Protocol):
    """The part of ``cupy.cuda.MemoryPool`` that is used here. All values are for the current device."""

    def malloc(self, size: int) -> Any:
        """A pointer to ``size`` bytes."""
        ...

    def used_bytes(self) -> int:
        """The bytes of the pool that are in use."""
        ...

    def total_bytes(self) -> int:
        """The bytes that the pool has taken from the driver, in use or not."""
        ...

    def n_free_blocks(self) -> int:
        """The number of freed blocks that the pool keeps for later requests."""
        ...

    def free_all_blocks(self) -> None:
        """Returns the freed blocks to the driver."""
        ...

    def set_limit(self, size: int) -> None:
        """Sets the largest number of bytes to take from the driver; 0 for no limit."""
        ...

    def get_limit(self) -> int:
        """The limit set with ``set_limit``; 0 for none."""
        ...


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """The memory of a pool on the current device, in bytes, including the pool's rounding.

    Attributes:
        allocated_bytes: bytes taken from the driver, in use or cached.
        in_use_bytes: bytes that are allocated and not freed.
        cached_blocks: the number of freed blocks, cached for later requests.
        peak_bytes: the largest number of bytes that were in use at once.
        allocations: the number of requests for memory.
        failures: the number of requests for which there was not enough memory.
        limit_bytes: the largest number of bytes to take from the driver; ``None`` for no limit.
    """

    allocated_bytes: int
    in_use_bytes: int
    cached_blocks: int
    peak_bytes: int
    allocations: int
    failures: int
    limit_bytes: int | None

    @property
    def cached_bytes(self) -> int:
        """The bytes that are freed, and cached for later requests."""
        return self.allocated_bytes - self.in_use_bytes

    @property
    def fragmentation(self) -> float:
        """The share of allocated memory that is cached in small blocks: cached / allocated · (1 - 1 / blocks).

        0 if nothing is cached, or all of it is one block; near 1 if everything is cached in many blocks.
        """
        if not self.cached_blocks or not self.allocated_bytes:
            return 0.0
        return self.cached_bytes / self.allocated_bytes * (1 - 1 / self.cached_blocks)


@dataclass(frozen=True, slots=True)
class Allocation:
    """A request for memory.

    Attributes:
        at: the time, in seconds since 1970.
        size_bytes: the bytes requested.
        in_use_bytes: the bytes of the pool that were in use on the current GPU after the request.
        is_failed: whether there was not enough memory for the request.
    """

    at: float
    size_bytes: int
    in_use_bytes: int
    is_failed: bool


@dataclass(slots=True)
class PoolLimit:
    """The most bytes that a pool takes from the driver on each device by default; ``None`` for no limit."""

    size_bytes: int | None = None


shared_limit = PoolLimit()
"""The limit of ``shared_pool``: the setting ``device_memory_bytes``, which is applied when a cache is opened."""


class DeviceMemoryPool:
    """A pool of memory on the current device. Safe to use from several threads.

    Attributes:
        on_allocation: a function called after each request for memory, in the requesting thread, which also gets its
            exceptions; ``None`` for no call.
    """

    def __init__(
        self,
        allocator: Allocator,
        free_bytes: Callable[[], int] | None = None,
        every_limit: PoolLimit | None = None,
        current: Callable[[], int] | None = None,
    ) -> None:
        """Takes nothing from the driver yet.

        Args:
            allocator: a ``cupy.cuda.MemoryPool``.
            free_bytes: returns the free bytes of the current device; by default the driver is asked.
            every_limit: the limit for every device, which can change at any time; by default no limit.
            current: returns the number of the current device; by default CuPy is asked.
        """
        self._allocator = allocator
        self._free_bytes = free_bytes or (lambda: free_and_total_bytes()[0])
        self._every_limit = every_limit or PoolLimit()
        self._current = current or _current_device
        self._applied: dict[int, int] = {}
        self._peak_bytes = self._allocations = self._failures = 0
        self._lock = threading.Lock()
        self._log: deque[Allocation] = deque(maxlen=MOST_ALLOCATIONS)
        self.on_allocation: Callable[[Allocation], None] | None = None

    def limit(self, size_bytes: int | str | None) -> None:
        """Sets the largest number of bytes to take from the driver on the current device; ``None`` for no limit.

        Args:
            size_bytes: a number of bytes above 0, or a text such as ``2GiB``.

        Raises:
            UsageError: when the limit is not such a size.
        """
        if isinstance(size_bytes, str):
            size_bytes = parse_bytes(size_bytes)
        if size_bytes is not None and size_bytes <= 0:
            raise UsageError(f"the pool's limit is {size_bytes}; it must be a number of bytes above 0, or None")
        self._apply_limit()  # so that the default limit is not set later, in place of this one
        self._allocator.set_limit(size_bytes or 0)

    def allocate(self, size_bytes: int) -> Any:
        """A CuPy pointer to ``size_bytes`` bytes, which are freed when nothing refers to the pointer any more.

        Raises:
            OutOfDeviceMemory: when there is not enough memory; the text has the bytes requested and the free bytes.
        """
        from cupy.cuda.memory import OutOfMemoryError

        self._apply_limit()
        try:
            pointer = self._allocator.malloc(size_bytes)
        except OutOfMemoryError as error:
            with self._lock:
                self._failures += 1
            self._noted(size_bytes, self._allocator.used_bytes(), is_failed=True)
            raise OutOfDeviceMemory(_shortage(size_bytes, self.statistics(), self._free_bytes())) from error
        in_use = self._allocator.used_bytes()
        with self._lock:
            self._allocations += 1
            self._peak_bytes = max(self._peak_bytes, in_use)
        self._noted(size_bytes, in_use, is_failed=False)
        return pointer

    @property
    def allocation_log(self) -> tuple[Allocation, ...]:
        """The last ``MOST_ALLOCATIONS`` requests for memory, oldest first."""
        return tuple(self._log)

    def _noted(self, size_bytes: int, in_use_bytes: int, *, is_failed: bool) -> None:
        one = Allocation(time.time(), size_bytes, in_use_bytes, is_failed)
        self._log.append(one)
        if self.on_allocation is not None:
            self.on_allocation(one)

    @contextmanager
    def serving(self) -> Iterator[DeviceMemoryPool]:
        """A context manager: while its body runs, everything that CuPy allocates in this thread comes from the pool."""
        import cupy

        with cupy.cuda.using_allocator(self.allocate):
            yield self

    def statistics(self) -> PoolStatistics:
        """The memory that the pool has now, and counts of requests since the pool was created."""
        self._apply_limit()
        allocator = self._allocator
        in_use = allocator.used_bytes()
        return PoolStatistics(
            allocated_bytes=max(allocator.total_bytes(), in_use),  # another thread may have taken memory in between
            in_use_bytes=in_use,
            cached_blocks=allocator.n_free_blocks(),
            peak_bytes=max(self._peak_bytes, in_use),
            allocations=self._allocations,
            failures=self._failures,
            limit_bytes=allocator.get_limit() or None,
        )

    def fault(self) -> str:
        """Tests a MiB of the pool; returns the fault, empty if the MiB keeps what is written and the pool counts it."""
        import cupy

        with self.serving():
            block = cupy.full(2**20, 165, dtype=cupy.uint8)
            is_right, found = bool((block == 165).all()), self.statistics()
        if not is_right:
            return "memory does not keep what is written to it"
        is_counted = found.in_use_bytes >= block.nbytes and not found.failures
        return "" if is_counted else f"{found.in_use_bytes:,} bytes in use, {found.failures:,} failures"

    def free_all(self) -> int:
        """Returns cached memory to the driver; returns the number of bytes. Memory in use stays."""
        before = self._allocator.total_bytes()
        self._allocator.free_all_blocks()
        return before - self._allocator.total_bytes()

    def _apply_limit(self) -> None:
        """Applies the limit ``every_limit`` to the current device, unless it was already applied with this value."""
        limit = self._every_limit.size_bytes
        if limit is not None and self._applied.get(gpu := self._current()) != limit:
            self._applied[gpu] = limit
            self._allocator.set_limit(limit)


@cache
def shared_pool() -> DeviceMemoryPool:
    """The memory pool of this process.

    Raises:
        GpuRequired: when there is no GPU.
    """
    require_gpu("a pool of device memory")
    import cupy

    return DeviceMemoryPool(cupy.cuda.MemoryPool(), every_limit=shared_limit)


def release_device_memory() -> int:
    """Unloads every kernel that ``matmul`` and operators have loaded, and gives the pool's cached memory to the driver.

    It waits for running launches; no other thread may launch meanwhile. Kernels stay in the store and in the host's
    memory, so the next call loads its kernel again and compiles nothing. Memory of arrays in use stays. Without a GPU,
    and in a process that has launched nothing, it does nothing.

    A CUDA graph that was captured with these kernels must not be replayed afterwards.

    Returns:
        The bytes that the pool returned to the driver, on the current GPU and on all GPUs that had kernels; without the
        unloaded code.
    """
    # Not imported here, because ``multiply`` imports this module. Until it is imported, no kernel can have been
    # launched.
    multiply = sys.modules.get("cache_engine.gpu.multiply")
    gpus: set[int] = set() if multiply is None else multiply.unload()
    if not shared_pool.cache_info().currsize:
        return 0
    import cupy

    freed = 0
    for number in gpus | {_current_device()}:
        with cupy.cuda.Device(number):
            freed += shared_pool().free_all()
    return freed


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of the first GPU, in bytes.

    Attributes:
        free_bytes, used_bytes, total_bytes: the memory over all programs; ``None`` if the driver does not say.
        pool_in_use_bytes, pool_cached_bytes: the memory of this process's pool.
        limit_bytes: the largest memory that the pool may take; ``None`` for no limit.
    """

    free_bytes: int | None
    used_bytes: int | None
    total_bytes: int
    pool_in_use_bytes: int
    pool_cached_bytes: int
    limit_bytes: int | None


def device_memory() -> DeviceMemory | None:
    """The first GPU's memory; ``None`` without a GPU. Starts nothing on the GPU, and creates no pool."""
    device = gpu()
    if isinstance(device, str):
        return None
    bus = pci_bus_id()
    found = None if bus is None else memory_bytes(bus)
    # For a part of a GPU (MIG), NVML reports the whole GPU's memory, which differs by more than the driver reserves.
    if found is not None and found[2] > _MOST_RESERVED * device.memory_bytes:
        found = None
    free, used, total = found or (None, None, device.memory_bytes)
    if not shared_pool.cache_info().currsize:
        return DeviceMemory(free, used, total, 0, 0, shared_limit.size_bytes)
    pool = shared_pool().statistics()
    return DeviceMemory(free, used, total, pool.in_use_bytes, pool.cached_bytes, pool.limit_bytes)


def free_and_total_bytes() -> tuple[int, int]:
    """The free and the total memory of the current device, in bytes."""
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    return int(free), int(total)


def _current_device() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDevice())


def _shortage(asked_bytes: int, pool: PoolStatistics, free_bytes: int) -> str:
    limit = "" if pool.limit_bytes is None else f" of the {pool.limit_bytes:,} it may take"
    return (
        f"{asked_bytes:,} bytes of device memory were asked for, and the GPU has {free_bytes:,} free; the pool has "
        f"{pool.in_use_bytes:,} in use and {pool.cached_bytes:,} cached{limit}. Ask for a smaller problem, let go of "
        "arrays, or raise the pool's limit (device_memory_bytes)"
    )
