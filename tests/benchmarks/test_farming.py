"""The benchmark of a farm: what it compares, and that it says what it lacks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.farm import OVERHEAD_GOAL_S, TOGETHER_GOAL, farming
from benchmarks.results import ReportLine, Result
from cache_engine.errors import ToolMissing
from tests.remote.redis_server import program

pytest.importorskip("celery")


def test_without_a_server_of_redis_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="redis-server, valkey-server"):
        farming(lambda line: pytest.fail(f"measured {line}"), tmp_path / "farm")


@pytest.mark.soak
def test_workers_are_compared_with_compiling_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.path.dirname(program()), prepend=os.pathsep)
    lines: list[ReportLine] = []
    farming(lines.append, tmp_path / "farm", kernels=1, rounds=1)
    way, together = lines
    assert isinstance(way, Result)
    assert isinstance(together, Result)
    assert (way.beside, way.goal_seconds) == ("compiling it", OVERHEAD_GOAL_S)
    assert (together.beside, together.goal_ratio) == ("by one", TOGETHER_GOAL)
    assert together.beside_seconds == pytest.approx(way.beside_seconds + way.seconds)
