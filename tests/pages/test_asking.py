"""What pages ask ahead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from tests.helpers import fill, make_store
from tests.pages.opening import openings, sound


def _script() -> None:
    import json
    import os
    from pathlib import Path

    import streamlit as st

    from app import context
    from cache_engine.index import queries
    from tests.helpers import fill, make_store

    everything = queries.KernelFilter()
    context.forget_ahead()
    counts = [len(context.ask(queries.kernels, everything))]
    context.ask_ahead(
        context.question(queries.count, everything),
        context.question(queries.overview),
        context.question(queries.kernels, everything),  # and does not ask
    )
    counts.append(context.ask(queries.count, everything))
    fill(make_store(Path(os.environ["GEMM_CACHE_DIR"])), 1, start=9)
    counts.append(context.ask(queries.count, everything))
    st.text(json.dumps([*counts, context.ask(queries.overview)["entries"]]))


def test_what_was_asked_ahead_is_the_answer_once_and_not_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(make_store(tmp_path / "store"), 2)
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "store"))
    st.cache_resource.clear()
    opened = openings(monkeypatch)
    app = sound(AppTest.from_function(_script, default_timeout=60).run())
    assert json.loads(app.text[0].value) == [2, 2, 3, 2], "the last was asked before the change"
    assert len(opened) == 3, "those asked ahead at once, and the one after the change"
    assert json.loads(sound(app.run()).text[0].value) == [3, 3, 3, 3], "another drawing asks again"
    st.cache_resource.clear()
