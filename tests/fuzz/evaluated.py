"""What is fuzzed of the evaluator's inputs: configurations of models, measurements, results of another program."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path

import msgspec

from cache_engine.assets import model_configs
from cache_engine.errors import CorruptEntry, GemmCacheError, UsageError
from cache_engine.evaluator.catalogue.layers import Parallel, layers_of
from cache_engine.evaluator.catalogue.model_configs import read_config
from cache_engine.evaluator.cost import SearchMode
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import entry as results
from cache_engine.evaluator.results import reference
from cache_engine.evaluator.validation import Measurements, read_measurements, validate
from cache_engine.insight.passes import Step, operations

_CHIP = PRESETS["SG2262"]
_MOST_VALIDATED = 20


def config_seeds(_: Path) -> list[bytes]:
    """The configurations of the catalogue's models, one of each family, and one of a model that reads images too."""
    configs = msgspec.json.decode(model_configs().read_bytes(), type=dict[str, dict[str, object]])
    families = {str(config["model_type"]): config for config in configs.values()}
    of_images = {"model_type": "seer", "text_config": next(iter(families.values()))}
    return [msgspec.json.encode(config) for config in (*families.values(), of_images)]


def read_model(data: bytes, folder: Path) -> None:
    """Reads a configuration, lists the layers that it means, on one chip and on several, and what a pass computes."""
    path = folder / "config.json"
    path.write_bytes(data)
    with suppress(UsageError):
        model = read_config(path)
        for parallel in (Parallel(), Parallel(tensor=2), Parallel(tensor=2, expert=4, data=2)):
            with suppress(GemmCacheError):
                shapes = layers_of(model, parallel)
                assert all(min(shape.n, shape.k, shape.batch, shape.layers) >= 1 for shape in shapes)
                found = operations(shapes, Step(17), parallel)
                assert all(one.work.flops > 0 and one.calls > 0 for one in found)


def table_seeds(_: Path) -> list[bytes]:
    """Tables, with the names of types that frameworks use."""
    return [
        b"arch,M,N,K,latency_us\nH100,64,4096,7168,12.5\nh100_sxm,1,128,256,3\n",
        b"dtype,arch,M,N,K,latency_us,other\nfloat8_e4m3fn,H200,64,4096,7168,12.5,x\nbfloat16,B200,1,1,1,1e3,\n",
    ]


def read_table(data: bytes, folder: Path) -> None:
    """Reads a table, plain and compressed, and says how well the first of its rows are predicted."""
    for name, whole in (("some.csv", data), ("some.csv.gz", gzip.compress(data, 1)), ("other.csv.gz", data)):
        path = folder / name
        path.write_bytes(whole)
        with suppress(UsageError):
            for measured in read_measurements(path):
                _check_measured(measured)


def _check_measured(measured: Measurements) -> None:
    assert len(measured.m) == len(measured.n) == len(measured.k) == len(measured.latency_us) > 0
    assert len(measured.kept_out()) == len(measured.m)
    with suppress(GemmCacheError):
        for line in validate(measured.only(slice(_MOST_VALIDATED))):
            for errors in (line.model, line.roofline):
                assert all(math.isfinite(value) for value in asdict(errors).values())


def reference_seeds(_: Path) -> list[bytes]:
    """A file of the reference evaluator with one result, whose computed fields ``read_reference`` fills in."""
    architecture = {
        "chip_type": _CHIP.name, "num_cores": _CHIP.num_cores, "sram_kb": _CHIP.sram_bytes // 1024,
        "cube_m": _CHIP.cube_m, "cube_n": _CHIP.cube_n, "cube_k": _CHIP.cube_k,
        "tflops_int8": _CHIP.peak_flops / 1e12,
    }  # fmt: skip
    computed = dict.fromkeys(("latency_us", "compute_time_us", "memory_time_us"), 1.5)
    computed |= dict.fromkeys(("flops", "dram_traffic_bytes"), 1)
    computed |= dict.fromkeys(("arch_utilization", "effective_utilization"), 0.5)
    entry = {
        "shape": {"G": 1, "M": 64, "K": 7168, "N": 2112},
        "dtypes": {"input": "bf16", "output": "bf16"},
        "search_mode": {"tile_search": True, "partition_search": True},
        "result": computed
        | {"best_tile": [64, 64, 256], "best_loop_order": "mnk", "best_partition": [1, 1, _CHIP.num_cores, 1]},
        "metadata": {"timestamp": "2025-01-27T10:30:00Z", "search_time_ms": 1.5, "num_searched_tiles": 12},
    }
    file = {
        "version": "1.0.0", "cache_format_version": reference.FORMAT, "arch_fingerprint": "",
        "architecture": architecture, "cache_entries": {"hash_1": entry}, "statistics": {"total_entries": 1},
    }  # fmt: skip
    return [json.dumps(file).encode()]


def read_reference(data: bytes, _: Path) -> None:
    """The fingerprint of the architecture is made to fit, and all that is computed from a result's choices."""
    for whole in (data, _repaired(data)):
        reference.is_reference(whole)
        for chip in (None, _CHIP):
            with suppress(UsageError):
                hardware, entries, refused = reference.read_reference(whole, chip)
                assert all(reason for _, reason in refused)
                for one in entries:
                    with suppress(CorruptEntry):  # which refuses what is written, too
                        again = results.decode_entry(results.encode_entry(one), one.key())
                        assert (again.result, again.shape) == (one.result, one.shape)
                    assert hardware.num_cores == math.prod(one.result.partition.values())


def _repaired(data: bytes) -> bytes:
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        file = json.loads(data)
        described = json.dumps(file["architecture"], sort_keys=True).encode()
        file["arch_fingerprint"] = hashlib.md5(described, usedforsecurity=False).hexdigest()[:8]
        for entry in file["cache_entries"].values():
            with suppress(ValueError, TypeError, KeyError, AttributeError, ArithmeticError, GemmCacheError):
                _compute(entry)
        return json.dumps(file).encode()
    return data


def _compute(entry: dict[str, dict[str, object]]) -> None:
    theirs = msgspec.convert(entry, reference._Entry)
    s, searched = theirs.shape, theirs.search_mode
    problem = EvaluationProblem(s.M, s.N, s.K, s.G, theirs.dtypes.input, theirs.dtypes.output)
    mode = SearchMode(searched.tile_search, searched.partition_search).on(_CHIP, problem.dtype)
    found = reference._evaluation(theirs, problem, mode, _CHIP)
    ours = {field.name: getattr(found, field.name) for field in fields(found)}
    named = {"compute_time_us": "compute_us", "memory_time_us": "memory_us", "dram_traffic_bytes": "traffic_bytes"}
    for name in ("latency_us", "flops", "arch_utilization", "effective_utilization", *named):
        entry["result"][name] = ours.get(named.get(name, name), getattr(found, named.get(name, name)))
