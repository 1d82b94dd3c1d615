"""Workload in a real browser: requests appear, a cell is a link, and missing kernels are compiled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from cache_engine import GemmProblem, open_cache
from tests.browser.conftest import job_held
from tests.browser.test_code import SHIFTS
from tests.browser.test_walk import WAIT_MS, at_rest
from tests.helpers import make_store

pytestmark = pytest.mark.browser
SIZES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))


def test_requests_of_another_process_appear_and_a_cell_leads_to_its_kernels(
    page: Page, dashboard: str, compiled_store: Path
) -> None:
    with open_cache(compiled_store, enable_jit=False) as cache:
        for n, k in SIZES:
            for _ in range(100):
                cache.journal.asked(GemmProblem(16, n, k, arch="sm_90"))
    page.goto(f"{dashboard}/demand?span=24+hours")
    expect(page.get_by_role("heading", name="Workload", exact=True)).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_text("sm_90: predicted for H100")).to_be_visible(timeout=WAIT_MS)
    at_rest(page)
    matrix = page.get_by_role("table", name="Shapes by target")
    cell = matrix.get_by_role("row", name=re.compile("m × 28672 × 4096")).get_by_role("link").first
    cell.focus()  # the keyboard alone reaches a cell
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Chosen cell")).to_be_visible(timeout=WAIT_MS)
    expect(page).to_have_url(re.compile(r"span=24.*target=sm_90"))
    expect(page.get_by_role("img", name="Launches by m")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_role("button", name=re.compile("Compile these"))).to_be_visible(timeout=WAIT_MS)
    at_rest(page)
    page.get_by_text("Models with these shapes").click()
    page.get_by_role("button", name="What Llama-3.1-8B needs").click()
    expect(page).to_have_url(re.compile("model=Llama-3.1-8B"), timeout=WAIT_MS)
    expect(page.get_by_role("row", name=re.compile("gate.up"))).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_test_id("stException")).to_have_count(0)


def test_pages_do_not_move_while_their_tables_are_drawn(page: Page, dashboard: str, compiled_store: Path) -> None:
    with open_cache(compiled_store, enable_jit=False) as cache:
        for n in range(1024, 20 * 1024, 1024):
            cache.journal.asked(GemmProblem(16, n, 4096, arch="sm_90"))
    page.add_init_script(SHIFTS)
    for path, width, height in (("workload", 1400, 900), ("workload", 390, 844), ("kernels", 390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        page.goto(f"{dashboard}/{path}")
        expect(page.locator("tbody a").first).to_be_attached(timeout=WAIT_MS)
        at_rest(page)
        assert page.evaluate("window.shift") <= 0.1, (path, width)


def test_what_is_missing_is_compiled_and_followed_in_place(page: Page, dashboard: str, compiled_store: Path) -> None:
    page.goto(f"{dashboard}/coverage?model=DeepSeek-V3&archs=sm_80&archs=sm_90")
    expect(page.get_by_role("heading", name="Workload", exact=True)).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_text(re.compile("About .* of compiling on this machine"))).to_be_visible(timeout=WAIT_MS)
    page.get_by_text("Missing only").click()
    expect(page).to_have_url(re.compile("missing=true"), timeout=WAIT_MS)
    page.get_by_role("button", name=re.compile("Compile [0-9]+ missing kernels")).click()
    with job_held(compiled_store):
        expect(page.get_by_text(re.compile("[1-9][0-9]* of [0-9]+ kernels; about "))).to_be_visible(timeout=60_000)
        expect(page.get_by_test_id("stProgress")).to_have_count(1)
        expect(page).to_have_url(re.compile("job="))
        page.reload()
        page.get_by_role("button", name="Cancel").click(timeout=WAIT_MS)
    expect(page.get_by_text("This job was canceled.")).to_be_visible(timeout=60_000)
    expect(page.get_by_role("button", name=re.compile("Compile [0-9]+ missing kernels"))).to_be_visible(timeout=WAIT_MS)
    assert len(list(make_store(compiled_store).keys())) > 4
