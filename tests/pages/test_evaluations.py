"""The Evaluations page: one shape, a model's shapes, two chips, a custom chip, stored results; and its tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.presenters import evaluations as figures
from app.presenters import evaluations as presenters
from app.presenters.evaluations import pass_table
from cache_engine.assets import model_configs
from cache_engine.errors import InvalidHardware
from cache_engine.evaluator.catalogue import model_shapes
from cache_engine.evaluator.chips import GPUS
from cache_engine.evaluator.cost import SearchMode
from cache_engine.evaluator.gpu import predict
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.search import evaluate
from cache_engine.insight.passes import Operation, Priced, Step, asking, model_pass, operations
from cache_engine.store.disk import open_store
from cache_engine.units import human_us
from tests.pages.opening import Open, frames, sound
from tests.pages.test_all_pages import HOSTILE

CHIPS = ("SG2262", "H100")
PROBLEM = EvaluationProblem(4096, 7168, 2048)
MINE = replace(PRESETS["SG2262"], name="Mine 2.0", num_cores=128)
KEPT = "Saved results"


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Evaluations]:
    with Evaluations(open_store(tmp_path / "kept"), durable=False) as opened:
        yield opened


def metrics(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def table_with(app: AppTest, column: str) -> Any:
    (table,) = (table for table in frames(app) if column in table)
    return table


def fill(store: Path, count: int) -> None:
    found = evaluate(PROBLEM, PRESETS["SG2262"])
    with Evaluations(open_store(store), durable=False) as kept:
        for m in range(1, count + 1):
            assert kept.put(replace(PROBLEM, m=m), PRESETS["SG2262"], SearchMode(), found) is None


def test_one_shape_is_evaluated(open_page: Open, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "store", "evaluations"))
    assert [header.value for header in app.header] == ["H100"], "an NVIDIA chip first"
    assert "±6.2% on average" in [metric.delta for metric in app.metric], "the model's error stands beside the number"
    app.selectbox(key="e_chip").set_value("SG2262").run()
    expected = evaluate(PROBLEM, PRESETS["SG2262"])
    assert metrics(app)["Latency"] == human_us(expected.latency_us)
    assert metrics(app)["Partition"] == "×".join(map(str, expected.partition))


def test_looking_stores_nothing_and_creates_no_file(open_page: Open, tmp_path: Path) -> None:
    """Neither for a chip of the list nor for a visitor's own, and no descriptor stays open."""
    fill(tmp_path / "store", 1)

    def seen() -> dict[str, bytes]:
        files = (path for path in (tmp_path / "store").rglob("*") if path.is_file())
        return {path.name: path.read_bytes() for path in files if not path.name.startswith("mirror.")}

    open_page(tmp_path / "store", "evaluations", e_kind=KEPT)  # reads the index, which makes it
    before = seen()
    descriptors = set(os.listdir("/proc/self/fd"))
    parameters = {"s_m": "1", "e_chip": "Mine 2.0", "e_other": "SG2262", "own": presenters.chip_text(MINE)}
    for kind in ("Single shape", "Whole model", KEPT):
        app = sound(open_page(tmp_path / "store", "evaluations", e_kind=kind, **parameters))
    assert list(table_with(app, "Misses")["Misses"]) == [0]
    assert seen() == before
    assert not [path for path in _opened(set(os.listdir("/proc/self/fd")) - descriptors) if "gemm_cache" in path]


def _opened(descriptors: set[str]) -> list[str]:
    found = []
    for descriptor in descriptors:
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found


def test_a_link_shows_the_same(open_page: Open, tmp_path: Path) -> None:
    parameters = {"s_m": "16", "e_chip": "Mine 2.0", "e_other": "A100", "own": presenters.chip_text(MINE)}
    app = sound(open_page(tmp_path / "store", "evaluations", **parameters))
    expected = evaluate(replace(PROBLEM, m=16), MINE)
    assert [header.value for header in app.header] == ["Mine 2.0", "A100", "Comparison"]
    assert app.metric[0].value == human_us(expected.latency_us)
    assert table_with(app, "Ratio")["Mine 2.0"][0] == expected.latency_us


def test_two_chips_stand_side_by_side(open_page: Open, tmp_path: Path) -> None:
    app = open_page(tmp_path / "store", "evaluations", e_chip="SG2262")
    app.selectbox(key="e_other").set_value("H100").run()
    assert [header.value for header in sound(app).header] == ["SG2262", "H100", "Comparison"]
    assert "Roofline" in metrics(app)
    app.selectbox(key="s_dtype").set_value("fp64").run()
    assert [error.value for error in app.error] == ["Could not evaluate."]
    assert any("H100: dtype fp64 with results in fp64 is not calibrated" in text.value for text in app.text)
    assert [header.value for header in app.header] == ["SG2262"], "the other is evaluated all the same"


def test_a_models_shapes_make_a_table_that_adds_up(open_page: Open, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "store", "evaluations", e_kind="Whole model", e_chip="SG2262", e_other="H100"))
    table = table_with(app, "Operation")
    assert list(table["Operation"])[-1] == "Total"
    rows, whole = table[:-1], table.iloc[-1]
    assert "expert down" in list(rows["Operation"])
    for chip in CHIPS:
        assert rows[f"{chip}, ms per pass"].sum() == pytest.approx(whole[f"{chip}, ms per pass"])
        assert rows[f"{chip}, ms per pass"].sum() == pytest.approx(
            (rows[f"{chip}, µs"] * rows["Calls per pass"]).sum() / 1e3
        )
        assert rows[f"{chip}, share"].sum() == pytest.approx(1)
    assert whole["SG2262, ms per pass"] == pytest.approx(812, abs=5)
    shown = [one.value for one in app.metric if one.label == "Pass"]
    assert shown == [human_us(whole[f"{chip}, ms per pass"] * 1e3) for chip in CHIPS]
    assert Evaluations(open_store(tmp_path / "store")).fingerprints() == []


def test_each_chip_of_a_model_has_the_models_error_and_a_slower_one_says_why(open_page: Open, tmp_path: Path) -> None:
    """The H200 has the rates of the H100, and is predicted slower in some operations."""
    app = sound(open_page(tmp_path / "store", "evaluations", e_kind="Whole model", e_other="H200"))
    assert [one.delta for one in app.metric if one.label == "Pass"] == ["±6.2% on average", "±7.6% on average"]
    assert any("H200 is predicted slower than H100, which has no higher rates" in one.value for one in app.caption)


def test_a_chip_predicted_slower_than_its_predecessor_says_why(open_page: Open, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "store", "evaluations", e_other="H200"))
    assert any("H200 is predicted slower than H100, which has no higher rates" in one.value for one in app.caption)


def test_a_model_is_spread_over_chips_and_its_phase_chosen(open_page: Open, tmp_path: Path) -> None:
    asked = {"e_kind": "Whole model", "e_tp": "8", "e_ep": "8", "e_phase": "decode", "e_tokens": "64"}
    app = sound(open_page(tmp_path / "store", "evaluations", **asked))
    table = table_with(app, "Operation").set_index("Operation")
    assert table["m × n × k"]["W_UK absorb"] == "64 × 512 × 128"
    assert (table["Batch"]["W_UK absorb"], table["Batch"]["expert down"]) == (16, 32)
    assert any("One of 8 chips" in one.value for one in app.caption)
    app.number_input(key="e_tp").set_value(7).run()
    assert any("expert parallel size 8 does not divide" in text.value for text in app.text)


def test_an_uploaded_config_is_evaluated_and_a_wrong_one_refused(open_page: Open, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "store", "evaluations", e_kind="Whole model"))
    config = json.loads(model_configs().read_bytes())["Qwen3-0.6B"]
    upload = next(one for one in app.file_uploader if one.label == "config.json")
    upload.set_value(("config.json", json.dumps(config).encode(), "application/json")).run()
    assert list(table_with(sound(app), "Operation")["Operation"]) == ["qkv", "o", "gate+up", "down", "lm_head", "Total"]
    wrong = json.dumps({**config, "num_key_value_heads": 3}).encode()
    upload = next(one for one in app.file_uploader if one.label == "config.json")
    upload.set_value(("config.json", wrong, "application/json")).run()
    assert any("num_key_value_heads 3 does not divide" in text.value for text in app.text)


def test_a_chip_without_the_dtype_leaves_the_other(open_page: Open, tmp_path: Path) -> None:
    asked = {
        "e_kind": "Whole model",
        "e_chip": "SG2262",
        "e_other": "H100",
        "s_dtype": "fp32",
        "s_model": "Qwen3-0.6B",
    }
    app = open_page(tmp_path / "store", "evaluations", **asked)
    assert [error.value for error in app.error] == ["Could not evaluate."]
    assert "SG2262, share" in table_with(app, "Operation")
    assert "H100, share" not in table_with(app, "Operation")


def test_a_chip_of_ones_own_can_be_chosen_and_forgotten(open_page: Open, tmp_path: Path) -> None:
    app = open_page(tmp_path / "store", "evaluations")
    file = ("mine.json", presenters.chip_text(MINE).encode(), "application/json")
    app.file_uploader[0].set_value(file).run()
    assert "Mine 2.0 added" in app.text[0].value
    app.selectbox(key="e_chip").set_value("Mine 2.0").run()
    assert metrics(sound(app))["Latency"] == human_us(evaluate(PROBLEM, MINE).latency_us)
    app.button(key="e_forget").click().run()
    assert "Mine 2.0" not in sound(app).selectbox(key="e_chip").options
    assert "own" not in app.query_params


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sram_bytes": -5}, "sram_bytes is -5"),
        ({"cube": 3}, "unknown field 'cube'"),
        ({"peak_flops": 1.0}, "contradict"),
        ({"name": "H100"}, "taken by another chip"),
        (
            {"cube_n": 1, "sram_bytes": 2**26},
            "SRAM of Mine 2.0, and a page searches at most 65,536",
        ),
        *(({"name": text}, "name is") for text in HOSTILE),
    ],
)
def test_a_chip_that_cannot_be_is_refused_by_its_field(
    open_page: Open, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    description = json.dumps({**MINE.to_dict(), **change})
    with pytest.raises(InvalidHardware, match=said):
        presenters.described_chip(description)
    if change == {"sram_bytes": -5}:
        app = open_page(tmp_path / "store", "evaluations", own=description)
        assert [error.value for error in app.error] == ["Invalid chip description."]
        assert said in app.text[0].value
        assert "Latency" in metrics(app), "the rest of the page is there"


@pytest.mark.parametrize("kind", ["Single shape", "Whole model"])
def test_a_search_that_takes_too_long_is_stopped_and_reported(
    open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("GEMM_CACHE_PAGE_LIMIT_S", "0")
    own = presenters.chip_text(MINE)
    app = open_page(tmp_path / "store", "evaluations", own=own, e_chip=MINE.name, e_other="H100", e_kind=kind)
    assert not app.exception
    assert [error.value for error in app.error] == ["Search stopped: it takes too long."]
    said = " ".join(text.value for text in app.text)
    assert "on Mine 2.0 was stopped after 0 of 120 partitions" in said
    assert "A page searches for at most 0 s (setting page_limit_s). Choose a chip with fewer cores" in said
    assert kind != "Single shape" or "Latency" in metrics(app), "what takes no search is there"


def test_a_heat_map_shows_the_cells_done_in_time(open_page: Open, tmp_path: Path) -> None:
    left = iter([True] * 40)
    shares = presenters.heat_map(PROBLEM, MINE, lambda: next(left, False))
    missing = presenters.unsearched(shares)
    assert 0 < missing < 121
    drawn = figures.heat_map_figure(shares, PROBLEM.k, "x").data[0].z
    assert sum(value is None for row in drawn for value in row) == missing
    assert sum(value is None for row in presenters.heat_table(shares) for value in row.values()) == missing
    sound(open_page(tmp_path / "store", "evaluations", own=presenters.chip_text(MINE), e_chip=MINE.name))
    assert presenters.unsearched(presenters.heat_map(PROBLEM, MINE)) == 0


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 4000, '{"name": "x"}', "x" * 5000, "\ud800"])
def test_an_invalid_chip_description_is_refused(text: str) -> None:
    with pytest.raises(InvalidHardware, match="description"):
        presenters.described_chip(text)


@pytest.mark.parametrize("chip", [MINE, replace(GPUS["H100"], name="Mine 3")], ids=lambda chip: chip.name)
def test_a_description_comes_back_as_it_was(chip: presenters.Chip) -> None:
    assert presenters.described_chip(presenters.chip_text(chip)) == chip


def test_stored_results_are_searched(open_page: Open, tmp_path: Path) -> None:
    fill(tmp_path / "store", 50)
    app = open_page(tmp_path / "store", "evaluations", e_kind=KEPT)
    table = table_with(sound(app), "Tile")
    assert sorted(int(size.split()[0]) for size in table["m × n × k"]) == list(range(1, 51))
    app.text_input(key="e_q").set_value("7x7168").run()
    assert list(table_with(sound(app), "Tile")["m × n × k"]) == ["7 × 7168 × 2048"]
    app.text_input(key="e_q").set_value("999").run()
    assert "No matching results" in sound(app).info[0].value


def test_without_results_the_list_says_where_they_come_from(open_page: Open, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "store", "evaluations", e_kind=KEPT))
    assert "No saved results" in app.info[0].value


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_of_accelerators_are_only_ever_text(open_page: Open, tmp_path: Path, text: str) -> None:
    fill(tmp_path / "store", 2)
    (path,) = (tmp_path / "store" / "evaluations").glob("*.json")
    described = json.loads(path.read_bytes())
    described["architecture"]["name"] = text
    path.write_text(json.dumps(described))
    app = sound(open_page(tmp_path / "store", "evaluations", e_kind=KEPT))
    shown = text if text.isprintable() else ""
    assert table_with(app, "Misses")["Chip"][0] == shown
    for markdown in (*app.markdown, *app.caption, *app.title, *app.header, *app.info):
        assert text not in markdown.value


def test_the_table_of_passes_is_a_json_document_too() -> None:
    computed = operations(model_shapes("DeepSeek-V3"), Step(64))
    passes = [model_pass(computed, presenters.CHIPS[chip], 64, asking(None)) for chip in CHIPS]
    table = pass_table(passes)
    assert json.loads(json.dumps(table)) == table


def test_the_roofline_figure_has_every_point_below_its_roof(kept: Evaluations) -> None:
    ask = asking(kept, stores=False)
    points = [
        Priced(Operation(f"<b>{m}", problem, 1), presenters.CHIPS[chip], ask(problem, presenters.CHIPS[chip]))
        for m in (256, 2048, 8192)
        for problem in [EvaluationProblem(m, 4096, 4096)]
        for chip in ("SG2262", "H100")
    ]
    figure = figures.roofline_figure(points)
    assert [one.name for one in figure.data] == ["SG2262 roofline", "SG2262", "H100 roofline", "H100"]
    every = [one for one in figure.data if one.mode == "markers"]
    assert len({dots.marker.symbol for dots in every}) == 2, "colour is not the only signal"
    table = presenters.roofline_table(points)
    for dots, chip in zip(every, ("SG2262", "H100"), strict=True):
        behind = [row for row in table if row["Chip"] == chip]
        assert [row["TFLOP/s"] for row in behind] == list(dots.y)
        assert all(row["TFLOP/s"] <= row["Roofline, TFLOP/s"] * (1 + 1e-9) for row in behind)
        assert dots.hovertext[0].startswith("&lt;b&gt;256<br>"), "drawn as text"


def test_the_heat_map_equals_evaluating_each_size() -> None:
    row, column = 3, 8
    one = EvaluationProblem(presenters.HEAT_SIZES[column], presenters.HEAT_SIZES[row], PROBLEM.k)
    latencies = {"SG2261": evaluate(one, PRESETS["SG2261"]).latency_us, "A100": predict(one, GPUS["A100"]).latency_us}
    for name, latency_us in latencies.items():
        chip = presenters.CHIPS[name]
        shares = presenters.heat_map(PROBLEM, chip)
        expected = one.flops / (latency_us * 1e-6 * chip.peak_flops)
        assert shares[row][column] == pytest.approx(expected)
        figure = figures.heat_map_figure(shares, PROBLEM.k, name)
        assert figure.data[0].z[row][column] == pytest.approx(100 * expected)
        assert presenters.heat_table(shares)[row][f"{one.m}"] == pytest.approx(100 * expected)
