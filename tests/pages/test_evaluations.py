"""The Evaluations page: one shape, a model's shapes, two chips, what is kept; and its tables and figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from app.presenters import evaluations as presenters
from cache_engine.catalogue import model_shapes
from cache_engine.evaluations import Evaluations
from cache_engine.evaluator.gpu import GPUS, predict
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.search import evaluate
from cache_engine.store.disk import open_store
from tests.pages.opening import Open, sound

CHIPS = ("SG2262", "H100")
PROBLEM = EvaluationProblem(4096, 7168, 2048)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Evaluations]:
    with Evaluations(open_store(tmp_path / "kept"), durable=False) as opened:
        yield opened


def test_one_shape_is_evaluated_and_kept(open_page: Open, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "store", "evaluations"))
    expected = evaluate(PROBLEM, PRESETS["SG2262"])
    shown = {metric.label: metric.value for metric in app.metric}
    assert shown["Latency"] == f"{expected.latency_us:,.2f} µs"
    assert shown["Partition"] == "×".join(map(str, expected.partition))
    (table,) = (table.value for table in app.dataframe)
    assert list(table["Chip"]) == ["SG2262"]
    assert list(table["Results"]) == [1]
    app.number_input(key="e_m").set_value(16).run()
    assert list(sound(app).dataframe[0].value["Results"]) == [2]


def test_two_chips_stand_side_by_side(open_page: Open, tmp_path: Path) -> None:
    app = open_page(tmp_path / "store", "evaluations")
    app.selectbox(key="e_other").set_value("H100").run()
    assert [header.value for header in sound(app).subheader] == ["SG2262", "H100", "Kept results"]
    assert "Roofline" in {metric.label for metric in app.metric}
    app.selectbox(key="e_dtype").set_value("fp8").run()
    assert [error.value for error in app.error] == ["This cannot be evaluated."]
    assert "not calibrated" in app.text[0].value


def test_a_models_shapes_make_a_table(open_page: Open, tmp_path: Path) -> None:
    app = open_page(tmp_path / "store", "evaluations")
    app.segmented_control(key="e_kind").set_value("A model's shapes").run()
    table = sound(app).dataframe[0].value
    assert len(table) == len(model_shapes("DeepSeek-V3"))
    assert (table["SG2262, µs"] > 0).all()


def test_the_model_table_adds_up_a_pass(kept: Evaluations) -> None:
    problems = presenters.model_problems(model_shapes("DeepSeek-V3"), 64, "bf16")
    rows = [
        (name, layers, [presenters.evaluate_on(kept, name, problem, presenters.CHIPS[chip]) for chip in CHIPS])
        for name, layers, problem in problems
    ]
    table = presenters.model_table(rows)
    assert json.loads(presenters.as_json(table)) == table
    for row, (_, layers, on) in zip(table, rows, strict=True):
        assert row["H100, a pass, ms"] == pytest.approx(on[1].result.latency_us * layers / 1e3)
        assert 0 < row["SG2262, of peak"] <= 1


def test_the_roofline_figure_has_every_point_below_its_roof(kept: Evaluations) -> None:
    points = [
        presenters.evaluate_on(kept, f"<b>{m}", EvaluationProblem(m, 4096, 4096), presenters.CHIPS[chip])
        for m in (256, 2048, 8192)
        for chip in ("SG2262", "H100")
    ]
    figure = presenters.roofline_figure(points)
    assert [trace.name for trace in figure.data] == ["roof of SG2262", "SG2262", "roof of H100", "H100"]
    for trace, chip in ((figure.data[1], "SG2262"), (figure.data[3], "H100")):
        hardware = presenters.CHIPS[chip]
        for x, y in zip(trace.x, trace.y, strict=True):
            assert y <= min(hardware.peak_flops, hardware.dram_bandwidth * x) / 1e12 * (1 + 1e-9)
        assert trace.text[0] == "&lt;b&gt;256"


def test_the_heat_map_is_what_evaluating_each_size_gives() -> None:
    row, column = 3, 8
    one = EvaluationProblem(presenters.HEAT_SIZES[column], presenters.HEAT_SIZES[row], PROBLEM.k)
    latencies = {"SG2261": evaluate(one, PRESETS["SG2261"]).latency_us, "A100": predict(one, GPUS["A100"]).latency_us}
    for name, latency_us in latencies.items():
        chip = presenters.CHIPS[name]
        shares = presenters.heat_map(PROBLEM, chip)
        expected = one.flops / (latency_us * 1e-6 * chip.peak_flops)
        assert shares[row][column] == pytest.approx(expected)
        figure = presenters.heat_map_figure(shares, PROBLEM, name)
        assert figure.data[0].z[row][column] == pytest.approx(100 * expected)


def test_what_cannot_be_read_is_a_line_of_its_own() -> None:
    summaries: list[dict[str, Any]] = [
        {"arch_fingerprint": "a" * 32, "error": "of another format"},
        {"arch_fingerprint": "b" * 32, "chip": "X", "total_entries": 1, "cache_hits": 2, "cache_misses": 3,
         "last_updated": 1e9},
    ]  # fmt: skip
    table = presenters.kept_table(summaries, UTC)
    assert [row["Chip"] for row in table] == ["of another format", "X"]
    assert table[0]["Last one"] is None
