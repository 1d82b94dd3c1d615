"""Overview in a real browser: attention leads to where it is mended; links that ask for what does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from cache_engine.store.journal import Journal
from tests.browser.conftest import Shown
from tests.browser.test_walk import WAIT_MS, at_rest
from tests.helpers import damage_record, make_store

pytestmark = pytest.mark.browser


def test_what_needs_attention_leads_to_where_it_is_mended(page: Page, dashboard: str, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    damage_record(store, next(store.keys()))
    Journal(store.layout.journal, 3600.0).event("unpublished", key="full", detail="No space left")
    page.goto(dashboard)
    seen = page.get_by_role("button", name="Mark as seen")
    expect(seen).to_be_visible(timeout=WAIT_MS)
    at_rest(page)
    seen.click()
    expect(page.get_by_text("could not be saved")).to_have_count(0, timeout=WAIT_MS)
    at_rest(page)  # what needs attention has moved up: until the page is drawn, its last row is there twice
    page.get_by_role("link", name="Open integrity check").click()
    expect(page.get_by_role("radio", name="Integrity")).to_be_checked(timeout=WAIT_MS)
    expect(page.get_by_role("button", name="Run check")).to_be_visible(timeout=WAIT_MS)


@pytest.mark.parametrize(
    ("path", "named"),
    [
        pytest.param("coverage?model=GPT-9&archs=sm_90", "model = GPT-9", id="choice"),
        pytest.param("compile?s_m=64&s_dtype=fp3", "s_dtype = fp3", id="field", marks=pytest.mark.soak),
    ],
)
def test_a_value_that_does_not_exist_is_named_and_stays_to_be_read(
    page: Page, shown: Shown, path: str, named: str
) -> None:
    page.goto(f"{shown.address}/{path}")
    expect(page.get_by_text("The link asks for what does not exist here.")).to_be_visible(timeout=WAIT_MS)
    at_rest(page)
    expect(page.get_by_text(named, exact=True)).to_be_visible()


def test_a_choice_made_on_the_page_is_no_link(page: Page, shown: Shown) -> None:
    page.goto(f"{shown.address}/?span=90+days")
    expect(page.get_by_role("heading", name="Recent activity")).to_be_visible(timeout=WAIT_MS)
    at_rest(page)
    page.get_by_text("24 hours", exact=True).click()
    expect(page).to_have_url(re.compile("span=24"), timeout=WAIT_MS)
    at_rest(page)
    expect(page.get_by_text("The link asks for")).to_have_count(0)


def test_a_part_of_the_time_range_is_chosen_with_the_keyboard_and_is_in_the_address(page: Page, shown: Shown) -> None:
    page.goto(shown.address)
    causes = page.get_by_role("table", name="Causes of misses")
    expect(causes).to_be_visible(timeout=WAIT_MS)
    at_rest(page)
    page.get_by_role("slider").last.focus()
    page.keyboard.press("ArrowLeft")
    expect(page).to_have_url(re.compile(r"[?&]to=[0-9]+"), timeout=WAIT_MS)
    expect(causes).to_have_count(0, timeout=WAIT_MS)
    at_rest(page)
    page.reload()
    expect(page.get_by_text("No misses in the log of decisions in this time.")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_test_id("stException")).to_have_count(0)
