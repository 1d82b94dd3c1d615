"""The Evaluations page in a real Chromium: a link shows a colleague the same, and files can be taken away."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app.presenters.evaluations.evaluated import chip_text
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.search import evaluate
from tests.browser.conftest import served

MINE = replace(PRESETS["SG2262"], name="Mine 2.0", num_cores=128)


@pytest.mark.browser
def test_a_link_with_a_chip_of_ones_own_and_the_files(page: Page, tmp_path: Path) -> None:
    page.set_default_timeout(60_000)
    with served([sys.executable, "-m", "cache_engine"], tmp_path / "store") as address:
        page.goto(f"{address}/evaluations?e_m=64")
        page.get_by_text("A chip of your own").click()
        file = tmp_path / "mine.json"
        file.write_text(chip_text(MINE))
        page.locator("input[type=file]").set_input_files(file)
        page.get_by_text("Mine 2.0 can be chosen").wait_for()
        page.get_by_role("combobox", name="Chip").click()
        page.get_by_role("option", name="Mine 2.0").click()
        latency = f"{evaluate(EvaluationProblem(64, 7168, 2048), MINE).latency_us:,.2f} µs"
        expect(page.get_by_test_id("stMetricValue").first).to_have_text(latency)

        colleague = page.context.new_page()
        colleague.goto(page.url)
        expect(colleague.get_by_test_id("stMetricValue").first).to_have_text(latency, timeout=60_000)
        colleague.close()

        page.get_by_text("Kept results", exact=True).click()
        page.get_by_text("of 2.").wait_for()
        with page.expect_download() as exported:
            page.get_by_role("button", name="Export").click()
        document = json.loads(exported.value.path().read_bytes())
        assert document["architecture"]["name"] in ("Mine 2.0", "SG2262")
        assert len(document["cache_entries"]) == 1
        with page.expect_download() as listed:
            page.get_by_role("button", name="Download all as CSV").click()
        rows = list(csv.DictReader(listed.value.path().read_text().splitlines()))
        assert {(row["chip"], row["m"]) for row in rows} == {("Mine 2.0", "64"), ("SG2262", "64")}
