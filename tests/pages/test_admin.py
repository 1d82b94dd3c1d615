"""Admin."""

from __future__ import annotations

import os
import time
from pathlib import Path

from streamlit.testing.v1 import AppTest

from cache_engine.store.leftovers import GRACE_S
from tests.helpers import blob_file, fill, make_store, record_file
from tests.pages.opening import Open, sound


def test_cleanup_shows_what_would_go_and_asks_before_it_does(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "admin"))
    assert "Would evict 0 kernels" in app.caption[0].value
    app.radio(key="rule").set_value("entries").run()
    app.number_input(key="keep").set_value(1).run()
    assert "Would evict 3 kernels" in sound(app).caption[0].value
    victims = app.dataframe[0].value
    assert list(victims["Why"]) == ["too many entries"] * 3
    assert all(name.startswith("gemm_") for name in victims["Kernel"])
    evict = next(button for button in app.button if button.label == "Evict 3 kernels")
    assert evict.disabled
    app.text_input(key="confirm").set_value("2").run()
    assert next(button for button in app.button if button.label == "Evict 3 kernels").disabled
    assert len(list(make_store(compiled_store).keys())) == 4
    app.text_input(key="confirm").set_value("3").run()
    next(button for button in app.button if button.label == "Evict 3 kernels").click().run()
    assert sound(app).success[0].value.startswith("Evicted 3 kernels")
    assert len(list(make_store(compiled_store).keys())) == 1


def test_a_size_that_cannot_be_read_is_told_plainly(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "admin")
    app.radio(key="rule").set_value("bytes").run()
    app.text_input(key="size").set_value("lots").run()
    assert not app.exception
    assert "is not a size" in app.text[0].value


def test_a_bad_size_leaves_the_other_tabs_alone(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "admin")
    app.radio(key="rule").set_value("bytes").run()
    app.text_input(key="size").set_value("lots").run()
    labels = {button.label for button in app.button}
    assert {"Check the store", "Rebuild the mirror"} <= labels


def test_what_is_confirmed_is_what_was_previewed(open_page: Open, compiled_store: Path) -> None:
    """Another process compiles between the preview and the click."""
    app = sound(open_page(compiled_store, "admin"))
    app.radio(key="rule").set_value("entries").run()
    app.number_input(key="keep").set_value(1).run()
    planned = list(app.dataframe[0].value["Key"])
    new = fill(make_store(compiled_store), 2)
    app.text_input(key="confirm").set_value("3").run()
    assert list(app.dataframe[0].value["Key"]) == planned
    _press(app, "Evict 3 kernels")
    assert sound(app).success[0].value.startswith("Evicted 3 kernels")
    kept = set(make_store(compiled_store).keys())
    assert set(new) <= kept
    assert not kept & {key for key in kept if key[:12] in planned}


def _press(app: AppTest, label: str) -> AppTest:
    next(button for button in app.button if button.label == label).click()
    return app.run()


def test_damage_is_found_and_repaired(open_page: Open, compiled_store: Path) -> None:
    app = _press(sound(open_page(compiled_store, "admin")), "Check the store")
    assert "Nothing is wrong." in [success.value for success in sound(app).success]
    store = make_store(compiled_store)
    keys = list(store.keys())
    record_file(store, keys[0]).write_text("{")
    blob_file(store, keys[1]).write_bytes(b"")
    stale = store.layout.temp / "stale"
    stale.touch()
    os.utime(stale, (time.time() - GRACE_S - 1,) * 2)
    _press(app, "Check the store")
    assert "3 findings" in sound(app).warning[0].value
    assert next(button for button in app.button if button.label == "Repair 3 findings").disabled
    app.checkbox(key="agreed").set_value(True).run()
    _press(app, "Repair 3 findings")
    shown = [success.value for success in sound(app).success]
    assert any(text.startswith("Repaired 3 findings.") for text in shown)
    assert "Nothing is wrong." in shown
    assert len(list(store.keys())) == 2


def test_the_mirror_is_rebuilt(open_page: Open, compiled_store: Path) -> None:
    app = _press(sound(open_page(compiled_store, "admin")), "Rebuild the mirror")
    assert "Built anew: 4 kernels" in sound(app).success[0].value


def test_settings_tell_value_variable_and_meaning(open_page: Open, compiled_store: Path) -> None:
    table = sound(open_page(compiled_store, "admin")).dataframe[-1].value.set_index("Setting")
    assert table.loc["max_entries", "Value"] == "5000"
    assert table.loc["dir", "Environment"] == "GEMM_CACHE_DIR"
    assert table.loc["dir", "Value"] == str(compiled_store)
