"""The preview of a cleanup: a large store is read when the reader asks for it, and once for all rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.admin import cleanup
from cache_engine.upkeep.admin import Admin
from tests.helpers import make_store, publish
from tests.pages.opening import Open, sound
from tests.pages.test_admin import _button, _press, _said


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One for each time that the store was looked at."""
    made: list[Any] = []
    survey = Admin.survey

    def counted(admin: Admin) -> Any:
        made.append(survey(admin))
        return made[-1]

    monkeypatch.setattr(Admin, "survey", counted)
    return made


def test_a_large_store_is_read_when_asked_and_not_again_for_another_rule(
    open_page: Open, compiled_store: Path, looks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "FEW", 3)
    app = sound(open_page(compiled_store, "admin", rule="all"))
    assert not looks
    assert "looks at the files of 4 kernels" in _said(app)
    assert not any(button.label.startswith("Delete") for button in app.button)
    _press(app, "Preview")
    assert "Will delete 4 kernels" in _said(sound(app))
    app.radio(key="rule").set_value("entries").run()
    app.number_input(key="keep").set_value(1).run()
    assert "Will delete 3 kernels" in _said(sound(app))
    assert len(looks) == 1
    publish(make_store(compiled_store), 50)
    assert "Will delete 3 kernels" in _said(sound(app.run()))
    _press(app, "Refresh preview")
    assert "Will delete 4 kernels" in _said(sound(app))
    assert len(looks) == 2


def test_after_a_deletion_nothing_is_read_before_it_is_asked(
    open_page: Open, compiled_store: Path, looks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "FEW", 0)
    app = sound(open_page(compiled_store, "admin", rule="entries", keep="1"))
    _press(app, "Preview")
    app.text_input(key="confirm").set_value("3").run()
    _press(app, "Delete 3 kernels")
    assert sound(app).success[0].value.startswith("Deleted 3 kernels")
    assert _button(app, "Preview")
    assert len(looks) == 1


def test_a_small_store_is_shown_as_it_is_now_under_every_rule(
    open_page: Open, compiled_store: Path, looks: list[Any]
) -> None:
    app = sound(open_page(compiled_store, "admin", rule="all"))
    assert "Will delete 4 kernels" in _said(app)
    publish(make_store(compiled_store), 50)
    app.radio(key="rule").set_value("entries").run()
    app.number_input(key="keep").set_value(1).run()
    assert "Will delete 4 kernels" in _said(sound(app))
    assert len(looks) >= 2
