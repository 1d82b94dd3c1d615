"""Takes the pictures in docs/images from a running dashboard.

make run                                             # in one terminal
.venv/bin/python docs/take_screenshots.py            # in another
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

IMAGES = Path(__file__).with_name("images")
PAGES = (
    ("", "overview"),
    ("kernels?view=By+target", "architectures"),
    ("workload?span=24+hours", "workload"),
    ("predict", "predict"),
)
SETTLE_MS = 2500  # plots and tables are drawn after the page is there


def main(address: str = "http://127.0.0.1:8501") -> None:
    """Walks through the pages, at the size of a small laptop."""
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        for path, name in PAGES:
            page.goto(f"{address}/{path}")
            take(page, name)
        page.goto(f"{address}/kernels?q=sm_90+tensor_core")
        take(page, "kernels")
        click_first_key(page)
        page.get_by_text("Theoretical occupancy").wait_for()
        take(page, "kernel")
        page.get_by_text("Code", exact=True).click()
        take(page, "kernel-code")
        page.get_by_text("Compare with…").click()
        page.get_by_label("Find a kernel").fill("sm_80 tensor_core")
        page.wait_for_timeout(SETTLE_MS)
        click_first_key(page)
        page.get_by_text("Key differences").wait_for()
        take(page, "compare")
        page.goto(f"{address}/storage")
        page.get_by_text("Keep at most N kernels").click()
        page.get_by_label("Kernels to keep").fill("40")
        page.get_by_label("Kernels to keep").press("Enter")
        take(page, "storage")
        page.goto(f"{address}/compile")
        page.get_by_role("button", name="Compile", exact=True).click()
        page.get_by_text("Open kernel").wait_for(timeout=60_000)
        page.get_by_role("heading", name="Job", exact=True).evaluate("heading => heading.scrollIntoView()")
        take(page, "compile")
        browser.close()


def click_first_key(page: Page) -> None:
    """Opens, or picks, the first kernel of the list on the page."""
    page.locator("tbody a").first.click()


def take(page: Page, name: str) -> None:
    """Saves what the page shows now; raises ``AssertionError`` if that is an error."""
    # Not wait_for_function: the dashboard's content security policy forbids eval.
    page.mouse.move(0, 0)  # figures show their buttons under the mouse
    for _ in range(2):  # a plot or table that comes late has a placeholder too
        expect(page.get_by_test_id("stStatusWidget")).to_have_count(0, timeout=60_000)
        expect(page.get_by_test_id("stSkeleton")).to_have_count(0, timeout=60_000)
        page.wait_for_timeout(SETTLE_MS)
    expect(page.get_by_test_id("stException")).to_have_count(0)
    # The folder of who takes the pictures says nothing to the reader.
    for store in page.get_by_text("demo-store").all():
        store.evaluate("place => { place.textContent = place.textContent.replace(/\\S*demo-store/, 'demo-store') }")
    page.screenshot(path=str(IMAGES / f"{name}.png"))


if __name__ == "__main__":
    main(*sys.argv[1:])
