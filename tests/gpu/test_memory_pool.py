"""On a real GPU: the pool over CuPy's own."""

from __future__ import annotations

import gc

import pytest

from cache_engine import matmul
from cache_engine.device import release_device_memory
from cache_engine.errors import OutOfDeviceMemory
from cache_engine.gpu.memory_pool import DeviceMemoryPool, free_and_total_bytes, shared_pool

MIB = 2**20


@pytest.fixture
def pool() -> DeviceMemoryPool:
    import cupy

    return DeviceMemoryPool(cupy.cuda.MemoryPool())


def test_it_counts_what_cupy_allocates_in_its_body(pool: DeviceMemoryPool) -> None:
    import cupy

    with pool.serving():
        first, second = cupy.empty(8 * MIB, dtype=cupy.uint8), cupy.zeros(4 * MIB, dtype=cupy.uint8)
    held = pool.statistics()
    assert (held.in_use_bytes, held.allocations, held.failures) == (12 * MIB, 2, 0)
    assert held.allocated_bytes >= held.in_use_bytes
    del second
    gc.collect()
    freed = pool.statistics()
    assert (freed.in_use_bytes, freed.peak_bytes, freed.allocated_bytes) == (8 * MIB, 12 * MIB, held.allocated_bytes)
    assert freed.cached_bytes == freed.allocated_bytes - 8 * MIB
    assert 0 <= freed.fragmentation < 1
    assert pool.free_all() > 0
    assert pool.statistics().cached_bytes == 0
    cupy.empty(MIB, dtype=cupy.uint8)  # outside: from CuPy's own
    assert pool.statistics().allocations == 2
    del first


def test_an_allocation_that_does_not_fit_names_the_requested_and_free_bytes(pool: DeviceMemoryPool) -> None:
    import cupy

    pool.limit(64 * MIB)
    assert pool.statistics().limit_bytes == 64 * MIB
    with pool.serving(), pytest.raises(OutOfDeviceMemory, match=r"134,217,728 bytes .* of the 67,108,864 it may take"):
        cupy.empty(128 * MIB, dtype=cupy.uint8)
    pool.limit(None)
    _, total = free_and_total_bytes()
    with pool.serving(), pytest.raises(OutOfDeviceMemory, match=f"{2 * total:,} bytes of device memory"):
        cupy.empty(2 * total, dtype=cupy.uint8)
    with pool.serving():
        assert cupy.empty(MIB, dtype=cupy.uint8).nbytes == MIB
    assert pool.statistics().failures == 2


def test_there_is_one_for_the_process() -> None:
    assert shared_pool() is shared_pool()


def test_all_memory_is_given_back_and_the_next_call_loads_its_kernel_again() -> None:
    import cupy

    a, b = cupy.ones((4096, 512), dtype=cupy.float16), cupy.ones((512, 1024), dtype=cupy.float16)
    first = matmul(a, b)
    del first
    assert shared_pool().statistics().cached_bytes > 0
    free, _ = free_and_total_bytes()
    freed = release_device_memory()
    assert freed > 0
    assert shared_pool().statistics().cached_bytes == 0
    assert free_and_total_bytes()[0] >= free + freed
    assert bool((matmul(a, b) == 512).all())
