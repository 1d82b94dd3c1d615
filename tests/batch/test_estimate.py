"""How long a batch of compiles takes: as many at a time as are asked for and have a slot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_cli import document


def test_an_estimate_counts_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, place = tmp_path / "table.csv", tmp_path / "store"
    table.write_text("n,k\n64,32\n72,32\n80,32\n")

    def seconds(jobs: int) -> float:
        options = ("warm", table, "--arch", "sm_90", "--m", "1-16", "--family", "simt", "--jobs", jobs, "--dry-run")
        return float(document(*options, store=place)["estimated_seconds"])

    assert seconds(2) == pytest.approx(seconds(1) / 2, rel=0.01)
    monkeypatch.setenv("GEMM_CACHE_COMPILE_SLOTS", "1")
    assert seconds(2) == seconds(1)
