"""A page as one file, opened without a network; and what is new since a page was drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Shown
from tests.cli.test_cli import run
from tests.helpers import make_store

pytestmark = pytest.mark.browser
WAIT_MS = 60_000


def _opened_offline(browser: Browser, file: Path, scheme: str) -> str:
    """The text of a report without a network, which asked for nothing and said nothing, and where axe finds nothing."""
    context = browser.new_context(offline=True, color_scheme=scheme, viewport={"width": 1280, "height": 800})  # type: ignore[arg-type]
    tab = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(file.as_uri())
    assert asked == [file.as_uri()]
    assert said == []
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.set_viewport_size({"width": 390, "height": 844})  # a phone
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    heights = tab.locator("svg.chart text").evaluate_all(
        "texts => texts.map(one => one.getBoundingClientRect().height)"
    )
    assert min(heights, default=11) > 10
    tab.set_viewport_size({"width": 1280, "height": 800})
    for details in tab.locator("summary").all():
        details.click()
    text = tab.locator("body").inner_text()
    found = Axe().run(tab).response["violations"]
    context.close()
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
    return text


def _export(page: Page, folder: Path, *, mouse: bool = False) -> Path:
    with page.expect_download(timeout=WAIT_MS) as download:
        button = page.get_by_role("button", name="Export page").last
        button.click() if mouse else button.press("Enter")
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file


def test_a_kernels_page_is_one_file_that_opens_without_a_network(
    page: Page, browser: Browser, shown: Shown, tmp_path: Path
) -> None:
    record = next(record for record in make_store(shown.store).records() if record.problem.dtype == "bf16")
    page.goto(f"{shown.address}/kernel?key={record.key}")
    expect(page.get_by_role("heading", level=1)).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_role("button", name="Export page")).to_be_visible(timeout=WAIT_MS)
    file = _export(page, tmp_path)
    assert file.name == "kernel.html"
    for scheme in ("light", "dark"):
        text = _opened_offline(browser, file, scheme)
        assert record.key in text
        assert "HMMA" in text
        assert f"gemm-cache --store {shown.store} show {record.key} --output" in text


@pytest.mark.parametrize(
    ("path", "words"),
    [
        pytest.param("", "Kernels, most hits first", id="overview"),
        pytest.param("/compare?a={0}&b={1}", "Static instruction mix", id="compare", marks=pytest.mark.soak),
        pytest.param("/evaluations?e_chip=H100", "--chip H100", id="evaluations", marks=pytest.mark.soak),
    ],
)
def test_other_pages_are_files_too(
    page: Page, browser: Browser, shown: Shown, tmp_path: Path, path: str, words: str
) -> None:
    keys = sorted(record.key for record in make_store(shown.store).records())
    page.goto(shown.address + path.format(*keys))
    expect(page.get_by_role("button", name="Export page").last).to_be_visible(timeout=WAIT_MS)
    assert words in _opened_offline(browser, _export(page, tmp_path, mouse=True), "light")


def test_new_kernels_are_said_and_shown_when_the_reader_wants(page: Page, dashboard: str, compiled_store: Path) -> None:
    page.goto(dashboard)
    kernels = page.get_by_test_id("stMetric").filter(has_text="Kernels").get_by_test_id("stMetricValue")
    expect(kernels).to_have_text("4", timeout=WAIT_MS)
    for n in ("320", "352"):
        done = run("compile", "16", n, "64", "--arch", "sm_90", store=compiled_store)
        assert done.returncode == 0, done.stderr
    news = page.get_by_role("button", name="2 new kernels. Show")
    expect(news).to_be_visible(timeout=WAIT_MS)
    expect(kernels).to_have_text("4")
    news.click()
    expect(kernels).to_have_text("6", timeout=WAIT_MS)
    expect(news).to_have_count(0, timeout=WAIT_MS)
