"""What the tests of pages share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamlit.testing.v1 import AppTest

from cache_engine.admission import Request

Open = Callable[..., AppTest]
HERE = Request("127.0.0.1", "", {"host": "127.0.0.1:8501", "origin": "http://127.0.0.1:8501"})


@dataclass
class Reader:
    """Whoever opens the pages: how they come."""

    request: Request = HERE


def sound(app: AppTest) -> AppTest:
    """The app, if no page broke."""
    assert not app.exception, app.exception
    assert not app.error, [error.value for error in app.error]
    return app
