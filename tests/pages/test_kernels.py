"""The list of kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.store.disk import DiskStore
from tests.helpers import fill, make_store
from tests.pages.opening import Open, sound


def test_a_kernel_compiled_meanwhile_appears(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "kernels"))
    assert len(app.dataframe[0].value) == 4
    fill(make_store(compiled_store), 2)
    assert len(sound(app.run()).dataframe[0].value) == 6


@pytest.mark.parametrize(("text", "count"), [("sm_90", 2), ("SM_90 fp16", 1), ("128×256×192", 2), ("simt", 1)])
def test_search_narrows_the_list(open_page: Open, compiled_store: Path, text: str, count: int) -> None:
    app = sound(open_page(compiled_store, "kernels"))
    app.text_input(key="q").set_value(text).run()
    assert len(sound(app).dataframe[0].value) == count


def test_a_search_that_finds_nothing_says_so(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "kernels")
    app.text_input(key="q").set_value("no such kernel").run()
    assert "No kernel matches" in sound(app).info[0].value


def test_filters_and_sorting(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "kernels"))
    app.multiselect(key="dtype").set_value(["bf16"])
    app.multiselect(key="arch").set_value(["sm_80", "sm_90"])
    app.selectbox(key="sort").set_value("architecture")
    app.toggle(key="asc").set_value(True).run()
    table = sound(app).dataframe[0].value
    assert list(table["Target"]) == ["sm_80", "sm_90"]
    assert set(table["Dtype"]) == {"bf16"}


def test_pages_of_the_list(open_page: Open, store: DiskStore) -> None:
    keys = fill(store, 60)
    app = sound(open_page(store.layout.root, "kernels"))
    seen = list(app.dataframe[0].value["Key"])
    for number in (2, 3):
        app.pagination(key="page").set_value(number).run()
        seen += list(sound(app).dataframe[0].value["Key"])
    assert app.pagination(key="page").value == 3
    assert sorted(seen) == sorted(key[:12] for key in keys)
    # Another search starts at its own first page.
    app.text_input(key="q").set_value("sm_80").run()
    assert len(sound(app).dataframe[0].value) == 15
    assert "1–15 of 15" in app.caption[0].value


def test_the_mirror_built_anew_shows_what_is_there_now(open_page: Open, compiled_store: Path) -> None:
    """Not what an earlier mirror had answered."""
    app = sound(open_page(compiled_store, "kernels"))
    for count in (1, 2):
        fill(make_store(compiled_store), count)
        (compiled_store / "mirror.duckdb").unlink()
        assert len(sound(app.run()).dataframe[0].value) == 4 + count
