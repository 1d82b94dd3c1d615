"""What the tests of pages share."""

from __future__ import annotations

from collections.abc import Callable

from streamlit.testing.v1 import AppTest

from cache_engine.model.artifact import Record
from cache_engine.store.codec import encode_blob
from tests.helpers import make_entry

Open = Callable[..., AppTest]


def sound(app: AppTest) -> AppTest:
    """The app, if no page broke."""
    assert not app.exception, app.exception
    assert not app.error, [error.value for error in app.error]
    return app


def a_record(seed: int = 1) -> Record:
    """A record of bytes made up, for tests of words and figures."""
    key, artifact, describe = make_entry(seed)
    return describe(encode_blob(key, artifact, compress=True)[1])
