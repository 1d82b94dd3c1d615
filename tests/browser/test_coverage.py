"""Coverage in a real browser: the job of what is missing, followed in place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import job_held
from tests.browser.test_walk import WAIT_MS
from tests.helpers import make_store

pytestmark = pytest.mark.browser


def test_what_is_missing_is_compiled_and_followed_in_place(page: Page, dashboard: str, compiled_store: Path) -> None:
    page.goto(f"{dashboard}/architectures?model=DeepSeek-V3&archs=sm_80&archs=sm_90")
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
