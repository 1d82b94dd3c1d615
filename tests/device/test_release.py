"""``release_device_memory`` frees kernels, their code, and the pool's cached memory. NumPy replaces CuPy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest

from cache_engine import GemmOperator, grouped_matmul, matmul
from cache_engine.device import release_device_memory
from cache_engine.gpu import memory_pool, multiply
from cache_engine.gpu.memory_pool import DeviceMemoryPool
from tests.device import numpy_gpu
from tests.device.numpy_gpu import Finder, array
from tests.device.test_memory_pool import Books


class Device:
    """A GPU that is the current one inside ``with``."""

    compute_capability = "90"
    current = 0
    waited: list[int]

    def __init__(self, gpu: int = 0) -> None:
        self._gpu = gpu

    def __enter__(self) -> None:
        self._before, Device.current = Device.current, self._gpu

    def __exit__(self, *_: object) -> None:
        Device.current = self._before

    def synchronize(self) -> None:
        """Notes how many kernels were still loaded."""
        Device.waited.append(multiply._kernels.count(self._gpu) + multiply._codes.count(self._gpu))


class BooksOfEach:
    """CuPy's pool: it answers for the current GPU."""

    def __init__(self) -> None:
        self.of = {0: Books(), 1: Books(), 2: Books()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of[Device.current], name)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Three GPUs, the memory of each, and the pool of the process, which uses them."""
    import cupy.cuda.memory  # before NumPy takes its place: the books raise CuPy's error

    with numpy_gpu.launching_in_numpy(monkeypatch):
        books = BooksOfEach()
        Device.waited = []
        monkeypatch.setattr(sys.modules["cupy.cuda"], "Device", Device)
        monkeypatch.setattr(sys.modules["cupy.cuda"], "MemoryPool", lambda: books, raising=False)
        monkeypatch.setattr(sys.modules["cupy.cuda"].runtime, "getDevice", lambda: Device.current)
        monkeypatch.setitem(sys.modules, "cupy.cuda.memory", cupy.cuda.memory)
        monkeypatch.setattr(memory_pool, "require_gpu", lambda what: numpy_gpu.DEVICE)
        memory_pool.shared_pool.cache_clear()
        yield books.of
        memory_pool.shared_pool.cache_clear()


def ones(*shape: int, dtype: str = "float32") -> Any:
    return array(numpy.ones(shape), dtype)


def test_kernels_of_all_calls_are_unloaded_after_a_wait_and_found_again_by_the_next(
    gpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder: Any = Finder()
    monkeypatch.setattr(GemmOperator, "cache", finder)
    linear = GemmOperator(dtype="fp32")
    for _ in range(2):
        matmul(ones(4, 8), ones(8, 4), cache=finder)
        linear(ones(16, 8), ones(4, 8).T)
        grouped_matmul(ones(4, 8, dtype="float16"), ones(2, 8, 4, dtype="float16"), [3, 1], cache=finder)
    asked, loaded = len(finder.asked), multiply._kernels.count(0) + multiply._codes.count(0)
    assert asked == 3
    assert release_device_memory() == 0, "no memory was taken from the pool"
    assert Device.waited[0] == loaded, "before any is unloaded"
    assert (multiply._kernels.count(0), multiply._codes.count(0)) == (0, 0)
    assert numpy.allclose(linear(ones(16, 8), ones(4, 8).T), 8)
    assert len(finder.asked) == asked + 1


def test_the_pool_gives_back_what_is_cached_on_each_gpu_that_had_kernels(gpus: Any) -> None:
    pool = memory_pool.shared_pool()
    kept, kernel = [], SimpleNamespace()
    for gpu in gpus:
        multiply._kernels.get(1, "a kernel", lambda: cast("Any", kernel))
        with Device(gpu):
            kept.append(pool.allocate(1024))
            pool.allocate(512)
    assert [of.total_bytes() for of in gpus.values()] == [1536, 1536, 1536]
    assert release_device_memory() == 1024, "of the current one, and of that with a kernel"
    assert [(of.used_bytes(), of.total_bytes()) for of in gpus.values()] == [(1024, 1024), (1024, 1024), (1024, 1536)]
    assert Device.current == 0
    assert isinstance(pool, DeviceMemoryPool)


def test_where_nothing_was_launched_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a GPU, or without the extra."""
    for name in ("cupy", "cache_engine.gpu.multiply"):
        monkeypatch.setitem(sys.modules, name, None)  # to import it would fail
    memory_pool.shared_pool.cache_clear()
    assert release_device_memory() == 0
