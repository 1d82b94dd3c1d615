"""The documents of ``replay``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from benchmarks.replay.costs import Cost
    from benchmarks.replay.evictions import Played
    from benchmarks.replay.kernels import Kernels
    from benchmarks.replay.simulation import Outcome
    from benchmarks.replay.stored_traces import Stored
    from benchmarks.replay.traces import Trace


class ReplayRow(msgspec.Struct, kw_only=True):
    """The outcome of one policy; see ``playing.Outcome``.

    Attributes:
        ratio, after_ratio: the cost in that of the optimum, with and without what was compiled before the server was
            ready; ``None`` where the optimum costs nothing.
        stored_bytes: of its kernels, by the cost of one.
    """

    load: float
    start: str
    policy: str
    steps: int
    distinct_m: int
    busy_seconds: float
    end_seconds: float
    kernels: int
    compiled_before: int
    compiled_waited_for: int
    compiled_behind: int
    compile_seconds: float
    stall_seconds: float
    request_stall_seconds: float
    stall_p99_seconds: float
    first_token_p50_seconds: float
    first_token_p99_seconds: float
    lost_gpu_seconds: float
    cost_gpu_seconds: float
    after_ready_gpu_seconds: float
    optimum_gpu_seconds: float
    ratio: float | None
    after_ratio: float | None
    stored_bytes: float
    wanted_share: float
    other_share: float
    waited_share: float


class Replayed(msgspec.Struct, kw_only=True):
    """The document that ``replay`` prints.

    Attributes:
        gpu_times: what predicted them.
        compile_seconds, kernel_bytes: of one kernel, by ``compile_from``.
        left_out: shapes of the model that are not replayed, with the reason.
        seconds: that the replay took.
    """

    trace: str
    requests: int
    duration_seconds: float
    model: str
    arch: str
    dtype: str
    gpu: str
    gpu_times: str
    compile_seconds: float
    kernel_bytes: float
    compile_from: str
    slots: int
    token_budget: int
    sequences: int
    horizon_seconds: float
    ahead_seconds: float
    left_out: list[str]
    rows: list[ReplayRow]
    seconds: float


def replay_row(one: Outcome, load: float, cost: Cost) -> ReplayRow:
    """The row of an outcome."""
    return ReplayRow(
        load=load,
        start=one.start,
        policy=one.policy,
        steps=one.steps,
        distinct_m=one.distinct_m,
        busy_seconds=one.busy_s,
        end_seconds=one.end_s,
        kernels=one.kernels,
        compiled_before=one.before,
        compiled_waited_for=one.waited,
        compiled_behind=one.behind,
        compile_seconds=one.compile_s,
        stall_seconds=one.stall_s,
        request_stall_seconds=one.request_stall_s,
        stall_p99_seconds=one.stall_p99_s,
        first_token_p50_seconds=one.first_token_p50_s,
        first_token_p99_seconds=one.first_token_p99_s,
        lost_gpu_seconds=one.lost_s,
        cost_gpu_seconds=one.cost_s,
        after_ready_gpu_seconds=one.after_s,
        optimum_gpu_seconds=one.optimum_s,
        ratio=one.ratio if math.isfinite(one.ratio) else None,
        after_ratio=one.after_ratio if math.isfinite(one.after_ratio) else None,
        stored_bytes=one.kernels * cost.stored_bytes,
        wanted_share=one.best,
        other_share=one.other,
        waited_share=one.late,
    )


def replayed(
    trace: Trace, kernels: Kernels, cost: Cost, rows: Sequence[ReplayRow], asked: dict[str, object]
) -> Replayed:
    """The document.

    Args:
        asked: the other fields, by name.
    """
    return msgspec.convert(
        {
            **asked,
            "requests": len(trace),
            "duration_seconds": trace.arrivals_s[-1],
            "gpu_times": kernels.predicted_by,
            "compile_seconds": cost.compile_s,
            "kernel_bytes": cost.stored_bytes,
            "compile_from": cost.source,
            "left_out": list(kernels.left_out),
            "rows": [msgspec.structs.asdict(row) for row in rows],
        },
        Replayed,
    )


class EvictionRow(msgspec.Struct, kw_only=True):
    """The cost of an order of eviction at one size; see ``evictions.Played``."""

    order: str
    size_bytes: int
    hit_rate: float | None
    compile_seconds: float
    again_seconds: float
    evictions: int


class ReplayedStore(msgspec.Struct, kw_only=True):
    """The document that ``replay journal`` prints.

    Attributes:
        since: when counting began, seconds since 1970; ``None`` where nothing was counted.
        kernels: how many serve the requests, and how many of them are
        predicted_kernels: not in the store.
        needed_bytes: what all of them take.
        left_out: requests that cannot be keyed here.
        max_bytes: the limit in force.
    """

    since: float | None
    requests: float
    kernels: int
    predicted_kernels: int
    needed_bytes: int
    left_out: float
    max_bytes: int
    rows: list[EvictionRow]


def replayed_store(stored: Stored, played: Sequence[Played], max_bytes: int) -> ReplayedStore:
    """The document of a store's own requests."""
    return ReplayedStore(
        since=stored.since or None,
        requests=math.fsum(one.count for one in stored.requests),
        kernels=len(stored.kernels),
        predicted_kernels=stored.predicted,
        needed_bytes=stored.needed_bytes,
        left_out=stored.left_out,
        max_bytes=max_bytes,
        rows=[
            EvictionRow(
                order=one.order,
                size_bytes=one.size_bytes,
                hit_rate=one.hit_rate,
                compile_seconds=one.compile_s,
                again_seconds=one.again_s,
                evictions=one.evictions,
            )
            for one in played
        ],
    )
