"""Objects that stay in a GPU's memory between calls: an LRU cache for each GPU."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Resident(Generic[T]):
    """Objects that are created at their first use. Safe to use from several threads."""

    def __init__(self, most: int, before_eviction: Callable[[int], object] = lambda _: None) -> None:
        """Starts empty.

        Args:
            most: the largest number of objects for each GPU.
            before_eviction: a function called with the GPU's number before an object is dropped.
        """
        self._most = most
        self._before_eviction = before_eviction
        self._kept: defaultdict[int, OrderedDict[Hashable, T]] = defaultdict(OrderedDict)
        self._lock = threading.Lock()

    def get(self, gpu: int, key: Hashable, make: Callable[[], T]) -> T:
        """The object cached under the key; created by ``make`` if there is none.

        Two threads that ask at the same time may both call ``make``; both get the object that is cached.
        """
        kept = self._kept[gpu]
        with self._lock:
            if key in kept:
                kept.move_to_end(key)
                return kept[key]
        made = make()
        with self._lock:
            made = kept.setdefault(key, made)
            while len(kept) > self._most:
                self._before_eviction(gpu)
                kept.popitem(last=False)
        return made

    def find(self, gpu: int, key: Hashable) -> T | None:
        """The object cached under the key; ``None`` if there is none."""
        kept = self._kept[gpu]
        with self._lock:
            found = kept.get(key)
            if found is not None:
                kept.move_to_end(key)
            return found

    def discard(self, gpu: int, key: Hashable, made: T) -> None:
        """Drops the object cached under the key if it is ``made``, without calling ``before_eviction``."""
        kept = self._kept[gpu]
        with self._lock:
            if kept.get(key) is made:
                del kept[key]

    def count(self, gpu: int) -> int:
        """The number of objects cached for a GPU."""
        return len(self._kept[gpu])

    def clear(self) -> set[int]:
        """Drops all objects; returns the GPUs that ever had one."""
        with self._lock:
            gpus = set(self._kept)
            for gpu in gpus:
                if self._kept[gpu]:
                    self._before_eviction(gpu)
                self._kept[gpu].clear()
        return gpus


def synchronize(gpu: int) -> None:
    """Waits until a GPU is idle, because it may still run code that is to be unloaded."""
    import cupy

    cupy.cuda.Device(gpu).synchronize()
