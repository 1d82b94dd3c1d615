"""One kernel."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.presenters.columns import rows_of
from app.presenters.kernel import (
    EVENTS,
    MOST_LINES,
    first_lines,
    history,
    occupancy_by_chip,
)
from cache_engine.cache.cache import open_cache
from cache_engine.cache.reproduction import reproducing_command
from cache_engine.insight.inspection import record_document
from cache_engine.model.artifact import Record
from cache_engine.model.documents import to_json
from cache_engine.model.events import CORRUPT, PUBLISH
from cache_engine.model.key import CacheKey
from cache_engine.settings import Settings
from cache_engine.store.journal import Journal
from cache_engine.units import human_ms
from tests.helpers import blob_file, make_store
from tests.pages.opening import Open, a_record, as_shown, frames, sound, tabled


@pytest.fixture
def record(compiled_store: Path) -> Record:
    """One of the compiled kernels, for tensor cores."""
    return next(record for record in make_store(compiled_store).records() if record.family == "tensor_core")


def test_the_summary_describes_the_kernel(open_page: Open, compiled_store: Path, record: Record) -> None:
    app = sound(open_page(compiled_store, "kernel", key=record.key[:16]))
    assert app.code[0].value == f"{record.name}\n{record.key}"
    resources, speed, life, demand, facts, chips, levels, counts = (table for table in frames(app))
    assert dict(resources.itertuples(index=False))["Registers"] == f"{record.resources.registers} per thread"
    assert dict(speed.itertuples(index=False))["Measured"] == "not timed yet"
    assert dict(life.itertuples(index=False))["Pinned"] == "no"
    assert dict(demand.itertuples(index=False))["Served by this kernel"] == "100.0%"
    assert dict(facts.itertuples(index=False))["Config"] == str(record.config)
    assert counts["Count"].sum() > 0
    assert list(levels["Level"]) == ["Grid", "Block", "Warp", "mma"]
    assert not {"Registers", "Shared memory", "Cubin size"} & set(facts["Property"]), "the first screen says them"
    assert record.arch in list(chips["Target"])
    assert app.code[1].value == reproducing_command(record, Settings.load(), compiled_store)
    assert "Running this here reproduces this exact key." in [caption.value for caption in app.caption]
    buttons: list[Any] = list(app.get("download_button"))
    files = ["CUBIN", "PTX", "SASS", "Source", "Record", "Debug dump"]
    assert [button.proto.label for button in buttons][:-1] == files


def test_history_has_the_kernels_for_the_same_problem(open_page: Open, compiled_store: Path, record: Record) -> None:
    app = sound(open_page(compiled_store, "kernel", key=record.key, part="History"))
    assert "The store has no other kernel for this problem and target." in [one.value for one in app.caption]
    config = dataclasses.replace(record.config, stages=record.config.stages + 1)
    with open_cache(compiled_store, durability="fast") as cache:
        problem = record.problem.on(record.arch)
        other = cache.get_or_compile(problem, config=config, family=record.family, compiler=record.compiler)
    app = sound(open_page(compiled_store, "kernel", key=record.key, part="History"))
    newest, own = tabled(app, "Toolchain")
    assert (newest["Kernel"], own["Kernel"]) == tuple(f"kernel?key={each}" for each in (other.key, record.key))
    assert (newest["Config"], own["Config"]) == (str(config), str(record.config))
    assert own["Registers"] == str(record.resources.registers)
    assert own["Time"] == "–", "no time is invented"
    (compare,) = [link.proto.query_string for link in app.get("page_link") if "latest 1" in link.proto.label]
    assert compare == f"a={record.key}&b={other.key}"
    app.toggle(key="instructions").set_value(True).run()
    assert all(int(row["Instructions"].replace(",", "")) > 0 for row in tabled(sound(app), "Toolchain"))


def test_source_ptx_and_sass_stand_side_by_side(open_page: Open, compiled_store: Path, record: Record) -> None:
    app = sound(open_page(compiled_store, "kernel", key=record.key, part="Code"))
    (drawn,) = (one for one in app.get("bidi_component") if one.key != "menu")
    shown: Any = json.loads(drawn.proto.json)
    assert [pane["name"] for pane in shown["panes"]] == ["Source", "PTX", "SASS"]
    source, ptx, sass = (pane["text"] for pane in shown["panes"])
    assert "KERNEL(THREADS)" in source
    assert ".target" in ptx
    assert "HMMA" in sass
    assert [pane["file"] for pane in shown["panes"]] == [f"{record.key[:12]}.{end}" for end in ("cu", "ptx", "sass")]


def test_the_key_the_log_and_the_history(open_page: Open, compiled_store: Path, record: Record) -> None:
    app = sound(open_page(compiled_store, "kernel", key=record.key, part="Cache key"))
    assert app.segmented_control(key="part").value == "Cache key"
    shown = {name: as_shown(text) for name, text in frames(app)[0].itertuples(index=False)}
    assert shown == dict(record.components)
    app.segmented_control(key="part").set_value("Compiler log").run()
    assert "Used" in sound(app).code[1].value
    app.segmented_control(key="part").set_value("History").run()
    history, hits, decided = (table for table in frames(sound(app)))
    assert list(decided["Decision"]) == ["choice", "miss"]
    assert list(history["Event"]) == ["compiled"]
    assert record.created_by in " ".join(history["Details"])
    assert list(hits["Tier"]) == ["memory", "pack", "disk", "remote"]


def test_a_prediction_is_called_one_and_follows_m(open_page: Open, compiled_store: Path) -> None:
    record = next(record for record in make_store(compiled_store).records() if record.arch == "sm_80")
    app = sound(open_page(compiled_store, "kernel", key=record.key, part="Performance"))
    assert "Not timed yet" in app.info[0].value
    assert any("does not model this kernel's code" in caption.value for caption in app.caption)
    small = frames(app)[0]
    assert list(small["GPU"]) == ["A100"]
    app.number_input(key="at").set_value(65_536).run()
    large = frames(sound(app))[0]
    assert (large["Predicted, µs"] > small["Predicted, µs"]).all()


def test_where_the_model_does_not_apply_nothing_is_predicted(open_page: Open, compiled_store: Path) -> None:
    record = next(record for record in make_store(compiled_store).records() if record.family == "simt")
    app = sound(open_page(compiled_store, "kernel", key=record.key, part="Performance"))
    assert app.info[1].value == "No prediction available."
    assert len(frames(app)) == 0


def test_a_kernel_that_cannot_be_disassembled_shows_the_rest(open_page: Open, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    record = next(store.records())
    blob = blob_file(store, CacheKey(record.key))
    blob.write_bytes(bytes(blob.stat().st_size))
    app = sound(open_page(compiled_store, "kernel", key=record.key))
    assert "Theoretical occupancy on each target" in [subheader.value for subheader in app.header]
    assert "Instructions" not in [subheader.value for subheader in app.header]
    assert any(text.value.startswith("instructions were not counted: ") for text in app.text)


@pytest.mark.parametrize("key", ["0" * 64, "nonsense", "<script>alert(1)</script>", "../../etc/passwd"])
def test_a_link_to_an_unknown_kernel_is_reported(open_page: Open, compiled_store: Path, key: str) -> None:
    app = open_page(compiled_store, "kernel", key=key)
    assert not app.exception
    assert [error.value for error in app.error] == ["Kernel not found."]


def test_an_evicted_kernel_is_not_found_and_the_page_says_when_and_why(open_page: Open, compiled_store: Path) -> None:
    journal = Journal(make_store(compiled_store).layout.journal, 3600.0)
    journal.event("evict", key="0" * 64, detail="not used for 7 days")
    journal.close()
    app = open_page(compiled_store, "kernel", key="0" * 64)
    assert app.warning[0].value == "This kernel was evicted just now."
    assert app.text[0].value.endswith(": not used for 7 days.")
    (past,) = (table for table in frames(app))
    assert past[["Event", "Details"]].to_numpy().tolist() == [["evicted", "not used for 7 days"]]


def test_the_start_of_an_evicted_key_is_enough(open_page: Open, compiled_store: Path) -> None:
    """As lists show it: the first 12 digits."""
    journal = Journal(make_store(compiled_store).layout.journal, 3600.0)
    journal.event("evict", key="ab" * 32, detail="not used for 7 days")
    journal.close()
    app = open_page(compiled_store, "kernel", key="AB" * 6)
    assert not app.error
    assert app.warning[0].value == "This kernel was evicted just now."
    assert list(frames(app)[0]["Event"]) == ["evicted"], "its events are those of the whole key"
    app = open_page(compiled_store, "compare", a="ab" * 6)
    assert app.warning[0].value == "This kernel was evicted just now."
    (link,) = (one.proto for one in app.get("page_link") if one.proto.label == "What is known of it")
    assert link.query_string == f"key={'ab' * 32}"


def test_the_start_of_a_quarantined_key_is_enough(open_page: Open, compiled_store: Path, record: Record) -> None:
    blob_file(make_store(compiled_store), CacheKey(record.key)).write_bytes(b"damaged")
    with open_cache(compiled_store) as cache:
        cache.admin.repair(list(cache.admin.check()))
    app = open_page(compiled_store, "kernel", key=record.key[:12])
    assert not app.error
    assert app.warning[0].value == "This kernel was damaged and quarantined just now."
    assert "This command compiles it again:" in [caption.value for caption in app.caption]
    assert "Open Quarantine" in [link.proto.label for link in app.get("page_link")]


def test_the_page_of_no_kernel_says_where_to_find_one(open_page: Open, compiled_store: Path) -> None:
    assert "Choose one on the Kernels page" in sound(open_page(compiled_store, "kernel")).info[0].value


@pytest.mark.parametrize(("part", "errors"), [("Code", ["code"]), ("Compiler log", ["compiler log"])])
def test_a_damaged_part_is_reported(
    open_page: Open, compiled_store: Path, record: Record, part: str, errors: list[str]
) -> None:
    blob_file(make_store(compiled_store), CacheKey(record.key)).write_bytes(b"damaged")
    app = open_page(compiled_store, "kernel", key=record.key, part=part)
    assert not app.exception
    assert [error.value for error in app.error] == [f"Could not load the {name}." for name in errors]


def test_the_record_goes_out_as_show_prints_it(record: Record) -> None:
    document = json.loads(to_json(record_document(record)))
    assert (document["key"], document["components"]) == (record.key, dict(record.components))


def test_a_page_holds_no_more_lines_than_a_browser_bears() -> None:
    text = "x\n" * (MOST_LINES + 1)
    shown, how_many = first_lines(text)
    assert len(shown.splitlines()) == MOST_LINES
    assert f"showing the first {MOST_LINES:,}" in how_many


def test_code_runs_on_later_chips_of_its_generation() -> None:
    def chips(arch: str) -> list[str]:
        return [chip.name for chip, _ in occupancy_by_chip(msgspec.structs.replace(a_record(), arch=arch))]

    assert chips("sm_80") == ["sm_80", "sm_86", "sm_88", "sm_89"]
    assert chips("sm_90a") == ["sm_90"]
    assert chips("sm_100f") == ["sm_100", "sm_103"]
    assert chips("<b>") == []


def test_history_shows_events_newest_first() -> None:
    """Made-up events and a timing. The record and the journal both have the compile of the present entry: one row."""
    record = a_record()
    at = record.created_at
    events = [
        {"happened_at": at + 60, "kind": CORRUPT, "compile_ms": 0.0, "detail": "<b>checksum"},
        {"happened_at": at + 1, "kind": PUBLISH, "compile_ms": 7.0, "detail": ""},
        {"happened_at": at - 5, "kind": PUBLISH, "compile_ms": 120.0, "detail": ""},
    ]
    timings = [{"measured_at": at + 30, "device": "an invented GPU", "verified": True}]
    rows = rows_of(history(record, events, timings), EVENTS, UTC)
    assert [row["Event"] for row in rows] == ["corrupt", "timed", "compiled", "compiled"]
    assert [row["Details"] for row in rows][1:] == [
        "on an invented GPU",
        f"in {human_ms(record.compile_ms)}, by a test, with nvrtc 13.5",
        "in 120 ms",
    ]


def test_a_title_from_the_store_is_no_markdown(
    open_page: Open, compiled_store: Path, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "*a* [b](http://c) `d` :material/home: $e$ <b>"
    monkeypatch.setattr("cache_engine.insight.inspection.titled", lambda _: hostile)
    app = sound(open_page(compiled_store, "kernel", key=record.key))
    assert app.title[0].value == (r"\*a\* \[b\]\(http\:\/\/c\) \`d\` \:material\/home\: \$e\$ \<b\>")
