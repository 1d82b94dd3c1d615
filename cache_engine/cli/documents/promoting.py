"""The documents of ``promote``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from cache_engine.cli.documents import filled

if TYPE_CHECKING:
    from cache_engine.cache.demand.promotion import Candidate, PromotionPlan
    from cache_engine.model.outcome import Failure


class CandidateRow(msgspec.Struct, kw_only=True):
    """A kernel that could be compiled ahead, and the sum behind it.

    Attributes:
        instead: the kernel that serves now; ``None`` where a request would wait.
        launches, saved_gpu_seconds, wait_chance, net_seconds: over the horizon.
        pays_back_after_launches, pays_back_in_seconds: ``None`` where it never does.
        taken: whether it pays, and is within the budget.
    """

    kind: str
    key: str
    name: str
    m: int
    n: int
    k: int
    instead: str | None
    launches: float
    saved_gpu_seconds: float
    wait_chance: float
    compile_seconds: float
    price_seconds: float
    net_seconds: float
    pays_back_after_launches: float | None
    pays_back_in_seconds: float | None
    times: str
    taken: bool


class ChangeRow(msgspec.Struct, kw_only=True):
    """A kernel compiled ahead before that is demoted (``kind`` is ``demotion``), or promoted again (``promotion``).

    Attributes:
        forecast_seconds: what it is expected to save over the horizon.
        why: the sum, in words.
    """

    kind: str
    key: str
    name: str
    forecast_seconds: float
    price_seconds: float
    why: str


class FailedCandidate(msgspec.Struct, kw_only=True):
    """A kernel that could not be compiled or stored."""

    key: str
    reason: str


class Promoted(msgspec.Struct, kw_only=True):
    """What ``promote`` prints.

    Attributes:
        asked_kernels: how many kernels the demand needs.
        model: the model that the demand looks like; ``None`` where nothing is speculated.
        compile_records, compile_error: how many compiles their prediction is from, and its median error as a share.
        unpredicted: why launches cannot be timed here.
        compiled: how many were; ``None`` for a dry run.
        changes: what was compiled ahead before, and is demoted or promoted again; of a dry run, what would be.
    """

    horizon_seconds: float
    budget_seconds: float | None
    asked_kernels: int
    model: str | None
    compile_records: int
    compile_error: float | None
    unpredicted: str
    rows: list[CandidateRow]
    compiled: int | None
    failed: list[FailedCandidate]
    changes: list[ChangeRow]


def promoted(
    plan: PromotionPlan,
    taken: Sequence[Candidate],
    budget_s: float,
    failed: Sequence[tuple[Candidate, Failure]] | None,
) -> Promoted:
    """The document of a plan; of a dry run ``failed`` is ``None``."""
    keys = {one.selection.key for one in taken}
    return filled(
        Promoted,
        plan,
        horizon_seconds=plan.horizon_s,
        budget_seconds=_finite(budget_s),
        model=plan.model or None,
        compile_records=plan.compile_times.records,
        compile_error=plan.compile_times.error,
        rows=[_row(one, one.selection.key in keys) for one in plan.candidates],
        compiled=None if failed is None else len(taken) - len(failed),
        failed=[FailedCandidate(key=one.selection.key, reason=str(why)) for one, why in failed or ()],
        changes=[
            filled(
                ChangeRow,
                one,
                forecast_seconds=one.forecast_s,
                price_seconds=one.price_s,
                why=f"{one.reason}: {one.detail}",
            )
            for one in plan.changes
        ],
    )


def _row(one: Candidate, is_taken: bool) -> CandidateRow:
    value = one.value
    return filled(
        CandidateRow,
        one,
        one.selection,
        one.selection.problem,
        value,
        instead=one.instead or None,
        saved_gpu_seconds=value.saved_s,
        compile_seconds=value.compile_s,
        price_seconds=value.price_s,
        net_seconds=value.net_s,
        pays_back_after_launches=_finite(value.pays_back_after),
        pays_back_in_seconds=_finite(value.pays_back_in_s),
        times=one.time_from,
        taken=is_taken,
    )


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
