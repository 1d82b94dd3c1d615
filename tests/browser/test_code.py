"""The linked code of a kernel, in a real browser."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

from cache_engine.cache.cache import open_cache
from cache_engine.model.gemm import GemmProblem
from tests.browser.conftest import served
from tests.helpers import make_entry, make_store, require_triton
from tests.insight.test_linked_kernels import SPILLING

pytestmark = pytest.mark.browser
WAIT_MS = 60_000


@dataclass(frozen=True)
class Kernels:
    """A dashboard, and the keys of kernels in its store."""

    address: str
    spilling: str
    hostile: str
    store: Path

    def code_of(self, key: str, more: str = "") -> str:
        """The address of a kernel's code."""
        return f"{self.address}/kernel?key={key}&part=Code{more}"


HOSTILE = "</script><img src=x onerror='window.stolen = 1'><b>bold</b> [x](javascript:alert(1)) \u202e \x1b[31m\n"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernels]:
    folder = tmp_path_factory.mktemp("code") / "store"
    with open_cache(folder, durability="fast") as cache:
        problem, config = SPILLING
        spilling = cache.get_or_compile(problem, family="tensor_core", config=config).key
    hostile = _hostile(folder)
    with served([sys.executable, "-m", "cache_engine"], folder) as address:
        yield Kernels(address, spilling, hostile, folder)


def _hostile(folder: Path) -> str:
    """The key of an entry whose every text is hostile."""
    store = make_store(folder)
    key, artifact, describe = make_entry(7)
    text = HOSTILE.encode() * 3
    store.publish(key, msgspec.structs.replace(artifact, source=text, ptx=text), describe)
    return str(key)


FOCUSED = """
() => {
  let at = document.activeElement;
  while (at.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  return at.ariaLabel ?? at.textContent;
}
"""


def _pane(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def _lit(page: Page, name: str) -> Locator:
    return _pane(page, name).locator(".cm-line.lit")


def test_the_spilling_line_of_a_kernel_is_found_from_its_page_and_a_link_opens_the_same_lines_panes_and_search(
    page: Page, kernels: Kernels
) -> None:
    page.goto(f"{kernels.address}/kernel?key={kernels.spilling}")
    page.get_by_text("Code", exact=True).click()
    spills = page.get_by_role("button", name=re.compile(r"^Spills [1-9]"))
    expect(spills).to_be_enabled(timeout=WAIT_MS)
    spills.click()
    expect(_lit(page, "SASS").filter(has_text="SpillRefill").first).to_be_in_viewport()
    said = page.get_by_role("status").filter(has_text="Spills 1 of")
    known = r"spilled register · \d+ registers in use · next instruction after \d+ cycles? · from source line \d+"
    expect(said).to_contain_text(re.compile(known))
    line = re.search(r"from source line (\d+)", said.inner_text())
    assert line is not None
    expect(_lit(page, "Source").first).to_be_in_viewport()
    expect(_pane(page, "Source").locator(".cm-lineNumbers").get_by_text(line[1], exact=True)).to_be_in_viewport()
    expect(_lit(page, "PTX").first).to_be_in_viewport()
    found = re.search(r"line=SASS%3A(\d+)", page.url)
    assert found is not None
    spill = int(found[1])

    lines = f"SASS {spill - 1} to {spill + 1}"
    page.goto(kernels.code_of(kernels.spilling, f"&line=SASS:{spill - 1}-{spill + 1}&panes=Source,SASS&find=STL"))
    expect(page.get_by_role("status").filter(has_text=lines)).to_be_visible(timeout=WAIT_MS)
    expect(_lit(page, "SASS").filter(has_text="SpillRefill").first).to_be_in_viewport()
    expect(_pane(page, "PTX")).to_be_hidden()
    expect(page.get_by_role("searchbox", name="Find in all panes")).to_have_value("STL")
    page.get_by_role("button", name="PTX", exact=True).click()
    expect(_lit(page, "PTX").first).to_be_in_viewport()
    page.get_by_text("Summary", exact=True).click()
    expect(page.get_by_text("Theoretical occupancy")).to_be_visible(timeout=WAIT_MS)
    page.get_by_text("Code", exact=True).click()
    expect(page.get_by_role("status").filter(has_text=lines)).to_be_visible(timeout=WAIT_MS)


SHIFTS = """
window.shift = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""


@pytest.mark.parametrize(("width", "height"), [(390, 844), (700, 450)], ids=["phone", "zoom of 200 %"])
def test_where_there_is_no_room_panes_are_read_one_at_a_time(
    page: Page, kernels: Kernels, width: int, height: int
) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.add_init_script(SHIFTS)
    page.goto(kernels.code_of(kernels.spilling))
    _pane(page, "SASS").locator(".cm-editor").scroll_into_view_if_needed(timeout=WAIT_MS)
    loop = _pane(page, "SASS").locator(".cm-lineNumbers .loop").first
    expect(loop).to_be_in_viewport()
    for name, other in (("PTX", "SASS"), ("Source", "PTX"), ("SASS", "Source")):
        page.get_by_role("button", name=name, exact=True).click()
        expect(_pane(page, name)).to_be_visible()
        expect(page.locator(".code-view .pane:visible")).to_have_count(1)
        box = _pane(page, name).locator(".cm-editor").bounding_box()
        assert box is not None
        assert box["height"] >= 300, name
        assert box["width"] > 0.9 * (width - 100), name
        expect(page.get_by_role("button", name=other, exact=True)).to_have_attribute("aria-pressed", "false")
    # A jump brings the pane that it goes to.
    page.get_by_role("button", name="PTX", exact=True).click()
    page.get_by_role("button", name="Main loop", exact=True).click()
    expect(loop).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    if width < 640:  # on wider ones the page's heading moves before the code is there
        assert page.evaluate("window.shift") <= 0.1


def test_code_opens_at_the_main_loop_without_moving_the_page_and_fills_the_window(page: Page, kernels: Kernels) -> None:
    page.goto(kernels.code_of(kernels.spilling))
    said = page.get_by_role("status").filter(has_text=re.compile(r"SASS opens at the main loop, lines \d+ to \d+"))
    expect(said).to_be_visible(timeout=WAIT_MS)
    for name in ("PTX", "SASS"):
        expect(_pane(page, name).locator(".cm-lineNumbers .loop").first).to_be_in_viewport()
    expect(_pane(page, "Source").locator(".cm-line", has_text="multiply_accumulate(").first).to_be_in_viewport()
    expect(page.get_by_role("heading", level=1)).to_be_in_viewport()
    estimate = page.get_by_text(
        re.compile(r"Main loop: \d+ instructions, about [\d,]+ cycles a round of one warp \(estimate")
    )
    estimate.click()
    expect(page.get_by_text(re.compile(r"^tensor core: 32 in \d+ cycles \(\d+%\)$"))).to_be_visible()
    estimate.click()

    page.get_by_role("button", name="Full window").click()
    size = page.viewport_size
    assert size is not None
    assert page.locator(".code-view").bounding_box() == {"x": 0, "y": 0, **size}
    boxes = [_pane(page, name).bounding_box() for name in ("Source", "PTX", "SASS")]
    assert sum(box["width"] for box in boxes if box) > 0.95 * size["width"]
    assert all(box and box["y"] + box["height"] <= size["height"] for box in boxes)
    assert min(box["height"] for box in boxes if box) > 0.7 * size["height"]
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.testid"))
    assert reached <= {"stBidiComponentIsolated", "stMain", None}  # what is covered is out of reach of the keyboard too
    page.get_by_role("button", name="Full window").focus()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", level=1)).to_be_in_viewport()
    page.get_by_text("Summary", exact=True).click()
    expect(page.get_by_text("Theoretical occupancy")).to_be_visible(timeout=WAIT_MS)


def test_a_click_on_a_register_shows_where_its_value_comes_from_and_goes_to(page: Page, kernels: Kernels) -> None:
    page.goto(kernels.code_of(kernels.spilling))
    sass = _pane(page, "SASS")
    page.get_by_role("button", name=re.compile("^MMA")).click(timeout=WAIT_MS)
    multiply = sass.locator(".cm-activeLine")
    expect(multiply).to_contain_text("HMMA")
    old = multiply.locator(".t-variable").last
    register = old.inner_text()
    old.click()
    following = page.get_by_role("button", name=f"Value {register}")
    expect(following).to_have_attribute("aria-pressed", "true")
    said = page.get_by_role("status").filter(has_text=re.compile(rf"^{register}: defined in \d+, \d+.* used in \d+"))
    expect(said).to_be_visible()
    defined, used = (re.findall(r"\d+", part) for part in said.inner_text().split(": ")[1].split("used"))
    expect(multiply).to_have_class(re.compile(r"\bvalue uses\b"))
    seen = []
    for _ in range(len({*defined, *used})):
        page.keyboard.press("n")
        told = re.compile(rf"^Value {register} \d+ of \d+: SASS \d+ .*(defines|uses) {register} ")
        step = page.get_by_role("status").filter(has_text=told)
        expect(step).to_be_visible()
        line = re.search(r"SASS (\d+)", step.inner_text())
        assert line is not None
        seen.append(line[1])
        expect(page).to_have_url(re.compile(rf"line=SASS%3A{line[1]}\b"))
    assert {*seen} == {*defined, *used}
    page.get_by_role("button", name="Value", exact=False).click()
    expect(sass.locator(".value")).to_have_count(0)
    # The first mention in a line that reads and writes a register is the new value; here by the keyboard.
    sass.get_by_role("textbox").focus()
    page.keyboard.press("v")
    expect(page.get_by_role("status").filter(has_text=re.compile(r"^U?[RP]\d+: defined in"))).to_be_visible()


def test_it_is_found_with_the_keyboard_alone(page: Page, kernels: Kernels) -> None:
    page.goto(kernels.code_of(kernels.spilling))
    expect(page.get_by_role("textbox", name="SASS code")).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("button", name="SASS", exact=True).focus()
    seen = [page.evaluate(FOCUSED)]
    while seen[-1] != "SASS code" and len(seen) < 40:
        page.keyboard.press("Tab")
        seen.append(page.evaluate(FOCUSED))
    for name in ("Find in all panes", "Main loop", "Source code", "PTX code", "SASS code"):
        assert name in seen
    page.keyboard.press("s")
    expect(page.get_by_role("status").filter(has_text="Spills 1 of")).to_be_visible()
    page.keyboard.press("s")
    expect(page.get_by_role("status").filter(has_text="Spills 2 of")).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("status").filter(has_text=re.compile(r"^SASS \d+"))).to_be_visible()
    page.keyboard.press("l")
    said = page.get_by_role("status").filter(has_text=re.compile(r"^Main loop: SASS \d+ to \d+"))
    expect(said).to_be_visible()
    first = said.inner_text().split()[3]
    expect(_pane(page, "SASS").locator(".cm-lineNumbers .loop").get_by_text(first, exact=True)).to_be_in_viewport()
    page.keyboard.press("Control+f")
    page.keyboard.type("hmma")
    expect(page.get_by_role("status").filter(has_text="matches: Source 0, PTX 0, SASS 32")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="Match 1 of 32")).to_be_visible()
    expect(_pane(page, "SASS").locator(".found.current")).to_be_in_viewport()


def test_pointing_at_a_line_lights_what_belongs_to_it_and_a_click_keeps_it(page: Page, kernels: Kernels) -> None:
    page.goto(kernels.code_of(kernels.spilling, "&find=mma.sync"))
    expect(page.get_by_role("status").filter(has_text="matches: Source")).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("button", name=re.compile("^MMA")).click()
    expect(_lit(page, "PTX").first).to_contain_text("mma.sync")
    expect(_lit(page, "SASS").first).to_contain_text("HMMA")
    text = _pane(page, "Source").locator(".cm-line.c:not(.lit)").first.inner_text()
    other = _pane(page, "Source").locator(".cm-line").filter(has_text=text).first
    other.hover()
    expect(_lit(page, "Source")).to_have_count(1)
    expect(other).to_have_class(re.compile("lit"))
    page.get_by_role("status").last.hover()
    expect(other).not_to_have_class(re.compile("lit"))
    other.click()
    page.get_by_role("status").last.hover()
    expect(other).to_have_class(re.compile("lit"))
    expect(page).to_have_url(re.compile(r"line=Source%3A\d+"))


def test_code_is_folded_copied_and_downloaded_whole_and_another_theme_draws_it_once(
    page: Page, kernels: Kernels
) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(kernels.code_of(kernels.spilling, "&line=Source:1"))
    source = page.get_by_role("textbox", name="Source code")
    expect(source).to_contain_text("#define KERNEL_NAME", timeout=WAIT_MS)
    expect(source).not_to_contain_text("#define BLOCK_M")
    page.get_by_role("button", name="Unfold", exact=True).click()
    expect(source).to_contain_text("#define BLOCK_M")
    page.get_by_role("button", name="Fold", exact=True).click()
    expect(source).not_to_contain_text("#define BLOCK_M")

    _pane(page, "PTX").get_by_role("button", name="Copy").click()
    expect(page.get_by_role("status").filter(has_text="Copied all of PTX")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    with page.expect_download() as caught:
        _pane(page, "PTX").get_by_role("button", name="Download").click()
    assert caught.value.suggested_filename == f"{kernels.spilling[:12]}.ptx"
    assert Path(caught.value.path()).read_text() == copied
    assert copied.splitlines()[-1] == "}"
    assert len(copied.splitlines()) > 500  # more than the pane draws

    view = page.locator(".code-view")
    view.evaluate("view => { view.dataset.light = true }")
    page.emulate_media(color_scheme="dark")
    expect(page.locator(".code-view:not([data-light])")).to_have_count(1)
    expect(view).to_have_count(1)  # drawn in the new colours in place of the old


def test_hostile_code_is_only_ever_text(page: Page, kernels: Kernels) -> None:
    page.goto(kernels.code_of(kernels.hostile, "&line=Source:1&find=%3Cimg%20src"))
    expect(page.get_by_role("textbox", name="Source code")).to_contain_text("<img src=x", timeout=WAIT_MS)
    expect(page.get_by_text("Lines are not linked:")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="Source 1")).to_be_attached()
    assert page.locator(".code-view img, .code-view b, .code-view script").count() == 0
    assert page.evaluate("window.stolen") is None


def test_a_kernel_of_triton_shows_its_irs(page: Page, kernels: Kernels) -> None:
    require_triton()
    with open_cache(kernels.store, durability="fast") as cache:
        key = cache.get_or_compile(GemmProblem(256, 256, 256, arch="sm_90"), compiler="triton").key
    page.goto(kernels.code_of(key))
    toggle = page.get_by_role("button", name="TTGIR", exact=True)
    expect(toggle).to_be_visible(timeout=3 * WAIT_MS)
    expect(_pane(page, "TTGIR")).to_be_hidden()
    toggle.click()
    page.get_by_role("button", name=re.compile("^MMA")).click()
    expect(_lit(page, "TTGIR").first).to_be_in_viewport()
    expect(_lit(page, "Source").first).to_contain_text("tl.dot")
