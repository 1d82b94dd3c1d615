"""The matrix of shapes and targets: rows by demand, kernels of the most frequent m, and shares of each kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine import GemmProblem, open_cache
from cache_engine.cache.demand import DemandReport, DemandShare
from cache_engine.insight.coverage import MOST_SIZES, asked_cell, asked_rows, heaviest, kernel_shares
from cache_engine.model.shapes import Shape
from cache_engine.usage.demand import Sketch


def _report(*shares: DemandShare) -> DemandReport:
    return DemandReport("shape", 0.0, 1.0, 1.0, DemandShare("all"), 0.0, shares)


def test_a_row_has_all_targets_of_a_shape_and_the_row_with_the_most_demand_is_first() -> None:
    def share(n: int, arch: str, time: float, launches: float = 0.0) -> DemandShare:
        return DemandShare("", Shape(n=n, k=8, arch=arch), time_share=time, launch_share=launches)

    shares = share(8, "sm_90", 0.4), share(16, "sm_90", 0.3), share(16, "sm_80", 0.3), share(32, "", 0.0, 1.0)
    rows = asked_rows(_report(*shares, DemandShare("a kernel")))
    assert [[(one.shape.n, one.shape.arch) for one in row if one.shape] for row in rows] == [
        [(16, "sm_90"), (16, "sm_80")],
        [(8, "sm_90")],
        [(32, "")],
    ]


def test_the_m_that_were_asked_for_most_often_choose_the_kernels() -> None:
    sketch = Sketch()
    for m in range(1, 41):
        sketch.add(m, float(m))
    assert [m for m, _ in heaviest(sketch)] == [40 - place for place in range(MOST_SIZES)]


def test_each_kernel_has_the_demand_of_the_m_that_it_serves(tmp_path: Path) -> None:
    with open_cache(tmp_path / "store") as cache:
        for m, count in ((1, 6), (4096, 3), (16, 1)):
            for _ in range(count):
                cache.journal.asked(GemmProblem(m, 7168, 2048, arch="sm_90"))
        ledger = cache.demand.ledger(3600)
        report = cache.demand.report(ledger)
        (share,) = report.shares
        cell = asked_cell(cache, share, ledger.sketches[Shape(n=7168, k=2048, arch="sm_90")])
        assert {m for kernel in cell.kernels for each in kernel.ms for m in each} == {1, 16, 4096}
        for kernel in cell.kernels:
            assert kernel.key == cache.select(GemmProblem(kernel.ms[0][0], 7168, 2048, arch="sm_90")).key
        shares = kernel_shares(cell, ledger, cache.demand.times(), report.total)
        weights = {1: 0.6, 4096: 0.3, 16: 0.1}
        for kernel, one in zip(cell.kernels, shares, strict=True):
            assert one.launch_share == pytest.approx(sum(weights[m] for each in kernel.ms for m in each))
        assert sum(one.time_share for one in shares) == pytest.approx(1)
        assert cell.missing(()) == list(cell.kernels)
        assert cell.missing([kernel.key for kernel in cell.kernels]) == []


def test_a_shape_that_no_kernel_serves_says_why(tmp_path: Path) -> None:
    with open_cache(tmp_path / "store") as cache:
        shape = Shape(n=64, k=64, arch="sm_75")
        sketch = Sketch()
        sketch.add(16)
        cell = asked_cell(cache, DemandShare("", shape), sketch)
        assert (cell.kernels, "needs sm_80 or newer" in cell.refused) == ((), True)
        newer = asked_cell(cache, DemandShare("", Shape(n=64, k=64, dtype="fp2")), sketch)
        assert newer.kernels == ()
        assert newer.refused
