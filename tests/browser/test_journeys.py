"""Why a lookup missed, and what another toolchain makes of the same kernels; by keyboard alone, or by mouse alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

from cache_engine.cache.cache import open_cache
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import encode_record
from tests.browser.test_walk import at_rest

pytestmark = pytest.mark.browser
WAIT_MS = 60_000


def _reach(page: Page, wanted: Locator, most: int = 60) -> None:
    """Presses Tab until this has the focus."""
    for _ in range(most):
        if wanted.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{wanted} is not reached by keyboard")


def _by_keyboard(page: Page, heading: str, wanted: Locator) -> None:
    page.get_by_role("heading", name=heading).click()  # Tab goes on from there
    _reach(page, wanted)
    page.keyboard.press("Enter")


def _by_mouse(page: Page, heading: str, wanted: Locator) -> None:
    wanted.click()


def _another_toolchain(store: Path) -> None:
    """The same kernels as another version of the compiler made them, with more registers."""
    with open_cache(store) as cache:
        for number, record in enumerate(list(cache.records())):
            changed = {"compiler_version": "13.6", "compiler_build": "ab" * 20}
            other = msgspec.structs.replace(
                record,
                key=f"{number:0>4}{record.key[4:]}",
                components=tuple((label, changed.get(label, value)) for label, value in record.components),
                compiler_version="13.6",
                created_at=record.created_at + 3600,
                resources=msgspec.structs.replace(record.resources, registers=255),
            )
            path = Path(cache.layout.record_path(CacheKey(other.key)))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode_record(other))


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(_by_keyboard, id="keyboard"),
        pytest.param(_by_mouse, id="mouse", marks=pytest.mark.soak),
    ],
)
def test_why_a_lookup_missed_and_what_a_toolchain_changed(
    page: Page, dashboard: str, compiled_store: Path, act: Callable[[Page, str, Locator], None]
) -> None:
    _another_toolchain(compiled_store)
    page.goto(dashboard)
    missed = page.get_by_role("link", name="Not in the log before", exact=True)
    expect(missed).to_be_visible(timeout=WAIT_MS)
    at_rest(page)
    act(page, "Misses", missed)
    expect(page).to_have_url(re.compile("part=Log"), timeout=WAIT_MS)
    expect(page.get_by_role("radio", name="Log", exact=True)).to_be_checked(timeout=WAIT_MS)
    expect(page.get_by_role("cell", name="miss", exact=True).first).to_be_visible(timeout=WAIT_MS)

    page.goto(f"{dashboard}/architectures")
    expander = page.locator("summary").filter(has_text="Compare toolchains")
    expect(expander).to_be_visible(timeout=WAIT_MS)
    at_rest(page)
    act(page, "Toolchains", expander)
    compare = page.get_by_role("button", name="Compare", exact=True)
    expect(compare).to_be_visible()
    act(page, "Toolchains", compare)
    expect(page.get_by_text(re.compile(r"^4 kernels made by both; [1-9]\d* figures? worse"))).to_be_visible(
        timeout=WAIT_MS
    )
