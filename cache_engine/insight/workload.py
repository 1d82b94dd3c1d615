"""The workload of a store: shapes on targets, each with its share of the demand and the kernels that serve it.

What programs asked for and what a model needs make the same cells. Compiles nothing and does not read the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from cache_engine.cache.cache import Cache
from cache_engine.cache.demand.report import DemandReport, DemandShare
from cache_engine.cache.demand.times import LaunchTimes
from cache_engine.cache.selection import Selection
from cache_engine.errors import GemmCacheError
from cache_engine.insight.coverage import Cell, Covering
from cache_engine.model.key import CacheKey
from cache_engine.model.shape_counts import Shape
from cache_engine.usage.demand import Ledger, Sketch, by_bytes, by_flops

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
    """The shares of a report by shape: a list for each shape with its targets, the most demand first."""
    rows: dict[Shape, list[DemandShare]] = {}
    for share in report.shares:
        if share.shape is not None:
            rows.setdefault(replace(share.shape, arch=""), []).append(share)
    return sorted(rows.values(), key=lambda row: tuple(-sum(column) for column in zip(*map(_weight, row), strict=True)))


def asked_cell(cache: Cache, share: DemandShare, sketch: Sketch) -> WorkCell:
    """The cell of a share of the demand by shape, with the kernels of the m that were asked for most often."""
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
