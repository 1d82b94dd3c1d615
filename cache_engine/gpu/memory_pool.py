"""Device memory for operands and workspaces: CuPy's pool, with statistics, and an error that says what is free.

Launching and timing take memory from ``shared_pool``, inside ``with pool.serving():``, where all that CuPy
allocates in this thread comes from it. What is freed stays with the pool, for the next to ask, until ``free_all``.
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

_MOST_RESERVED = 1.1  # a GPU's memory over what its programs can have


class Allocator(Protocol):
    """The part of ``cupy.cuda.MemoryPool`` that is used here; of each device, what concerns the current one."""

    def malloc(self, size: int) -> Any:
        """A pointer to so many bytes."""
        ...

    def used_bytes(self) -> int:
        """Bytes in use."""
        ...

    def total_bytes(self) -> int:
        """Bytes taken from the driver."""
        ...

    def n_free_blocks(self) -> int:
        """Blocks that wait to be used again."""
        ...

    def free_all_blocks(self) -> None:
        """Gives those back to the driver."""
        ...

    def set_limit(self, size: int) -> None:
        """Bytes to take from the driver at most; 0 for no limit."""
        ...

    def get_limit(self) -> int:
        """That limit; 0 for none."""
        ...


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A pool's memory on the current device, in bytes, blocks as the pool rounds them.

    Attributes:
        allocated_bytes: taken from the driver, in use or cached.
        in_use_bytes: handed out and not freed.
        cached_blocks: pieces that are freed, and cached for the next request.
        peak_bytes: the most that was ever in use.
        allocations: how often memory was asked for.
        failures: how often there was not enough.
        limit_bytes: what may be taken from the driver at most; ``None`` for all there is.
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
        """Freed, and cached for the next request."""
        return self.allocated_bytes - self.in_use_bytes

    @property
    def fragmentation(self) -> float:
        """The share of all allocated that is cached in pieces: cached / allocated · (1 - 1 / pieces).

        0 when nothing is cached, or all of it lies in one block; towards 1 when all is cached and in many.
        """
        if not self.cached_blocks or not self.allocated_bytes:
            return 0.0
        return self.cached_bytes / self.allocated_bytes * (1 - 1 / self.cached_blocks)


@dataclass(frozen=True, slots=True)
class Allocation:
    """One time that memory was asked for.

    Attributes:
        at: when, in seconds since 1970.
        size_bytes: what was asked for.
        in_use_bytes: of the pool on the current GPU, afterwards.
        is_failed: whether there was not enough.
    """

    at: float
    size_bytes: int
    in_use_bytes: int
    is_failed: bool


@dataclass(slots=True)
class PoolLimit:
    """The most bytes that a pool takes from the driver on each device by default; ``None``: no limit."""

    size_bytes: int | None = None


shared_limit = PoolLimit()
"""That of ``shared_pool``: as the setting ``device_memory_bytes`` says, which a cache applies when it is opened."""


class DeviceMemoryPool:
    """Memory of the current device. Safe to use from several threads.

    Attributes:
        on_allocation: called after each time that memory was asked for, in the thread that asked; ``None`` for nothing.
            What it raises reaches the one who asked.
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
            free_bytes: gives what the driver has left on the current device; by default the driver is asked.
            every_limit: that of every device, which can change at any time; by default none.
            current: gives the number of the current device; by default CuPy is asked.
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
        """Sets what may be taken from the driver at most, on the current device; ``None`` for all there is.

        Args:
            size_bytes: a number of bytes above 0, or a text such as ``2GiB``.

        Raises:
            UsageError: when the limit is no size.
        """
        if isinstance(size_bytes, str):
            size_bytes = parse_bytes(size_bytes)
        if size_bytes is not None and size_bytes <= 0:
            raise UsageError(f"the pool's limit is {size_bytes}; it must be a number of bytes above 0, or None")
        self._apply_limit()  # so that it is not applied later, in place of this one
        self._allocator.set_limit(size_bytes or 0)

    def allocate(self, size_bytes: int) -> Any:
        """A CuPy pointer to so many bytes, which are freed when nothing refers to it any more.

        Raises:
            OutOfDeviceMemory: naming what was asked for and what is free.
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
        """The last ``MOST_ALLOCATIONS`` times that memory was asked for, the oldest first."""
        return tuple(self._log)

    def _noted(self, size_bytes: int, in_use_bytes: int, *, is_failed: bool) -> None:
        one = Allocation(time.time(), size_bytes, in_use_bytes, is_failed)
        self._log.append(one)
        if self.on_allocation is not None:
            self.on_allocation(one)

    @contextmanager
    def serving(self) -> Iterator[DeviceMemoryPool]:
        """For the body, all that CuPy allocates in this thread comes from the pool."""
        import cupy

        with cupy.cuda.using_allocator(self.allocate):
            yield self

    def statistics(self) -> PoolStatistics:
        """The memory it holds now, and counts of what has happened so far."""
        self._apply_limit()
        allocator = self._allocator
        in_use = allocator.used_bytes()
        return PoolStatistics(
            allocated_bytes=max(allocator.total_bytes(), in_use),  # another thread may have taken some in between
            in_use_bytes=in_use,
            cached_blocks=allocator.n_free_blocks(),
            peak_bytes=max(self._peak_bytes, in_use),
            allocations=self._allocations,
            failures=self._failures,
            limit_bytes=allocator.get_limit() or None,
        )

    def free_all(self) -> int:
        """Gives back to the driver what is cached; returns how many bytes. What is in use stays."""
        before = self._allocator.total_bytes()
        self._allocator.free_all_blocks()
        return before - self._allocator.total_bytes()

    def _apply_limit(self) -> None:
        """Sets the limit of every device on the current one, once, and again when it has changed."""
        limit = self._every_limit.size_bytes
        if limit is not None and self._applied.get(gpu := self._current()) != limit:
            self._applied[gpu] = limit
            self._allocator.set_limit(limit)


@cache
def shared_pool() -> DeviceMemoryPool:
    """That of this process.

    Raises:
        GpuRequired: when there is no GPU.
    """
    require_gpu("a pool of device memory")
    import cupy

    return DeviceMemoryPool(cupy.cuda.MemoryPool(), every_limit=shared_limit)


def release_device_memory() -> int:
    """Unloads every kernel that ``matmul`` and operators have loaded, and gives the pool's cached memory to the driver.

    It waits for launches under way; no other thread may launch meanwhile. Kernels stay in the store and in the host's
    memory, so the next call loads its kernel again and compiles nothing. Memory of arrays in use stays. Without a GPU,
    and in a process that has launched nothing, it does nothing.

    A CUDA graph that was captured with these kernels must not be replayed afterwards.

    Returns:
        Bytes that the pool gave back, on the current GPU and on all that had kernels. Unloaded code does not count.
    """
    # Not imported here, because it imports this module. Until someone imports it, nothing can be launched.
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
    """The first GPU's memory, in bytes.

    Attributes:
        free_bytes, used_bytes, total_bytes: of all programs; ``None`` where the driver does not say.
        pool_in_use_bytes, pool_cached_bytes: of this process's pool.
        limit_bytes: what the pool may take at most; ``None`` for all there is.
    """

    free_bytes: int | None
    used_bytes: int | None
    total_bytes: int
    pool_in_use_bytes: int
    pool_cached_bytes: int
    limit_bytes: int | None


def device_memory() -> DeviceMemory | None:
    """The first GPU's memory; ``None`` without a GPU. Starts nothing on the GPU, and makes no pool."""
    device = gpu()
    if isinstance(device, str):
        return None
    bus = pci_bus_id()
    found = None if bus is None else memory_bytes(bus)
    # Of a part of a GPU (MIG), NVML says what the whole has, which is more by more than what the driver reserves.
    if found is not None and found[2] > _MOST_RESERVED * device.memory_bytes:
        found = None
    free, used, total = found or (None, None, device.memory_bytes)
    if not shared_pool.cache_info().currsize:
        return DeviceMemory(free, used, total, 0, 0, shared_limit.size_bytes)
    pool = shared_pool().statistics()
    return DeviceMemory(free, used, total, pool.in_use_bytes, pool.cached_bytes, pool.limit_bytes)


def free_and_total_bytes() -> tuple[int, int]:
    """The memory that the driver has left on the current device, and all there is."""
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
