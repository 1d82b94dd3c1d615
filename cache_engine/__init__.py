"""A persistent cache of JIT-compiled GPU matrix-multiply (GEMM) kernels.

::

    from cache_engine import GemmProblem, open_cache

    with open_cache() as cache:
        kernel = cache.get_or_compile(GemmProblem(4096, 7168, 2048), arch="sm_90a")
        kernel.tier, kernel.record.resources.registers, kernel.cubin

On a GPU, ``matmul(a, b)`` multiplies arrays of CuPy, PyTorch and others with such kernels.

The rooms, top to bottom; each imports only from those below it:

- ``cli`` -- the ``gemm-cache`` command: ``main``, a file for each group of verbs, what they print
- ``bench`` -- benchmarks, each measured side by side with something known
- ``batch`` -- many kernels at once and long work: ``warm``, ``tuning``, ``jobs``, ``sample``
- ``insight`` -- what is known without running anything: ``inspection``, ``comparison``, ``explanation`` of misses,
  ``coverage`` of a model, ``toolchains`` that are stale
- ``engine`` -- ``cache`` (``Cache.get_or_compile``, the one door), ``opening`` of a store, ``selection`` of config
  and key, ``elsewhere`` (other toolchains), ``making`` of a kernel, ``history`` of timings, ``tiers``, ``stages``,
  ``operator``, ``matmul``, ``debug_dump``, ``descriptors`` in reserve
- ``upkeep`` -- a store in order: ``plan`` and ``cleaning``, ``integrity``, ``contents`` and ``side_files``
  (what ``verify`` checks) with its ``findings``, ``quarantine``, ``packs`` (import and export), ``leftovers``,
  ``admission``
- ``mirror`` -- the DuckDB copy of a store; ``queries`` and ``evaluation_queries`` have all SQL of the pages
- ``evaluations`` -- stored results of the evaluator
- ``catalogue`` -- GEMM shapes of public models
- ``store`` -- entries on disk and in memory: ``layout`` of paths, ``codec``, ``publish``, ``lock``, ``journal``,
  ``pack``, ``results``, ``timings``
- ``kernels`` -- families, configs and their ranking (``select``), source from templates
- ``compilers`` -- NVRTC, NVCC, Triton; disassembling
- ``device`` -- the only room that touches a GPU: launching, timing, memory
- ``evaluator`` -- how long a GEMM takes on an accelerator, by arithmetic alone
- ``assets`` · ``units`` -- files that travel with the package; numbers as people read them
- ``model`` -- values: problem, config, architecture, key, provenance, artifact, record, measurement, event
- ``config`` -- settings and environment variables
- ``errors`` · ``inputs`` · ``process`` · ``_version`` -- everything that is raised; opening files that a user names;
  forks, signals, the end of a process; version
"""

from typing import TYPE_CHECKING, Any

from cache_engine._version import __version__
from cache_engine.errors import GemmCacheError
from cache_engine.model.gemm import DType, GemmProblem, Layout
from cache_engine.model.kernel import KernelConfig

if TYPE_CHECKING:
    from cache_engine.engine.cache import Cache, CompiledKernel, open_cache
    from cache_engine.engine.matmul import matmul
    from cache_engine.engine.operator import GemmOperator, switches

__all__ = [
    "Cache",
    "CompiledKernel",
    "DType",
    "GemmCacheError",
    "GemmOperator",
    "GemmProblem",
    "KernelConfig",
    "Layout",
    "__version__",
    "matmul",
    "open_cache",
    "switches",
]

_ENGINE = frozenset({"Cache", "CompiledKernel", "open_cache"})
_OPERATOR = frozenset({"GemmOperator", "switches"})


def __getattr__(name: str) -> Any:
    """Imports the engine when it is first asked for: describing problems should cost next to nothing."""
    if name in _ENGINE:
        from cache_engine.engine import cache

        return getattr(cache, name)
    if name in _OPERATOR:
        from cache_engine.engine import operator

        return getattr(operator, name)
    if name == "matmul":
        from cache_engine.engine.matmul import matmul

        return matmul
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
