"""Every page, and every kind of widget in the dark theme, by WCAG 2.1 at level AA, as axe-core checks it."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.browser.conftest import Shown

PAGES = (
    "",
    "kernels",
    "compare",
    "architectures",
    "coverage",
    "demand",
    "caches",
    "compile",
    "evaluations",
    "admin",
    "docs",
)
VIEWS = (
    "compile?config=x",
    "evaluations?e_kind=A+model's+shapes",
    "evaluations?e_kind=Kept+results",
    "evaluations?own=none",
    "admin?rule=all",
    "admin?tab=Packs",
    "admin?tab=Settings",
)
# Of every kind of widget one.
IN_DARK = ("", "kernels?arch=sm_90", "demand", "compile", "admin")
KERNEL, CODE = "kernel", "kernel?part=Code"
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


@pytest.mark.browser
@pytest.mark.parametrize(
    ("scheme", "pages"),
    [
        pytest.param("light", (*PAGES, KERNEL, CODE), id="light"),
        pytest.param("dark", (*IN_DARK, KERNEL, CODE), id="dark"),
        pytest.param("light", VIEWS, id="views", marks=pytest.mark.soak),  # the same widgets as on the pages
    ],
)
def test_every_page_can_be_read_by_everyone(
    browser: Browser, shown: Shown, scheme: Literal["light", "dark"], pages: tuple[str, ...]
) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    key = next((shown.store / "metadata").rglob("*.json")).stem
    broken: list[object] = []
    for page in pages:
        tab.goto(f"{shown.address}/{page}{f'&key={key}' if page == CODE else f'?key={key}' if page == KERNEL else ''}")
        tab.wait_for_selector("h1")
        if page == CODE:
            tab.get_by_role("button", name=re.compile("^Barriers")).click()  # lines are lit
        tab.wait_for_function(AT_REST, polling=50)  # what is about to be replaced is drawn pale
        levels = [0, *tab.evaluate(HEADINGS)]
        broken += [(page, f"h{one} after h{before}") for before, one in pairwise(levels) if one > before + 1]
        found = Axe().run(tab, options={"runOnly": RULES})
        assert found.response["passes"], page
        broken += [
            (page, rule["id"], place["html"], place["failureSummary"])
            for rule in found.response["violations"]
            for place in rule["nodes"]
        ]
    context.close()
    assert broken == []
