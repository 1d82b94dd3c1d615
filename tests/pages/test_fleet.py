"""Several stores in one dashboard: one is shown, the address says which, and Fleet has the sums."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from cache_engine.cache.cache import open_cache
from tests.helpers import make_store, publish
from tests.pages.opening import Open, frames, listed, sound


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two stores, of one kernel and of two."""
    found = {name: tmp_path / name for name in ("north", "south")}
    for kernels, path in enumerate(found.values(), start=1):
        for seed in range(kernels):
            publish(make_store(path), 10 * kernels + seed)
    monkeypatch.setenv("GEMM_CACHE_STORES", str(found["south"]))
    return found


def _kernels(app: AppTest) -> str:
    return [one.value for one in sound(app).metric if one.label == "Kernels"][-1]


def _store(app: AppTest) -> str:
    found = app.query_params.get("store", "")
    return found if isinstance(found, str) else found[0]


def test_the_switch_shows_another_store_and_its_address_is_a_link(open_page: Open, fleet: dict[str, Path]) -> None:
    app = open_page(fleet["north"], "overview")
    assert (_kernels(app), _store(app)) == ("1", "")
    app.selectbox[0].select("south").run()
    assert (_kernels(app), _store(app)) == ("2", "south")
    app.switch_page("../pages/kernels.py").run()
    assert len(listed(sound(app))) == 2
    assert _store(app) == "south", "the address of every page names the store"
    assert '"kernel?key=' in app.get("bidi_component")[0].proto.json
    assert "&store=south" in app.get("bidi_component")[0].proto.json, "links open in a tab of their own"
    app.selectbox[0].select("north").run()
    assert len(listed(sound(app))) == 1
    assert _store(app) == ""


def test_a_quick_reader_deletes_from_the_store_that_is_shown(
    open_page: Open, compiled_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both stores have the same kernels, one of them one more."""
    other = Path(shutil.copytree(compiled_store, tmp_path / "other"))
    key = next(iter(make_store(other).keys()))
    next((other / "metadata").rglob(f"{key}*")).unlink()
    monkeypatch.setenv("GEMM_CACHE_STORES", str(other))
    app = sound(open_page(compiled_store, "admin", rule="all"))
    assert [one.label for one in app.button if one.label.startswith("Delete")] == ["Delete 4 kernels"]
    app.text_input(key="confirm").set_value("4").run()
    app.selectbox[0].select("other").run()
    assert [one.label for one in sound(app).button if one.label.startswith("Delete")] == ["Delete 3 kernels"]
    app.selectbox[0].select("compiled").run()
    app.query_params["store"] = "other"  # the browser has not heard of the switch yet
    app.text_input(key="confirm").set_value("4").run()
    assert [one.label for one in sound(app).button if one.label.startswith("Delete")] == ["Delete 4 kernels"]
    assert _store(app) == ""


def test_a_link_names_a_store(open_page: Open, fleet: dict[str, Path]) -> None:
    assert _kernels(open_page(fleet["north"], "overview", store="south")) == "2"
    app = open_page(fleet["north"], "overview", store="../../etc")
    assert _kernels(app) == "1"
    assert "does not show" in app.warning[0].value


def test_fleet_adds_up_all_stores_and_names_one_that_cannot_be_read(
    open_page: Open, fleet: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_cache(fleet["south"], durability="fast") as cache:
        for key in list(cache.store.keys()):
            assert cache.look_up(key) is not None
    (tmp_path / "file").touch()
    other = tmp_path / "other" / "south"
    shutil.copytree(fleet["south"], other)
    gone = tmp_path / "never"
    monkeypatch.setenv("GEMM_CACHE_REMOTE", "s3://bucket/kernels")
    monkeypatch.setenv("GEMM_CACHE_STORES", os.pathsep.join(map(str, (fleet["south"], tmp_path / "file", other, gone))))
    app = open_page(fleet["north"], "fleet")
    assert not app.exception
    assert any(text.value.startswith("3 of 5 stores can be read: 5 kernels, ") for text in app.text)
    table = frames(app)[0]
    assert list(table["Store"]) == ["north", str(fleet["south"]), "file", str(other), "never"]
    assert list(table["Kernels"]) == [1, 2, "–", 2, "–"]
    assert table["Store →"][2] == ".?store=file"
    assert len(app.error) == 2
    assert [text.value for text in app.text if text.value.startswith("north: s3://bucket/kernels, read: 0 hits")]
    assert not gone.exists(), "a store is never made by looking"


def test_one_store_has_no_switch(open_page: Open, fleet: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMM_CACHE_STORES")
    assert not [one for one in sound(open_page(fleet["north"], "overview")).selectbox if one.label == "Store"]
    assert _kernels(open_page(fleet["north"], "fleet")) == "1"
