"""The dashboard for Grafana and the alert rules name metrics that the exporter has, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cache_engine.cache.queue import QueueState
from cache_engine.insight.monitoring import alert_rules, grafana_dashboard, prometheus_text
from cache_engine.model.events import Statistics, Totals
from cache_engine.store.journal.spans import Spans
from tests.cli.test_cli import run

yaml = pytest.importorskip("yaml")
DASHBOARD = json.loads(grafana_dashboard())
RULES = yaml.safe_load(alert_rules())["groups"][0]["rules"]
PANEL_QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
RULE_QUERIES = [rule["expr"] for rule in RULES]


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """The labels of each sample that a store with every kind of event exports."""
    spans = Spans()
    for name in ("disk", "compile", "module", "lock", "queue", "select"):
        spans.add(name, 1.0)
    totals = Totals(hits={"disk": 1}, failures={"remote": 1}, spans=spans.take())
    text = prometheus_text(Statistics(1, 2, 3, 4, 5, totals), QueueState(1, (), (), ()))
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}


@pytest.mark.parametrize("query", [*PANEL_QUERIES, *RULE_QUERIES])
def test_each_query_names_metrics_that_are_exported(exported: dict[str, set[str]], query: str) -> None:
    named = set(re.findall(r"\bgemm_cache_\w+", query))
    assert named
    assert named <= exported.keys()
    grouped = {label for labels in re.findall(r"(?:by|without) \(([^)]*)\)", query) for label in labels.split(", ")}
    for name in named:
        if len(named) == 1:
            assert grouped - {"instance"} <= exported[name]


@pytest.mark.parametrize("query", [*PANEL_QUERIES, *RULE_QUERIES])
def test_a_counter_is_never_shown_as_it_is(query: str) -> None:
    """It only grows; and a rate of what may fall is no rate. All parentheses are closed."""
    for name in re.findall(r"\bgemm_cache_\w+", query):
        is_counted = name.endswith(("_total", "_bucket"))
        assert is_counted == bool(re.search(rf"(?:rate|increase)\({name}\b", query)), name
    assert "@" not in query
    assert [query.count(sign) for sign in "([{"] == [query.count(sign) for sign in ")]}"]


def test_every_fault_that_is_exported_has_an_alert(exported: dict[str, set[str]]) -> None:
    faults = {name for name in exported if re.search("corrupt|fail|timeouts|dropped", name)}
    assert len(faults) == 5
    assert faults <= set(re.findall(r"\bgemm_cache_\w+", " ".join(RULE_QUERIES)))


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    assert "id" not in DASHBOARD
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "instance"}
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert len({(place["x"], place["y"]) for place in places}) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)
    for panel in DASHBOARD["panels"]:
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert all('{instance=~"$instance"}' in target["expr"] for target in panel["targets"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_has_all_that_prometheus_asks_for(rule: dict[str, Any]) -> None:
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch("[a-zA-Z_]+", rule["alert"])
    assert re.fullmatch(r"\d+[mh]", rule["for"])
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert "gemm-cache " in rule["annotations"]["description"], "the next step"


@pytest.mark.parametrize(("form", "made"), [("grafana", grafana_dashboard), ("alerts", alert_rules)])
def test_the_verb_prints_and_writes_them_without_a_store(form: str, made: Any, tmp_path: Path) -> None:
    nowhere, file = tmp_path / "no store", tmp_path / "made"
    assert run("stats", "--format", form, store=nowhere).stdout == made()
    done = run("stats", "--format", form, "--output", str(file), store=nowhere)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert file.read_text() == made()
    assert not nowhere.exists()
    assert run("stats", "--format", form, "--json", store=nowhere).returncode == 2
