"""A persistent cache of JIT-compiled GPU matrix-multiply (GEMM) kernels.

::

    from cache_engine import GemmProblem, open_cache

    with open_cache() as cache:
        kernel = cache.get_or_compile(GemmProblem(4096, 7168, 2048), arch="sm_90a")
        kernel.tier, kernel.record.resources.registers, kernel.cubin

On a GPU, ``matmul(a, b)`` multiplies arrays of CuPy, PyTorch and others with such kernels.

The rooms, top to bottom; each imports only from those below it:

- ``cli`` -- the ``gemm-cache`` command: ``main``, a file for each group of verbs, what they print
- ``batch`` -- many kernels at once and long work: ``warm``, ``tuning``, ``migration``, ``jobs``, ``sample``,
  ``rebuilding`` what others made, to compare
- ``team`` -- a model compiled on many machines: ``messages``, the ``broker``, ``working``, ``submitting``,
  ``following``; its ``board``, for people, and ``watching`` it
- ``insight`` -- what is known without running anything: ``inspection``, ``comparison``, ``explanation`` of misses,
  ``coverage`` of a model, ``passes`` of one (what they cost), ``toolchains`` that are stale, ``linked`` code; a
  ``report`` is one HTML file to send
- ``cache`` -- ``cache`` (``Cache.get_or_compile``, the one door), ``opening`` of a store, ``selection`` of config
  and key, ``elsewhere`` (other toolchains), ``making`` of a kernel, ``history`` of timings, ``tiers``, ``stages``,
  ``operator``, ``matmul``, ``debug_dump``; the ``queue`` of compiles, over all processes of a store; the ``remote``,
  an object store that a team shares
- ``adapters`` -- other frameworks keep their kernels in our store: ``triton`` is the class for
  ``TRITON_CACHE_MANAGER``, ``cuda_core`` has a cache for its ``Program.compile``, ``cupy`` has ``use_store``
- ``upkeep`` -- a store in order: ``admin`` is all of it, ``plan`` and ``cleaning``, ``integrity``, ``contents`` and
  ``side_files`` (what ``verify`` checks) with its ``findings``, ``quarantine``, ``packs`` (import and export),
  ``leftovers``, ``admission``
- ``index`` -- the DuckDB copy of a store; ``queries`` and ``evaluations`` have all SQL of the pages
- ``frameworks`` -- the caches of other frameworks: the protocol of a ``Source``, a reader for each framework,
  ``survey``; and their kernels in our store, as ``groups`` of files
- ``evaluator`` -- how long a GEMM takes on an accelerator, by arithmetic alone; stored ``results``; the ``catalogue``
  of models' shapes
- ``store`` -- entries on disk and in memory: ``layout`` of paths, ``codec``, ``publish``, ``lock``, ``journal``,
  ``pack``, ``results``, ``timings``, ``descriptors`` in reserve; ``signatures``: who made a kernel, and who is trusted
- ``kernels`` -- families, configs, their cost model (``prediction``) and choice (``select``), source from templates
- ``compilers`` -- NVRTC, NVCC, Triton; disassembling
- ``gpu`` -- the only room that touches a GPU: launching, timing, memory
- ``usage`` -- what is asked for, as pure values and functions: ``demand`` ledger, its ``sketch`` and ``timeline``,
  ``promotion``, ``payback``, ``compile_time``, ``value`` for eviction
- ``model`` -- values: problem, config, architecture, key, provenance, artifact, record, measurement, event
- ``settings`` -- from arguments, the environment and the settings file; ``extras``, optional packages
- ``logs`` · ``assets`` · ``units`` -- log messages, where they are asked for; files that travel with the package;
  numbers as people read them
- ``errors`` · ``inputs`` · ``process`` · ``_version`` -- everything that is raised; opening files that a user
  names, and who may change them; forks, signals, the end of a process; version
"""

# Not from typing, whose import takes longer than this module. Type checkers take the name as true.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from cache_engine._version import __version__
    from cache_engine.batch.warm import Warmed, problems_of, warm
    from cache_engine.cache.cache import Cache, open_cache
    from cache_engine.cache.demand import Demand
    from cache_engine.cache.demand.report import DemandReport, DemandShare
    from cache_engine.cache.matmul import grouped_matmul, matmul
    from cache_engine.cache.operator import GemmOperator, Switches, default_cache, switches
    from cache_engine.cache.queue.behind import Better
    from cache_engine.cache.queue.tickets import Priority, QueueState
    from cache_engine.cache.selection import Selection
    from cache_engine.cache.serving import CompiledKernel
    from cache_engine.cache.serving.launching import Product
    from cache_engine.cache.tiers import Found, Preloaded
    from cache_engine.errors import (
        CompileError,
        CompilerMissing,
        CorruptEntry,
        ExtraMissing,
        GemmCacheError,
        GpuRequired,
        InfeasibleConfig,
        InvalidHardware,
        InvalidProblem,
        KeyNotFound,
        Level,
        LockTimeout,
        MirrorDamaged,
        MirrorError,
        Misplaced,
        NotCached,
        NotHereError,
        NotPermitted,
        OutOfDeviceMemory,
        PackUnusable,
        RemoteError,
        SearchStopped,
        StoreError,
        StoreUnusable,
        ToolMissing,
        TooManyJobs,
        Truncated,
        Unproved,
        Untrusted,
        UsageError,
    )
    from cache_engine.evaluator.catalogue import ModelShape, model_shapes, table_shapes
    from cache_engine.evaluator.chips import GPUS, Gpu
    from cache_engine.evaluator.cost import Evaluation, SearchMode
    from cache_engine.evaluator.gpu import Prediction, predict, predict_grouped
    from cache_engine.evaluator.hardware import PRESETS, Hardware
    from cache_engine.evaluator.problem import EvaluationProblem
    from cache_engine.evaluator.results import Evaluations
    from cache_engine.evaluator.results.entry import Answer
    from cache_engine.evaluator.search import evaluate
    from cache_engine.gpu.fp8 import dequantise, quantise
    from cache_engine.gpu.memory_pool import (
        DeviceMemory,
        DeviceMemoryPool,
        PoolStatistics,
        device_memory,
        release_device_memory,
        shared_pool,
    )
    from cache_engine.gpu.profiling import OperatorCall, OperatorCalls, OperatorStatistics
    from cache_engine.insight.comparison import Nearest, Pair
    from cache_engine.insight.explanation import Explanation, explain
    from cache_engine.insight.metrics import prometheus_text, write_to_textfile
    from cache_engine.model.artifact import Record, RecordedProblem, Resources
    from cache_engine.model.decision import Decision
    from cache_engine.model.events import Statistics, Tally, Totals
    from cache_engine.model.gemm import (
        Activation,
        ActivationLike,
        DType,
        DTypeLike,
        Epilogue,
        EpilogueLike,
        GemmProblem,
        Layout,
        LayoutLike,
        Mode,
        ModeLike,
        Scales,
        ScalesLike,
        Specialisation,
        SpecialisationLike,
    )
    from cache_engine.model.kernel import KernelConfig, Launch
    from cache_engine.model.key import CacheKey
    from cache_engine.model.outcome import Failure
    from cache_engine.settings import Settings
    from cache_engine.store.base import Loaded
    from cache_engine.upkeep.cleaning import Cleaned
    from cache_engine.upkeep.findings import Finding
    from cache_engine.upkeep.integrity import RepairAct
    from cache_engine.upkeep.packs import Exported, Imported
    from cache_engine.upkeep.plan import EvictionPlan, Limits

__all__ = [
    "GPUS",
    "PRESETS",
    "Activation",
    "ActivationLike",
    "Answer",
    "Better",
    "Cache",
    "CacheKey",
    "Cleaned",
    "CompileError",
    "CompiledKernel",
    "CompilerMissing",
    "CorruptEntry",
    "DType",
    "DTypeLike",
    "Decision",
    "Demand",
    "DemandReport",
    "DemandShare",
    "DeviceMemory",
    "DeviceMemoryPool",
    "Epilogue",
    "EpilogueLike",
    "Evaluation",
    "EvaluationProblem",
    "Evaluations",
    "EvictionPlan",
    "Explanation",
    "Exported",
    "ExtraMissing",
    "Failure",
    "Finding",
    "Found",
    "GemmCacheError",
    "GemmOperator",
    "GemmProblem",
    "Gpu",
    "GpuRequired",
    "Hardware",
    "Imported",
    "InfeasibleConfig",
    "InvalidHardware",
    "InvalidProblem",
    "KernelConfig",
    "KeyNotFound",
    "Launch",
    "Layout",
    "LayoutLike",
    "Level",
    "Limits",
    "Loaded",
    "LockTimeout",
    "MirrorDamaged",
    "MirrorError",
    "Misplaced",
    "Mode",
    "ModeLike",
    "ModelShape",
    "Nearest",
    "NotCached",
    "NotHereError",
    "NotPermitted",
    "OperatorCall",
    "OperatorCalls",
    "OperatorStatistics",
    "OutOfDeviceMemory",
    "PackUnusable",
    "Pair",
    "PoolStatistics",
    "Prediction",
    "Preloaded",
    "Priority",
    "Product",
    "QueueState",
    "Record",
    "RecordedProblem",
    "RemoteError",
    "RepairAct",
    "Resources",
    "Scales",
    "ScalesLike",
    "SearchMode",
    "SearchStopped",
    "Selection",
    "Settings",
    "Specialisation",
    "SpecialisationLike",
    "Statistics",
    "StoreError",
    "StoreUnusable",
    "Switches",
    "Tally",
    "TooManyJobs",
    "ToolMissing",
    "Totals",
    "Truncated",
    "Unproved",
    "Untrusted",
    "UsageError",
    "Warmed",
    "__version__",
    "default_cache",
    "dequantise",
    "device_memory",
    "evaluate",
    "explain",
    "grouped_matmul",
    "matmul",
    "model_shapes",
    "open_cache",
    "predict",
    "predict_grouped",
    "problems_of",
    "prometheus_text",
    "quantise",
    "release_device_memory",
    "shared_pool",
    "switches",
    "table_shapes",
    "warm",
    "write_to_textfile",
]

# Where each of these is.
_HOMES = {
    "_version": "__version__",
    "batch.warm": "Warmed problems_of warm",
    "evaluator.catalogue": "ModelShape model_shapes table_shapes",
    "settings": "Settings",
    "gpu.fp8": "dequantise quantise",
    "gpu.memory_pool": "DeviceMemory DeviceMemoryPool PoolStatistics device_memory release_device_memory shared_pool",
    "gpu.profiling": "OperatorCall OperatorCalls OperatorStatistics",
    "cache.cache": "Cache open_cache",
    "cache.demand": "Demand",
    "cache.demand.report": "DemandReport DemandShare",
    "cache.matmul": "grouped_matmul matmul",
    "cache.operator": "GemmOperator Switches default_cache switches",
    "cache.selection": "Selection",
    "cache.serving": "CompiledKernel",
    "cache.serving.launching": "Product",
    "cache.tiers": "Found Preloaded",
    "errors": "CompileError CompilerMissing CorruptEntry ExtraMissing GemmCacheError GpuRequired InfeasibleConfig "
    "InvalidHardware InvalidProblem KeyNotFound Level LockTimeout MirrorDamaged MirrorError Misplaced "
    "NotCached NotHereError NotPermitted OutOfDeviceMemory PackUnusable RemoteError SearchStopped "
    "StoreError StoreUnusable ToolMissing TooManyJobs Truncated Unproved Untrusted UsageError",
    "evaluator.results": "Evaluations",
    "evaluator.results.entry": "Answer",
    "evaluator.cost": "Evaluation SearchMode",
    "evaluator.gpu": "Prediction predict predict_grouped",
    "evaluator.chips": "GPUS Gpu",
    "evaluator.hardware": "PRESETS Hardware",
    "evaluator.problem": "EvaluationProblem",
    "evaluator.search": "evaluate",
    "insight.comparison": "Nearest Pair",
    "insight.explanation": "Explanation explain",
    "insight.metrics": "prometheus_text write_to_textfile",
    "model.artifact": "Record RecordedProblem Resources",
    "model.decision": "Decision",
    "model.events": "Statistics Tally Totals",
    "model.gemm": "Activation ActivationLike DType DTypeLike Epilogue EpilogueLike GemmProblem Layout LayoutLike "
    "Mode ModeLike Scales ScalesLike Specialisation SpecialisationLike",
    "model.kernel": "KernelConfig Launch",
    "model.key": "CacheKey",
    "model.outcome": "Failure",
    "cache.queue.behind": "Better",
    "cache.queue.tickets": "Priority QueueState",
    "store.base": "Loaded",
    "upkeep.cleaning": "Cleaned",
    "upkeep.findings": "Finding",
    "upkeep.integrity": "RepairAct",
    "upkeep.packs": "Exported Imported",
    "upkeep.plan": "EvictionPlan Limits",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> "Any":
    """Imports what is asked for when it is first asked for: entering the package costs next to nothing."""
    from importlib import import_module

    if name == "errors":
        return import_module(f"{__name__}.errors")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
