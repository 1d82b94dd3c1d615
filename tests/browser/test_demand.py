"""Workload in a real browser: what is asked for elsewhere appears, and its choices are a link."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from cache_engine import GemmProblem, open_cache

pytestmark = pytest.mark.browser
WAIT_MS = 60_000


def test_requests_of_another_process_appear_and_lead_to_the_model_that_they_are_like(
    page: Page, dashboard: str, compiled_store: Path
) -> None:
    with open_cache(compiled_store, enable_jit=False) as cache:
        for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)):
            for _ in range(100):
                cache.journal.asked(GemmProblem(16, n, k, arch="sm_90"))
    page.goto(f"{dashboard}/demand?span=24+hours")
    expect(page.get_by_role("heading", name="Workload", exact=True)).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_text("sm_90: predicted for H100")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_text(re.compile("Most like Llama-3.1-8B: 5 of its 5 shapes"))).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("radio", name="Model", exact=True).click()
    expect(page).to_have_url(re.compile(r"[?&]by=Model"), timeout=WAIT_MS)
    expect(page.get_by_text("Models may share shapes")).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("link", name="Coverage, and compile what is missing").click()
    expect(page).to_have_url(re.compile("model=Llama-3.1-8B"), timeout=WAIT_MS)
    expect(page.get_by_test_id("stException")).to_have_count(0)
