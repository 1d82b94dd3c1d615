"""Evaluations stores a result when its button is pressed, and says which are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app.views import evaluations as stored_result
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.search import evaluate
from cache_engine.store.layout import StoreLayout
from cache_engine.store.results import ResultFile
from tests.pages.opening import Open, frames, sound

CHIP = PRESETS["SG2262"]
PROBLEM = EvaluationProblem(16, 7168, 2048)
ASKED = {"e_chip": "SG2262", "s_m": "16"}


def _buttons(app: AppTest) -> list[Any]:
    return [button for button in app.button if button.label == "Store result"]


def _on_disk(store: Path) -> Any:
    with Evaluations(StoreLayout(store)) as kept:
        return kept.look_up(PROBLEM, CHIP)


def _says_stored(app: AppTest) -> bool:
    return any(one.value.startswith("Stored: ") for one in app.caption)


def test_the_button_stores_what_the_page_shows_and_the_page_says_so(open_page: Open, tmp_path: Path) -> None:
    store = tmp_path / "store"
    app = sound(open_page(store, "evaluations", **ASKED, e_other="H100"))
    assert _on_disk(store) is None, "looking stores nothing"
    assert not _says_stored(app)
    (button,) = _buttons(app)  # a GPU has none
    sound(button.click().run())
    assert _on_disk(store).evaluation == evaluate(PROBLEM, CHIP)
    assert _says_stored(app)
    assert not _buttons(app)
    sound(app.number_input(key="s_m").set_value(17).run())
    assert len(_buttons(app)) == 1
    listed = sound(open_page(store, "evaluations", e_kind="Saved results"))
    (results,) = [table for table in frames(listed) if "Created" in table]
    assert len(results) == 1


def test_a_read_only_dashboard_stores_nothing_whoever_presses(
    open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_page(tmp_path / "store", "overview")
    monkeypatch.setenv("GEMM_CACHE_DASHBOARD_READ_ONLY", "yes")
    st.cache_resource.clear()
    (button,) = _buttons(sound(open_page(tmp_path / "store", "evaluations", **ASKED)))
    assert button.disabled
    assert "Read-only dashboard" in button.help
    monkeypatch.setattr(stored_result, "_why_not", lambda: "")  # a program may press a button that is off
    app = open_page(tmp_path / "store", "evaluations", **ASKED)
    _buttons(app)[0].click().run()
    assert [error.value for error in app.error] == ["Could not store the result."]
    assert _on_disk(tmp_path / "store") is None


def test_what_cannot_be_written_is_said_to_be_until_it_is(
    open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    app = sound(open_page(tmp_path / "store", "evaluations", **ASKED))
    with monkeypatch.context() as patched:
        patched.setattr(ResultFile, "append", refuse)
        _buttons(app)[0].click().run()
        assert [error.value for error in app.error] == ["Could not store the result."]
        assert any("the disk is full" in text.value for text in app.text)
        assert not _says_stored(sound(app.run())), "the dashboard has it in memory alone"
    sound(_buttons(app)[0].click().run())
    assert _says_stored(app)
    assert _on_disk(tmp_path / "store") is not None
