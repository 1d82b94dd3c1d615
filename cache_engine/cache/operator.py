"""Operators: a kind of GEMM (types, layout, epilogue) to be called with many sizes. It works with the cache on or off.

A switch (whether to compile, whether to cache, where to cache) is taken from the operator; if not set there, from
``switches``, which are for all operators of the process; then from the environment, the settings file and the defaults.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cache_engine.cache.cache import COMPILED, Cache, CompiledKernel, open_cache
from cache_engine.cache.selection import check_wait
from cache_engine.cache.stages import COMPILE
from cache_engine.errors import NotCached, StoreUnusable, UsageError
from cache_engine.gpu.profiling import OperatorCall, OperatorCalls, OperatorStatistics, ProfilerCounts, Watch
from cache_engine.model.gemm import (
    NO_EPILOGUE,
    OPT_LEVELS,
    SCALE_BLOCK,
    DType,
    DTypeLike,
    Epilogue,
    EpilogueLike,
    GemmProblem,
    Layout,
    LayoutLike,
    Scales,
    ScalesLike,
    Specialisation,
    SpecialisationLike,
)
from cache_engine.settings import Settings
from cache_engine.store.journal import Journal
from cache_engine.store.journal.spans import MODULE

if TYPE_CHECKING:
    from cache_engine.cache.queue import PendingKernel
    from cache_engine.gpu.matmul_plan import ArrayForms
    from cache_engine.gpu.multiply import Code

_log = logging.getLogger(__name__)

_Got = TypeVar("_Got")


@dataclass(slots=True)
class Switches:
    """The switches of an operator or of the process.

    ``None``: not set, so the next source in the module's list decides.

    Attributes:
        enable_jit: whether a kernel that no tier has may be compiled.
        enable_caching: whether kernels are looked up in packs and on disk and stored on disk; ``"packs"`` for packs
            only.
        cache_dir: the store's directory.
        fusion: whether kernels apply epilogues; if not, separate steps do after the product.
    """

    enable_jit: bool | None = None
    enable_caching: bool | str | None = None
    cache_dir: str | Path | None = None
    fusion: bool | None = None

    def in_force(self) -> Settings:
        """The settings that these switches lead to, for an operator that sets no switch of its own."""
        return _in_force((None, None, None), _of_a_cache(self))


switches = Switches()
"""The switches for all operators of this process."""


def default_cache() -> Cache:
    """The cache of operators that set no switch of their own.

    Raises:
        StoreUnusable: when the settings name a directory that cannot serve as a store.
    """
    return _opened(switches.in_force())


class GemmOperator:
    """C = A · B for one set of element types, layout, epilogue and target. Safe to use from several threads.

    Example:
        ```python
        linear = GemmOperator(dtype="bf16", epilogue="bias+gelu")
        y = linear(x, weight.T, bias=b)  # on a GPU; x: m × k, weight: n × k
        kernel = linear.kernel(m=16, n=7168, k=2048)  # also without a GPU
        linear.statistics().kernels  # {"compiled": 1, "memory": 1}
        ```

    Operators with the same settings share one cache. An operator's switches can be set and read at any time; reading
    one gives the value in force.
    """

    def __init__(
        self,
        *,
        dtype: DTypeLike = DType.BF16,
        out_dtype: DTypeLike | None = None,
        layout: LayoutLike = Layout.NT,
        arch: str | None = None,
        epilogue: EpilogueLike | None = NO_EPILOGUE,
        specialisation: SpecialisationLike = Specialisation.NK,
        opt_level: int = OPT_LEVELS[-1],
        scales: ScalesLike = Scales.NONE,
        fast_math: bool | None = None,
        family: str | None = None,
        compiler: str | None = None,
        enable_jit: bool | None = None,
        enable_caching: bool | str | None = None,
        cache_dir: str | Path | None = None,
        fusion: bool | None = None,
        wait_ms: float | None = None,
        wait: float | None = None,
    ) -> None:
        """Compiles and opens nothing yet.

        Args:
            dtype: element type of A and B. This argument and the next eight are as for ``GemmProblem``.
            out_dtype: element type of C.
            layout: how A and B are stored.
            arch: the target.
            epilogue: the steps applied to the product, such as ``"bias"``.
            specialisation: the sizes that are constants in the kernel.
            opt_level: the optimisation level of the compiler.
            scales: the blocks of A and B that have a scale each, such as ``"1x128,128x128"``.
            fast_math: whether the compiler may use less exact arithmetic.
            family: the family of kernels to use, as for ``Cache.get_or_compile``.
            compiler: the compiler to use.
            enable_jit: whether this operator may compile; by default as ``switches`` say.
            enable_caching: whether it looks kernels up in packs and on disk, and stores them on disk.
            cache_dir: the directory of its store.
            fusion: whether its kernels apply the epilogue; see the property ``fusion``.
            wait_ms: the longest wait for a kernel that must be compiled, in milliseconds, as for ``matmul``. If set, a
                call returns a ``Product``, and ``kernel`` may return another kernel that serves, as ``get_or_compile``
                does.
            wait: the old name of ``wait_ms``.

        Raises:
            InvalidProblem: when the types, layout, target, epilogue or scales are not supported.
            UsageError: when ``wait_ms`` is not a valid time.
        """
        self._kind = GemmProblem(
            1, 1, SCALE_BLOCK, dtype=dtype, out_dtype=out_dtype, layout=layout, arch=arch, epilogue=epilogue,
            specialisation=specialisation, opt_level=opt_level, scales=scales, fast_math=fast_math,
        )  # fmt: skip
        self._family = family
        self._compiler = compiler
        self._wait_ms = check_wait(wait_ms, wait)
        self._own = Switches(enable_jit, enable_caching, cache_dir, fusion)
        self._asked: ArrayForms | None = None
        self._counts = ProfilerCounts()
        self._profiles: list[OperatorCalls] = []

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any | None = None,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        bias: Any | None = None,
        a_scales: Any | None = None,
        b_scales: Any | None = None,
        scale_result: float = 1.0,
        stream: Any | None = None,
    ) -> Any:
        """``activation(alpha · A · B + beta · out + bias)`` with the operator's types and epilogue, as ``matmul``.

        The arguments are those of ``matmul``. A single row or column is read in the operator's layout. An operand in
        the other layout is refused. One in no known layout, such as with padded rows, is copied at every call.

        Returns:
            ``out``, or the new array; with ``wait_ms`` a ``Product`` that contains it.

        Raises:
            GpuRequired: when there is no GPU.
            UsageError: when the arrays do not fit together or do not have the operator's types or layout; when the
                epilogue has a bias and none is given, or alpha, beta or a bias is given that the epilogue does not
                have; when the operator has scales and none are given, or the other way round.
            OutOfDeviceMemory, NotCached, CompilerMissing, CompileError: as ``matmul``. A compiler or a
                family that was named rules out cuBLAS, so that ``NotCached`` is possible.
        """
        multiplying, planning, probe = _on_a_gpu()
        probe.require_gpu("calling an operator")
        epilogue = self._kind.epilogue
        _check_parts(epilogue, alpha, beta, bias)
        wait_ms, got = self._wait_ms, list[CompiledKernel]()
        served: list[tuple[str, Any]] = []

        def find(problem: GemmProblem) -> Code:
            return code_found(self.cache, problem, self._family, self._compiler, partial(get, problem))

        def get(problem: GemmProblem) -> CompiledKernel | PendingKernel[CompiledKernel]:
            found = self._get_to_launch(problem, wait_ms)
            if isinstance(found, CompiledKernel):
                got.append(found)
            return found

        if self._asked is None:
            self._asked = planning.asked_alike(self._kind.dtype, self._kind.output, epilogue, self._kind)
        watch = Watch() if self._profiles else None
        product = multiplying.multiply(
            a, b, out, bias, self._asked, find, (self._family, self._compiler, None, self._wait_ms is not None),
            a_scales=a_scales, b_scales=b_scales, alpha=alpha, beta=beta, scale_result=scale_result,
            fusion=epilogue == NO_EPILOGUE or self.fusion, watch=watch, stream=stream,
            tell=None if self._wait_ms is None else lambda name, better: served.append((name, better)),
        )  # fmt: skip
        self._counts.called()
        if watch is not None and watch.kernel is not None:
            tier, stages_ms = (got[0].tier, got[0].stages_ms) if got else (None, {})
            self._record(OperatorCall(watch.kernel.name, watch.kernel.problem, tier, stages_ms, watch))
        return product if self._wait_ms is None else Product(product, *served[0])

    def kernel(self, m: int, n: int, k: int, batch: int = 1) -> CompiledKernel:
        """The kernel for these sizes, from the cache or compiled.

        Raises:
            UsageError, NotCached, CompilerMissing, CompileError: as ``Cache.get_or_compile``.
        """
        kernel = self._get(replace(self._kind, m=m, n=n, k=k, batch=batch))
        self._record(OperatorCall(kernel.entry, kernel.problem, kernel.tier, kernel.stages_ms))
        return kernel

    def _get(self, problem: GemmProblem) -> CompiledKernel:
        def get() -> CompiledKernel:
            there = self.cache
            return there.get_or_compile(problem, family=self._family, compiler=self._compiler, wait_ms=self._wait_ms)

        return self._counted(get)

    def _get_to_launch(
        self, problem: GemmProblem, wait_ms: float | None
    ) -> CompiledKernel | PendingKernel[CompiledKernel]:
        get = partial(self.cache.get_to_launch, problem, family=self._family, compiler=self._compiler, wait_ms=wait_ms)
        return self._counted(get)

    def _counted(self, get: Callable[[], _Got]) -> _Got:
        """Calls ``get``, and counts the kernel that it returns in the operator's statistics.

        Does not count a product by CuPy that serves while a kernel is compiled.
        """
        started = time.perf_counter()
        try:
            got = get()
        except BaseException:
            self._counts.refused((time.perf_counter() - started) * 1e3)
            raise
        if isinstance(got, CompiledKernel):
            is_compiled, compile_ms = got.tier == COMPILED, got.stages_ms.get(COMPILE, 0.0)
            self._counts.got(got.tier, (time.perf_counter() - started) * 1e3, compile_ms, is_compiled=is_compiled)
        return got

    def statistics(self) -> OperatorStatistics:
        """Counts of this operator's work so far; ``cache.stats()`` counts for all users of the store."""
        return self._counts.read()

    @contextmanager
    def profiling(self, most: int = 1000) -> Iterator[OperatorCalls]:
        """Records the calls of the operator and of ``kernel``, in all threads, while the body of the ``with`` runs.

        Launches are timed with CUDA events, so do not use this while a CUDA graph is captured.

        Example:
            ```python
            with linear.profiling() as calls:
                linear(x, weight.T, bias=b)
            for call in calls:
                print(call.kernel, call.problem.m, call.gpu_ms)
            ```

        Args:
            most: the largest number of calls that are stored: the last ones.
        """
        calls = OperatorCalls(most)
        self._profiles.append(calls)
        try:
            yield calls
        finally:
            self._profiles.remove(calls)

    def _record(self, call: OperatorCall) -> None:
        for calls in tuple(self._profiles):
            calls.add(call)

    @property
    def cache(self) -> Cache:
        """The cache in use. It has no store if caching is switched off, or the default directory cannot be a store.

        Raises:
            StoreUnusable: when the settings name a directory that cannot serve as a store.
        """
        return _opened(self._settings)

    @property
    def enable_jit(self) -> bool:
        """Whether a kernel that no tier has may be compiled."""
        return self._settings.enable_jit

    @enable_jit.setter
    def enable_jit(self, value: bool | None) -> None:
        self._own.enable_jit = value

    @property
    def enable_caching(self) -> bool | str:
        """Whether kernels are looked up in packs and on disk and stored on disk; ``"packs"`` if only packs are used."""
        return self._settings.enable_caching

    @enable_caching.setter
    def enable_caching(self, value: bool | str | None) -> None:
        self._own.enable_caching = value

    @property
    def cache_dir(self) -> Path:
        """The store's directory, whether or not it is used."""
        return self._settings.directory()

    @cache_dir.setter
    def cache_dir(self, value: str | Path | None) -> None:
        self._own.cache_dir = value

    @property
    def fusion(self) -> bool:
        """Whether kernels apply the epilogue; if not, separate steps after the product apply it.

        Separate steps help to find the cause of a wrong result. With them, the product is rounded to C's type before
        the epilogue, and once more after it; a kernel that applies the epilogue rounds once.
        """
        return fuses(self._own.fusion)

    @fusion.setter
    def fusion(self, value: bool | None) -> None:
        self._own.fusion = value

    @property
    def _settings(self) -> Settings:
        return _in_force(_of_a_cache(self._own), _of_a_cache(switches))


def fuses(own: bool | None) -> bool:
    """Whether kernels apply epilogues: as ``own`` says; if it is ``None``, as ``switches`` say; by default yes."""
    asked = switches.fusion if own is None else own
    return asked is not False


def _check_parts(epilogue: Epilogue, alpha: float, beta: float, bias: object) -> None:
    """Refuses a call that gives alpha, beta or a bias that the epilogue lacks, or that lacks the epilogue's bias."""
    if epilogue.bias and bias is None:
        raise UsageError(f"the operator's epilogue is {str(epilogue)!r}; give a bias")
    alpha_too, beta_too, bias_too = alpha != 1.0, beta != 0.0, bias is not None
    if (alpha_too > epilogue.alpha) or (beta_too > epilogue.beta) or (bias_too > epilogue.bias):
        needed = Epilogue(
            epilogue.alpha or alpha_too, epilogue.beta or beta_too, epilogue.bias or bias_too, epilogue.activation
        )
        raise UsageError(
            f"the operator's epilogue is {str(epilogue)!r}, and this call needs {str(needed)!r}; make one for that"
        )


@cache
def _on_a_gpu() -> tuple[ModuleType, ModuleType, ModuleType]:
    """The modules that a call needs, imported once: an import statement in each call would take a microsecond."""
    from cache_engine.gpu import matmul_plan, multiply, probe

    return multiply, matmul_plan, probe


def _of_a_cache(switched: Switches) -> tuple[object, ...]:
    """The values of those switches that decide which cache an operator uses."""
    return switched.enable_jit, switched.enable_caching, switched.cache_dir


@cache
def _in_force(own: tuple[object, ...], shared: tuple[object, ...]) -> Settings:
    """The settings that result from an operator's own switches and the shared ones.

    The environment is read once for each combination of switches.
    """
    chosen: dict[str, Any] = {}
    for name, *values in zip(("enable_jit", "enable_caching", "dir"), own, shared, strict=True):
        given = [value for value in values if value is not None]
        if given:
            chosen[name] = given[0]
    return Settings.load(**chosen)


@cache
def _opened(settings: Settings) -> Cache:
    """The one cache of all operators with the same settings.

    If no directory is set and the default directory cannot be a store, as in a read-only home, kernels are cached in
    this process's memory only.
    """
    try:
        return open_cache(settings=settings)
    except StoreUnusable as error:
        if settings.dir is not None:
            raise
        _log.warning("kernels are cached in this process alone: %s", error)
        return Cache(None, settings, without_store=str(error))


def code_found(
    cache: Cache,
    problem: GemmProblem,
    family: str | None,
    compiler: str | None,
    find: Callable[[], CompiledKernel | PendingKernel[CompiledKernel]],
) -> Code:
    """The code to launch for the kernel that ``find`` returns.

    If compiling is switched off and no tier has a kernel, the code calls cuBLAS.

    Raises:
        NotCached: when a family or compiler was named, so that cuBLAS may not serve in its place.
    """
    try:
        return code_of(find(), cache.journal)
    except NotCached as missing:
        if family is not None or compiler is not None or problem.mode:
            raise
        from cache_engine.gpu.multiply import Code

        _log.info("cuBLAS serves: %s", missing)
        selection = cache.select(problem)
        return Code(selection.key, None, "", None, cache.journal.asked)


# ---- The code to launch: that of the kernel that serves; if no kernel is ready yet, code that calls cuBLAS ----


class Product(NamedTuple):
    """The result of ``matmul``, or of an operator, that is called with ``wait_ms``.

    Attributes:
        array: the product.
        served_by: the name of the kernel's function, or ``"cuBLAS, by CuPy"``.
        better: the handle of the kernel that is compiled while another serves, as in ``CompiledKernel``.
    """

    array: Any
    served_by: str
    better: PendingKernel[CompiledKernel] | None


def code_of(got: CompiledKernel | PendingKernel[CompiledKernel], journal: Journal) -> Code:
    """The code to launch: the kernel's; or for a kernel that is still being compiled, code that calls cuBLAS.

    Args:
        journal: counts each further launch, and the time of loading the code.
    """
    from cache_engine.gpu.multiply import Code

    if isinstance(got, CompiledKernel):
        loaded = partial(journal.spans.add, MODULE)
        return Code(got.key, got.cubin, got.entry, got.launch, journal.asked, got.better, loaded)
    return Code(got.key, None, "", None, journal.asked, got)
