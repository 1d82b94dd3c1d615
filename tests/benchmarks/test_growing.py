"""The benchmark of a store that grows measures stores of valid kernels, each of which was asked for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import timing
from benchmarks.entries import growth
from benchmarks.results import ReportLine, Result, Size
from cache_engine.cache.cache import open_cache


def test_a_store_grows_by_valid_kernels_that_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "compare", partial(_compared_once, timing.compare))
    lines: list[ReportLine] = []
    growth.growing(lines.append, tmp_path, 20)
    assert {type(line) for line in lines} == {Result, Size}
    assert all("20" in line.name for line in lines)
    with open_cache(tmp_path / "many") as cache:
        assert (cache.count()[0], len(cache.tally().usage)) == (20, 20)
        assert cache.admin.verify() == []


def _compared_once(compare: Any, *named: Any, **options: Any) -> Result:
    made: Result = compare(*named, **options | {"samples": 1, "calls": 1})
    return made
