"""Eleven journeys by mouse and by keyboard alone, each in at most the clicks that it took before the six pages."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

from cache_engine.cache.cache import open_cache
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import encode_record
from tests.browser.conftest import Shown
from tests.browser.test_walk import at_rest
from tests.helpers import blob_file, make_store
from tests.insight.test_linked_kernels import SPILLING

pytestmark = pytest.mark.browser
WAIT_MS = 120_000
MOST_TABS = 150
# Whether this has the focus, or another choice of its group, from which arrows lead to it.
FOCUS = """
wanted => {
  let at = document.activeElement;
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  const isChoice = (one) => one?.matches('[role=radio], input[type=radio]');
  const group = (one) => one.closest('[role=radiogroup]');
  if (at === wanted) return 'here';
  return isChoice(at) && isChoice(wanted) && group(at) === group(wanted) ? 'beside' : 'elsewhere';
}
"""


class Reader:
    """Somebody who reads a page and acts on it; ``clicks`` counts what a reader with a mouse has clicked."""

    def __init__(self, page: Page, *, has_mouse: bool) -> None:
        self.page, self.has_mouse, self.clicks = page, has_mouse, 0

    def press(self, wanted: Locator) -> None:
        """Clicks a link, a button or a choice, or goes there by keyboard and presses the key that does the same."""
        self._go(wanted)
        if not self.has_mouse:
            self.page.keyboard.press("Space" if wanted.evaluate("one => one.matches('input')") else "Enter")

    def write(self, field: Locator, text: str, then: str = "Enter") -> None:
        """Types into a field instead of what it has."""
        self._go(field)
        self.page.keyboard.press("Control+a")
        self.page.keyboard.type(text)
        self.page.keyboard.press(then)

    def back(self) -> None:
        """Goes back by the browser, which Chromium does for a key only where it has a window."""
        self.page.go_back()

    def _go(self, wanted: Locator) -> None:
        expect(wanted).to_be_visible(timeout=WAIT_MS)
        at_rest(self.page)
        self.clicks += 1
        if self.has_mouse:
            wanted.click(force=True)  # where it is: over a radio button lies its label
            return
        for _ in range(MOST_TABS):
            focus = wanted.evaluate(FOCUS)
            if focus == "here":
                return
            self.page.keyboard.press("ArrowRight" if focus == "beside" else "Tab")
        raise AssertionError(f"{wanted} is not reached by keyboard")


@pytest.fixture(params=["keyboard", pytest.param("mouse", marks=pytest.mark.soak)])
def reader(page: Page, request: pytest.FixtureRequest) -> Reader:
    return Reader(page, has_mouse=request.param == "mouse")


def _link(page: Page, name: str) -> Locator:
    return page.get_by_role("link", name=name, exact=True).first


def _choice(page: Page, name: str) -> Locator:
    return page.get_by_role("radio", name=name, exact=True)


def test_search_a_kernel_read_its_code_compare_it_and_go_back(reader: Reader, shown: Shown) -> None:
    page = reader.page
    other = next(record for record in make_store(shown.store).records() if record.arch == "sm_80")
    page.goto(shown.address)
    reader.press(_link(page, "Kernels"))
    reader.write(page.get_by_role("searchbox", name="Search"), "fp16 sm_90")
    expect(page.get_by_text("1–1 of 1", exact=True)).to_be_visible(timeout=WAIT_MS)
    reader.press(page.locator("tbody a").first)
    reader.press(_choice(page, "Code"))
    expect(page.get_by_role("textbox", name="SASS code")).to_contain_text("HMMA", timeout=WAIT_MS)
    reader.press(_link(page, "Compare with…"))
    reader.write(page.get_by_role("combobox", name="Kernels"), other.key[:12])
    page.keyboard.press("Escape")  # an open list hides the page from readers of screens
    expect(page.get_by_role("heading", name="Key differences")).to_be_visible(timeout=WAIT_MS)
    reader.press(_link(page, "Back to results"))
    expect(page.get_by_text("1–1 of 1", exact=True)).to_be_visible(timeout=WAIT_MS)
    assert reader.clicks <= 7


def test_a_link_opened_cold_shows_the_kernel_and_its_list(reader: Reader, shown: Shown) -> None:
    page = reader.page
    record = next(record for record in make_store(shown.store).records() if record.family == "simt")
    page.goto(f"{shown.address}/kernel?key={record.key}&q=sm_75")
    expect(page.get_by_test_id("stCode").first).to_contain_text(record.name, timeout=WAIT_MS)
    reader.press(_link(page, "Back to results"))
    expect(page.get_by_text("1–1 of 1", exact=True)).to_be_visible(timeout=WAIT_MS)
    assert reader.clicks <= 1


def test_the_browsers_back_shows_the_same_list(reader: Reader, shown: Shown) -> None:
    page = reader.page
    page.goto(f"{shown.address}/kernels?q=sm_90")
    expect(page.locator("tbody tr")).to_have_count(2, timeout=WAIT_MS)
    reader.press(page.locator("tbody a").first)
    expect(page.get_by_test_id("stCode").first).to_be_visible(timeout=WAIT_MS)
    reader.back()
    expect(page.locator("tbody tr")).to_have_count(2, timeout=WAIT_MS)
    assert reader.clicks <= 1


def test_a_page_is_sent_as_a_report(reader: Reader, shown: Shown) -> None:
    page = reader.page
    page.goto(f"{shown.address}/kernel?key={next(iter(make_store(shown.store).keys()))}")
    export = page.get_by_role("button", name="Export page")
    expect(export).to_be_visible(timeout=2 * WAIT_MS)
    with page.expect_download(timeout=WAIT_MS) as download:
        reader.press(export)
    assert download.value.suggested_filename == "kernel.html"
    assert reader.clicks <= 1


def test_the_spilling_line_of_a_kernel_is_found(reader: Reader, dashboard: str, compiled_store: Path) -> None:
    page = reader.page
    with open_cache(compiled_store, durability="fast") as cache:
        key = cache.get_or_compile(SPILLING[0], family="tensor_core", config=SPILLING[1]).key
    page.goto(f"{dashboard}/kernel?key={key}")
    reader.press(_choice(page, "Code"))
    reader.press(page.get_by_role("button", name=re.compile(r"^Spills [1-9]")))
    expect(page.get_by_role("status").filter(has_text="Spills 1 of")).to_contain_text("spilled register")
    assert reader.clicks <= 2


def test_a_miss_is_compiled_and_then_hit(reader: Reader, dashboard: str) -> None:
    page = reader.page
    page.goto(dashboard)
    reader.press(_link(page, "Compile"))
    for label, value in (("m", "64"), ("n", "96"), ("k", "64")):
        reader.write(page.get_by_label(label, exact=True), value, "Tab")
        expect(page).to_have_url(re.compile(f"s_{label}={value}"), timeout=WAIT_MS)
    for outcome in ("Miss. Compiled in", "Hit (disk): loaded in"):
        reader.press(page.get_by_role("button", name="Compile", exact=True))
        expect(page.get_by_text(outcome)).to_be_visible(timeout=WAIT_MS)
    assert reader.clicks <= 6


def test_a_cleanup_is_previewed_confirmed_and_done(reader: Reader, dashboard: str, compiled_store: Path) -> None:
    page = reader.page
    page.goto(dashboard)
    reader.press(_link(page, "Storage"))
    reader.press(_choice(page, "Keep at most N kernels"))
    reader.write(page.get_by_label("Kernels to keep"), "1", "Tab")
    reader.write(page.get_by_label("Type 3 to enable deletion"), "3")
    expect(page.get_by_role("button", name="Delete 3 kernels")).to_be_enabled(timeout=WAIT_MS)
    reader.press(page.get_by_role("button", name="Delete 3 kernels"))
    expect(page.get_by_text("Deleted 3 kernels")).to_be_visible(timeout=WAIT_MS)
    assert len(list(make_store(compiled_store).keys())) == 1
    assert reader.clicks <= 5


def test_damage_is_found_and_repaired(reader: Reader, dashboard: str, compiled_store: Path) -> None:
    page, store = reader.page, make_store(compiled_store)
    blob_file(store, next(store.keys())).write_bytes(b"damaged")
    page.goto(dashboard)
    reader.press(_link(page, "Storage"))
    reader.press(_choice(page, "Check"))
    reader.press(page.get_by_role("button", name="Run check"))
    agreed = page.get_by_role("checkbox", name="I have reviewed the repair actions")
    expect(agreed).to_be_attached(timeout=WAIT_MS)
    if reader.has_mouse:
        agreed = page.get_by_text("I have reviewed the repair actions")  # which is drawn where the box is
    reader.press(agreed)
    expect(page.get_by_role("button", name="Repair 1 finding")).to_be_enabled(timeout=WAIT_MS)
    reader.press(page.get_by_role("button", name="Repair 1 finding"))
    expect(page.get_by_text("No problems found. 3 kernels checked.")).to_be_visible(timeout=WAIT_MS)
    assert reader.clicks <= 5


def test_why_a_lookup_missed_is_found_from_overview(reader: Reader, shown: Shown) -> None:
    page = reader.page
    page.goto(shown.address)
    reader.press(_link(page, "Not in the log before"))
    expect(page.get_by_role("cell", name="miss", exact=True).first).to_be_visible(timeout=WAIT_MS)
    reader.press(page.get_by_role("table", name="Log").get_by_role("link").first)
    expect(page.get_by_role("heading", name="Decisions")).to_be_visible(timeout=WAIT_MS)
    assert reader.clicks <= 2


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


def test_two_toolchains_are_compared(reader: Reader, dashboard: str, compiled_store: Path) -> None:
    page = reader.page
    _another_toolchain(compiled_store)
    page.goto(dashboard)
    reader.press(_link(page, "Kernels"))
    reader.press(_choice(page, "By target"))
    expect(page.get_by_role("heading", name="Compare toolchains")).to_be_visible(timeout=WAIT_MS)
    reader.press(page.get_by_role("button", name="Compare", exact=True))
    worse = re.compile(r"^4 kernels made by both; [1-9]\d* figures? worse")
    expect(page.get_by_text(worse)).to_be_visible(timeout=WAIT_MS)
    assert reader.clicks <= 3


def test_the_missing_kernels_of_a_model_are_compiled(reader: Reader, dashboard: str) -> None:
    page = reader.page
    page.goto(dashboard)
    reader.press(page.get_by_role("button", name="Search"))
    expect(page.get_by_role("dialog").get_by_role("searchbox")).to_be_focused(timeout=WAIT_MS)
    page.keyboard.type("Llama-3.1-8B")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("model=Llama-3.1-8B"), timeout=WAIT_MS)
    reader.press(page.get_by_role("button", name=re.compile("Compile [0-9,]+ missing kernels")))
    expect(page).to_have_url(re.compile("job="), timeout=WAIT_MS)
    reader.press(page.get_by_role("button", name="Cancel", exact=True))
    expect(page.get_by_text("This job was canceled.")).to_be_visible(timeout=WAIT_MS)
    assert reader.clicks <= 3
