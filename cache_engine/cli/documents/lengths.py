"""Parts of ``stats``: how long lookups and the work of misses took, how often kernels were made lately, the queue.

And the documents of jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from cache_engine.cache.queue.tickets import QueueState
from cache_engine.cli.documents import filled
from cache_engine.model.events import Counts
from cache_engine.store.journal.spans import WORK, distributions

if TYPE_CHECKING:
    from cache_engine.batch.jobs import LostJob
    from cache_engine.model.job import Job


class Length(msgspec.Struct, kw_only=True):
    """How long one kind of thing took; quantiles are at most 9 % off.

    Attributes:
        count: how often it happened.
        per_s: how many of them are done in a second of doing them: of ``compile``, the throughput of one slot.
        total_ms: the sum of all.
        share: of the time that misses took, which part this was; ``None`` of what is not work of a miss.
    """

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    per_s: float | None
    total_ms: float
    share: float | None


def lengths_of(counts: Mapping[str, int]) -> dict[str, Length]:
    """By ``store.journal.spans.SPANS``, those that happened."""
    found = distributions(counts)
    of_misses_s = sum(one.total_s for span, one in found.items() if span in WORK)
    return {
        span: Length(
            count=one.count,
            mean_ms=one.total_s * 1e3 / one.count,
            p50_ms=one.quantile_ms(0.5),
            p90_ms=one.quantile_ms(0.9),
            p99_ms=one.quantile_ms(0.99),
            p999_ms=one.quantile_ms(0.999),
            per_s=one.count / one.total_s if one.total_s else None,
            total_ms=one.total_s * 1e3,
            share=one.total_s / of_misses_s if span in WORK and of_misses_s else None,
        )
        for span, one in found.items()
    }


class LastDay(msgspec.Struct, kw_only=True):
    """What the last 24 hours had; ``compiles_per_hour`` is the mean over them."""

    compiles: int
    compiles_per_hour: float
    promotions: int
    demotions: int

    @classmethod
    def of(cls, day: Counts) -> LastDay:
        """Those of sums over a day."""
        return filled(cls, day, compiles_per_hour=day.compiles / 24)


class TurnRow(msgspec.Struct, kw_only=True):
    """A compile, or a wait for one; ``seconds`` is for how long, ``priority`` such as ``caller`` or ``warm``."""

    state: str
    priority: str
    key: str
    pid: int
    seconds: float


class Queue(msgspec.Struct, kw_only=True):
    """Who compiles and who waits now; see ``queue.tickets.QueueState``."""

    slots: int
    compiling: list[TurnRow]
    queued: list[TurnRow]
    waiting: list[TurnRow]


def queue_of(found: QueueState) -> Queue:
    """The document of the queue at one moment."""
    compiling, queued, waiting = (
        [filled(TurnRow, turn, priority=turn.priority.name.lower()) for turn in turns]
        for turns in (found.compiling, found.queued, found.waiting)
    )
    return Queue(slots=found.slots, compiling=compiling, queued=queued, waiting=waiting)


class JobRow(msgspec.Struct, kw_only=True):
    """A job; see ``model.job.Job``. One whose file cannot be read has the state ``lost`` and says why in ``error``."""

    id: str
    command: list[str]
    state: str
    started_at: float
    ended_at: float
    pid: int
    total: int
    done: int
    failed: int
    cancel_asked: bool
    result: str
    error: str


class JobList(msgspec.Struct, kw_only=True):
    """What ``jobs ls`` prints, newest first."""

    jobs: list[JobRow]


def job_row(job: Job | LostJob) -> JobRow:
    """The row of a job."""
    from cache_engine.batch.jobs import LostJob
    from cache_engine.model.job import JobProgress

    if isinstance(job, LostJob):
        return filled(
            JobRow, job, JobProgress(), command=[], state="lost", started_at=0.0, ended_at=0.0, pid=0,
            cancel_asked=False, result="",
        )  # fmt: skip
    return filled(JobRow, job, job.progress or JobProgress())
