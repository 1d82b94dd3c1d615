"""The page Caches in a real browser: other frameworks' kernels without configuration, and a planted empty file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import served
from tests.frameworks.fixtures import unpack

pytestmark = pytest.mark.browser
WAIT_MS = 60_000


def test_triton_s_kernels_are_shown_without_configuration_and_a_planted_empty_file_is_found(
    page: Page, home: Path, tmp_path: Path
) -> None:
    """At the place where Triton has them."""
    (home / ".triton").mkdir()
    cache = unpack("triton", home / ".triton").rename(home / ".triton" / "cache")
    for group in cache.rglob("__grp__*"):
        group.write_text(group.read_text().replace(str(cache.with_name("triton")), str(cache)))
    next(cache.glob("*/tile.ptx")).write_bytes(b"")
    with served([sys.executable, "-m", "cache_engine"], tmp_path / "store") as address:
        page.goto(f"{address}/caches")
        expect(page.get_by_role("heading", name="Storage", exact=True)).to_be_visible(timeout=WAIT_MS)
        expect(_tile(page, "Entries")).to_have_text("4", timeout=WAIT_MS)
        expect(_tile(page, "Findings")).to_have_text("1", timeout=WAIT_MS)
        expect(page.get_by_role("heading", name="Growth")).to_be_visible(timeout=WAIT_MS)
        page.get_by_role("radio", name="Check", exact=True).click()
        page.get_by_role("radio", name="Findings").click()
        expect(page.get_by_text("empty file: 1")).to_be_visible(timeout=WAIT_MS)
        page.get_by_role("link", name="Kernels", exact=True).first.click()
        page.get_by_role("radio", name="Other frameworks").click()
        expect(page.get_by_text("1–4 of 4.")).to_be_visible(timeout=WAIT_MS)
        page.get_by_placeholder("Words of name").fill("scale num_warps=8")
        page.keyboard.press("Enter")
        expect(page.get_by_text("1–1 of 1.")).to_be_visible(timeout=WAIT_MS)
        expect(page).to_have_url(re.compile(r"[?&]words=scale"), timeout=WAIT_MS)
        expect(page.get_by_test_id("stException")).to_have_count(0)
        _from_another_page(page)


def test_a_search_for_kernels_filters_no_cleaning_of_caches(page: Page, home: Path, tmp_path: Path) -> None:
    """It stays while the reader looks at the kernels of other frameworks, where it is seen."""
    (home / ".triton").mkdir()
    unpack("triton", home / ".triton").rename(home / ".triton" / "cache")
    with served([sys.executable, "-m", "cache_engine"], tmp_path / "store") as address:
        page.goto(f"{address}/kernels")
        page.get_by_role("searchbox", name="Search").fill("hopper")
        expect(page).to_have_url(re.compile(r"[?&]q=hopper"), timeout=WAIT_MS)
        page.get_by_role("radio", name="Other frameworks").click()
        expect(page.get_by_placeholder("Words of name")).to_have_value("hopper", timeout=WAIT_MS)
        expect(page.get_by_text("No entry of any cache matches.")).to_be_visible(timeout=WAIT_MS)
        page.get_by_role("radio", name="Triton").click()
        page.get_by_placeholder("Words of name").fill("tile")
        expect(page.get_by_text("1–1 of 1.")).to_be_visible(timeout=WAIT_MS)
        page.get_by_role("radio", name="This store").click()
        expect(page.get_by_role("searchbox", name="Search")).to_have_value("tile", timeout=WAIT_MS)
        page.get_by_role("radio", name="Triton").click()
        expect(page.get_by_text("1–1 of 1.")).to_be_visible(timeout=WAIT_MS)
        page.get_by_role("link", name="Storage", exact=True).first.click()
        expect(page.get_by_role("heading", name="Storage", exact=True)).to_be_visible(timeout=WAIT_MS)
        page.get_by_role("radio", name="Other frameworks").click()
        expect(page.get_by_placeholder("Words of name")).to_have_value("", timeout=WAIT_MS)
        expect(page.get_by_role("combobox", name=re.compile("Framework"))).not_to_have_accessible_name(
            re.compile("triton"), timeout=WAIT_MS
        )


def _from_another_page(page: Page) -> None:
    """In a narrow window, whose menu closes after a click; the search of the header leads to the entry."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_test_id("stExpandSidebarButton").click()
    menu = page.get_by_test_id("stSidebar")
    expect(menu).to_have_attribute("data-collapsed", "false")
    menu.get_by_role("link", name="Compile").click()
    expect(page.get_by_role("heading", name="Compile", exact=True)).to_be_visible(timeout=WAIT_MS)
    expect(menu).to_have_attribute("data-collapsed", "true")
    page.locator(".st-key-search-button button").click()
    found = page.get_by_role("dialog")
    found.get_by_role("searchbox").fill("scale sm_80")
    expect(found.get_by_role("heading", name="Caches of other frameworks")).to_be_visible(timeout=WAIT_MS)
    found.get_by_role("link", name="scale triton, sm_80").click()
    expect(page.get_by_role("heading", name="scale", exact=True)).to_be_visible(timeout=WAIT_MS)
    expect(page).to_have_url(re.compile(r"/kernel\?cache=triton.*entry="))


def _tile(page: Page, label: str) -> Locator:
    """The value of a tile."""
    return page.get_by_test_id("stMetric").filter(has_text=label).get_by_test_id("stMetricValue")
