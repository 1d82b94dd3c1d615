"""Reads files of results, ours or those of the public reference evaluator (format 2025.01), and writes the latter.

The reference's file says less about the chip than our model needs. So a chip is found by its name, or given, and each
field in the file must agree with it. Nothing in a result is trusted: everything is computed again from its tile, loop
order and partition, and a result with other numbers is refused. docs/evaluator.md lists the fields.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import asdict

from cache_engine.errors import CorruptEntry, GemmCacheError, UsageError
from cache_engine.evaluator import cost
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results.entry import Dtypes, Entry, Shape, decode_entry, encode_entry, make_entry
from cache_engine.store.results import UNREADABLE, Snapshot, check_names, decode_snapshot

FORMAT = "2025.01"

_LAST_SECOND = 253_402_300_799  # of the year 9999: the last that an ISO 8601 time of four digits can say
_AS_CLOSE = 1e-6  # what JSON or a rounding to a few digits may change
_NAME_IT = "name the chip that it is about (--chip, or the field Chip of a reference file)"


class _Architecture(msgspec.Struct, forbid_unknown_fields=True):
    chip_type: str
    num_cores: int
    sram_kb: float
    cube_m: int
    cube_n: int
    cube_k: int
    tflops_int8: float


class _Result(msgspec.Struct, forbid_unknown_fields=True):
    latency_us: float
    compute_time_us: float
    memory_time_us: float
    flops: int
    dram_traffic_bytes: int
    arch_utilization: float
    effective_utilization: float
    best_tile: tuple[int, int, int]
    best_loop_order: str
    best_partition: tuple[int, int, int, int]


class _Searched(msgspec.Struct, forbid_unknown_fields=True):
    tile_search: bool
    partition_search: bool


class _Metadata(msgspec.Struct, forbid_unknown_fields=True):
    timestamp: str
    search_time_ms: float
    num_searched_partitions: int = 0
    num_searched_tiles: int = 0


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    shape: Shape
    dtypes: Dtypes
    search_mode: _Searched
    result: _Result
    metadata: _Metadata


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: str
    cache_format_version: str
    arch_fingerprint: str
    architecture: msgspec.Raw
    cache_entries: dict[str, msgspec.Raw]
    statistics: dict[str, Any] = {}


Contents = tuple[Hardware, list[Entry], list[tuple[str, str]], Snapshot | None]


def read_results(data: bytes, chip: Hardware | None = None) -> Contents:
    """The accelerator, its results, refused keys with the reason, and the file itself if it is ours.

    The arguments and errors are those of ``Evaluations.import_file``.
    """
    if is_reference(data):
        check_names(data)
        return (*read_reference(data, chip), None)
    theirs = decode_snapshot(data)
    check_names(data)
    if theirs.evaluator != cost.EVALUATOR:
        raise UsageError(
            f"the results come from evaluator {theirs.evaluator[:40]!r}; only results of {cost.EVALUATOR} are stored"
        )
    hardware = Hardware.from_dict(theirs.architecture, "architecture")
    if theirs.arch_fingerprint not in ("", hardware.fingerprint()):
        raise UsageError(
            f"arch_fingerprint {theirs.arch_fingerprint[:40]!r} is not that of the file's architecture, which is "
            f"{hardware.fingerprint()}; leave it empty if another tool wrote the file"
        )
    entries, refused = [], []
    for name, raw in theirs.cache_entries.items():
        try:
            entries.append(decode_entry(raw))
        except CorruptEntry as error:
            refused.append((name, str(error)))
    return hardware, entries, refused, theirs


def is_reference(data: bytes) -> bool:
    """Whether a file says that it has the reference's format."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any]).get("cache_format_version") == FORMAT
    except UNREADABLE:
        return False


def read_reference(data: bytes, chip: Hardware | None) -> tuple[Hardware, list[Entry], list[tuple[str, str]]]:
    """The chip, the results, and the name and reason of each result that is refused.

    Args:
        chip: the chip of the results; by default the known one that ``chip_type`` names.

    Raises:
        UsageError: naming the field that is missing, unknown, or disagrees with the chip.
    """
    try:
        file = msgspec.json.decode(data, type=_File)
        theirs = msgspec.json.decode(file.architecture, type=_Architecture)
    except UNREADABLE as error:
        raise UsageError(f"the file is not of format {FORMAT}: {error}") from error
    hardware = _chip_of(file, theirs, chip)
    entries, refused = [], []
    for name, raw in file.cache_entries.items():
        try:
            entries.append(_entry_of(msgspec.json.decode(raw, type=_Entry), hardware))
        except (*UNREADABLE, GemmCacheError, ArithmeticError, ValueError) as error:
            refused.append((name, str(error)))
    return hardware, entries, refused


def write_reference(hardware: Hardware, entries: Iterable[Entry]) -> tuple[bytes, int]:
    """The file of an accelerator's results, and the number of results in it.

    A result that counts partial sums, or has a rate of its own, is left out, because the format has no place for these.
    """
    architecture = asdict(_described(hardware))
    written = {
        f"hash_{hashlib.sha256(entry.key().encode()).hexdigest()[:16]}": _in_their_terms(entry)
        for entry in entries
        if not entry.search_mode.reduce_partial_sums and entry.search_mode.compute_rate == 1
    }
    file = {
        "version": cost.MODEL_VERSION,
        "cache_format_version": FORMAT,
        "arch_fingerprint": _their_fingerprint(architecture),
        "architecture": architecture,
        "cache_entries": written,
        "statistics": {"total_entries": len(written)},
    }
    return msgspec.json.encode(file), len(written)


def _described(chip: Hardware) -> _Architecture:
    """A chip's description in the fields of the reference's file."""
    tflops = chip.peak_flops * chip.rate_of("int8") / 1e12
    cube = (chip.cube_m, chip.cube_n, chip.cube_k)
    return _Architecture(chip.name, chip.num_cores, chip.sram_bytes / 1024, *cube, tflops)


def _their_fingerprint(architecture: dict[str, Any]) -> str:
    described = json.dumps(architecture, sort_keys=True)
    return hashlib.md5(described.encode(), usedforsecurity=False).hexdigest()[:8]


def _in_their_terms(entry: Entry) -> _Entry:
    searched, made = entry.search_mode, entry.metadata
    at = datetime.fromtimestamp(min(made.timestamp, _LAST_SECOND), UTC).isoformat()
    return _Entry(
        entry.shape,
        entry.dtypes,
        _Searched(searched.tile_search, searched.partition_search),
        _their_result(entry.evaluation()),
        _Metadata(at, made.search_time_ms, made.num_searched_partitions, made.num_searched_tiles),
    )


def _their_result(found: cost.Evaluation) -> _Result:
    times = (found.latency_us, found.compute_us, found.memory_us)
    shares = (found.arch_utilization, found.effective_utilization)
    return _Result(*times, found.flops, found.traffic_bytes, *shares, found.tile, found.order, found.partition)


def _chip_of(file: _File, theirs: _Architecture, chip: Hardware | None) -> Hardware:
    if file.version.partition(".")[0] != "1":
        raise UsageError(f"version is {file.version[:20]!r}; results of model 1 alone can be imported")
    if file.arch_fingerprint != _their_fingerprint(json.loads(bytes(file.architecture))):
        raise UsageError(f"arch_fingerprint {file.arch_fingerprint[:40]!r} is not that of the file's architecture")
    hardware = chip or PRESETS.get(theirs.chip_type.upper())
    if hardware is None:
        raise UsageError(
            f"chip_type {theirs.chip_type[:40]!r} is not known, and the file does not say its bandwidth; {_NAME_IT}"
        )
    for name, value in asdict(_described(hardware)).items():
        stated = getattr(theirs, name)
        if name != "chip_type" and not math.isclose(stated, value, rel_tol=1e-3):
            raise UsageError(
                f"architecture.{name} is {stated:g} in the file, and {value:g} for {hardware.name}; {_NAME_IT}"
            )
    return hardware


def _entry_of(theirs: _Entry, hardware: Hardware) -> Entry:
    s, searched, made = theirs.shape, theirs.search_mode, theirs.metadata
    problem = EvaluationProblem(s.M, s.N, s.K, s.G, theirs.dtypes.input, theirs.dtypes.output)
    mode = cost.SearchMode(searched.tile_search, searched.partition_search)
    found = _evaluation(theirs, problem, mode.on(hardware, problem.dtype), hardware)
    for name, computed in asdict(_their_result(found)).items():
        stated = getattr(theirs.result, name)
        # The choice is what all else was computed from.
        if not name.startswith("best_") and not math.isclose(stated, computed, rel_tol=_AS_CLOSE):
            raise UsageError(f"{name} is {stated:g}, and with its tile, order and partition it is {computed:g}")
    entry = make_entry(problem, mode, found, made.search_time_ms, _seconds(made.timestamp))
    return decode_entry(encode_entry(entry))  # so that no reader rejects its numbers


def _evaluation(
    theirs: _Entry, problem: EvaluationProblem, mode: cost.SearchMode, hardware: Hardware
) -> cost.Evaluation:
    """The model's result for the tile (m, n, k), loop order and partition (g, m, n, k) of a result in the file."""
    r, made = theirs.result, theirs.metadata
    if r.best_loop_order not in cost.ORDERS:
        raise UsageError(f"best_loop_order is {r.best_loop_order[:20]!r}; it must be one of: {', '.join(cost.ORDERS)}")
    if min(*r.best_tile, *r.best_partition) < 1:
        raise UsageError("best_tile and best_partition must have whole numbers above 0")
    cores = math.prod(r.best_partition)
    if cores != hardware.num_cores:
        raise UsageError(f"best_partition is of {cores:,} cores; {hardware.name} has {hardware.num_cores:,}")
    partition, tile = cost.Partition(*r.best_partition), cost.Tile(*r.best_tile)
    _, block = cost.nominal_block(problem, partition)
    tiling = cost.Tiling(
        tile, r.best_loop_order, cost.traffic(block, tile, r.best_loop_order, problem.in_bytes, problem.out_bytes)
    )
    return cost.describe(
        hardware, mode, problem, partition, tiling, (made.num_searched_partitions, made.num_searched_tiles)
    )


def _seconds(timestamp: str) -> float:
    """The seconds since 1970 of an ISO 8601 time, which is in UTC if it names no zone."""
    try:
        time = datetime.fromisoformat(timestamp)
    except ValueError as error:
        raise UsageError(f"timestamp is {timestamp[:40]!r}; it must be like 2025-01-27T10:30:00Z") from error
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
