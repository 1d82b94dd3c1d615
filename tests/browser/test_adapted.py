"""Triton is served through our store in a second process, as the command line and the dashboard show it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.adapters.test_triton import COMPILE
from tests.browser.conftest import served
from tests.cli.test_cli import document, run

pytest.importorskip("triton")
pytestmark = pytest.mark.browser
WAIT_MS = 60_000


def test_triton_is_served_through_our_store_in_a_second_process(page: Page, tmp_path: Path) -> None:
    program = tmp_path / "compiles.py"
    program.write_text(COMPILE)
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(tmp_path / "own"),
        "TRITON_CACHE_MANAGER": "cache_engine.adapters.triton:CacheManager",
        "GEMM_CACHE_DIR": str(tmp_path / "store"),
        "TMPDIR": str(tmp_path),
    }
    hits, codes = [], []
    for _ in range(2):
        done = subprocess.run([sys.executable, program], env=environment, capture_output=True, check=True, timeout=300)
        (hit,), code, *_ = json.loads(done.stdout)
        hits.append(hit)
        codes.append(code)
    assert hits == [False, True]
    assert codes[0] == codes[1]

    (row,) = document("ls", "--kind", "triton", store=tmp_path / "store")["adapted"]["rows"]
    assert (row["name"], row["arch"], row["hits"]) == ("scale", "sm_90a", 1)
    assert "scale" in run("ls", "scale", store=tmp_path / "store").stdout

    with served([sys.executable, "-m", "cache_engine"], tmp_path / "store") as address:
        page.goto(f"{address}/kernels")
        expect(page.get_by_role("heading", name="Kernels of other frameworks")).to_be_visible(timeout=WAIT_MS)
        expect(page.get_by_text("1–1 of 1.")).to_be_visible(timeout=WAIT_MS)
        page.goto(f"{address}/kernel?key={row['key'][:16]}")
        expect(_fact(page, "Hits")).to_have_text("1", timeout=WAIT_MS)
        expect(_fact(page, "Compile time")).to_have_text(re.compile(r"\d+ ms|\d.* s"), timeout=WAIT_MS)
        expect(page.get_by_text(".target sm_90a")).to_be_visible(timeout=WAIT_MS)
        expect(page.get_by_role("button", name="Pin")).to_be_visible()
        expect(page.get_by_test_id("stException")).to_have_count(0)


def _fact(page: Page, label: str) -> Locator:
    """The value in the table of properties."""
    return page.get_by_role("cell", name=label, exact=True).locator("xpath=following-sibling::*")
