"""A store that is deleted, moved or damaged while the dashboard serves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from app.addresses import moved
from app.caches import scan
from tests.pages.opening import Open, sound
from tests.pages.test_all_pages import PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_store_that_is_gone_is_reported_on_every_page(
    open_page: Open, compiled_store: Path, tmp_path: Path, page: str
) -> None:
    app = sound(open_page(compiled_store, page))
    assert app.title[0].value == moved(page, {})[0].capitalize()
    assert not any("The link asks for" in warning.value for warning in app.warning), "a plain address is no link"
    if page == "caches":
        scan.scanner().look(60)  # or the scan behind the page fails, and the page says so at the end
    compiled_store.rename(tmp_path / "elsewhere")
    # What writers of the dashboard's own process may make again is no store.
    (compiled_store / "journal").mkdir(parents=True)
    app.run()
    assert not app.exception
    assert [error.value for error in app.error] == ["The store's folder is gone."]
    assert app.title[0].value == moved(page, {})[0].capitalize()
    assert f"{compiled_store} was deleted or moved" in app.text[0].value
    assert not app.success
    assert not app.info
    shutil.rmtree(compiled_store)
    (tmp_path / "elsewhere").rename(compiled_store)
    sound(app.run())


@pytest.mark.parametrize("page", ["overview", "kernels", "admin"])
def test_a_mirror_that_is_damaged_while_serving_is_rebuilt(open_page: Open, compiled_store: Path, page: str) -> None:
    sound(open_page(compiled_store, page, **({"tab": "Index"} if page == "admin" else {})))
    (compiled_store / "mirror.duckdb").write_bytes(b"garbage" * 10_000)
    given = {"sort": "hits"} if page == "kernels" else {"span": "90 days"} if page == "overview" else {"tab": "Index"}
    app = sound(open_page(compiled_store, page, **given))
    assert not [warning for warning in app.warning if "Showing data from" in warning.value]
