"""A read-only dashboard: every page is drawn, and nothing on any of them changes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import guard, widgets
from cache_engine.model.events import CLEAN
from tests.helpers import make_store
from tests.pages.opening import Open, sound
from tests.pages.test_admin import _acts, _button, _press, _said
from tests.pages.test_all_pages import PAGES

READING = {
    "Search", "Preview", "Refresh preview", "Run check", "Sync now", "Build pack", "Clear selection", "Remove",
    "Reload", "as SQL", "Clear search and filters", "Compare", "Explain the miss",
}  # fmt: skip
"""Buttons that change nothing. A button that is on and not among them fails the test."""
CHANGING = {
    "Cleanup": "Delete", "Quarantine": "Delete", "Index": "Rebuild", "Integrity": "", "Packs": "", "Results": "",
}  # fmt: skip
"""What the changing button of a tab begins with, where this store has something to change there."""


@pytest.fixture(autouse=True)
def _read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_CACHE_DASHBOARD_READ_ONLY", "yes")


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_drawn_and_changes_nothing(open_page: Open, compiled_store: Path, page: str) -> None:
    asked = {"key": next(compiled_store.glob("metadata/*/*.json")).stem} if page == "kernel" else {}
    app = sound(open_page(compiled_store, page, **asked))
    assert {button.label for button in app.button if not button.disabled} <= READING
    off = [button for button in app.button if button.disabled]
    if page == "kernel":
        assert any(button.label == "Pin" and button.help for button in off)
    if page in ("compile", "coverage"):
        assert "Read-only dashboard" in _said(app)
        assert off


@pytest.mark.parametrize(("tab", "label"), list(CHANGING.items()))
def test_no_tab_of_admin_changes_anything(open_page: Open, compiled_store: Path, tab: str, label: str) -> None:
    make_store(compiled_store).quarantine(next(make_store(compiled_store).keys()))
    app = sound(open_page(compiled_store, "admin", tab=tab, rule="all"))
    assert "this dashboard is read-only" in _said(app)
    assert {button.label for button in app.button if not button.disabled} <= READING
    if label:
        assert any(button.disabled for button in app.button if button.label.startswith(label))


def test_the_acts_themselves_are_refused(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may press a button that is off. Here all are drawn as if they were on."""
    monkeypatch.setattr(widgets, "may_store", lambda: True)
    monkeypatch.setattr(guard, "door", lambda: True)
    app = open_page(compiled_store, "compile")
    _press(app, "Compile")
    assert [error.value for error in app.error] == ["Could not start the job."]
    assert "read-only" in _said(app)
    assert not list(compiled_store.glob("jobs/*.json"))
    app = sound(open_page(compiled_store, "admin", rule="all"))
    app.text_input(key="confirm").set_value("4").run()
    _press(app, "Delete 4 kernels")
    assert [error.value for error in app.error] == ["Deletion stopped."]
    assert _acts(compiled_store, CLEAN) == []
    assert not _button(app, "Delete 4 kernels").disabled
