"""The timeline as a trace: each event once, on its process, with its time and length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cache_engine.insight.monitoring import trace
from cache_engine.model.decision import EVICTION, MISS, Decision
from cache_engine.model.events import EVICT, PUBLISH, UNPUBLISHED, USE, Event
from tests.cli.test_cli import run

AT = 1_790_000_000.0


def _events(text: str, phase: str) -> list[dict[str, Any]]:
    return [one for one in json.loads(text)["traceEvents"] if one["ph"] == phase]


def test_compiles_are_bars_that_do_not_overlap_on_their_track() -> None:
    events = [
        ("one", Event(PUBLISH, AT + 2, key="a", compile_us=2_000_000, stored_bytes=7)),
        ("one", Event(UNPUBLISHED, AT + 3, key="b", compile_us=2_000_000, detail="no space")),
        ("one", Event(PUBLISH, AT + 5, key="c", compile_us=3_000_000)),
        ("two", Event(PUBLISH, AT + 2, key="d", compile_us=1_000_000)),
    ]
    text = trace(events, [], {"a": "gemm_a"})
    bars = _events(text, "X")
    assert [(one["name"], one["ts"] / 1e6 - AT, one["dur"] / 1e6) for one in bars] == [
        ("gemm_a", 0, 2), ("b", 1, 2), ("c", 2, 3), ("d", 1, 1),
    ]  # fmt: skip
    assert [(one["pid"], one["tid"]) for one in bars] == [(1, 2), (1, 3), (1, 2), (2, 2)]
    assert [one["args"]["stored"] for one in bars] == [True, False, True, True]
    assert [one["name"] for one in _events(text, "i")] == [UNPUBLISHED]


def test_lookups_are_counts_and_the_others_marks() -> None:
    hostile = '"}]\n<script>'
    events = [
        ("one", Event(USE, AT, key="a", hits={"disk": 2})),
        ("one", Event(USE, AT, hits={"disk": 1, hostile: 3}, misses=4, lock_waits=1, lock_wait_us=5)),
        ("one", Event(EVICT, AT + 1, key="a", stored_bytes=9, detail=hostile, by="ann")),
    ]
    text = trace(events, [Decision(kind=MISS, at=AT, key="a", reason="never seen", name=hostile)], {})
    (count,) = _events(text, "C")
    assert count["args"] == {"memory": 0, "pack": 0, "disk": 3, "remote": 0, "misses": 4, hostile: 3}
    waits, evicted, missed = _events(text, "i")
    assert waits["args"] == {"lock_waits": 1, "lock_wait_us": 5}
    assert (evicted["name"], evicted["args"]["detail"], evicted["args"]["by"]) == (EVICT, hostile, "ann")
    assert (missed["args"]["name"], missed["args"]["reason"]) == (hostile, "never seen")
    names = {one["pid"]: one["args"]["name"] for one in _events(text, "M") if one["name"] == "process_name"}
    assert names == {1: "one", 2: "decisions"}


def test_the_verb_writes_what_the_store_has(compiled_store: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    done = run("log", "--format", "perfetto", "--output", str(file), store=compiled_store)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    text = file.read_text()
    assert len(_events(text, "X")) == 4
    assert sum(one["name"] == MISS for one in _events(text, "i")) == 4
    assert not any(one["name"] == EVICTION for one in _events(text, "i"))
    printed = run("log", "--format", "perfetto", "--since", "1s", store=compiled_store)
    assert (printed.returncode, _events(printed.stdout, "X")) == (0, [])
    for wrong in (("--format", "perfetto", "--audit"), ("--output", str(file)), ("--format", "perfetto", "--json")):
        assert run("log", *wrong, store=compiled_store).returncode == 2
