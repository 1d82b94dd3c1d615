"""A persistent cache of JIT-compiled GPU matrix-multiply (GEMM) kernels.

::

    from cache_engine import GemmProblem, open_cache

    with open_cache() as cache:
        kernel = cache.get_or_compile(GemmProblem(4096, 7168, 2048), arch="sm_90a")
        kernel.tier, kernel.record.resources.registers, kernel.cubin

On a GPU, ``matmul(a, b)`` multiplies arrays of CuPy, PyTorch and others with such kernels.

The rooms, each importing only from those below it:

- ``cli`` — the ``gemm-cache`` command, a function per verb
- ``multiplication`` — ``matmul``, from arrays on a GPU to their product
- ``operator`` — one kind of GEMM, with its switches
- ``tuning`` — timing configs against each other
- ``warm`` · ``explanation`` · ``coverage`` · ``toolchains`` — getting many kernels at once, why a lookup misses, what a
  model asks for, and what is stale
- ``engine`` — ``Cache.get_or_compile``, on one page; where all rooms meet
- ``view`` — looking into a store, and keeping it in order
- ``selection`` — from a problem to its key, and from there to an artifact
- ``history`` — which configs were measured as fastest
- ``comparison`` · ``inspection`` — two kernels side by side, and all that can be told of one without running it
- ``tiers`` · ``housekeeping`` · ``integrity`` · ``transfer`` · ``mirror`` · ``jobs`` — lookups, cleaning, checking,
  packs, DuckDB, long work
- ``store`` — entries on disk and in memory, their bytes, locks, journal and timings
- ``kernels`` · ``compilers`` · ``device`` — source and configs, compiling and disassembling, launching and timing
- ``evaluator`` — how long a GEMM would take on an accelerator, by arithmetic alone
- ``policy`` · ``stats`` · ``stages`` — what to evict, what has happened, how long it took; pure
- ``model`` — values: problem, config, architecture, occupancy, key, artifact, record, measurement
- ``config`` · ``errors`` — settings, and everything that is raised
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
        from cache_engine.engine import cache as engine

        return getattr(engine, name)
    if name in _OPERATOR:
        from cache_engine.engine import operator

        return getattr(operator, name)
    if name == "matmul":
        from cache_engine.engine.matmul import matmul

        return matmul
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
