"""On a real GPU: timings are stored, and choose configs from then on.

python -m pytest tests/gpu -m gpu
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cache_engine.cache.cache import Cache
from cache_engine.gpu.probe import gpu
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.measurement import COST_MODEL, TUNED

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not isinstance(gpu(), DeviceFingerprint), reason=f"needs a GPU: {gpu()}"),
]

PROBLEM = GemmProblem(64, 1024, 2048)


def test_a_timing_is_stored_as_measured(cache: Cache) -> None:
    from cache_engine.gpu.timer import time_kernel

    kernel = cache.get_or_compile(PROBLEM)
    timing = time_kernel(kernel.cubin, kernel.record.name, kernel.launch, kernel.problem)
    assert cache.keep_timing(kernel, timing) is None
    (kept,) = cache.timings
    assert (kept.key, kept.device, kept.config_from) == (kernel.key, gpu(), COST_MODEL)
    assert (kept.median_us, kept.verified) == (timing.median_us, True)
    assert cache.select(cache.targeted(PROBLEM)).config_from.startswith("measured on ")


def test_tuning_measures_every_config_and_the_fastest_serves(cache: Cache) -> None:
    from cache_engine.batch.tuning import candidates, tune

    families = {cache.select(cache.targeted(PROBLEM)).family.name, "tensor_core", "simt"}
    done = tune(cache, candidates(cache, PROBLEM, sorted(families), top=4))
    assert [one.trouble for one in done] == [None] * 4 * len(families)
    kept = list(cache.timings)
    assert (len(kept), {one.config_from for one in kept}) == (len(done), {TUNED})
    best = min(done, key=lambda one: one.timing.median_us if one.timing else float("inf"))
    served = cache.select(cache.targeted(PROBLEM))
    assert served.key == best.candidate.selection.key
    assert served.config_from.startswith("measured on ")
    assert cache.get_or_compile(PROBLEM).tier == "memory"


def test_time_and_tune_on_the_command_line_store_their_timings(tmp_path: Path) -> None:
    from cache_engine.cli.main import commands

    store = tmp_path / "store"

    def document(*arguments: str, store: Path) -> dict[str, Any]:
        done = CliRunner().invoke(commands, ["--store", str(store), *arguments, "--json"])
        assert done.exit_code == 0, done.output
        read: dict[str, Any] = json.loads(done.stdout)
        return read

    timed = document("time", "64", "1024", "2048", store=store)
    assert (timed["verified"], timed["unkept"]) == (True, "")
    tuned = document("tune", "64", "1024", "2048", "--top", "3", store=store)
    assert (tuned["failed"], len(tuned["candidates"])) == (0, 3)
    assert all(one["verified"] and one["ratio"] > 0 for one in tuned["candidates"])
    fastest = min(tuned["candidates"], key=lambda one: float(one["median_us"]))
    assert tuned["chosen"]["key"] == fastest["key"]
    listed = document("timings", store=store)
    assert listed["total"] == 4
    assert {row["device"] for row in listed["rows"]} == {timed["device"]}
    assert document("explain", "64", "1024", "2048", store=store)["key"] == fastest["key"]
