"""CuPy's kernels in our store, compared with its own cache: a hit, from the source to the bytes that it would load."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from benchmarks.results import Report
from benchmarks.timing import compare
from cache_engine.units import counted

_SOURCE = """
extern "C" __global__ void %s(const float* x, float* y, int n) {
  __shared__ float part[256];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += 256) sum += x[blockIdx.x * n + i];
  part[threadIdx.x] = sum;
  for (int step = 128; step; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
  }
  if (!threadIdx.x) y[blockIdx.x] = part[0];
}
"""
_GOAL = 1.1
_KERNELS = (1, 8)  # in a program: 7 KB, and 48


def adapter(report: Report, folder: Path) -> None:
    """A hit of CuPy through the adapter, every byte checked. What asks the driver is replaced; CuPy makes the key."""
    from cupy.cuda import _compiler_cache, compiler

    from cache_engine.adapters.cupy import use_store
    from cache_engine.adapters.shelf import shelf

    own = _compiler_cache.DiskKernelCacheBackend(str(folder / "own"))
    without_driver = {
        "function": SimpleNamespace(Module=_NotLoaded),
        "_get_arch": lambda: "90",
        "_get_arch_for_options_for_nvrtc": lambda arch: (f"-arch=sm_{arch}", "cubin"),
        "_kernel_cache_backend": own,
    }
    with patch.multiple(compiler, **without_driver):
        if not use_store(folder / "store"):
            return
        ours = compiler._kernel_cache_backend  # noqa: SLF001 (the adapter's, which it has just registered)

        def compiled(backend: Any, source: str) -> None:
            compiler._kernel_cache_backend = backend  # noqa: SLF001
            compiler._compile_module_with_cache(source)  # noqa: SLF001 (as RawModule calls it)

        for kernels in _KERNELS:
            source = "".join(_SOURCE % f"sum_{number}" for number in range(kernels))
            hit, own_hit = (partial(compiled, backend, source) for backend in (ours, own))
            hit()
            own_hit()
            name = f"CuPy's hit in our store, {counted(kernels, 'kernel')}"
            report(compare(name, hit, "in its own cache", own_hit, goal_ratio=_GOAL, calls=10))
    if (opened := shelf(folder / "store")) is not None:
        opened.close()


class _NotLoaded:
    def load(self, code: bytes) -> None:
        """Takes the code as a driver would."""

    def _set_mapping(self, mapping: object) -> None:
        """Takes the names after a compile."""
