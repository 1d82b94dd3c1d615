"""A persistent cache of JIT-compiled GPU matrix-multiply (GEMM) kernels.

::

    from cache_engine import GemmProblem, open_cache

    with open_cache() as cache:
        kernel = cache.get_or_compile(GemmProblem(4096, 7168, 2048), arch="sm_90a")
        kernel.tier, kernel.record.resources.registers, kernel.cubin

On a GPU, ``matmul(a, b)`` multiplies arrays of CuPy, PyTorch and others with such kernels.

The rooms, top to bottom; each imports only from those below it:

- ``cli`` -- the ``gemm-cache`` command: ``main``, a file for each verb
- ``batch`` -- many kernels at once and long work: ``warm``, ``tuning``, ``migration``, ``jobs``, ``sample``
- ``team`` -- a model compiled on many machines: the ``broker``, ``worker``,
  ``submission``; its ``board``, for people, and ``progress``
- ``insight`` -- what is known without running anything: ``inspection``, ``comparison``, ``explanation`` of misses,
  ``coverage`` of a model, ``passes`` of one (what they cost), ``toolchains`` that are stale, ``linked`` code; a
  ``report`` is one HTML file to send
- ``cache`` -- ``cache`` (``Cache.get_or_compile``, the one door), ``selection`` of config
  and key, ``other_toolchains``, what a ``miss`` makes, ``history`` of timings, ``tiers``, ``stages``,
  ``operator``, ``matmul``, ``reproduction`` of a compile; the ``queue`` of compiles, over all processes of a store;
  the ``remote``, an object store that a team shares
- ``adapters`` -- other frameworks keep their kernels in our store: ``triton`` is the class for
  ``TRITON_CACHE_MANAGER``, ``cuda_core`` has a cache for its ``Program.compile``, ``cupy`` has ``use_store``
- ``upkeep`` -- a store in order: ``admin`` is all of it, ``plan`` and ``cleanup``, ``integrity``, ``survey`` and
  ``side_files`` (what ``verify`` checks) with its ``findings``, ``quarantine``, ``packs`` (import and export),
  ``admission``
- ``index`` -- the DuckDB copy of a store; ``queries`` has all SQL of the pages
- ``frameworks`` -- the caches of other frameworks: a reader for each framework, ``deletion``; and their
  kernels in our store, as ``bundles`` of files
- ``evaluator`` -- how long a GEMM takes on an accelerator, by arithmetic alone; stored ``results``; the ``catalogue``
  of models' shapes
- ``store`` -- entries on disk and in memory: ``layout`` of paths, ``codec``, ``publish``, ``lock``, ``journal``,
  ``pack``, ``results``, ``timings``; ``signatures``: who made a kernel, and who is trusted
- ``kernels`` -- families, configs, their cost model (``prediction``) and choice (``select``), source from templates
- ``compilers`` -- NVRTC, NVCC, Triton; disassembling
- ``gpu`` -- the only room that touches a GPU: launching, timing, memory
- ``usage`` -- what is asked for, as pure values and functions: ``demand`` ledger, its ``timeline``,
  ``payback``, ``compile_time``, ``value`` for eviction
- ``model`` -- values: problem, config, architecture, key, artifact, record, measurement, event
- ``settings`` -- from arguments, the environment and the settings file; ``extras``, optional packages
- ``log_handlers`` · ``assets`` · ``units`` -- log messages on standard error, where they are asked for; files that
  travel with the package; numbers as people read them
- ``torch`` -- operators for PyTorch's tensors, with gradients, and linear layers swapped for them; nothing imports it
- ``types`` · ``device`` · ``evaluation`` -- types of what a cache returns; memory of GPUs, FP8 and profiles; how
  long a GEMM takes. Public names that most programs do not need
- ``background`` -- the one queue of work that no caller waits for
- ``errors`` · ``inputs`` · ``process`` · ``logs`` · ``_version`` -- everything that is raised; opening files that a
  user names, and who may change them; forks, signals, the end of a process; loggers; version
"""

# Not imported from ``typing``, which takes longer than this module. Type checkers treat this name as true.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from cache_engine._version import __version__
    from cache_engine.batch.warm import problems_of, warm
    from cache_engine.cache.cache import Cache, open_cache
    from cache_engine.cache.matmul import grouped_matmul, matmul
    from cache_engine.cache.operator import GemmOperator, default_cache, switches
    from cache_engine.cache.serving import CompiledKernel
    from cache_engine.errors import (
        CompileError,
        CompilerMissing,
        ExtraMissing,
        GemmCacheError,
        GpuRequired,
        InvalidProblem,
        NotCached,
        OutOfDeviceMemory,
        StoreUnusable,
        UsageError,
    )
    from cache_engine.evaluator.catalogue import ModelShape, model_shapes
    from cache_engine.insight.explanation import explain
    from cache_engine.insight.monitoring import prometheus_text, write_to_textfile
    from cache_engine.model.gemm import Activation, DType, Epilogue, GemmProblem, Layout, Mode, Scales, Specialisation
    from cache_engine.model.kernel import KernelConfig
    from cache_engine.settings import Settings

__all__ = [
    "Activation",
    "Cache",
    "CompileError",
    "CompiledKernel",
    "CompilerMissing",
    "DType",
    "Epilogue",
    "ExtraMissing",
    "GemmCacheError",
    "GemmOperator",
    "GemmProblem",
    "GpuRequired",
    "InvalidProblem",
    "KernelConfig",
    "Layout",
    "Mode",
    "ModelShape",
    "NotCached",
    "OutOfDeviceMemory",
    "Scales",
    "Settings",
    "Specialisation",
    "StoreUnusable",
    "UsageError",
    "__version__",
    "default_cache",
    "explain",
    "grouped_matmul",
    "matmul",
    "model_shapes",
    "open_cache",
    "problems_of",
    "prometheus_text",
    "switches",
    "warm",
    "write_to_textfile",
]

_HOMES = {
    "cache.cache": "Cache open_cache",
    "cache.serving": "CompiledKernel",
    "cache.operator": "GemmOperator default_cache switches",
    "model.gemm": "GemmProblem Activation DType Epilogue Layout Mode Scales Specialisation",
    "model.kernel": "KernelConfig",
    "settings": "Settings",
    "errors": "GemmCacheError CompileError CompilerMissing ExtraMissing GpuRequired InvalidProblem NotCached "
    "OutOfDeviceMemory StoreUnusable UsageError",
    "evaluator.catalogue": "ModelShape model_shapes",
    "cache.matmul": "matmul grouped_matmul",
    "batch.warm": "warm problems_of",
    "insight.explanation": "explain",
    "insight.monitoring": "prometheus_text write_to_textfile",
    "_version": "__version__",
}
"""The public names by the module that defines them; the first use of a name imports its module."""
_MOVED = {
    "device": "DeviceMemory DeviceMemoryPool OperatorCall OperatorCalls OperatorStatistics PoolStatistics "
    "dequantise device_memory quantise release_device_memory shared_pool",
    "errors": "CorruptEntry InfeasibleConfig InvalidHardware KeyNotFound Level LockTimeout IndexDamaged "
    "IndexUnavailable Misplaced NotHereError NotPermitted PackUnusable RemoteError SearchStopped StoreError "
    "TooManyJobs ToolMissing Truncated Unproved Untrusted",
    "evaluation": "Answer Evaluation EvaluationProblem Evaluations GPUS Gpu Hardware PRESETS Prediction SearchMode "
    "evaluate predict predict_grouped table_shapes",
    "types": "ActivationLike CacheKey Cleaned DTypeLike Decision Demand DemandReport DemandShare "
    "EpilogueLike EvictionPlan Explanation Exported Failure Finding Found Imported Launch LayoutLike "
    "Limits Loaded ModeLike Nearest Pair PendingKernel Preloaded Priority Product QueueState Record RecordedProblem "
    "RepairAct Resources ScalesLike Selection SpecialisationLike Statistics Switches Tally Totals Warmed",
}
"""Names of 0.2, and the public module that has each of them now. The old imports work, with a warning, until 0.4."""
_RENAMED = {"Better": "PendingKernel", "MirrorDamaged": "IndexDamaged", "MirrorError": "IndexUnavailable"}
"""The names of 0.2 that were renamed, with the new name of each."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_NEW_HOME_OF = {name: home for home, names in _MOVED.items() for name in names.split()}
_NEW_HOME_OF |= {old: _NEW_HOME_OF[new] for old, new in _RENAMED.items()}


def __getattr__(name: str) -> "Any":
    """The class or function of this name, imported at first use, so that ``import cache_engine`` loads little."""
    from importlib import import_module

    if name in _MOVED:
        return import_module(f"{__name__}.{name}")
    if name in _NEW_HOME_OF:
        from warnings import warn

        home = f"{__name__}.{_NEW_HOME_OF[name]}"
        now = _RENAMED.get(name, name)
        warn(f"import {now} from {home}; {name} of {__name__} goes with 0.4", DeprecationWarning, stacklevel=2)
        return getattr(import_module(home), now)
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MOVED})
