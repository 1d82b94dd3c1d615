"""The rank correlation that ``bench`` reports is that of the store's own timings."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kernels.ranking import ranking
from benchmarks.results import LeftOut, ReportLine, Score
from cache_engine.cache.cache import open_cache
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from tests.helpers import invented_timing, make_entry

PROBLEM = GemmProblem(4096, 4096, 4096, arch="sm_80")
CONFIGS = (KernelConfig(128, 128, 32, 2, 2, 4), KernelConfig(64, 64, 32, 2, 2, 3), KernelConfig(16, 64, 64, 1, 2, 3))


def _reported(store: Path, *times_us: float) -> list[ReportLine]:
    found: list[ReportLine] = []
    with open_cache(store, durability="fast") as cache:
        timed = [
            invented_timing(PROBLEM, config, us, key=make_entry(seed)[0])
            for seed, (config, us) in enumerate(zip(CONFIGS, times_us, strict=False))
        ]
        if timed:
            cache.timings.add(timed)
        ranking(found.append, cache)
    return found


def test_the_same_order_is_1_and_the_reverse_is_its_negative(tmp_path: Path) -> None:
    one, other = _reported(tmp_path / "one", 10, 20, 30), _reported(tmp_path / "other", 30, 20, 10)
    assert isinstance(one[0], Score)
    assert isinstance(other[0], Score)
    assert one[0].value == pytest.approx(1.0)  # larger tiles read less
    assert other[0].value == pytest.approx(-1.0)
    assert "1 problem, 3 timings on" in one[0].of


def test_too_few_timings_are_left_out_and_said_so(tmp_path: Path) -> None:
    for number, times in enumerate(((), (10.0, 20.0))):
        (line,) = _reported(tmp_path / str(number), *times)
        assert isinstance(line, LeftOut)
        assert "gemm-cache tune" in line.reason
