"""What readers come for on the page Caches, in a real browser: why one missed, cleaning under load."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import served
from tests.frameworks.fixtures import unpack

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("home")]
WAIT_MS = 60_000


def _has_cell(page: Page, text: str | re.Pattern[str]) -> None:
    """A table has this cell."""
    cell = page.get_by_role("cell", name=text, include_hidden=True).first
    expect(cell).to_be_attached(timeout=WAIT_MS)


@pytest.mark.soak
def test_why_one_missed_is_found_from_an_entry_by_a_link_that_can_be_shared(page: Page, tmp_path: Path) -> None:
    """Every day ``pages/test_other_kernels.py`` opens both pages, and ``test_journeys.py`` explains a miss of ours."""
    cache = unpack("triton", tmp_path)
    warps = {path.parent.name: '"num_warps": 8' in path.read_text() for path in cache.glob("*/scale.json")}
    (eight,) = [name for name, is_it in warps.items() if is_it]
    four = next(name for name, is_it in warps.items() if not is_it)
    where = {"GEMM_CACHE_CACHES": f"triton={cache}"}
    with served([sys.executable, "-m", "cache_engine"], tmp_path / "store", **where) as address:
        entry = {"cache": f"triton={cache}", "entry": eight}
        page.goto(f"{address}/kernel?{urlencode(entry)}")
        _has_cell(page, "unknown: Triton does not store the report of ptxas")
        page.get_by_role("link", name="Compare with…").click()
        expect(page.get_by_text("The last used of this framework that match.")).to_be_visible(timeout=WAIT_MS)
        expect(page).to_have_url(re.compile(r"/compare\?.*entry_a="), timeout=WAIT_MS)
        page.goto(f"{page.url}&{urlencode({'cache_b': f'triton={cache}', 'entry_b': four})}")
        _has_cell(page, "num_warps")
        expect(page.get_by_text("Parts with other bytes: ")).to_be_visible(timeout=WAIT_MS)
        page.get_by_role("link", name="Open kernel").last.click()
        expect(page.get_by_text(four)).to_be_visible(timeout=WAIT_MS)
        expect(page.get_by_test_id("stException")).to_have_count(0)


@pytest.mark.soak
def test_triton_s_cache_is_cleaned_on_the_page_while_processes_compile_and_none_fails(
    page: Page, tmp_path: Path
) -> None:
    """Every day ``races/test_triton_deletion.py`` cleans while processes compile, and ``pages`` cleans on the page."""
    pytest.importorskip("triton")
    from tests.races.test_triton_deletion import age, compiling

    cache = tmp_path / "cache"
    where = {"TRITON_CACHE_DIR": str(cache)}
    with (
        served([sys.executable, "-m", "cache_engine"], tmp_path / "store", **where) as address,
        compiling(cache, tmp_path) as counts,
    ):
        age(cache)
        page.goto(f"{address}/caches?{urlencode({'part': 'Cleaning', 'rule': 'All that match'})}")
        page.get_by_role("button", name="Preview").click(timeout=WAIT_MS)
        field = page.get_by_label(re.compile("^Type [1-9][0-9]* to enable deletion"))
        expect(field).to_be_visible(timeout=WAIT_MS)
        asked = page.get_by_text(re.compile("^Type [1-9][0-9]* to enable deletion")).inner_text()
        field.fill(asked.split()[1])
        field.press("Enter")
        page.get_by_role("button", name=re.compile("^Delete [0-9]+ entr")).click(timeout=WAIT_MS)
        expect(page.get_by_text(re.compile("^Deleted [0-9]+ entr"))).to_be_visible(timeout=WAIT_MS)
    assert sum(counts) > 10
