"""Every page and what lies over it, in both themes, by WCAG 2.1 at level AA, as axe-core checks it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.conftest import Shown
from tests.helpers import of_today

PAGES = ("Overview", "Kernels", "Workload", "Compile", "Predict", "Storage")
# What has figures, or colours of its own. The theme of the others is the same.
DRAWN = {"Overview", "Kernels", "Workload", "Compile", "Kernel", "Code"}
VIEWS = (
    "kernels?view=By+target",
    "kernels?view=Other+frameworks",
    "workload?part=Of+a+model",
    "compile?what=Farm",
    "compare",
    "storage?tab=Directories",
    "compile?config=x",
    "compile?what=Tune",
    "evaluations?e_kind=Whole+model",
    "evaluations?e_kind=Saved+results",
    "evaluations?own=none",
    "admin?rule=all",
    "admin?tab=Packs",
    "admin?tab=Settings",
)
AT_REST = """
() => {
  const app = document.querySelector('[data-testid=stApp]');
  const busy = app.dataset.testScriptState !== 'notRunning' || document.querySelector('[data-stale=true]');
  const now = performance.now();
  if (busy || window.idleSince === undefined) window.idleSince = now;
  return now - window.idleSince > 700;
}
"""
HEADINGS = "() => [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map(one => Number(one.tagName[1]))"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


@pytest.fixture
def tab(page: Page) -> Iterator[Page]:
    page.set_default_timeout(120_000)
    yield page
    page.set_default_timeout(30_000)


def _rest(tab: Page) -> None:
    """Waits until all is drawn: what is about to be replaced is drawn pale."""
    tab.evaluate("() => { window.idleSince = undefined }")
    tab.wait_for_function(AT_REST, polling=100)


def _violations(tab: Page, name: str, *, dark: bool) -> list[object]:
    """Headings that skip a level, and what axe finds in both themes. In the dark one only contrast can differ."""
    _rest(tab)
    levels = [0, *tab.evaluate(HEADINGS)]
    broken: list[object] = [(name, f"h{one} after h{before}") for before, one in pairwise(levels) if one > before + 1]
    for scheme, only in (("light", RULES), ("dark", ["color-contrast"]))[: 1 + dark]:
        tab.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        _rest(tab)
        found = Axe().run(tab, options={"runOnly": only, "resultTypes": ["violations"]})
        assert found.response["passes"], name
        broken += [
            (name, scheme, rule["id"], place["html"], place["failureSummary"])
            for rule in found.response["violations"]
            for place in rule["nodes"]
        ]
    tab.emulate_media(color_scheme="light")
    return broken


@pytest.mark.browser
@pytest.mark.parametrize(
    "dark",
    [
        pytest.param({*DRAWN}, id="two in the dark"),
        pytest.param({*DRAWN, *PAGES, "search", "docs", "fleet"}, id="all in the dark", marks=pytest.mark.soak),
    ],
)
def test_every_page_can_be_read_by_everyone(tab: Page, shown: Shown, dark: set[str]) -> None:
    """Of the drawn ones two are looked at in the dark, others each day; ``make soak`` looks at all."""
    dark = {*of_today(sorted(dark), 2)} if dark == DRAWN else dark
    key = next((shown.store / "metadata").rglob("*.json")).stem
    broken: list[object] = []
    tab.goto(shown.address)
    for title in PAGES:  # without loading all again
        tab.get_by_role("link", name=title, exact=True).first.click()
        tab.get_by_role("heading", level=1, name=title, exact=True).wait_for()
        broken += _violations(tab, title, dark=title in dark)
    tab.get_by_role("button", name="Search").click()
    tab.get_by_role("dialog").wait_for()
    broken += _violations(tab, "search", dark="search" in dark)
    tab.keyboard.press("Escape")
    for name in ("docs", "fleet"):  # which the bar of pages does not name here
        tab.goto(f"{shown.address}/{name}")
        tab.wait_for_selector("h1")
        broken += _violations(tab, name, dark=name in dark)
    tab.goto(f"{shown.address}/kernel?key={key}")
    tab.wait_for_selector("h1")
    broken += _violations(tab, "Kernel", dark="Kernel" in dark)
    tab.get_by_text("Code", exact=True).click()
    tab.get_by_role("button", name=re.compile("^Barriers")).click()  # lines are lit
    broken += _violations(tab, "Code", dark="Code" in dark)
    assert broken == []


@pytest.mark.browser
@pytest.mark.soak
def test_every_view_can_be_read_by_everyone(tab: Page, shown: Shown) -> None:
    """The same widgets as on the pages."""
    broken: list[object] = []
    for view in VIEWS:
        tab.goto(f"{shown.address}/{view}")
        tab.wait_for_selector("h1")
        broken += _violations(tab, view, dark=False)
    assert broken == []
