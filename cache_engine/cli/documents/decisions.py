"""The documents of what happened: the log of decisions, pins, sums over time, and the audit log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from cache_engine.cli.documents import filled
from cache_engine.model.decision import Decision
from cache_engine.model.events import Event, Period


class DecisionRow(msgspec.Struct, kw_only=True):
    """A decision; see ``model.decision.Decision``. Texts that it has no use for are empty."""

    kind: str
    at: float
    key: str
    name: str
    reason: str
    detail: str
    runner_up: str
    margin: float | None
    by: str


class DecisionList(msgspec.Struct, kw_only=True):
    """What ``log`` prints.

    Attributes:
        total: how many decisions match; ``rows`` are the latest of them, the oldest first.
        damaged: how many lines of the log were skipped, because they are damaged or from the future.
    """

    total: int
    damaged: int
    rows: list[DecisionRow]


class Pins(msgspec.Struct, kw_only=True):
    """What ``pin`` and ``unpin`` print: the keys that they changed, and all that are pinned now."""

    changed: list[str]
    pinned: list[str]


def row_of(one: Decision) -> DecisionRow:
    """The row of a decision."""
    return filled(DecisionRow, one)


class HistoryRow(msgspec.Struct, kw_only=True):
    """What happened from ``start`` on, seconds since 1970, for ``seconds``; see ``model.events.Period``."""

    start: float
    seconds: int
    hits: dict[str, int]
    misses: int
    compiles: int
    compile_ms: float
    saved_ms: float
    publish_failures: int
    corruptions: int
    lock_waits: int
    promotions: int
    demotions: int


class History(msgspec.Struct, kw_only=True):
    """What ``history`` prints: sums over ``step_seconds``, or longer where only those are known."""

    step_seconds: int
    rows: list[HistoryRow]


class AuditRow(msgspec.Struct, kw_only=True):
    """An action: what, when, by whom, over how many bytes. ``key`` is empty where it was not of one kernel."""

    at: float
    kind: str
    by: str
    bytes: int
    detail: str
    key: str


class Audit(msgspec.Struct, kw_only=True):
    """What ``audit`` prints: the latest of ``total`` actions, newest first."""

    total: int
    rows: list[AuditRow]


def history(periods: Iterable[Period], step_seconds: int) -> History:
    """The document of these sums."""
    return History(step_seconds=step_seconds, rows=[filled(HistoryRow, one) for one in periods])


def audit(acts: Sequence[Event], limit: int) -> Audit:
    """The document of these actions, newest first."""
    return Audit(total=len(acts), rows=[filled(AuditRow, one, bytes=one.stored_bytes) for one in acts[:limit]])
