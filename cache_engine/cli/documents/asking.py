"""The document of ``demand``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from cache_engine.cli.documents import filled

if TYPE_CHECKING:
    from cache_engine.cache.demand.report import DemandReport, DemandShare


class ShareRow(msgspec.Struct, kw_only=True):
    """What one shape, kernel, model or target is asked for.

    Attributes:
        launches: how often; with a half-life, those long ago count less.
        per_hour: launches an hour; of a ledger younger than an hour, launches so far.
        launch_share, time_share, bytes_share, flops_share: of all, from 0 to 1; of time, of all that is known.
        gpu_seconds: of the launches whose time is known.
        timed_share, measured_share: how many of its launches have a known time, and a measured one.
        shape: for shares by shape: the problem without its m, and with every default.
        key: for shares by kernel; empty when no kernel can serve it.
        asked_shapes, all_shapes: for a model, how many of its (n, k) were asked for, of how many.
    """

    name: str
    launches: float
    per_hour: float
    launch_share: float
    time_share: float
    bytes_share: float
    flops_share: float
    gpu_seconds: float
    timed_share: float
    measured_share: float
    shape: dict[str, Any] | None = None
    key: str | None = None
    asked_shapes: int | None = None
    all_shapes: int | None = None


class DemandDocument(msgspec.Struct, kw_only=True):
    """What ``demand`` prints.

    Attributes:
        by: what the shares are of.
        since: the beginning of what is counted, in seconds since 1970.
        at: when it was counted.
        half_life_hours: after which a request counts half; ``None`` where all count the same.
        dropped: launches of shapes that there was no room for.
        gpus: by target and by ``measured`` and ``predicted``, the GPU that such times are of.
        unpredicted: why times cannot be predicted here; empty when they can.
        shares: the largest share of time first; of models, what looks most alike first.
    """

    by: str
    since: float
    at: float
    half_life_hours: float | None
    launches: float
    per_hour: float
    gpu_seconds: float
    dropped: float
    gpus: dict[str, dict[str, str]]
    unpredicted: str
    shares: list[ShareRow]


def demand(found: DemandReport) -> DemandDocument:
    """The document of a report."""
    return filled(
        DemandDocument,
        found,
        found.total,
        half_life_hours=None if found.half_life_s == math.inf else found.half_life_s / 3600,
        gpu_seconds=found.total.gpu_s,
        shares=[_row(found.by, share) for share in found.shares],
    )


def _row(by: str, share: DemandShare) -> ShareRow:
    launches = share.launches or 1.0
    return filled(
        ShareRow,
        share,
        gpu_seconds=share.gpu_s,
        timed_share=share.timed / launches,
        measured_share=share.measured / launches,
        shape=None if share.shape is None else msgspec.structs.asdict(share.shape),
        key=share.key if by == "kernel" else None,
        asked_shapes=share.asked_shapes if by == "model" else None,
        all_shapes=share.all_shapes if by == "model" else None,
    )
