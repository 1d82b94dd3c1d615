"""A dashboard for Grafana and alert rules for Prometheus, made from the metrics that ``metrics`` exports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
