"""Compiling in a real browser: one shape and its link, a table and its end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Shown, job_held
from tests.browser.test_walk import WAIT_MS
from tests.helpers import make_store

pytestmark = pytest.mark.browser
STOP = "<div data-testid='stStatusWidget'><button id='stop'>Stop</button></div>"


def test_a_miss_then_a_hit_then_its_link_in_a_fresh_browser(page: Page, browser: Browser, dashboard: str) -> None:
    page.goto(f"{dashboard}/compile?s_m=64&s_n=96&s_arch=sm_80")
    expect(page.get_by_label("n", exact=True)).to_have_value("96", timeout=WAIT_MS)
    page.get_by_label("k", exact=True).fill("64")
    page.get_by_label("k", exact=True).press("Tab")
    expect(page.get_by_text("not cached")).to_be_visible(timeout=WAIT_MS)
    expect(page).to_have_url(re.compile("k=64"), timeout=WAIT_MS)
    page.get_by_role("button", name="Compile", exact=True).click()
    expect(page.get_by_text("Miss. Compiled in")).to_be_visible(timeout=60_000)
    expect(page.get_by_text("Closest of 4 cached kernels")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_role("cell", name="generate source")).to_be_visible(timeout=WAIT_MS)
    missed = page.url
    page.get_by_role("button", name="Compile", exact=True).click()
    expect(page.get_by_text("Hit (disk): loaded in")).to_be_visible(timeout=60_000)

    stranger = browser.new_context(viewport={"width": 400, "height": 900})
    fresh = stranger.new_page()
    fresh.goto(missed)
    expect(fresh.get_by_text("Miss. Compiled in")).to_be_visible(timeout=WAIT_MS)
    for label, value in (("m", "64"), ("n", "96"), ("k", "64")):
        expect(fresh.get_by_label(label, exact=True)).to_have_value(value, timeout=WAIT_MS)
    stranger.close()


def test_values_typed_on_compile_stand_in_the_address_of_predict_and_back(page: Page, shown: Shown) -> None:
    page.goto(f"{shown.address}/compile")
    page.get_by_label("m", exact=True).fill("33", timeout=WAIT_MS)
    page.get_by_label("m", exact=True).press("Tab")
    expect(page).to_have_url(re.compile("s_m=33"), timeout=WAIT_MS)
    page.get_by_role("combobox", name="Layout").click()
    page.get_by_role("option", name="tn").click()
    expect(page).to_have_url(re.compile("s_layout=tn"), timeout=WAIT_MS)
    for name in ("Predict", "Compile"):
        page.get_by_role("link", name=name, exact=True).first.click()
        expect(page).to_have_url(re.compile(f"/{name.lower()}\\?.*s_m=33"), timeout=WAIT_MS)
        page.reload()
        expect(page.get_by_label("m", exact=True)).to_have_value("33", timeout=WAIT_MS)
        expect(page.get_by_role("combobox", name="Layout")).to_have_value("tn", timeout=WAIT_MS)


def test_the_browsers_back_and_forward_go_through_the_values_of_the_form(page: Page, shown: Shown) -> None:
    page.goto(f"{shown.address}/compile")
    for name, value in (("m", "33"), ("n", "64")):
        field = page.get_by_label(name, exact=True)
        field.fill(value, timeout=WAIT_MS)
        field.press("Tab")
        expect(page).to_have_url(re.compile(f"s_{name}={value}"), timeout=WAIT_MS)
    for step, m, n in ((page.go_back, "33", "7168"), (page.go_back, "4096", "7168"), (page.go_forward, "33", "7168")):
        step()
        expect(page.get_by_label("m", exact=True)).to_have_value(m, timeout=WAIT_MS)
        expect(page.get_by_label("n", exact=True)).to_have_value(n, timeout=WAIT_MS)


def test_a_table_is_compiled_with_progress_then_canceled(page: Page, dashboard: str, compiled_store: Path) -> None:
    page.goto(f"{dashboard}/compile?what=Whole+model&t_arch=sm_80&t_arch=sm_90&t_arch=sm_120")
    expect(page.get_by_text(re.compile("0 of [0-9]+ kernels cached"))).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("button", name="Compile missing kernels").click()
    with job_held(compiled_store):
        told = page.get_by_test_id("stProgress").get_by_text(re.compile("[0-9]+ of [0-9]+ kernels; about .* left"))
        expect(told).to_be_visible(timeout=60_000)
        expect(page.get_by_test_id("stProgress")).to_have_count(1)
        # Streamlit shows this if reading the job takes half a second; here it takes less.
        page.evaluate(f"document.querySelector('[data-testid=stToolbar]').insertAdjacentHTML('beforeend', {STOP!r})")
        expect(page.locator("#stop")).to_be_hidden(timeout=WAIT_MS)
        page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("This job was canceled.")).to_be_visible(timeout=60_000)
    expect(page.locator("#stop")).to_be_visible(timeout=WAIT_MS)
    row = page.get_by_role("table", name="Jobs").get_by_role("row").nth(1)
    expect(row).to_contain_text("canceled", timeout=WAIT_MS)
    page.reload()
    expect(page.get_by_text("This job was canceled.")).to_be_visible(timeout=WAIT_MS)
    assert len(list(make_store(compiled_store).keys())) > 4
    assert list((compiled_store / "temp").iterdir()) == []
