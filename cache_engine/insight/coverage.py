"""Which kernels a model needs on some targets, found without compiling anything or reading the store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cache_engine.catalogue import TOKENS, ModelShape
from cache_engine.engine.cache import Cache
from cache_engine.engine.selection import Selection
from cache_engine.errors import GemmCacheError, NotHereError
from cache_engine.model.gemm import DType
from cache_engine.model.key import CacheKey


@dataclass(frozen=True, slots=True)
class WantedKernel:
    """A kernel that a shape asks for, and the numbers of tokens that it serves; config depends on these."""

    selection: Selection
    ms: tuple[int, ...]

    @property
    def key(self) -> CacheKey:
        """The key that is looked up."""
        return self.selection.key


@dataclass(frozen=True, slots=True)
class Cell:
    """One shape on one target.

    Attributes:
        kernels: what it asks for; none where no kernel can serve it, and then
        refused: is why.
    """

    shape: ModelShape
    arch: str
    kernels: tuple[WantedKernel, ...]
    refused: str = ""

    def missing(self, cached: Collection[str]) -> int:
        """How many of its kernels are not among these keys."""
        return sum(kernel.key not in cached for kernel in self.kernels)


def coverage(
    cache: Cache, shapes: Sequence[ModelShape], dtype: DType, archs: Sequence[str], ms: Sequence[int] = TOKENS
) -> list[list[Cell]]:
    """For each shape, in order, what it asks for on each target. Takes microseconds for each kernel.

    Raises:
        NotHereError: when the compiler is not installed, so that no key can be made.
    """
    return [[_cell(cache, shape, dtype, arch, ms) for arch in archs] for shape in shapes]


def _cell(cache: Cache, shape: ModelShape, dtype: DType, arch: str, ms: Sequence[int]) -> Cell:
    chosen: dict[CacheKey, tuple[Selection, list[int]]] = {}
    for m in (shape.m,) if shape.m is not None else ms:
        try:
            selection = cache.select(shape.problem(m, dtype).on(arch), compiler="nvrtc")
        except NotHereError:
            raise
        except GemmCacheError as error:
            return Cell(shape, arch, (), str(error))
        chosen.setdefault(selection.key, (selection, []))[1].append(m)
    return Cell(shape, arch, tuple(WantedKernel(selection, tuple(served)) for selection, served in chosen.values()))
