"""A newcomer's walk through all pages, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Shown
from tests.helpers import make_store

pytestmark = pytest.mark.browser
WAIT_MS = 60_000


def _go(page: Page, name: str) -> None:
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible(timeout=WAIT_MS)


def _metric(page: Page, label: str) -> str:
    tile = page.get_by_test_id("stMetric").filter(has_text=label)
    expect(tile).to_be_visible(timeout=WAIT_MS)
    return tile.get_by_test_id("stMetricValue").inner_text().strip()


def _first_row(page: Page, place: str, *texts: str) -> None:
    """Clicks the tick box or the link of the list's first kernel, as soon as that row holds these texts."""
    row = page.locator("tbody tr").first
    for text in texts:
        expect(row).to_contain_text(text, timeout=WAIT_MS)
    at_rest(page)
    row.locator({"tick": "input", "key": "a"}[place]).click()


def at_rest(page: Page) -> None:
    """Waits until nothing on the page is about to be replaced: a click on that would be lost."""
    expect(page.locator("[data-testid=stApp][data-test-script-state=notRunning]")).to_be_attached(timeout=WAIT_MS)
    expect(page.locator("[data-stale=true]")).to_have_count(0, timeout=WAIT_MS)


def test_a_walk_through_all_pages(page: Page, dashboard: str, compiled_store: Path) -> None:
    """Overview, search, inspector, architectures, a miss, clean up with preview, integrity check."""
    page.goto(dashboard)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible(timeout=WAIT_MS)
    assert _metric(page, "Kernels") == "4"
    assert _metric(page, "Hit rate") == "20.0%"

    _go(page, "Kernels")
    page.get_by_role("searchbox", name="Search").fill("fp16 sm_90")
    expect(page.get_by_text("1–1 of 1", exact=True)).to_be_visible(timeout=WAIT_MS)
    _first_row(page, "key", "sm_90", "fp16", "16 × 512 × 96")
    expect(page.get_by_test_id("stCode").first).to_contain_text("gemm_tensor_core_fp16_nt_n512_k96", timeout=WAIT_MS)
    expect(page).to_have_url(re.compile(r"/kernel\?key=[0-9a-f]{64}"), timeout=WAIT_MS)
    resources = page.get_by_role("region", name="Resources")
    expect(resources.get_by_role("cell", name="Registers", exact=True)).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_text("Theoretical occupancy")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_role("cell", name="HMMA").first).to_be_visible(timeout=WAIT_MS)
    page.get_by_text("Code", exact=True).click()
    expect(page.get_by_role("textbox", name="SASS code")).to_contain_text("HMMA", timeout=WAIT_MS)

    page.get_by_role("link", name="Compare with…").click()
    kernels = page.get_by_role("combobox", name="Kernels")
    expect(kernels).to_be_visible(timeout=WAIT_MS)
    other = next(record for record in make_store(compiled_store).records() if record.arch == "sm_80")
    at_rest(page)
    kernels.fill(other.key[:12])
    expect(page.get_by_role("option").filter(has_text=other.key[:12])).to_be_visible(timeout=WAIT_MS)
    kernels.press("Enter")
    kernels.press("Escape")  # an open list hides the page from readers of screens
    expect(page.get_by_role("heading", name="Key differences")).to_be_visible(timeout=WAIT_MS)
    expect(page).to_have_url(re.compile(f"b={other.key[:12]}"), timeout=WAIT_MS)

    _go(page, "Kernels")
    page.get_by_role("radio", name="By target").click()
    expect(page.get_by_role("cell", name="sm_90", exact=True)).to_be_visible(timeout=WAIT_MS)

    _compile(page)
    _delete_and_check(page)

    _go(page, "Overview")
    assert _metric(page, "Kernels") == "1"
    assert len(list(make_store(compiled_store).keys())) == 1


def _compile(page: Page) -> None:
    """A miss, and the kernel; ``test_compile.py`` has the hit."""
    _go(page, "Compile")
    expect(page.get_by_text("so the kernel is compiled but not run or timed")).to_be_visible(timeout=WAIT_MS)
    for label, value in (("m", "64"), ("n", "96"), ("k", "64")):
        page.get_by_label(label, exact=True).fill(value)
        page.get_by_label(label, exact=True).press("Tab")
    page.get_by_role("button", name="Compile", exact=True).click()
    expect(page.get_by_text("Miss. Compiled in")).to_be_visible(timeout=60_000)
    page.get_by_role("link", name="Open kernel").click()
    expect(page.get_by_role("heading", level=1, name=re.compile(" · "))).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_test_id("stCode").first).to_contain_text("gemm_tensor_core_bf16_nt_n96_k64", timeout=WAIT_MS)


def _delete_and_check(page: Page) -> None:
    """All kernels but the new one, after the preview."""
    _go(page, "Storage")
    page.get_by_text("Keep at most N kernels").click()
    page.get_by_label("Kernels to keep").fill("1")
    page.get_by_label("Kernels to keep").press("Tab")
    expect(page.get_by_text("Will delete 4 kernels")).to_be_visible(timeout=WAIT_MS)
    disabled = page.get_by_role("button", name="Delete 4 kernels")
    expect(disabled).to_be_disabled()
    expect(disabled.get_by_text("Delete 4 kernels")).not_to_have_css("color", "rgb(255, 255, 255)")  # on white
    page.get_by_label("Type 4 to enable deletion").fill("4")
    page.get_by_label("Type 4 to enable deletion").press("Enter")
    page.get_by_role("button", name="Delete 4 kernels").click()
    expect(page.get_by_text("Deleted 4 kernels")).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("radio", name="Check", exact=True).click()
    page.get_by_role("button", name="Run check").click()
    expect(page.get_by_text("No problems found.")).to_be_visible(timeout=WAIT_MS)


def test_a_link_to_a_kernel_opens_it_in_a_fresh_browser(page: Page, shown: Shown) -> None:
    """And the list that it was picked from is one click away."""
    record = next(record for record in make_store(shown.store).records() if record.family == "simt")
    page.goto(f"{shown.address}/kernel?key={record.key}&q=sm_75")
    expect(page.get_by_test_id("stCode").first).to_contain_text(record.key, timeout=WAIT_MS)
    expect(page).to_have_url(re.compile(f"/kernel\\?key={record.key}"), timeout=WAIT_MS)
    page.goto(page.url)
    expect(page.get_by_test_id("stCode").first).to_contain_text(record.name, timeout=WAIT_MS)
    at_rest(page)
    page.get_by_role("link", name="Back to results").click()
    expect(page.get_by_text("1–1 of 1", exact=True)).to_be_visible(timeout=WAIT_MS)


@pytest.mark.soak
def test_reloading_after_the_mirror_was_deleted_shows_the_same(
    page: Page, dashboard: str, compiled_store: Path
) -> None:
    """As ``pages/test_overview.py`` tries every day without a browser."""
    page.goto(dashboard)
    before = [_metric(page, label) for label in ("Kernels", "Hit rate", "Compile time spent")]
    (compiled_store / "mirror.duckdb").unlink()
    page.reload()
    assert [_metric(page, label) for label in ("Kernels", "Hit rate", "Compile time spent")] == before
