"""From a list of kernels to one, to two side by side, and back to the same list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Shown
from tests.browser.test_walk import WAIT_MS, _first_row, at_rest
from tests.helpers import make_store

pytestmark = pytest.mark.browser


def _shows(page: Page, count: str, searched: str) -> None:
    """The list holds so many kernels, and its field what was searched for."""
    expect(page.get_by_text(f"1–{count} of {count}", exact=True)).to_be_visible(timeout=WAIT_MS)
    expect(page.locator("tbody tr")).to_have_count(int(count), timeout=WAIT_MS)
    expect(page.get_by_role("searchbox", name="Search")).to_have_value(searched, timeout=WAIT_MS)


def test_search_to_kernel_to_compare_and_back_to_the_same_results(page: Page, shown: Shown) -> None:
    page.goto(f"{shown.address}/kernels")
    page.get_by_role("searchbox", name="Search").fill("sm_90")
    _shows(page, "2", "sm_90")
    page.get_by_role("combobox", name="Dtype").click()
    page.get_by_role("option", name="bf16 (1)").click()
    page.keyboard.press("Escape")
    _shows(page, "1", "sm_90")
    _first_row(page, "key", "sm_90", "bf16")
    expect(page.get_by_role("heading", level=1, name=re.compile(" · "))).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("link", name="Compare with…").click()
    page.get_by_label("Find a kernel").fill("sm_80")
    expect(page.locator("tbody tr")).to_have_count(1, timeout=WAIT_MS)
    _first_row(page, "key", "sm_80")
    expect(page.get_by_role("heading", name="Key differences")).to_be_visible(timeout=WAIT_MS)
    expect(page).to_have_url(re.compile("a=[0-9a-f]{64}&b=[0-9a-f]{64}"), timeout=WAIT_MS)
    at_rest(page)
    page.get_by_role("link", name="Back to results").click()
    _shows(page, "1", "sm_90")


def test_selected_rows_stay_selected_in_other_lists(page: Page, shown: Shown) -> None:
    page.goto(f"{shown.address}/kernels?q=fp32")
    _shows(page, "1", "fp32")
    _first_row(page, "tick", "sm_75", "fp32")
    expect(page.get_by_text("1 kernel selected")).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("searchbox", name="Search").fill("fp16")
    _shows(page, "1", "fp16")
    _first_row(page, "tick", "sm_90", "fp16")
    expect(page.get_by_text("2 kernels selected")).to_be_visible(timeout=WAIT_MS)
    deletion = page.get_by_role("link", name="Delete…").get_attribute("href") or ""
    assert re.search(r"storage\?keys=[0-9a-f]{64}(,|%2C)[0-9a-f]{64}$", deletion)
    with page.expect_download(timeout=WAIT_MS) as pack:
        page.get_by_role("button", name="Export as pack").click()
    assert Path(pack.value.path()).read_bytes().startswith(b"GEMMPACK")
    page.get_by_role("button", name="Export list…").click()
    with page.expect_download(timeout=WAIT_MS) as table:
        page.get_by_test_id("stPopoverBody").get_by_role("button", name="CSV").click()
    assert Path(table.value.path()).read_text().count("\n") == 2
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Compare").last.click()
    expect(page.get_by_role("heading", name="Key differences")).to_be_visible(timeout=WAIT_MS)


def test_the_search_of_the_header_opens_what_it_finds_by_the_keyboard_alone(page: Page, shown: Shown) -> None:
    """From Overview, and from one kernel to another."""
    keys = sorted(make_store(shown.store).keys())[:2]
    page.goto(shown.address)
    for key in keys:
        expect(page.locator(".st-key-search-button button")).to_be_visible(timeout=3 * WAIT_MS)  # drawn last
        at_rest(page)
        page.keyboard.press("Control+k")
        expect(page.get_by_role("dialog").get_by_role("searchbox")).to_be_focused(timeout=WAIT_MS)
        page.keyboard.type(str(key)[:16])
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(f"/kernel.key={key}"), timeout=WAIT_MS)
        expect(page.get_by_text(str(key)).first).to_be_visible(timeout=WAIT_MS)
