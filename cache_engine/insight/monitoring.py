"""A store watched by other programs: Prometheus's metrics and alert rules, Grafana's dashboard, Perfetto's trace."""

from __future__ import annotations

import heapq
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cache_engine.cache.cache import Cache
from cache_engine.cache.queue import QueueState
from cache_engine.model.decision import DEMOTION, MISS, PIN, PROMOTION, SPECULATION, UNPIN, Decision
from cache_engine.model.events import PUBLISH, TIERS, UNPUBLISHED, USE, Event, Statistics
from cache_engine.store.files import refuse_device
from cache_engine.store.journal import events_by_file, read_snapshot
from cache_engine.store.journal.spans import LOOKUPS, Distribution, ceiling_s, distributions

if TYPE_CHECKING:
    from cache_engine.frameworks.watch import Run

_INSTANCES = '{instance=~"$instance"}'
"""The text in place of ``@`` in the queries of panels: the machines that the reader chose."""
_RANGE = "[$__rate_interval]"
_WIDTH, _HEIGHT, _ACROSS = 8, 8, 3  # of a panel in Grafana's grid, which is 24 wide


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: its title and unit, and its queries by legend; ``@`` in a query stands for the chosen machines."""

    title: str
    unit: str
    queries: dict[str, str]
    help: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert rule: it fires when ``query`` has held for the time ``lasts``."""

    name: str
    query: str
    lasts: str
    severity: str
    summary: str
    advice: str


def _rate(metric: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate(gemm_cache_{metric}@{_RANGE}))"


def _quantile(share: float, metric: str, by: str = "le") -> str:
    return f"histogram_quantile({share}, {_rate(f'{metric}_bucket', by)})"


def _grown(metric: str, by: str = "") -> str:
    return _rate(metric, by).replace("(rate(", "(increase(")


PANELS = (
    Panel("Hit rate", "percentunit",
          {"all tiers": f"{_rate('hits_total')} / ({_rate('hits_total')} + {_rate('misses_total')})"},
          "Share of lookups that a tier served."),
    Panel("Lookups", "ops", {"{{tier}}": _rate("hits_total", "tier"), "missed": _rate("misses_total")}),
    Panel("Length of lookups, 99 %", "s", {"{{tier}}": _quantile(0.99, "lookup_seconds", "le, tier")}),
    Panel("Compiles", "ops", {"compiles": _rate("compiles_total"), "compiled ahead": _rate("promotions_total")}),
    Panel("Length of compiles", "s", {"half within": _quantile(0.5, "compile_duration_seconds"),
          "99 % within": _quantile(0.99, "compile_duration_seconds")}),
    Panel("Compile queue", "short", {"compiling": "sum (gemm_cache_compiling@)", "waiting": "sum (gemm_cache_waiting@)",
          "slots": "sum (gemm_cache_compile_slots@)"}),
    Panel("Waits, 99 %", "s", {"for a slot": _quantile(0.99, "queue_wait_seconds"),
          "for a key": _quantile(0.99, "lock_wait_seconds")}),
    Panel("Compile time", "s", {"spent": _grown("compile_spent_seconds_total"),
          "saved": _grown("compile_saved_seconds_total")}),
    Panel("Size on disk", "bytes", {"{{instance}}": "gemm_cache_stored_bytes@",
          "limit of {{instance}}": "gemm_cache_max_bytes@"}),
    Panel("Kernels", "short", {"{{instance}}": "gemm_cache_entries@",
          "limit of {{instance}}": "gemm_cache_max_entries@"}),
    Panel("Evictions", "short", {"kernels": _grown("evictions_total")},
          "Kernels deleted by a limit, an age or a person."),
    Panel("Faults", "short", {"not stored": _grown("publish_failures_total"), "damaged": _grown("corruptions_total"),
          "tier {{tier}}": _grown("tier_failures_total", "tier"), "lock timeouts": _grown("lock_timeouts_total")}),
    Panel("Remote", "ops", {"sent": _rate("remote_sent_total"), "dropped": _rate("remote_dropped_total")}),
    Panel("Loads on a GPU, 99 %", "s", {"loads": _quantile(0.99, "module_load_seconds")}),
    Panel("Memory and journal", "bytes", {"code in memory": "sum (gemm_cache_memory_bytes@)",
          "journal": "sum (gemm_cache_journal_bytes@)"}),
)  # fmt: skip
"""The panels of the dashboard, in reading order."""

ALERTS = (
    Alert("GemmCacheCannotStore", "increase(gemm_cache_publish_failures_total[15m]) > 0", "0m", "critical",
          "Compiled kernels cannot be stored.", "Look for a full or read-only disk: gemm-cache doctor"),
    Alert("GemmCacheCorruption", "increase(gemm_cache_corruptions_total[1h]) > 0", "0m", "warning",
          "Damaged kernels were found and quarantined.", "Check the disk, then: gemm-cache verify"),
    Alert("GemmCacheMisses", "increase(gemm_cache_misses_total[30m]) > 20 and increase(gemm_cache_misses_total[30m]) > "
          "0.1 * sum without (tier) (increase(gemm_cache_hits_total[30m]))", "30m", "warning",
          "There are more than 10 misses for 100 hits.", "See the causes: gemm-cache log --kind miss --since 1h"),
    Alert("GemmCacheTierFails", "increase(gemm_cache_tier_failures_total[15m]) > 10", "15m", "warning",
          "The tier {{ $labels.tier }} fails and is skipped.", "For the remote: gemm-cache remote status"),
    Alert("GemmCacheQueueIsLong", "gemm_cache_waiting > 4 * gemm_cache_compile_slots", "10m", "warning",
          "Many lookups wait for a compile.", "Warm up before the traffic: gemm-cache warm; see gemm-cache stats"),
    Alert("GemmCacheLockTimeouts", "increase(gemm_cache_lock_timeouts_total[30m]) > 0", "0m", "warning",
          "A process waited too long for a key and compiled without storing.", "See who compiles: gemm-cache stats"),
    Alert("GemmCacheTooSmall", "increase(gemm_cache_evictions_total[1h]) > 0.2 * gemm_cache_entries and "
          "gemm_cache_stored_bytes > 0.9 * gemm_cache_max_bytes", "1h", "warning",
          "The store evicts a fifth of its kernels each hour.", "Raise max_bytes: gemm-cache doctor --settings"),
    Alert("GemmCacheRemoteDrops", "increase(gemm_cache_remote_dropped_total[1h]) > 0", "1h", "info",
          "Kernels are not sent to the remote.", "See gemm-cache remote status, and later: gemm-cache remote push"),
)  # fmt: skip
"""The alert rules. Texts in braces are filled by Prometheus."""


def grafana_dashboard() -> str:
    """The dashboard as JSON, for the import of Grafana 10 or later. It asks for its source of data and has no id."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    variable = {
        "name": "instance", "label": "Machine", "type": "query", "datasource": source, "refresh": 2, "multi": True,
        "includeAll": True, "allValue": ".*", "query": "label_values(gemm_cache_entries, instance)",
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip
    document = {
        "title": "gemm-cache",
        "uid": "gemm-cache",
        "tags": ["gemm-cache"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"}, variable]
        },
        "panels": [_panel(number, panel, source) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(document, indent=2) + "\n"


def _panel(number: int, panel: Panel, source: dict[str, str]) -> dict[str, Any]:
    down, across = divmod(number, _ACROSS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": source,
        "gridPos": {"x": across * _WIDTH, "y": down * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": source, "legendFormat": legend,
             "expr": query.replace("@", _INSTANCES)}
            for at, (legend, query) in enumerate(panel.queries.items())
        ],
    }  # fmt: skip


def alert_rules() -> str:
    """The alert rules as YAML, for ``rule_files`` of Prometheus."""
    return "".join(f"{line}\n" for line in _rules())


def _rules() -> Iterator[str]:
    yield "groups:"
    yield "  - name: gemm-cache"
    yield "    rules:"
    for alert in ALERTS:
        yield f"      - alert: {alert.name}"
        yield f"        expr: {json.dumps(alert.query)}"  # a text of JSON is one of YAML
        yield f"        for: {alert.lasts}"
        yield "        labels:"
        yield f"          severity: {alert.severity}"
        yield "        annotations:"
        yield f"          summary: {json.dumps(alert.summary)}"
        yield f"          description: {json.dumps(alert.advice)}"


# ---- A store's statistics in Prometheus's text exposition format, version 0.0.4, for a file; no port is opened ----
# Format: https://prometheus.io/docs/instrumenting/exposition_formats/. Counters are sums of all processes since the
# store was created; they start again from 0 with a new store.

_HISTOGRAMS = {
    "lock": ("lock_wait_seconds", "Waits for the lock of a key, of lookups that missed."),
    "queue": ("queue_wait_seconds", "Waits for a slot to compile in."),
    "compile": ("compile_duration_seconds", "Time that the compiler took for a kernel."),
    "module": ("module_load_seconds", "Time that the driver took to load a kernel's code, for matmul and operators."),
}
_STAGES = ("select", "generate", "publish")
# Powers of two from 128 ns to 2,199 s; each is the edge of a bucket, so no count is divided.
_EDGES = tuple(range(7 * 4 - 1, 41 * 4, 4))

_Samples = Iterable[tuple[Mapping[str, str], float]]


def prometheus_text(found: Statistics, queue: QueueState | None = None) -> str:
    """All metrics of a store as text, each with its help and type.

    Args:
        queue: the processes that compile now or wait for a slot; by default these metrics are left out.
    """
    return "".join(f"{line}\n" for line in _lines(found, queue))


def write_to_textfile(cache: Cache, path: str | Path) -> None:
    """Writes a store's metrics to a file for the node exporter's textfile collector, which wants a name in ``.prom``.

    Raises:
        UsageError: when the path is a device, pipe or socket.
        OSError: when the file cannot be written; the old file then stays.
    """
    write_text(prometheus_text(cache.stats(), cache.queue() if cache.has_store else None), path)


def write_text(text: str, path: str | Path) -> None:
    """Writes metrics to a file, and replaces an old file only once all is written; raises as ``write_to_textfile``."""
    refuse_device(path)
    target = Path(path)
    # Of another suffix, so that no collector reads it.
    temporary = target.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    except OSError as error:
        error.filename, error.filename2 = str(target), None  # the path that the user gave
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


def run_text(run: Run) -> str:
    """The metrics of ``gemm-cache run``: the compiles that it saw, by framework and phase."""
    frameworks = run.frameworks.items()
    compiles = [
        ({"framework": name, "phase": phase}, float(count))
        for name, each in frameworks
        for phase, count in (("before", each.before), ("after", each.after))
    ]
    seconds = [({"framework": name}, each.seconds) for name, each in frameworks]
    found = [({"framework": name}, float(each.found)) for name, each in frameworks]
    lines = [
        *_metric("run_compiles_total", "counter", "Compiles seen before and after the command was ready.", compiles),
        *_metric("run_compile_seconds_total", "counter", "Their length, where files tell it.", seconds),
        *_metric("run_kernels", "gauge", "Kernels found.", found),
        *_metric("run_ready", "gauge", "1 once the command is ready.", [({}, float(run.ready_at is not None))]),
    ]
    return "".join(f"{line}\n" for line in lines)


def _lines(found: Statistics, queue: QueueState | None) -> Iterator[str]:
    t = found.totals
    for name, words, value in (
        ("entries", "Kernels in the store.", found.entries),
        ("stored_bytes", "Bytes of the kernels on disk.", found.stored_bytes),
        ("journal_bytes", "Bytes of the journal.", found.journal_bytes),
        ("memory_bytes", "Bytes of code in the memory tier of the process that writes this.", found.memory_bytes),
        ("max_memory_bytes", "The most that it holds.", found.max_memory_bytes),
        ("max_entries", "The limit of entries in force.", found.max_entries),
        ("max_bytes", "The limit of bytes in force.", found.max_bytes),
        ("last_publish_timestamp_seconds", "When a kernel was last stored, Unix time; 0 is never.", t.last_publish_at),
    ):
        yield from _metric(name, "gauge", words, [({}, value)])
    if queue is not None:
        yield from _metric("compile_slots", "gauge", "Compiles at a time.", [({}, queue.slots)])
        yield from _metric("compiling", "gauge", "Compiles under way.", [({}, len(queue.compiling))])
        waiting = len(queue.queued) + len(queue.waiting)
        yield from _metric("waiting", "gauge", "Lookups that wait for a compile.", [({}, waiting)])
    by_tier = [({"tier": tier}, count) for tier, count in sorted(t.hits.items())]
    yield from _metric("hits_total", "counter", "Lookups served, by tier.", by_tier)
    failures = [({"tier": tier}, count) for tier, count in sorted(t.failures.items())]
    yield from _metric("tier_failures_total", "counter", "Failures of a tier, which was skipped.", failures)
    for name, words, value in (
        ("misses_total", "Lookups that no tier served.", t.misses),
        ("compiles_total", "Kernels compiled.", t.compiles),
        ("compile_spent_seconds_total", "Time that compiling took.", t.compile_us / 1e6),
        (
            "compile_saved_seconds_total",
            "Compile time of the kernels that were found stored.",
            t.saved_us / 1e6,
        ),
        ("promotions_total", "Kernels compiled ahead, or worth their price again.", t.promotions),
        ("demotions_total", "Kernels compiled ahead that are no longer worth their price.", t.demotions),
        ("remote_sent_total", "Kernels sent to the remote after they were compiled.", t.remote_sent),
        ("remote_dropped_total", "Kernels that were to be sent, and were not.", t.remote_dropped),
        ("evictions_total", "Kernels evicted.", t.evictions),
        ("evicted_bytes_total", "Bytes of these.", t.evicted_bytes),
        ("corruptions_total", "Damaged kernels found.", t.corruptions),
        ("publish_failures_total", "Kernels compiled that could not be stored.", t.publish_failures),
        ("long_lock_waits_total", "Waits of more than a second for the lock of a key.", t.lock_waits),
        ("lock_timeouts_total", "Of these, those that timed out.", t.lock_timeouts),
    ):
        yield from _metric(name, "counter", words, [({}, value)])
    yield from _histograms(distributions(t.spans))


def _histograms(found: Mapping[str, Distribution]) -> Iterator[str]:
    lookups = [({"tier": tier}, found[tier]) for tier in LOOKUPS if tier in found]
    yield from _histogram("lookup_seconds", "Lookups, by the tier that served them.", lookups)
    for span, (name, words) in _HISTOGRAMS.items():
        yield from _histogram(name, words, [({}, found[span])] if span in found else [])

    stages = [({"stage": stage}, found[stage]) for stage in _STAGES if stage in found]
    yield from _histogram("stage_seconds", "Other stages of lookups that missed.", stages)


def _histogram(name: str, words: str, series: Iterable[tuple[Mapping[str, str], Distribution]]) -> Iterator[str]:
    yield from _metric(name, "histogram", words, [])
    for labels, one in series:
        for edge in _EDGES:
            yield _sample(f"{name}_bucket", {**labels, "le": repr(ceiling_s(edge))}, one.at_most(edge))
        yield _sample(f"{name}_bucket", {**labels, "le": "+Inf"}, one.count)
        yield _sample(f"{name}_sum", labels, one.total_s)
        yield _sample(f"{name}_count", labels, one.count)


def _metric(name: str, kind: str, words: str, samples: _Samples) -> Iterator[str]:
    yield f"# HELP gemm_cache_{name} {words}"
    yield f"# TYPE gemm_cache_{name} {kind}"
    for labels, value in samples:
        yield _sample(name, labels, value)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"gemm_cache_{name}{f'{{{inside}}}' if inside else ''} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# ---- A timeline of the journal: who compiled, waited, hit and evicted, when, for Perfetto and Chrome's tracing ----
# Format: the JSON of Trace Event, https://perfetto.dev/docs/getting-started/other-formats. A process of the trace is a
# file of the journal; each process writes one, and one that ends leaves its file to the next.

MOST_TRACED = 200_000
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
    latest = heapq.nlargest(MOST_TRACED, (one for one in found if one[1].at >= earliest), key=lambda one: one[1].at)
    logged = [one for one in decisions if one.kind in _LOGGED and one.at >= earliest][:MOST_TRACED]
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
            details = {"key": event.key, "name": names.get(event.key, ""), "detail": event.detail, "by": event.by}
            yield _mark(pid, event.kind, event.at, {**details, "bytes": event.stored_bytes})
    for at, counts in lookups.items():
        yield {"ph": "C", "name": "lookups", "pid": pid, "tid": 0, "ts": at * 1e6, "args": counts}


def _mark(pid: int, name: str, at: float, details: Mapping[str, Any]) -> TraceEvent:
    shown = {name: value for name, value in details.items() if value}
    return {"ph": "i", "s": "t", "name": name, "pid": pid, "tid": _EVENTS, "ts": at * 1e6, "args": shown}
