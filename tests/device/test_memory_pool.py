"""The pool counts what it hands out, and says what there was when there is not enough.

A GPU's memory is stood in for by an allocator that keeps the books of one; that CuPy's own pool is used rightly is for
tests/gpu to show.
"""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.errors import GpuRequired, OutOfDeviceMemory, UsageError
from cache_engine.gpu import memory_pool, probe
from cache_engine.gpu.memory_pool import (
    MOST_ALLOCATIONS,
    Allocation,
    DeviceMemory,
    DeviceMemoryPool,
    PoolLimit,
    PoolStatistics,
    device_memory,
    shared_limit,
    shared_pool,
)
from cache_engine.model.fingerprint import DeviceFingerprint


class Pointer:
    """Memory that is in use for as long as this lives."""


class Books:
    """Keeps blocks of 512 bytes as CuPy's pool does: those freed are handed out again whole."""

    def __init__(self, device_bytes: int = 2**20) -> None:
        self._device_bytes = device_bytes
        self._limit = 0
        self._ids = count()
        self._used: dict[int, int] = {}
        self._free: list[int] = []

    def malloc(self, size: int) -> Any:
        """A pointer, or CuPy's own error."""
        from cupy.cuda.memory import OutOfMemoryError

        rounded = -(-size // 512) * 512
        if rounded in self._free:
            self._free.remove(rounded)
        elif self.total_bytes() + rounded > (self._limit or self._device_bytes):
            raise OutOfMemoryError(size, self.total_bytes(), self._limit)
        pointer, number = Pointer(), next(self._ids)
        self._used[number] = rounded
        weakref.finalize(pointer, self._release, number)
        return pointer

    def _release(self, number: int) -> None:
        self._free.append(self._used.pop(number))

    def used_bytes(self) -> int:
        """In use."""
        return sum(list(self._used.values()))

    def total_bytes(self) -> int:
        """In use and freed."""
        return self.used_bytes() + sum(self._free)

    def n_free_blocks(self) -> int:
        """Freed blocks."""
        return len(self._free)

    def free_all_blocks(self) -> None:
        """Forgets those."""
        self._free.clear()

    def set_limit(self, size: int) -> None:
        """0 for none."""
        self._limit = size

    def get_limit(self) -> int:
        """0 for none."""
        return self._limit


@pytest.fixture
def pool() -> DeviceMemoryPool:
    return DeviceMemoryPool(Books(), free_bytes=lambda: 4096)


def test_it_reports_used_cached_and_peak_bytes(pool: DeviceMemoryPool) -> None:
    first, second = pool.allocate(1000), pool.allocate(2000)
    assert pool.statistics() == PoolStatistics(3072, 3072, 0, 3072, 2, 0, None)
    del first
    after = pool.statistics()
    assert (after.in_use_bytes, after.cached_bytes, after.cached_blocks, after.peak_bytes) == (2048, 1024, 1, 3072)
    third = pool.allocate(1024)  # from what is cached
    again = pool.statistics()
    assert (again.allocated_bytes, again.cached_bytes, again.peak_bytes, again.allocations) == (3072, 0, 3072, 3)
    del second, third


def test_free_blocks_can_be_released_and_used_ones_stay(pool: DeviceMemoryPool) -> None:
    kept = pool.allocate(512)
    pool.allocate(4096)
    assert pool.free_all() == 4096
    assert (pool.statistics().allocated_bytes, pool.statistics().cached_bytes) == (512, 0)
    assert pool.free_all() == 0
    del kept


def test_fragmentation_is_the_share_that_is_cached_in_pieces() -> None:
    def of(allocated: int, in_use: int, blocks: int) -> float:
        return PoolStatistics(allocated, in_use, blocks, 0, 0, 0, None).fragmentation

    assert of(0, 0, 0) == of(1024, 1024, 0) == 0.0
    assert of(1024, 512, 1) == 0.0, "one block serves everything that fits"
    assert of(1024, 512, 2) == 0.25
    assert of(1024, 0, 4) == 0.75


@pytest.mark.parametrize(("limit", "says"), [(2048, r"0 cached of the 2,048 it may take"), (None, r"0 cached\. Ask")])
def test_out_of_memory_reports_the_requested_and_the_free_bytes(limit: int | None, says: str) -> None:
    pool = DeviceMemoryPool(Books(device_bytes=2048), free_bytes=lambda: 4096)
    pool.limit(limit)
    kept = pool.allocate(1024)
    asked = "1,048,576 bytes of device memory were asked for, and the GPU has 4,096 free; the pool has 1,024 in use"
    with pytest.raises(OutOfDeviceMemory, match=f"{asked} and {says}"):
        pool.allocate(2**20)
    after = pool.statistics()
    assert (after.failures, after.allocations, after.limit_bytes) == (1, 1, limit)
    pool.allocate(512)  # and goes on
    del kept


@pytest.mark.parametrize("size", [0, -1, "0"])
def test_a_limit_must_be_a_size(pool: DeviceMemoryPool, size: int | str) -> None:
    pool.limit("2KiB")
    assert pool.statistics().limit_bytes == 2048
    with pytest.raises(UsageError, match=f"limit is {size}; it must be a number of bytes above 0, or None"):
        pool.limit(size)


def test_the_limit_of_every_device_is_set_on_each_once_and_again_when_it_changes() -> None:
    class Devices(Books):
        """A limit for each device."""

        def __init__(self) -> None:
            super().__init__()
            self.current, self.limits = 0, [0, 0]

        def set_limit(self, size: int) -> None:
            """Of the current device."""
            self.limits[self.current] = size

    books, every = Devices(), PoolLimit(4096)
    pool = DeviceMemoryPool(books, lambda: 4096, every, lambda: books.current)
    pool.allocate(512)
    assert books.limits == [4096, 0]
    books.current = 1
    pool.statistics()
    assert books.limits == [4096, 4096]
    pool.limit(1024)
    pool.allocate(512)
    assert books.limits == [4096, 1024], "what the program says stays"
    every.size_bytes = 8192
    pool.allocate(512)
    assert books.limits == [4096, 8192]


def test_a_limit_that_the_program_sets_first_is_not_replaced() -> None:
    pool = DeviceMemoryPool(Books(), lambda: 4096, PoolLimit(4096), lambda: 0)
    pool.limit(1024)
    pool.allocate(512)
    assert pool.statistics().limit_bytes == 1024


def test_without_a_limit_of_every_device_no_device_is_asked_for() -> None:
    def current() -> int:
        raise AssertionError

    pool = DeviceMemoryPool(Books(), lambda: 4096, PoolLimit(), current)
    pool.limit(1024)
    pool.allocate(512)
    assert pool.statistics().limit_bytes == 1024


class Library:
    """NVML, of one GPU of 80 GiB, 2 GiB of which are in use."""

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus: bytes, device: Any) -> int:  # noqa: N802
        """A handle, or NVML_ERROR_NOT_FOUND."""
        device._obj.value = 7
        return 0 if bus == b"0000:17:00.0" else 6

    def nvmlDeviceGetMemoryInfo(self, device: Any, memory: Any) -> int:  # noqa: N802
        """Its memory."""
        memory._obj.total, memory._obj.free, memory._obj.used = 80 * 2**30, 78 * 2**30, 2 * 2**30
        return 0 if device.value == 7 else 2


def test_memory_of_the_gpu_is_asked_of_nvml_and_makes_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    here = DeviceFingerprint("H100", "sm_90", 132, 79 * 2**30, 50 * 2**20, 1_980_000, "13.0")
    monkeypatch.setattr(shared_limit, "size_bytes", 2**30)
    monkeypatch.setattr(probe, "_library", Library)
    monkeypatch.setattr(memory_pool, "gpu", lambda: here)
    monkeypatch.setattr(memory_pool, "pci_bus_id", lambda: "0000:17:00.0")
    shared_pool.cache_clear()
    expected = DeviceMemory(78 * 2**30, 2 * 2**30, 80 * 2**30, 0, 0, 2**30)
    assert device_memory() == expected
    assert not shared_pool.cache_info().currsize
    for bus in ("0000:18:00.0", None):
        monkeypatch.setattr(memory_pool, "pci_bus_id", lambda bus=bus: bus)
        assert device_memory() == replace(expected, free_bytes=None, used_bytes=None, total_bytes=79 * 2**30)
    monkeypatch.setattr(memory_pool, "pci_bus_id", lambda: "0000:17:00.0")
    monkeypatch.setattr(memory_pool, "gpu", lambda: msgspec.structs.replace(here, memory_bytes=10 * 2**30))
    assert device_memory() == replace(expected, free_bytes=None, used_bytes=None, total_bytes=10 * 2**30), "a part"
    monkeypatch.setattr(memory_pool, "gpu", lambda: "no NVIDIA driver is installed")
    assert device_memory() is None


def test_memory_of_the_gpu_has_the_pool_of_a_process_that_has_one(
    pool: DeviceMemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @cache
    def shared() -> DeviceMemoryPool:
        return pool

    shared()
    monkeypatch.setattr(memory_pool, "shared_pool", shared)
    monkeypatch.setattr(memory_pool, "gpu", lambda: DeviceFingerprint("H", "sm_90", 1, 2**20, 1, 1, "13.0"))
    monkeypatch.setattr(memory_pool, "pci_bus_id", lambda: None)
    kept, dropped = pool.allocate(512), pool.allocate(1024)
    del dropped
    assert device_memory() == DeviceMemory(None, None, 2**20, 512, 1024, pool.statistics().limit_bytes)
    del kept


def test_a_cache_that_is_opened_applies_its_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shared_limit, "size_bytes", None)
    with open_cache(tmp_path, device_memory_bytes=3e6):
        assert shared_limit.size_bytes == 3_000_000
    monkeypatch.setenv("GEMM_CACHE_DEVICE_MEMORY_BYTES", "2MiB")
    with open_cache(tmp_path):
        assert shared_limit.size_bytes == 2**21
    monkeypatch.delenv("GEMM_CACHE_DEVICE_MEMORY_BYTES")
    with open_cache(tmp_path):
        assert shared_limit.size_bytes == 2**21, "one that says nothing changes nothing"


def test_in_its_body_cupy_allocates_from_it_and_afterwards_no_more(pool: DeviceMemoryPool) -> None:
    import cupy

    with pool.serving() as serving:
        inside = cupy.cuda.get_allocator()
        assert serving is pool
        pointer = inside(700)
        assert pool.statistics().in_use_bytes == 1024
    assert cupy.cuda.get_allocator() != inside
    del pointer


def test_threads_are_counted_together(pool: DeviceMemoryPool) -> None:
    with ThreadPoolExecutor(8) as threads:
        kept = list(threads.map(lambda _: pool.allocate(512), range(400)))
    statistics = pool.statistics()
    assert (statistics.allocations, statistics.in_use_bytes, statistics.peak_bytes) == (400, 204_800, 204_800)
    del kept


def test_without_a_gpu_there_is_no_shared_pool() -> None:
    from cache_engine.gpu.probe import gpu

    if not isinstance(gpu(), str):
        pytest.skip("a GPU is here")
    with pytest.raises(GpuRequired, match="a pool of device memory needs an NVIDIA GPU"):
        shared_pool()


def test_each_allocation_is_noted_and_reaches_the_hook(pool: DeviceMemoryPool) -> None:
    seen: list[Allocation] = []
    pool.allocate(100)  # before there is a hook
    pool.on_allocation = seen.append
    kept = pool.allocate(600)
    with pytest.raises(OutOfDeviceMemory):
        pool.allocate(2**20)
    assert [(one.size_bytes, one.in_use_bytes, one.is_failed) for one in seen] == [
        (600, 1024, False),
        (2**20, 1024, True),
    ]
    assert pool.allocation_log[1:] == tuple(seen)
    assert kept is not None


def test_a_pool_remembers_only_the_last_allocations(pool: DeviceMemoryPool) -> None:
    for _ in range(MOST_ALLOCATIONS + 5):
        pool.allocate(512)
    assert len(pool.allocation_log) == MOST_ALLOCATIONS
    assert pool.statistics().allocations == MOST_ALLOCATIONS + 5
