"""The kernels that serve every m of some ranges, found without asking for each m."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from cache_engine.cache.selection import Selection, Selector
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.model.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Covering:
    """A kernel, chosen for the first m that it serves, and every m of those asked for that it serves."""

    selection: Selection
    ms: tuple[range, ...]

    @property
    def key(self) -> CacheKey:
        """The key that is looked up."""
        return self.selection.key


def cover(
    selector: Selector, problem: GemmProblem, sizes: Sizes, family: str | None = None, compiler: str | None = None
) -> tuple[Covering, ...]:
    """The kernels that serve a problem, whose target is set, for each of these sizes of m in place of its own.

    Exact: ``Selector.select`` returns the key of one of these for every m, and each is returned for some m. Between two
    turning points all m have the same family and config. Then m can change the key only through the width of reads
    along rows that are m long, which ``Family.m_divisor`` bounds. So one selection for each of the few widths between
    two turning points finds every key.

    Raises:
        UsageError, NotHereError: as ``Selector.select``.
    """
    found: dict[CacheKey, tuple[Selection, list[range]]] = {}
    for asked in sizes:
        starting = replace(problem, m=asked[0])
        points = selector.turning_points(starting, asked[-1], family, compiler)
        for first, end in pairwise([*points, asked.stop]):
            at_first = selector.select(replace(problem, m=first), family, compiler, None)
            for ms in _by_width(first, end, at_first.family.m_divisor(problem)):
                selection = at_first
                if ms[0] != first:
                    selection = selector.select(replace(problem, m=ms[0]), family, compiler, None)
                _append(found.setdefault(selection.key, (selection, []))[1], ms)
    return tuple(Covering(selection, tuple(served)) for selection, served in found.values())


def _by_width(first: int, end: int, divisor: int) -> Iterator[range]:
    """The m from ``first`` to before ``end``, by their greatest common divisor with ``divisor``, a power of two."""
    width = divisor
    while width:
        step = divisor if width == divisor else 2 * width  # the odd multiples of lesser widths
        ms = range(first + (width - first) % step, end, step)
        if ms:
            yield ms
        width //= 2


def _append(served: list[range], ms: range) -> None:
    """Adds sizes; joined with the last where they continue them."""
    if served and served[-1].step == ms.step and served[-1][-1] + ms.step == ms[0]:
        ms = range(served.pop()[0], ms.stop, ms.step)
    served.append(ms)
