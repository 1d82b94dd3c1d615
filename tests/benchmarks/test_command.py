"""``python -m benchmarks``: each benchmark runs, and its document says what was compared with what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cache_engine.settings.extras import how_to_install
from tests.benchmarks.running import run
from tests.helpers import needs_host_compiler


@pytest.mark.soak
def test_bench_store_compares_the_store_with_its_peers(place: Path) -> None:
    """Small, and without regard for the goals: times are no matter for tests."""
    done = run("store", "--entries", "20", "--json", store=place)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    names = [result["name"] for result in measured["results"]]
    for expected in (
        "memory hit",
        "disk hit",
        "key of",
        "open a store of 200",
        "publish, durable",
        "full lookup",
        "pack import, 20",
    ):
        assert any(name.startswith(expected) for name in names), expected
    assert not any("rows" in name or name.startswith(("import", "from")) for name in names)
    for line in (*measured["results"], *measured["sizes"]):
        goals = [line.get("goal_seconds"), line["goal_ratio"]]
        assert (line["met"] is None) == (goals == [None, None])
        assert line["ratio"] > 0
    sizes = {line["name"]: line["size_bytes"] for line in measured["sizes"]}
    parts = [sizes[f"stored per kernel: {part}"] for part in ("cubin", "ptx", "source", "log", "record")]
    header = 44
    assert sizes["stored per kernel, all of it, mean of 20"] == pytest.approx(sum(parts) + header)
    assert sizes["100 kernels (mean × 100)"] == pytest.approx(100 * (sum(parts) + header))
    left_out = {line["name"] for line in measured["left_out"]}
    references = {result["beside"] for result in measured["results"]}
    for peer, seen in (
        ("diskcache", "diskcache get (unverified)"),
        ("Triton", "triton.compile, hit"),
        ("cuda.core", "cuda.core key, get (unverified)"),
    ):
        assert (peer in left_out) != (seen in references)
    assert not place.exists()


@pytest.mark.soak
@needs_host_compiler
def test_bench_compile_compares_nvrtc_with_nvcc(place: Path) -> None:
    done = run("compile", "--json", store=place)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert [result["beside"] for result in measured["results"]] == [
        *["nvcc, same source"] * 2,
        "a tensor_core kernel, nvrtc",
    ]
    assert measured["results"][0]["goal_seconds"] == 0.2
    assert (measured["sizes"], measured["left_out"]) == ([], [])


def test_bench_pages_measures_every_query_of_the_pages(place: Path) -> None:
    done = run("pages", "--entries", "20", "--rows", "20", "--json", store=place)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert any(result["name"].startswith("sync of 20") for result in measured["results"])
    assert not any("disk hit" in result["name"] for result in measured["results"])
    assert (measured["sizes"], measured["left_out"]) == ([], [])


@pytest.mark.soak
def test_bench_evaluator_measures_searching_keeping_and_loading(place: Path) -> None:
    done = run("evaluator", "--entries", "20", "--json", store=place)
    assert done.returncode == 0, done.stderr
    names = [result["name"] for result in json.loads(done.stdout)["results"]]
    for expected in ("full search, mean of 240", "full search, 99th", "table of 672, cold", "table of 672, cached"):
        assert any(name.startswith(expected) for name in names), expected
    assert {"load 20 results", "load 100 results", "one put, durable, 100 stored"} <= set(names)
    assert not place.exists()


@pytest.mark.soak
def test_bench_measures_the_installed_peers_and_reports_the_missing_ones(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cuda").mkdir()
    for module in ("triton", "diskcache", "cuda/core"):
        (tmp_path / f"{module}.py").write_text("raise ImportError('not here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run("all", "--entries", "10", "--rows", "20", store=place)
    assert done.returncode == 0, done.stderr
    for peer in ("Triton", "cuda.core", "diskcache"):
        assert f"no reference {peer}: not here; run: {how_to_install('bench')}" in done.stdout
    for line in ("import cache_engine", "nvcc", "disk hit", "first page", "≤ 3×", "≤ 3 µs"):
        assert line in done.stdout
