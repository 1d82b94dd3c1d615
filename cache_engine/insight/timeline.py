"""A timeline of the journal: who compiled, waited, hit and evicted, when, as a trace for Perfetto and Chrome's tracing.

Format: the JSON of Trace Event, https://perfetto.dev/docs/getting-started/other-formats. A process of the trace is a
file of the journal; each process writes one, and one that ends leaves its file to the next.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cache_engine.cache.cache import Cache
from cache_engine.model.decision import DEMOTION, MISS, PIN, PROMOTION, SPECULATION, UNPIN, Decision
from cache_engine.model.events import PUBLISH, TIERS, UNPUBLISHED, USE, Event
from cache_engine.store.journal import events_by_file, read_snapshot

MOST = 200_000
"""The most events and decisions in a trace; of more, only the latest are in it."""
_LOGGED = (MISS, PIN, UNPIN, PROMOTION, DEMOTION, SPECULATION)  # the others are events of the journal too
_EARLIER, _DECISIONS = "earlier, of files that are summed up", "decisions"
_EVENTS = 1  # the track of what has no length; compiles have the tracks after it
_MARKS = ("lock_waits", "lock_timeouts", "lock_wait_us", "remote_sent", "remote_dropped")

TraceEvent = dict[str, Any]


def perfetto_trace(cache: Cache, earliest: float) -> str:
    """The trace of all events in the journal and the log of decisions since ``earliest``, in seconds since 1970."""
    cache.journal.flush()
    folder = cache.layout.journal
    snapshot = read_snapshot(folder)
    decisions, _ = cache.admin.recent_decisions()
    events = ((_EARLIER, event) for event in snapshot.tally().recent)
    found = [*events, *events_by_file(folder, snapshot)]
    latest = heapq.nlargest(MOST, (one for one in found if one[1].at >= earliest), key=lambda one: one[1].at)
    logged = [one for one in decisions if one.kind in _LOGGED and one.at >= earliest][:MOST]
    names = {one.key: one.name for one in decisions if one.name}
    return trace(sorted(latest, key=lambda one: one[1].at), logged, names)


def trace(events: Iterable[tuple[str, Event]], decisions: Iterable[Decision], names: Mapping[str, str]) -> str:
    """A trace as JSON.

    Args:
        events: each with its process, the oldest first.
        names: names of kernels by key.
    """
    of_process: dict[str, list[Event]] = {}
    for process, event in events:
        of_process.setdefault(process, []).append(event)
    drawn: list[TraceEvent] = []
    for pid, (process, some) in enumerate(of_process.items(), 1):
        drawn += _named(pid, process)
        drawn += _compiles(pid, some, names)
        drawn += _others(pid, some, names)
    pid = len(of_process) + 1
    drawn += _named(pid, _DECISIONS)
    drawn += (
        _mark(pid, one.kind, one.at, {"key": one.key, "name": one.name, "reason": one.reason, "detail": one.detail})
        for one in decisions
    )
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": drawn}, separators=(",", ":"))


def _named(pid: int, name: str) -> Iterator[TraceEvent]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": _EVENTS, "args": {"name": "events"}}


def _compiles(pid: int, events: Iterable[Event], names: Mapping[str, str]) -> Iterator[TraceEvent]:
    """A bar for each compile, which ends when the compile was recorded; overlapping compiles are on several tracks."""
    ends: list[float] = []
    for event in sorted((one for one in events if one.compile_us), key=lambda one: one.at - one.compile_us / 1e6):
        start = event.at - event.compile_us / 1e6
        lane = next((at for at, end in enumerate(ends) if end <= start), len(ends))
        ends[lane : lane + 1] = [event.at]
        yield {
            "ph": "X", "name": names.get(event.key) or event.key[:12] or event.kind, "cat": event.kind, "pid": pid,
            "tid": _EVENTS + 1 + lane, "ts": start * 1e6, "dur": event.compile_us,
            "args": {"key": event.key, "stored": event.kind != UNPUBLISHED, "bytes": event.stored_bytes},
        }  # fmt: skip


def _others(pid: int, events: Iterable[Event], names: Mapping[str, str]) -> Iterator[TraceEvent]:
    """A mark for each event that is no compile, and the counts of lookups that processes write every few seconds."""
    lookups: dict[float, dict[str, int]] = {}
    for event in events:
        if event.kind == USE:
            counts = lookups.setdefault(event.at, dict.fromkeys((*TIERS, "misses"), 0))
            for tier, hits in event.hits.items():
                counts[tier] = counts.get(tier, 0) + hits
            counts["misses"] += event.misses
            if marks := {name: value for name in _MARKS if (value := getattr(event, name))}:
                yield _mark(pid, "waits" if "lock_waits" in marks else "remote", event.at, marks)
        elif event.kind != PUBLISH or not event.compile_us:
            told = {"key": event.key, "name": names.get(event.key, ""), "detail": event.detail, "by": event.by}
            yield _mark(pid, event.kind, event.at, {**told, "bytes": event.stored_bytes})
    for at, counts in lookups.items():
        yield {"ph": "C", "name": "lookups", "pid": pid, "tid": 0, "ts": at * 1e6, "args": counts}


def _mark(pid: int, name: str, at: float, told: Mapping[str, Any]) -> TraceEvent:
    shown = {name: value for name, value in told.items() if value}
    return {"ph": "i", "s": "t", "name": name, "pid": pid, "tid": _EVENTS, "ts": at * 1e6, "args": shown}
