"""Files of the public reference evaluator: each field is mapped, checked against the chip, and named when wrong."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cache_engine.errors import CorruptEntry, UsageError
from cache_engine.evaluator.cost import SearchMode
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.search import evaluate
from cache_engine.store.disk import open_store
from cache_engine.store.layout import StoreLayout

CHIP = PRESETS["SG2262"]
PROBLEM = EvaluationProblem(64, 2112, 7168)
OWN = replace(CHIP, name="Own", num_cores=16)


def theirs(hardware: Hardware = CHIP, **changes: Any) -> dict[str, Any]:
    """A file as the reference's design document shows it, with one result of ours in its terms."""
    architecture = {
        "chip_type": hardware.name,
        "num_cores": hardware.num_cores,
        "sram_kb": hardware.sram_bytes // 1024,
        "cube_m": hardware.cube_m,
        "cube_n": hardware.cube_n,
        "cube_k": hardware.cube_k,
        "tflops_int8": round(hardware.peak_flops / 1e12),
    } | changes
    found = evaluate(PROBLEM, hardware)
    entry = {
        "shape": {"G": 1, "M": 64, "K": 7168, "N": 2112},
        "dtypes": {"input": "bf16", "output": "bf16"},
        "search_mode": {"tile_search": True, "partition_search": True},
        "result": {
            "latency_us": found.latency_us,
            "compute_time_us": found.compute_us,
            "memory_time_us": found.memory_us,
            "flops": found.flops,
            "dram_traffic_bytes": found.traffic_bytes,
            "arch_utilization": found.arch_utilization,
            "effective_utilization": found.effective_utilization,
            "best_tile": list(found.tile),
            "best_loop_order": found.order,
            "best_partition": list(found.partition),
        },
        "metadata": {"timestamp": "2025-01-27T10:30:00Z", "search_time_ms": 115000, "num_searched_tiles": 12},
    }
    digest = hashlib.md5(json.dumps(architecture, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
    return {
        "version": "1.0.0",
        "cache_format_version": "2025.01",
        "arch_fingerprint": digest[:8],
        "architecture": architecture,
        "cache_entries": {"hash_12345abc": entry},
        "statistics": {"total_entries": 1, "created_at": "2025-01-20T08:00:00Z"},
    }


def result_of(file: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = file["cache_entries"]["hash_12345abc"]
    return entry


def test_a_result_of_theirs_is_the_answer_from_then_on(layout: StoreLayout) -> None:
    with Evaluations(layout) as kept:
        taken = kept.import_file(json.dumps(theirs(), indent=2).encode())
        assert (taken.fingerprint, taken.taken, taken.present, taken.refused) == (CHIP.fingerprint(), 1, 0, ())
        answer = kept.evaluate(PROBLEM, CHIP)
        expected = evaluate(PROBLEM, CHIP)
        assert answer.cached
        assert replace(answer.evaluation, searched_partitions=0, searched_tiles=0) == replace(
            expected, searched_partitions=0, searched_tiles=0
        )
        assert (answer.search_ms, answer.evaluation.searched_tiles) == (115000, 12)
        ((_, entry),) = kept.entries(CHIP.fingerprint())
        assert entry.metadata.timestamp == 1737973800
        assert entry.search_mode == SearchMode()
        assert kept.import_file(json.dumps(theirs()).encode()).present == 1


@pytest.mark.parametrize("hardware", [CHIP, OWN, replace(OWN, sram_bytes=1_000_001, rates=(("int8", 2.0),))])
def test_an_export_in_their_format_is_read_back_equal(tmp_path: Path, hardware: Hardware) -> None:
    problems = [PROBLEM, EvaluationProblem(100, 72, 40, 3, "int8", "fp32")]
    modes = [SearchMode(tiles, partitions) for tiles in (True, False) for partitions in (True, False)]
    first, second = open_store(tmp_path / "first"), open_store(tmp_path / "second")
    with Evaluations(first) as kept:
        for problem in problems:
            for mode in (*modes, SearchMode(reduce_partial_sums=True), SearchMode(compute_rate=2)):
                kept.evaluate(problem, hardware, mode)
        data, written = kept.export_reference(hardware.fingerprint())
        before = dict(kept.entries(hardware.fingerprint()))
    assert written == len(problems) * len(modes) == len(json.loads(data)["cache_entries"])
    with Evaluations(second) as kept:
        taken = kept.import_file(data, hardware)
        assert (taken.taken, taken.refused) == (written, ())
        for key, entry in kept.entries(hardware.fingerprint()):
            assert entry.evaluation() == before[key].evaluation()
            assert entry.metadata.timestamp == pytest.approx(before[key].metadata.timestamp, abs=1e-5)
            assert entry.metadata.search_time_ms == before[key].metadata.search_time_ms


def test_a_chip_with_its_own_rate_of_int8_has_that_rate(layout: StoreLayout) -> None:
    doubled = Hardware.from_dict({**OWN.to_dict(), "rates": {"int8": 2}})
    data = json.dumps(theirs(OWN, tflops_int8=2 * round(OWN.peak_flops / 1e12))).encode()
    with Evaluations(layout) as kept:
        with pytest.raises(UsageError, match="tflops_int8"):
            kept.import_file(data, OWN)
        assert kept.import_file(data, doubled).taken == 1


def test_another_chip_is_given(layout: StoreLayout) -> None:
    data = json.dumps(theirs(OWN)).encode()
    with Evaluations(layout) as kept:
        with pytest.raises(UsageError, match=r"chip_type 'Own' is not known.*--chip, or the field"):
            kept.import_file(data)
        assert kept.import_file(data, OWN).taken == 1
        assert kept.fingerprints() == [OWN.fingerprint()]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_cores": 32}, "architecture.num_cores is 32 in the file, and 64"),
        ({"sram_kb": 8192}, "architecture.sram_kb is 8192 in the file, and 2048"),
        ({"cube_n": 16}, "architecture.cube_n is 16"),
        ({"tflops_int8": 256}, "architecture.tflops_int8 is 256 in the file, and 384"),
        ({"lanes": 3}, "unknown field `lanes`"),
    ],
)
def test_an_architecture_that_disagrees_is_refused_by_its_field(
    layout: StoreLayout, changes: dict[str, Any], named: str
) -> None:
    with Evaluations(layout) as kept:
        with pytest.raises(UsageError, match=named):
            kept.import_file(json.dumps(theirs(**changes)).encode())
        assert kept.fingerprints() == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"arch_fingerprint": "a3f5b9c2"}, "arch_fingerprint 'a3f5b9c2'"),
        ({"version": "2.0.0"}, "version is '2.0.0'"),
        ({"cache_entries": []}, r"\$\.cache_entries"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused(layout: StoreLayout, changes: dict[str, Any], named: str) -> None:
    with Evaluations(layout) as kept, pytest.raises(UsageError, match=named):
        kept.import_file(json.dumps({**theirs(), **changes}).encode())


def test_a_name_that_occurs_twice_is_refused(layout: StoreLayout) -> None:
    text = json.dumps(theirs()).replace('"statistics":', '"version": "1.0.0", "statistics":')
    with Evaluations(layout) as kept, pytest.raises(CorruptEntry, match="'version' twice"):
        kept.import_file(text.encode())


@pytest.mark.parametrize(
    ("part", "name", "value", "reason"),
    [
        ("result", "latency_us", 123.45, "latency_us is 123.45, and"),
        ("result", "compute_time_us", 1.0, "compute_time_us is 1, and"),
        ("result", "flops", 7, "flops is 7, and"),
        ("result", "dram_traffic_bytes", 7, "dram_traffic_bytes is 7, and"),
        ("result", "best_loop_order", "kmn", "best_loop_order is 'kmn'"),
        ("result", "best_tile", [0, 16, 16], "best_tile and best_partition"),
        ("result", "best_tile", [16, 16], "best_tile"),
        ("result", "best_partition", [1, 8, 4, 1], "best_partition is of 32 cores"),
        ("result", "energy_uj", 3, "unknown field `energy_uj`"),
        ("shape", "M", 0, "m is 0"),
        ("dtypes", "input", "fp7", "unknown dtype 'fp7'"),
        ("metadata", "timestamp", "yesterday", "timestamp is 'yesterday'"),
        ("metadata", "timestamp", "0001-01-01T00:00:00Z", "timestamp"),
    ],
)
def test_a_result_that_cannot_be_right_is_refused_by_its_field(
    layout: StoreLayout, part: str, name: str, value: object, reason: str
) -> None:
    file = theirs()
    result_of(file)[part][name] = value
    with Evaluations(layout) as kept:
        taken = kept.import_file(json.dumps(file).encode())
    ((refused, why),) = taken.refused
    assert (taken.taken, refused) == (0, "hash_12345abc")
    assert reason in why
