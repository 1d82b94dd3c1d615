"""Metrics in Prometheus's text format, as its own parser reads them."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cache_engine import GemmProblem, open_cache
from cache_engine.insight.monitoring import _EDGES, prometheus_text, write_to_textfile
from cache_engine.model.events import Statistics, Totals
from cache_engine.store.journal.spans import Spans, ceiling_s
from tests.cli.test_cli import run

PROBLEM = GemmProblem(64, 64, 64, arch="sm_90")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def _samples(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram"), family.name
        for sample in family.samples:
            place = (sample.name, tuple(sorted(sample.labels.items())))
            assert place not in found, "no sample may occur twice"
            found[place] = sample.value
    return found


def _statistics(totals: Totals) -> Statistics:
    return Statistics(3, 4096, 10, 10**6, 77, totals)


def test_every_metric_is_read_by_prometheuss_own_parser() -> None:
    spans = Spans()
    for ms in (0.002, 0.002, 0.5, 40.0):
        spans.add("disk", ms)
    spans.add("compile", 160.0)
    spans.add("module", 0.75)
    totals = Totals(
        hits={"memory": 7, "disk": 4}, misses=2, compiles=2, compile_us=320_000, promotions=3, demotions=1,
        spans=spans.take(),
    )  # fmt: skip
    found = _samples(prometheus_text(_statistics(totals)))
    assert found["gemm_cache_entries", ()] == 3
    assert found["gemm_cache_hits_total", (("tier", "memory"),)] == 7
    assert found["gemm_cache_misses_total", ()] == 2
    assert found["gemm_cache_compile_spent_seconds_total", ()] == 0.32
    assert found["gemm_cache_lookup_seconds_count", (("tier", "disk"),)] == 4
    assert found["gemm_cache_lookup_seconds_sum", (("tier", "disk"),)] == pytest.approx(0.040504)
    assert found["gemm_cache_compile_duration_seconds_count", ()] == 1
    assert found["gemm_cache_module_load_seconds_sum", ()] == pytest.approx(0.00075)
    assert (found["gemm_cache_promotions_total", ()], found["gemm_cache_demotions_total", ()]) == (3, 1)


def test_the_buckets_of_a_histogram_grow_to_its_count() -> None:
    spans = Spans()
    lengths_ms = (1e-6, 0.0002, 0.003, 0.04, 5.0, 600.0, 7e4, 8e9)
    for ms in lengths_ms:
        spans.add("lock", ms)
    found = _samples(prometheus_text(_statistics(Totals(spans=spans.take()))))
    buckets = [
        (float(dict(labels)["le"]), value)
        for (name, labels), value in found.items()
        if name == "gemm_cache_lock_wait_seconds_bucket"
    ]
    assert buckets == sorted(buckets)
    assert len(buckets) == len(_EDGES) + 1
    assert buckets[0][0] == ceiling_s(_EDGES[0])
    assert math.isinf(buckets[-1][0])
    assert buckets[-1][1] == len(lengths_ms)
    for edge, count in buckets:
        assert count == sum(ms / 1e3 < edge for ms in lengths_ms), "each edge is that of a bucket: none is divided"


def test_names_from_a_hostile_journal_cannot_break_a_line() -> None:
    hostile = 'x"} 9\n# TYPE evil counter\nevil 1\\'
    found = _samples(prometheus_text(_statistics(Totals(hits={hostile: 1}, failures={hostile: 2}))))
    assert found["gemm_cache_hits_total", (("tier", hostile),)] == 1
    assert not any(name.startswith("evil") for name, _ in found)


def test_a_file_is_replaced_whole_and_nothing_is_left(tmp_path: Path) -> None:
    target = tmp_path / "gemm_cache.prom"
    target.write_text("old\n")
    with open_cache(tmp_path / "store", durability="fast") as cache:
        cache.get_or_compile(PROBLEM)
        write_to_textfile(cache, target)
        found = _samples(target.read_text())
        assert found["gemm_cache_compiles_total", ()] == 1
        assert found["gemm_cache_compile_slots", ()] >= 1
        target.unlink()
        target.mkdir()
        (target / "in the way").touch()
        with pytest.raises(OSError, match=r"gemm_cache\.prom"):
            write_to_textfile(cache, target)
    assert sorted(os.listdir(tmp_path)) == ["gemm_cache.prom", "store"]


@pytest.mark.parametrize("target", ["", ".", "/"])
def test_a_folder_without_a_name_is_named_and_nothing_is_left(
    compiled_store: Path, tmp_path: Path, target: str
) -> None:
    for verb in (["stats", "--format", "prometheus", "--output"], ["pack", "export", "--force"]):
        done = run(*verb, target, store=compiled_store, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith(f"error: {target or '.'}: ")
    assert list(tmp_path.iterdir()) == [compiled_store]


def test_what_is_no_file_is_not_replaced_by_metrics(compiled_store: Path, tmp_path: Path) -> None:
    target = tmp_path / "gemm_cache.prom"
    os.mkfifo(target)
    done = run("stats", "--format", "prometheus", "--output", str(target), store=compiled_store)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {target} is a device, pipe or socket, not a file; give another name\n"
    assert target.is_fifo()


def test_the_verb_prints_the_same_and_writes_files(compiled_store: Path, tmp_path: Path) -> None:
    target = tmp_path / "gemm_cache.prom"
    done = run("stats", "--format", "prometheus", store=compiled_store)
    assert (done.returncode, done.stderr) == (0, "")
    quiet = run("stats", "--format", "prometheus", "--output", str(target), store=compiled_store)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    printed, written = _samples(done.stdout), _samples(target.read_text())
    assert printed.keys() == written.keys()
    assert printed["gemm_cache_entries", ()] == written["gemm_cache_entries", ()] == 4
    refused = run("stats", "--format", "prometheus", "--json", store=compiled_store)
    assert refused.returncode == 2
    nowhere = run("stats", "--format", "prometheus", "--output", str(tmp_path / "no" / "f.prom"), store=compiled_store)
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (2, 1)
    assert "no/f.prom" in nowhere.stderr
