"""What the tests of pages share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamlit.testing.v1 import AppTest

from cache_engine.model.artifact import Record
from cache_engine.store.codec import encode_blob
from cache_engine.upkeep.admission import Request
from tests.helpers import make_entry

Open = Callable[..., AppTest]
HERE = Request("127.0.0.1", "", {"host": "127.0.0.1:8501", "origin": "http://127.0.0.1:8501"})


@dataclass
class Reader:
    """Visitors of the pages: how they connect."""

    request: Request = HERE


def sound(app: AppTest) -> AppTest:
    """The app, if no page broke."""
    assert not app.exception, app.exception
    assert not app.error, [error.value for error in app.error]
    return app


def a_record(seed: int = 1) -> Record:
    """A record of bytes made up, for tests of words and figures."""
    key, artifact, describe = make_entry(seed)
    return describe(encode_blob(key, artifact, compress=True)[1])
