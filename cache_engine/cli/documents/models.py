"""Documents about whole models: what one pass costs on a chip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from cache_engine.cli.documents import filled
from cache_engine.evaluator.grouped import GroupedProblem

if TYPE_CHECKING:
    from cache_engine.evaluator.catalogue.layers import Parallel
    from cache_engine.insight.passes import ModelPass, Priced, Step


class GroupRow(msgspec.Struct, kw_only=True):
    """Experts that get the same number of rows."""

    rows: int
    count: int


class OperationRow(msgspec.Struct, kw_only=True):
    """One matrix multiplication of a pass, on one chip.

    Attributes:
        part: attention, dense, experts, lm_head, or other.
        m: rows of a product; of a grouped launch, the most.
        batch: products of a launch.
        groups: of a grouped launch whose products have unequal rows; else empty.
        calls: launches in a pass.
        latency_us, pass_us: of one launch, and of all in a pass.
        share: of the pass.
        flops, bytes: of all launches in a pass.
        bound_by: ``compute`` or ``memory``.
    """

    operation: str
    part: str
    m: int
    n: int
    k: int
    batch: int
    groups: list[GroupRow]
    calls: int
    latency_us: float
    pass_us: float
    share: float
    flops: int
    bytes: int
    bound_by: str
    effective_utilization: float


class LayerRow(msgspec.Struct, kw_only=True):
    """All of one layer's matrix multiplications, by kind of layer."""

    kind: str
    latency_us: float


class PassRow(msgspec.Struct, kw_only=True):
    """A pass on one chip; the totals are the sums of the operations.

    Attributes:
        model: the evaluator and its version.
    """

    chip: str
    model: str
    tokens: int
    operations: list[OperationRow]
    layers: list[LayerRow]
    pass_us: float
    flops: int
    bytes: int
    effective_utilization: float


class ModelEvaluated(msgspec.Struct, kw_only=True):
    """What ``evaluate`` prints for a model.

    Attributes:
        source: the file it was read from; empty for a model of the catalogue.
        phase, dtype, skew, sequences, alternatives: what was asked.
        tensor_parallel, expert_parallel, data_parallel: sizes; the passes are those of one chip.
    """

    model: str
    source: str
    phase: str
    dtype: str
    tensor_parallel: int
    expert_parallel: int
    data_parallel: int
    skew: float
    expert_counts: str
    sequences: int | None
    alternatives: Sequence[str]
    passes: list[PassRow]


# ---- From the engine's values ----


def model_evaluated(
    model: str, source: str, step: Step, counts: str, parallel: Parallel, passes: list[ModelPass]
) -> ModelEvaluated:
    """The document of a model's passes; ``counts`` is the file of the experts' counts, if any."""
    return filled(
        ModelEvaluated,
        step,
        model=model,
        source=source,
        tensor_parallel=parallel.tensor,
        expert_parallel=parallel.expert,
        data_parallel=parallel.data,
        expert_counts=counts,
        passes=[_pass_row(one) for one in passes],
    )


def _pass_row(one: ModelPass) -> PassRow:
    return filled(
        PassRow,
        one,
        chip=one.chip.name,
        model=one.predicted_by,
        operations=[_operation_row(row, one.pass_us) for row in one.rows],
        layers=[LayerRow(kind=kind, latency_us=latency) for kind, latency in one.layers().items()],
        bytes=one.moved_bytes,
        effective_utilization=one.utilization,
    )


def _operation_row(row: Priced, pass_us: float) -> OperationRow:
    operation = row.operation
    work = operation.work
    groups = work.groups if isinstance(work, GroupedProblem) else ()
    return filled(
        OperationRow,
        row,
        operation,
        work,
        operation=operation.name,
        groups=[GroupRow(rows=rows, count=count) for rows, count in groups],
        latency_us=row.cost.latency_us,
        share=row.pass_us / pass_us,
        bytes=row.moved_bytes,
        effective_utilization=row.utilization,
    )
