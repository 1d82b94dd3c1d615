"""Parts of ``stats``: how long lookups and the work of misses took, how often kernels were made lately, the queue.

And the documents of ``jobs`` and of ``farm status``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from cache_engine.team.watching import Farm


class FarmWorker(msgspec.Struct, kw_only=True):
    """A worker that was heard of in the last day; ``is_here`` lately. ``doing`` are the kernels that it compiles."""

    name: str
    processes: int
    heard_s: float
    is_here: bool
    doing: list[str]


class FarmRun(msgspec.Struct, kw_only=True):
    """A run of ``farm compile`` of the last day.

    Attributes:
        left: kernels that the remote lacked, of ``kernels``, when its submitter was last heard of (``heard_s`` ago).
        state: ``running``, ``canceled``, ``ended`` or ``not followed``.
        predicted_s: to its end.
    """

    job: str
    table: str
    archs: list[str]
    kernels: int
    left: int
    state: str
    predicted_s: float
    heard_s: float


class FarmHour(msgspec.Struct, kw_only=True):
    """What workers did in an hour that began at ``start``, in seconds since 1970; ``refused``: of no kernel."""

    start: int
    compiled: int
    found: int
    failed: int
    refused: int


class FarmFailure(msgspec.Struct, kw_only=True):
    """A kernel that a worker could not make; ``at`` in seconds since 1970."""

    at: float
    key: str
    kernel: str
    error: str
    worker: str


class FarmState(msgspec.Struct, kw_only=True):
    """What ``farm status`` prints.

    Attributes:
        waiting, taken: kernels that no worker has taken, and those that are taken and not finished.
        hours: the last 24.
    """

    waiting: int
    taken: int
    workers: list[FarmWorker]
    runs: list[FarmRun]
    hours: list[FarmHour]
    failures: list[FarmFailure]


def farm_state(farm: Farm) -> FarmState:
    """The document of what a farm does."""
    return FarmState(
        waiting=farm.waiting,
        taken=farm.taken,
        workers=[
            FarmWorker(
                name=one.name,
                processes=one.present.processes,
                heard_s=one.heard_s,
                is_here=one.is_here,
                doing=[each.kernel for each in one.doing],
            )
            for one in farm.workers
        ],
        runs=[
            FarmRun(
                job=one.job,
                table=one.run.table,
                archs=one.run.archs,
                kernels=one.run.kernels,
                left=one.run.left,
                state=one.state,
                predicted_s=one.run.eta_s,
                heard_s=one.heard_s,
            )
            for one in farm.runs
        ],
        hours=[
            FarmHour(start=one.start, compiled=one.compiled, found=one.found, failed=one.failed, refused=one.refused)
            for one in farm.hours
        ],
        failures=[
            FarmFailure(at=one.at, key=one.key, kernel=one.kernel, error=one.error, worker=one.worker)
            for one in farm.failures
        ],
    )
