"""What the tests of pages share."""

from __future__ import annotations

from collections.abc import Callable

from streamlit.testing.v1 import AppTest

Open = Callable[..., AppTest]


def sound(app: AppTest) -> AppTest:
    """The app, if no page broke."""
    assert not app.exception, app.exception
    assert not app.error, [error.value for error in app.error]
    return app
