"""The page of a kernel shows its decisions, and pins it for those who may delete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.model.artifact import Record
from cache_engine.store.notes import pinned_keys
from cache_engine.upkeep.plan import Limits
from tests.faults.test_hostile_text import HOSTILE
from tests.helpers import make_store
from tests.pages.opening import HERE, Open, Reader, as_shown, frames, sound


@pytest.fixture
def record(compiled_store: Path) -> Record:
    return next(make_store(compiled_store).records())


def test_the_history_has_the_decisions_the_newest_first(open_page: Open, compiled_store: Path, record: Record) -> None:
    with open_cache(compiled_store) as cache:
        for text in HOSTILE:
            cache.journal.decided("miss", key=record.key, reason=text, detail=text, by=text)
        cache.journal.decided("choice", key=record.key, reason="cost model", runner_up="other", margin=0.2)
    app = sound(open_page(compiled_store, "kernel", key=record.key, part="History"))
    (shown,) = [table for table in frames(app) if "Decision" in table.columns]
    assert list(shown["Decision"][:2]) == ["choice", "miss"]
    assert (shown["Runner-up"][0], shown["Margin"][0]) == ("other", 0.2)
    assert set(HOSTILE) <= set(map(as_shown, shown["Reason"]))
    texts = [element.value for element in (*app.markdown, *app.caption)]
    assert not [text for text in texts if "<script>" in text]


def test_a_key_whose_kernel_was_evicted_says_why(open_page: Open, compiled_store: Path, record: Record) -> None:
    with open_cache(compiled_store) as cache:
        cache.admin.clean(Limits(everything=True), by="Ann")
    app = open_page(compiled_store, "kernel", key=record.key)
    assert not app.exception
    (shown,) = [table for table in frames(app) if "Decision" in table.columns]
    row = shown[shown["Decision"] == "eviction"].iloc[0]
    assert (row["Reason"], row["By"]) == ("everything", "Ann")


def test_the_button_pins_and_unpins(open_page: Open, compiled_store: Path, record: Record) -> None:
    layout = make_store(compiled_store).layout
    app = sound(open_page(compiled_store, "kernel", key=record.key))
    (button,) = [button for button in app.button if button.label == "Pin"]
    button.click().run()
    assert pinned_keys(layout) == {record.key}
    (button,) = [button for button in sound(app).button if button.label == "Unpin"]
    button.click().run()
    assert pinned_keys(layout) == set()
    assert [button.label for button in sound(app).button if "pin" in button.label.lower()] == ["Pin"]


def test_a_remote_visitor_cannot_pin(open_page: Open, reader: Reader, compiled_store: Path, record: Record) -> None:
    reader.request = replace(HERE, bound_to="0.0.0.0")
    app = sound(open_page(compiled_store, "kernel", key=record.key))
    (button,) = [button for button in app.button if button.label == "Pin"]
    assert button.disabled
