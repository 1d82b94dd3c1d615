"""Plain tables as the browser draws them: text only as text, what stays the same untouched, sorted, and as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

import app.components

pytestmark = pytest.mark.browser
STATIC = Path(app.components.__file__).with_name("static")
HOSTILE = "<img src=x onerror=alert(1)>"
DRAW = """
async ([script, data]) => {
  window.drawing ??= (await import(URL.createObjectURL(new Blob([script], {type: 'text/javascript'})))).default;
  window.opened ??= [];
  const setTriggerValue = (...told) => window.opened.push(told);
  window.drawing({data: [data], parentElement: document.body, setTriggerValue});
}
"""


def test_a_table_shows_its_texts_changes_only_what_changed_and_saves_a_file(page: Page, tmp_path: Path) -> None:
    page.set_content(f"<style>{(STATIC / 'tables.css').read_text()}</style>")

    def draw(*cells: list[dict[str, Any]]) -> None:
        columns = [{"name": "Kernel", "numeric": False}, {"name": HOSTILE, "numeric": True}]
        data: dict[str, Any] = {"label": "Recent activity", "columns": columns, "cells": cells, "file": "a,b\r\n"}
        page.evaluate(DRAW, [(STATIC / "table.js").read_text(), data])

    draw([{"text": "open", "href": "kernel?key=a"}, {"text": HOSTILE, "title": "1"}], [{"text": "x"}, {"text": "2"}])
    table = page.get_by_role("table", name="Recent activity")
    expect(table.get_by_role("columnheader", name=HOSTILE)).to_be_visible()
    expect(table.get_by_role("cell", name=HOSTILE)).to_have_css("text-align", "right")
    expect(page.locator("img")).to_have_count(0)
    link = table.get_by_role("link", name="open")
    expect(link).to_have_attribute("href", "kernel?key=a")
    link.click()
    assert page.evaluate("window.opened") == [["open", "kernel?key=a"]], "the page opens in this tab, by its session"
    assert page.url == "about:blank"
    first = link.element_handle()
    draw([{"text": "open", "href": "kernel?key=b"}, {"text": "3"}])
    expect(link).to_have_attribute("href", "kernel?key=b")
    assert page.evaluate("link => link.isConnected", first), "a click on it would be lost"
    expect(table.get_by_role("row")).to_have_count(2)
    expect(table.get_by_role("cell", name="3")).to_have_attribute("title", "")
    draw([{"text": "open"}, {"text": "3"}])
    expect(table.get_by_role("link")).to_have_count(0)
    unsorted: list[list[dict[str, Any]]] = []
    values = [("b", 9), ("a", 10), ("d", None), ("c", 1)]
    for name, size in values:
        unsorted.append([{"text": name}, {"text": f"{size}", **({"value": size} if size else {})}])
    draw(*unsorted)
    names = table.locator("tbody td:first-child")
    by_size = table.get_by_role("button", name=f"{HOSTILE}")
    for click, order in (
        (by_size, ["a", "b", "c", "d"]),
        (by_size, ["c", "b", "a", "d"]),
        (table.get_by_role("button", name="Kernel"), ["a", "b", "c", "d"]),
    ):
        click.click()
        expect(names).to_have_text(order)
    expect(table.get_by_role("columnheader", name="Kernel")).to_have_attribute("aria-sort", "ascending")
    draw([{"text": "z"}, {"text": "1", "value": 1}], [{"text": "y"}, {"text": "2", "value": 2}])
    expect(names).to_have_text(["y", "z"])  # the reader's order stays
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save Recent activity as CSV").click()
    assert saved.value.suggested_filename == "recent-activity.csv"
    saved.value.save_as(tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == b"a,b\r\n"
