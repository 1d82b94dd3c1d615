"""A shape that is asked for the first time: served at once, compiled behind, and seen in ``demand`` and ``log``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.test_cli import run

SHAPE = (64, 48, 80, "--dtype", "fp32", "--arch", "sm_90")


def _document(*arguments: object, store: Path) -> Any:
    done = run(*arguments, "--json", store=store)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_cold_shape_is_served_at_once_compiled_behind_and_seen_in_demand_and_log(place: Path) -> None:
    floor = _document("compile", *SHAPE, "--specialise", "dynamic", store=place)
    served = _document("compile", *SHAPE, "--wait", 0, store=place)
    assert served["key"] == floor["key"]
    wanted = served["stands_in_for"]
    assert wanted
    assert wanted != floor["key"]
    found = _document("compile", *SHAPE, store=place)
    assert (found["key"], found["tier"]) == (wanted, "disk")

    shares = _document("demand", "--by", "kernel", store=place)["shares"]
    assert {row["key"]: round(row["launches"]) for row in shares} == {wanted: 2, floor["key"]: 1}
    decisions = _document("log", "--kind", "miss", store=place)["rows"]
    assert {(one["key"], one["reason"]) for one in decisions} == {(wanted, "never seen"), (floor["key"], "never seen")}

    assert run("clean", "--yes", "--all", store=place).returncode == 0
    explained = run("explain", *SHAPE, store=place)
    assert "was evicted just now" in explained.stdout
    promoted = _document("demand", "--promote", store=place)
    assert wanted in {row["key"] for row in promoted["rows"] if row["taken"]}
    again = _document("compile", *SHAPE, "--wait", 0, store=place)
    assert (again["key"], again["tier"], again["stands_in_for"]) == (wanted, "disk", "")
    kinds = [one["kind"] for one in _document("log", "--key", wanted, store=place)["rows"]]
    assert {"miss", "choice", "eviction", "promotion"} <= set(kinds)
