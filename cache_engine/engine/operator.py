"""Operators: one kind of GEMM that is asked for with many sizes, behaving the same with the persistent cache on or off.

What can be switched — whether to compile, whether to cache, where — is looked for in the operator, then in
``switches``, which hold for all operators of the process, then in the environment, the settings file and the defaults:
what the program says comes first, as everywhere.
"""

from __future__ import annotations

import logging
from dataclasses import astuple, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from cache_engine.config import Settings
from cache_engine.engine.cache import Cache, CompiledKernel, open_cache
from cache_engine.errors import StoreUnusable
from cache_engine.model.gemm import (
    NO_EPILOGUE,
    OPT_LEVELS,
    DType,
    DTypeLike,
    EpilogueLike,
    GemmProblem,
    Layout,
    LayoutLike,
    Specialisation,
    SpecialisationLike,
)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Switches:
    """What can be switched; ``None`` leaves it to the next in line.

    Attributes:
        enable_jit: whether a kernel that no tier has may be compiled.
        enable_caching: whether kernels are looked up in packs and on disk, and stored there, or in packs alone.
        cache_dir: the store's directory.
    """

    enable_jit: bool | None = None
    enable_caching: bool | str | None = None
    cache_dir: str | Path | None = None

    def in_force(self) -> Settings:
        """The settings of an operator that sets no switch itself."""
        return _in_force(astuple(Switches()), astuple(self))


switches = Switches()
"""Those of all operators in this process."""


def default_cache() -> Cache:
    """The cache of operators without switches of their own.

    Raises:
        StoreUnusable: when a directory that is named cannot serve as a store.
    """
    return _opened(switches.in_force())


class GemmOperator:
    """C = A · B for one set of element types, layout, epilogue and target. Safe to use from several threads.

    Example:
        ```python
        linear = GemmOperator(dtype="bf16", epilogue="bias+gelu", arch="sm_90a")
        kernel = linear.kernel(m=16, n=7168, k=2048)
        ```

    Operators that come to the same settings share one cache. Their own switches can be set and asked at any time; what
    is asked is what is in force.
    """

    def __init__(
        self,
        *,
        dtype: DTypeLike = DType.BF16,
        out_dtype: DTypeLike | None = None,
        layout: LayoutLike = Layout.NT,
        arch: str | None = None,
        epilogue: EpilogueLike = NO_EPILOGUE,
        specialisation: SpecialisationLike = Specialisation.NK,
        opt_level: int = OPT_LEVELS[-1],
        family: str | None = None,
        compiler: str | None = None,
        enable_jit: bool | None = None,
        enable_caching: bool | str | None = None,
        cache_dir: str | Path | None = None,
    ) -> None:
        """Compiles and opens nothing yet.

        Args:
            dtype: element type of A and B, as of ``GemmProblem``; likewise the next six.
            out_dtype: element type of C.
            layout: how A and B are stored.
            arch: the target.
            epilogue: what is done to the product, such as ``"bias"``.
            specialisation: which sizes are constants of the kernel.
            opt_level: how hard the compiler may optimise.
            family: of kernels to take, as of ``Cache.get_or_compile``.
            compiler: which compiler makes them.
            enable_jit: whether this operator may compile; by default as ``switches`` say.
            enable_caching: whether it looks kernels up in packs and on disk, and stores them there.
            cache_dir: its store's directory.

        Raises:
            InvalidProblem: when the types, layout, target or epilogue are not supported.
        """
        self._kind = GemmProblem(
            1,
            1,
            1,
            dtype=dtype,
            out_dtype=out_dtype,
            layout=layout,
            arch=arch,
            epilogue=epilogue,
            specialisation=specialisation,
            opt_level=opt_level,
        )
        self._family = family
        self._compiler = compiler
        self._own = Switches(enable_jit, enable_caching, cache_dir)

    def kernel(self, m: int, n: int, k: int, batch: int = 1) -> CompiledKernel:
        """The kernel for these sizes, found or compiled.

        Raises:
            UsageError, NotCached, CompilerMissing, CompileError: as ``Cache.get_or_compile``.
        """
        problem = replace(self._kind, m=m, n=n, k=k, batch=batch)
        return self.cache.get_or_compile(problem, family=self._family, compiler=self._compiler)

    @property
    def cache(self) -> Cache:
        """The cache in force; without a store, when caching is switched off or the default directory cannot be one.

        Raises:
            StoreUnusable: when a directory that is named cannot serve as a store.
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
        """Whether kernels are looked up in packs and on disk, and stored there; ``"packs"`` for packs alone."""
        return self._settings.enable_caching

    @enable_caching.setter
    def enable_caching(self, value: bool | str | None) -> None:
        self._own.enable_caching = value

    @property
    def cache_dir(self) -> Path:
        """The store's directory, in use or not."""
        return self._settings.directory()

    @cache_dir.setter
    def cache_dir(self, value: str | Path | None) -> None:
        self._own.cache_dir = value

    @property
    def _settings(self) -> Settings:
        return _in_force(astuple(self._own), astuple(switches))


@cache
def _in_force(own: tuple[object, ...], shared: tuple[object, ...]) -> Settings:
    """The settings that switches come to. The environment is read once for each combination of them."""
    chosen: dict[str, Any] = {}
    for name, *values in zip(("enable_jit", "enable_caching", "dir"), own, shared, strict=True):
        given = [value for value in values if value is not None]
        if given:
            chosen[name] = given[0]
    return Settings.load(**chosen)


@cache
def _opened(settings: Settings) -> Cache:
    """One cache for all operators with the same settings.

    Where no directory is named and the default cannot be a store, as in a home that may not be written, kernels are
    cached in this process's memory alone.
    """
    try:
        return open_cache(settings=settings)
    except StoreUnusable as error:
        if settings.dir is not None:
            raise
        _log.warning("kernels are cached in this process alone: %s", error)
        return Cache(None, settings, without_store=str(error))
