"""Hundreds of clicks, choices and texts at random, while programs compile and clean the same store."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Error, Locator, Page, expect

from tests.browser.conftest import PROGRAM
from tests.browser.test_walk import at_rest

pytestmark = [pytest.mark.browser, pytest.mark.soak]
STEPS = int(os.environ.get("WALK_STEPS", "300"))
SEED = int(os.environ.get("WALK_SEED", "33"))
CLICK_MS = 2_000
# All that a reader can act on, except downloads, files, Streamlit's own buttons and links to other places.
PLACES = {
    "link": "a[href^='/']:not([download]):visible, a[href^='http://127.0.0.1']:not([download]):visible",
    "button": "[data-testid=stBaseButton-secondary]:visible, [data-testid=stBaseButton-primary]:visible",
    "choice": "[role=radio]:visible, [role=tab]:visible, [role=checkbox]:visible, summary:visible",
    "text": "input[type=text]:visible, input[type=number]:visible, [role=searchbox]:visible",
}
WEIGHTS = (6, 2, 5, 3)
TEXTS = (
    "sm_90",
    "64",
    "0",
    "-1",
    "99999999999999999999",
    "1e308",
    "nan",
    "fp3",
    "' OR 1=1 --",
    "<img src=x onerror=alert(1)>",
    "[a](javascript:alert(1))",
    "\u202e\u0000gnirts",
    "k" * 300,
    "n=7168 size>64KB",
    "DROP TABLE kernels",
)


@contextmanager
def _others_at_work(store: Path) -> Iterator[None]:
    """Meanwhile processes compile new kernels of the store and evict old ones."""
    over = threading.Event()

    def work() -> None:
        for number in range(10_000):
            for words in (
                ["compile", str(16 * (number % 9 + 1)), "96", str(64 + 16 * (number % 40)), "--arch", "sm_80"],
                ["clean", "--max-entries", "12", "--yes"],
            ):
                subprocess.run([*PROGRAM, "--store", str(store), *words], check=True, capture_output=True)
                if over.wait(1.0):
                    return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _act(page: Page, chance: random.Random) -> str:
    """Acts once; returns what was done, for the message of a failure."""
    page.keyboard.press("Escape")  # closes a list that covers the page
    if (roll := chance.random()) < 0.04:
        page.go_back()
        return "back"
    if roll < 0.06:
        page.reload()
        return "reload"
    kind = chance.choices(list(PLACES), WEIGHTS)[0]
    found = page.locator(PLACES[kind])
    if not (count := found.count()):
        return f"no {kind}"
    place = found.nth(chance.randrange(count))
    name = place.get_attribute("aria-label") or place.inner_text(timeout=CLICK_MS)[:40]
    if kind == "text":
        text = chance.choice(TEXTS)
        _type(place, text)
        return f"typed {text!r} into {name!r}"
    place.click(timeout=CLICK_MS, no_wait_after=True)
    return f"clicked the {kind} {name!r}"


def _type(place: Locator, text: str) -> None:
    place.fill(text, timeout=CLICK_MS)
    place.press("Enter", timeout=CLICK_MS)


def test_a_walk_at_random_meets_no_error(page: Page, dashboard: str, compiled_store: Path) -> None:
    """No traceback, no page without a heading, no script that fails; the seed and the last steps say how to repeat."""
    chance = random.Random(SEED)
    done: list[str] = []
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog opened: {dialog.message}"))
    page.goto(dashboard)
    with _others_at_work(compiled_store):
        for _ in range(STEPS):
            try:
                done.append(_act(page, chance))
            except Error as error:  # the place was covered, disabled or drawn again meanwhile
                done.append(f"nothing: {str(error).splitlines()[0]}")
            if not page.url.startswith(dashboard):
                page.goto(dashboard)
            at_rest(page)
            said = f"seed {SEED}, step {len(done)}, at {page.url}: {done[-8:]}"
            expect(page.get_by_test_id("stException"), said).to_have_count(0)
            expect(page.locator("h1"), said).to_have_count(1)  # an open list hides it from readers of screens
            assert "Traceback" not in page.locator("body").inner_text(), said
    acted = [step for step in done if not step.startswith(("no ", "nothing"))]
    assert len(acted) > STEPS / 2, done
