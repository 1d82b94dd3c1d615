"""Documents about predicted latencies and the evaluator's stored results."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from cache_engine.errors import UsageError
from cache_engine.evaluator.chips import FACTORS
from cache_engine.evaluator.cost import SearchMode
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import is_to_validate
from cache_engine.evaluator.results.entry import Dtypes, Entry, Metadata, Shape
from cache_engine.evaluator.results.entry import Result as EntryResult
from cache_engine.model.outcome import in_json

if TYPE_CHECKING:
    from pathlib import Path

    from cache_engine.evaluator.calibrating import Calibrated as Found
    from cache_engine.evaluator.chips import Gpu
    from cache_engine.evaluator.hardware import Hardware
    from cache_engine.evaluator.results import Answer, Pruned, Taken
    from cache_engine.evaluator.validation import Validated


class ModeRow(msgspec.Struct, kw_only=True):
    """What is searched and counted; see ``SearchMode``."""

    tile_search: bool
    partition_search: bool
    reduce_partial_sums: bool
    compute_rate: float


class Evaluated(msgspec.Struct, kw_only=True):
    """What ``evaluate`` prints for an accelerator; see ``Evaluation``.

    Attributes:
        cached: whether the result was stored before.
        unkept: why it is not stored; empty when it is.
        validated: which version of the model had another result stored, and its latency; empty without one.
    """

    key: str
    chip: str
    arch_fingerprint: str
    model: str
    problem: EvaluationProblem
    mode: ModeRow
    latency_us: float
    compute_us: float
    memory_us: float
    flops: int
    traffic_bytes: int
    arch_utilization: float
    effective_utilization: float
    alignment_efficiency: float
    order: str
    searched_partitions: int
    searched_tiles: int
    tile: dict[str, int]
    partition: dict[str, int]
    cached: bool
    search_ms: float
    unkept: str
    validated: str


class Predicted(msgspec.Struct, kw_only=True):
    """What ``evaluate`` prints for a GPU; see ``Prediction``."""

    chip: str
    model: str
    problem: EvaluationProblem
    latency_us: float
    roofline_us: float
    tile_m: int
    tile_n: int
    split_k: int
    calibrated_on: str
    flops: int
    effective_utilization: float
    low_us: float
    high_us: float
    calibration: str


class AcceleratorRow(msgspec.Struct, kw_only=True):
    """An accelerator with results, and their statistics; or ``error`` when they cannot be read."""

    arch_fingerprint: str
    chip: str | UnsetType = UNSET
    evaluator: str | UnsetType = UNSET
    version: str | UnsetType = UNSET
    total_entries: int | UnsetType = UNSET
    created_at: float | UnsetType = UNSET
    last_updated: float | UnsetType = UNSET
    cache_hits: int | UnsetType = UNSET
    cache_misses: int | UnsetType = UNSET
    total_search_time_hours: float | UnsetType = UNSET
    corrupt_lines: int | UnsetType = UNSET
    error: str | UnsetType = UNSET


class Accelerators(msgspec.Struct, kw_only=True):
    """What ``evaluations ls`` prints."""

    architectures: list[AcceleratorRow]


class ResultRow(msgspec.Struct, kw_only=True):
    """A stored result, with its key; ``to_validate`` when another minor version of the model made it."""

    key: str
    shape: Shape
    dtypes: Dtypes
    search_mode: SearchMode
    result: EntryResult
    metadata: Metadata
    to_validate: bool


class ResultList(msgspec.Struct, kw_only=True):
    """What ``evaluations ls --chip`` prints."""

    arch_fingerprint: str
    total: int
    rows: list[ResultRow]


class ValidationReport(msgspec.Struct, kw_only=True):
    """What ``evaluations validate`` prints."""

    file: str
    kept_out: bool
    lines: list[Validated]


class ResultsExported(msgspec.Struct, kw_only=True):
    """What ``evaluations export`` prints."""

    file: str
    arch_fingerprint: str
    entries: int
    bytes: int


class RefusedResult(msgspec.Struct, kw_only=True):
    """A result that was not imported, and why."""

    key: str
    reason: str


class ResultsImported(msgspec.Struct, kw_only=True):
    """What ``evaluations import`` prints."""

    file: str
    arch_fingerprint: str
    taken: int
    present: int
    refused: list[RefusedResult]


class Pruning(msgspec.Struct, kw_only=True):
    """What ``evaluations prune`` prints; ``pruned`` is ``None`` after a dry run."""

    dry_run: bool
    victims: list[Pruned]
    pruned: int | None


class Calibrated(msgspec.Struct, kw_only=True):
    """What ``calibrate`` prints; see ``evaluator.calibrating.Calibrated``.

    Attributes:
        gpu: whose measurements they are; name: of the calibrated one.
        base: whose parameters the factors are of: the GPU's own, or ``all``.
        error_before, error_after: mean absolute error, as a share; after: of rows that the fit did not see.
        low, high: measured / predicted, between which are 68 %; inside: how many were, in fits without them.
        file: where it is saved; empty if it is not.
    """

    calibration: str
    gpu: str
    name: str
    source: str
    base: str
    rows: int
    factors: dict[str, float]
    error_before: float
    error_after: float
    bias_before: float
    bias_after: float
    low: float
    high: float
    inside: float
    better: bool
    file: str


# ---- From the engine's values ----


def evaluated(problem: EvaluationProblem, hardware: Hardware, mode: SearchMode, answer: Answer) -> Evaluated:
    """The document of an evaluation."""
    from cache_engine.evaluator.cost import EVALUATOR, MODEL_VERSION

    found = answer.evaluation
    return Evaluated(
        key=answer.key,
        chip=hardware.name,
        arch_fingerprint=hardware.fingerprint(),
        model=f"{EVALUATOR} {MODEL_VERSION}",
        problem=problem,
        mode=ModeRow(**asdict(mode)),
        tile=found.tile._asdict(),
        partition=found.partition._asdict(),
        cached=answer.cached,
        search_ms=answer.search_ms,
        unkept=in_json(answer.unkept),
        validated=_validated(answer),
        **{name: value for name, value in asdict(found).items() if not isinstance(value, tuple)},
    )


def _validated(answer: Answer) -> str:
    older = answer.older
    if older is None:
        return ""
    return f"model {older.model_version} had stored {older.latency_us:,.3f} µs; searched again"


def predicted(problem: EvaluationProblem, gpu: Gpu) -> Predicted:
    """The document of a GPU's prediction. Predicting takes no longer than a lookup, so nothing is stored."""
    from cache_engine.evaluator.gpu import EVALUATOR, MODEL_VERSION, predict

    prediction = predict(problem, gpu)
    return Predicted(
        chip=gpu.name,
        model=f"{EVALUATOR} {MODEL_VERSION}",
        problem=problem,
        flops=problem.flops,
        effective_utilization=problem.flops / (prediction.latency_us * 1e-6 * gpu.peak_of(problem.dtype)),
        **asdict(prediction),
    )


def result_row(key: str, entry: Entry) -> ResultRow:
    """The row of a stored result."""
    return ResultRow(
        key=key,
        shape=entry.shape,
        dtypes=entry.dtypes,
        search_mode=entry.search_mode,
        result=entry.result,
        metadata=entry.metadata,
        to_validate=is_to_validate(entry),
    )


def results_imported(file: str, taken: Taken) -> ResultsImported:
    """The document of an import."""
    return ResultsImported(
        file=file,
        arch_fingerprint=taken.fingerprint,
        taken=taken.taken,
        present=taken.present,
        refused=[RefusedResult(key=key, reason=reason) for key, reason in taken.refused],
    )


def calibrated(found: Found, gpu: str, file: Path | None) -> Calibrated:
    """The document of an outcome."""
    c = found.gpu.calibration
    if c is None:
        raise UsageError(f"{gpu} was not calibrated")
    return Calibrated(
        calibration=c.id,
        gpu=gpu,
        name=found.gpu.name,
        source=c.source,
        base=c.base,
        rows=c.rows,
        factors={name: getattr(c, name) for name in FACTORS},
        error_before=c.error_before,
        error_after=c.error_after,
        bias_before=found.bias_before,
        bias_after=found.bias_after,
        low=c.low,
        high=c.high,
        inside=found.inside,
        better=found.is_better,
        file="" if file is None else str(file.absolute()),
    )
