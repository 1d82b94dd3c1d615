"""Who may act on the admin page: the local user, who has the token, or who has logged in by a name that is listed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app import guard
from cache_engine.model.events import CLEAN
from tests.helpers import make_store
from tests.pages.opening import HERE, Open, Reader, sound
from tests.pages.test_admin import TOKEN, _acts, _button, _press, _said

ADA = "ada@example.com"


@pytest.mark.parametrize("tab", ["Cleanup", "Integrity", "Quarantine", "Packs"])
def test_a_remote_visitor_has_read_only_access(open_page: Open, reader: Reader, compiled_store: Path, tab: str) -> None:
    make_store(compiled_store).quarantine(next(make_store(compiled_store).keys()))
    reader.request = replace(HERE, bound_to="0.0.0.0")
    app = sound(open_page(compiled_store, "admin", tab=tab, rule="all"))
    assert "listens at 0.0.0.0" in _said(app)
    assert "GEMM_CACHE_ADMIN_TOKEN" in _said(app)
    acting = ("Repair", "Delete", "Restore", "Cannot restore", "Import")
    assert all(button.disabled for button in app.button if button.label.startswith(acting))
    if tab == "Cleanup":
        assert "Will delete 3 kernels" in _said(app)


def test_the_act_itself_asks_again(
    open_page: Open, reader: Reader, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hidden button is no protection. Here everything is drawn as for an admin."""
    monkeypatch.setattr(guard, "door", lambda: True)
    reader.request = replace(HERE, headers={**HERE.headers, "x-forwarded-for": "203.0.113.7"})
    app = sound(open_page(compiled_store, "admin", rule="all"))
    app.text_input(key="confirm").set_value("4").run()
    assert not _button(app, "Delete 4 kernels").disabled
    _press(app, "Delete 4 kernels")
    assert [error.value for error in app.error] == ["Deletion stopped."]
    assert "came through a proxy" in app.text[-1].value
    assert len(list(make_store(compiled_store).keys())) == 4
    assert _acts(compiled_store, CLEAN) == []


def test_the_token_unlocks_until_it_is_locked_again(
    open_page: Open, reader: Reader, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMM_CACHE_ADMIN_TOKEN", TOKEN)
    reader.request = replace(HERE, bound_to="0.0.0.0", peer="203.0.113.7")
    app = sound(open_page(compiled_store, "admin", rule="all"))
    assert "requires the admin token" in _said(app)
    assert app.text_input(key="confirm").disabled
    given = next(box for box in app.text_input if box.label == "Admin token")
    given.set_value("wrong-horse-battery")
    _press(app, "Unlock")
    assert [error.value for error in app.error] == ["Wrong token."]
    for _ in range(100):
        guard._attempts().wrong("203.0.113.7", time.monotonic())
    next(box for box in app.text_input if box.label == "Admin token").set_value(TOKEN)
    _press(app, "Unlock")
    assert "Unlocked: admin token, from 203.0.113.7." in _said(sound(app)), (
        "also when others guess from the same address"
    )
    app.text_input(key="confirm").set_value("4").run()
    _press(app, "Delete 4 kernels")
    assert sound(app).success[0].value.startswith("Deleted 4 kernels")
    assert [event.by for event in _acts(compiled_store, CLEAN)] == ["admin token, from 203.0.113.7"] * 2, (
        "what is to go, and what went"
    )
    _press(app, "Lock")
    assert "requires the admin token" in _said(sound(app))


@pytest.mark.parametrize(
    ("user", "users", "said"),
    [
        ({"is_logged_in": False}, "*", "requires a login"),
        ({"is_logged_in": True, "email": "eve@example.com"}, ADA, "eve@example.com is not an admin"),
        ({"is_logged_in": True, "email": "ada@example.com", "email_verified": False, "sub": "17"}, ADA, "17 is not"),
        ({"is_logged_in": True, "email": "Ada@Example.com"}, ADA, "Unlocked: Ada@Example.com."),
    ],
)  # fmt: skip
def test_a_login_unlocks_for_those_who_are_named(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch, user: dict[str, Any], users: str, said: str
) -> None:
    monkeypatch.setenv("GEMM_CACHE_ADMIN_USERS", users)
    app = open_page(compiled_store, "admin")
    app.user = user
    assert said in _said(sound(app.run()))
