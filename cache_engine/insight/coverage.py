"""Coverage: the kernels that a model or a workload needs on some targets. Compiles nothing, reads no store.

The verb ``warm`` and the dashboard's page Workload both use this module, so they agree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

from msgspec import structs

from cache_engine.cache.cache import Cache
from cache_engine.cache.demand import DemandReport, DemandShare
from cache_engine.cache.demand.times import LaunchTimes
from cache_engine.cache.selection import Selection, Selector
from cache_engine.errors import GemmCacheError, NotHereError, UsageError
from cache_engine.evaluator.catalogue import TOKENS, ModelShape
from cache_engine.model.gemm import (
    INPUT_DTYPES,
    NO_EPILOGUE,
    DType,
    EpilogueLike,
    GemmProblem,
    Layout,
    Mode,
    Specialisation,
)
from cache_engine.model.gemm.kinds import checked_mode, member_of
from cache_engine.model.key import CacheKey
from cache_engine.model.shapes import Shape, Sizes, count_sizes, parse_sizes, sizes_text
from cache_engine.usage.demand import Ledger, Sketch, by_bytes, by_flops


@dataclass(frozen=True, slots=True)
class Covering:
    """A kernel, chosen for the first m that it serves; and all requested m that it serves."""

    selection: Selection
    ms: tuple[range, ...]

    @property
    def key(self) -> CacheKey:
        """The key of the kernel."""
        return self.selection.key


def cover(
    selector: Selector, problem: GemmProblem, sizes: Sizes, family: str | None = None, compiler: str | None = None
) -> tuple[Covering, ...]:
    """The kernels that serve a problem at each m in ``sizes``; the problem must name its target.

    The result is exact: for every m, ``Selector.select`` returns the key of one of these kernels, and each key for
    some m. A turning point is an m at which the choice of family or config changes. Between two turning points all m
    have the same family and config. There, m can change the key only through the width of reads along rows that are m
    long, which ``Family.m_divisor`` bounds. So one selection for each of the few widths between two turning points
    finds every key.

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
    """Divides the values of m from ``first`` to before ``end`` into ranges in which gcd(m, ``divisor``) is the same.

    All m of a range have the same greatest common divisor with ``divisor``, which is a power of two.
    """
    width = divisor
    while width:
        step = divisor if width == divisor else 2 * width  # the odd multiples of lesser widths
        ms = range(first + (width - first) % step, end, step)
        if ms:
            yield ms
        width //= 2


def _append(served: list[range], ms: range) -> None:
    """Adds a range of m to ``served``; joins it with the last range there if it continues that range."""
    if served and served[-1].step == ms.step and served[-1][-1] + ms.step == ms[0]:
        ms = range(served.pop()[0], ms.stop, ms.step)
    served.append(ms)


EVERY_M = parse_sizes(TOKENS)

MOST_CHOICES = 300_000
"""The most configs that one coverage may have to choose, as ``choices`` counts them. That many take seconds."""

MOST_EXACT = 256
"""The longest range of m with the specialisation ``exact``, in which each m has its own kernel."""

_SIZES_PER_CHOICE = 16  # a range is looked at once for each of the lowest tile's heights


@dataclass(frozen=True, slots=True)
class Wanted:
    """One shape on one target, to be covered.

    Attributes:
        problem: the problem with the largest m; without a target if none was named.
        ms: the requested values of m.
    """

    shape: ModelShape
    problem: GemmProblem
    ms: Sizes


@dataclass(frozen=True, slots=True)
class Cell:
    """One shape on one target, and the kernels that it needs.

    Attributes:
        problem, ms: as in ``Wanted``, with the target set.
        kernels: the kernels that together serve every m; empty if no kernel can serve the shape.
        refused: why no kernel can serve the shape; empty if one can.
    """

    shape: ModelShape
    problem: GemmProblem
    ms: Sizes
    kernels: tuple[Covering, ...]
    refused: str = ""

    @property
    def arch(self) -> str:
        """The target."""
        return self.problem.arch or ""

    def missing(self, cached: Collection[str]) -> int:
        """The number of the cell's kernels whose keys are not in ``cached``."""
        return sum(kernel.key not in cached for kernel in self.kernels)


def wanted(
    shapes: Sequence[ModelShape],
    dtype: str,
    archs: Sequence[str | None],
    ms: Sizes = EVERY_M,
    *,
    epilogue: EpilogueLike | None = None,
    most: int = MOST_CHOICES,
    mode: str = Mode.BATCHED,
    **asked: Any,
) -> list[list[Wanted]]:
    """For each shape, in order, the ``Wanted`` values of each target.

    Args:
        archs: targets; ``None`` stands for the one that the cache chooses.
        ms: numbers of tokens, for shapes that have no m of their own. The tokens are assumed to be shared equally among
            all experts.
        epilogue: the epilogue of every problem; by default the shape's own.
        most: the greatest allowed number of ``choices``.
        mode: the mode of the products of experts, which then become groups. Other products have no mode.
        asked: further fields of each problem, by their names in ``GemmProblem``.

    Raises:
        InvalidProblem: when one of the problems is beyond what is supported.
        UsageError: when there are more than ``most`` choices.
    """
    if asked.get("specialisation") == Specialisation.EXACT and any(len(each) > MOST_EXACT for each in ms):
        raise UsageError(
            f"an exact kernel serves one m, so m of {sizes_text(ms)} needs {count_sizes(ms):,} kernels for each shape; "
            f"name the sizes you need, in ranges of {MOST_EXACT} at most, or use another specialisation"
        )
    element = member_of(DType, "dtype", dtype, INPUT_DTYPES)
    of_experts = checked_mode(mode, Layout.NT, Specialisation.NK)
    count = choices(shapes, ms, len(archs), of_experts)
    if count > most:
        raise UsageError(
            f"these shapes, sizes of m and targets make {count:,} choices of a config, and the limit is {most:,} "
            "at a time; ask for fewer, in several runs"
        )
    rows = []
    for shape in shapes:
        own_mode = of_experts if shape.experts else Mode.BATCHED
        sizes = shape.row_sizes(ms, own_mode) if shape.m is None else (range(shape.m, shape.m + 1),)
        finish = epilogue
        if finish is None:  # int8 takes none: a bias is added after its sums are scaled
            finish = NO_EPILOGUE if element is DType.INT8 else shape.epilogue
        # The largest m breaks a limit if any does.
        own = {**asked, "epilogue": finish, "mode": own_mode}
        problem = replace(shape.problem(sizes[-1][-1], element), **own)
        rows.append([Wanted(shape, replace(problem, arch=arch), sizes) for arch in archs])
    return rows


def coverage(
    cache: Cache, asked: Iterable[Iterable[Wanted]], family: str | None = None, compiler: str | None = None
) -> list[list[Cell]]:
    """For each wanted shape and target, the kernels that serve every m. Takes milliseconds for each of them.

    Args:
        family, compiler: the kernel family and the compiler; by default the best family for each problem, and the
            compiler that it needs.

    Raises:
        NotHereError: when the compiler is not installed, so that no key can be made.
    """
    return [[_cell(cache, one, family, compiler) for one in row] for row in asked]


def choices(shapes: Iterable[ModelShape], ms: Sizes, targets: int, mode: Mode = Mode.BATCHED) -> int:
    """The number of configs that a coverage must choose: one for each size, and one for each 16 sizes of a range."""

    def each(sizes: Sizes) -> int:
        return sum(-(-len(one) // _SIZES_PER_CHOICE) for one in sizes)

    return targets * sum(1 if shape.m is not None else each(shape.row_sizes(ms, mode)) for shape in shapes)


def distinct(cells: Iterable[Iterable[Cell]]) -> list[Covering]:
    """The kernels of all cells, each once."""
    return list({kernel.key: kernel for row in cells for cell in row for kernel in cell.kernels}.values())


def require_served(cells: Iterable[Iterable[Cell]]) -> None:
    """Raises ``UsageError`` for the first shape that no kernel serves on a target."""
    for cell in chain.from_iterable(cells):
        if cell.refused:
            name = f"{cell.shape.model} {cell.shape.operation} ({cell.shape.n} × {cell.shape.k})"
            raise UsageError(f"no kernel serves {name} on {cell.arch}: {cell.refused}")


def _cell(cache: Cache, one: Wanted, family: str | None, compiler: str | None) -> Cell:
    problem = cache.targeted(one.problem)
    try:
        return Cell(one.shape, problem, one.ms, cover(cache.selector, problem, one.ms, family, compiler))
    except NotHereError:
        raise
    except GemmCacheError as error:
        return Cell(one.shape, problem, one.ms, (), str(error))


# ---- The workload of a store: shapes on targets, each with its share of the demand and the kernels that serve it ----
# What programs asked for and what a model needs make the same cells. Compiles nothing and does not read the store.

MOST_SIZES = 12
"""The most m of a shape for which kernels are chosen: those asked for most often."""


@dataclass(frozen=True, slots=True)
class WorkCell:
    """One shape on one target.

    Attributes:
        shape: the shape, with its target.
        kernels: the kernels that serve it, each with the m that it serves; empty if no kernel can.
        refused: why no kernel can serve the shape; empty if one can.
        share: the demand for it; ``None`` if nothing was asked for.
        operation: the name of the layer, for a model's shape.
    """

    shape: Shape
    kernels: tuple[Covering, ...] = ()
    refused: str = ""
    share: DemandShare | None = None
    operation: str = ""

    def missing(self, stored: Iterable[str]) -> list[Covering]:
        """The kernels whose keys are not in ``stored``."""
        return [kernel for kernel in self.kernels if kernel.key not in stored]


def asked_rows(report: DemandReport) -> list[list[DemandShare]]:
    """The shares of a report by shape: for each shape a list with a share for each target; most demand first."""
    rows: dict[Shape, list[DemandShare]] = {}
    for share in report.shares:
        if share.shape is not None:
            rows.setdefault(structs.replace(share.shape, arch=""), []).append(share)
    return sorted(rows.values(), key=lambda row: tuple(-sum(column) for column in zip(*map(_weight, row), strict=True)))


def asked_cell(cache: Cache, share: DemandShare, sketch: Sketch) -> WorkCell:
    """The cell for the share of one shape on one target, with kernels for the m that were asked for most often."""
    shape = share.shape or Shape(1, 1)
    found: dict[CacheKey, tuple[Selection, list[range]]] = {}
    refused = ""
    for m in sorted(m for m, _ in heaviest(sketch)):
        try:
            selection = cache.select(shape.problem(m))
        except GemmCacheError as error:
            refused = str(error)
        else:
            found.setdefault(selection.key, (selection, []))[1].append(range(m, m + 1))
    kernels = tuple(Covering(selection, tuple(ms)) for selection, ms in found.values())
    return WorkCell(shape, kernels, "" if kernels else refused, share)


def model_rows(rows: Iterable[Iterable[Cell]], report: DemandReport) -> list[list[WorkCell]]:
    """The cells of each of a model's shapes, with their shares of a report by shape."""
    shares = {share.shape: share for share in report.shares}

    def cell(one: Cell) -> WorkCell:
        shape = Shape.of(one.problem)
        return WorkCell(shape, one.kernels, one.refused, shares.get(shape), one.shape.operation)

    return [list(map(cell, row)) for row in rows]


def heaviest(sketch: Sketch) -> list[tuple[int, float]]:
    """The m that were asked for most often, each with its weight, the heaviest first."""
    return sorted(sketch.spread(), key=lambda pair: (-pair[1], pair[0]))[:MOST_SIZES]


def kernel_shares(cell: WorkCell, ledger: Ledger, times: LaunchTimes, total: DemandShare) -> list[DemandShare]:
    """The demand for each kernel of a cell, as shares of ``total``; all 0 if nothing was asked for."""
    shape, sketch = cell.shape, ledger.sketches.get(cell.shape)
    pairs = sketch.spread() if sketch is not None else []
    timed = [(*pair, time) for pair, time in zip(pairs, times.of(shape, [m for m, _ in pairs]), strict=True)]
    shares = []
    for kernel in cell.kernels:
        share = DemandShare(kernel.selection.name, shape, kernel.key)
        for m, weight, time in timed:
            if any(m in each for each in kernel.ms):
                share.add(weight, by_flops(shape, m), by_bytes(shape, m), time.us, time.source)
        share.launch_share = share.launches / total.launches if total.launches else 0.0
        share.time_share = share.gpu_s / total.gpu_s if total.gpu_s else 0.0
        shares.append(share)
    return shares


def _weight(share: DemandShare) -> Sequence[float]:
    return share.time_share, share.launch_share
