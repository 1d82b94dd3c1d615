"""Every page as a picture, in two themes and three widths, compared with recorded pictures.

With ``RECORD_PICTURES=1`` pictures are recorded. Fonts and their smoothing differ between machines, so pictures are
kept small and compared smaller still: a digit is not seen, but a moved tile, a missing table and another colour are.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageChops
from playwright.sync_api import Browser, Page, expect

from cache_engine import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.store.journal import Journal
from tests.browser.conftest import COLD_MS, PROGRAM, Shown, served
from tests.browser.test_accessibility import AT_REST
from tests.helpers import fill, make_store

pytestmark = [pytest.mark.browser, pytest.mark.soak]
PICTURES = Path(__file__).with_name("pictures")
DIFFERENCES = Path(__file__).parents[2] / ".cache" / "pictures"
STORE = Path(__file__).parents[1] / "formats" / "fc4e2bd.store.tar.gz"
KEPT, COMPARED = 3, 3  # pixels of a page to one of a picture, and of a picture to one that is compared
DIFFERENT, MOST_DIFFERENT = 24, 8  # of 255 levels of a colour, and compared pixels
AT = 1_795_400_000.0  # when the dashboard starts, a day after the store's last event
SIZES = ((390, 1600), (1280, 1200), (1920, 1200))
# The length of these texts decides where a line ends.
OF_THIS_MACHINE = r"""
store => {
  const texts = document.createTreeWalker(document.querySelector("[data-testid=stMain]"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const { data } = texts.currentNode;
    const same = data.replaceAll(store, "/store").replace(/Disk, .* free/, "Disk, 50.0 GB free");
    if (same !== data) texts.currentNode.data = same;
  }
}
"""
PAGES = {
    "overview": "?span=7+days",
    "kernels": "kernels",
    "kernel": "kernel?key={0}",
    "compare": "compare?a={0}&b={1}",
    "workload": "workload",
    "compile": "compile?s_arch=sm_90",
    "predict": "predict",
    "storage": "storage",
}


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """A dashboard on a store that is the same each time, at the same time of the same day."""
    folder = tmp_path_factory.mktemp("pictures")
    with tarfile.open(STORE) as tar:
        tar.extractall(folder, filter="tar")
    store = make_store(folder / "store")
    keys = [CacheKey(key) for key in fill(store, 20)]
    for hour in range(24):
        journal = Journal(store.layout.journal, now=lambda hour=hour: AT - 3600.0 * hour)  # type: ignore[misc]
        for number, key in enumerate(keys[: 20 - hour % 7]):
            journal.hit(key, "disk", made_at=1_700_000_000.0 + number, saved_us=150_000)
            problem = GemmProblem(1 << number % 6, 1024 * (1 + number % 9), 4096, arch=("sm_90", "sm_100")[number % 2])
            for _ in range(1 + (24 - hour) * (number + 1) // 8):
                journal.asked(problem)
        for _ in range(hour % 5):
            journal.miss("sm_90")
        journal.flush()
        journal.close()
    with served(PROGRAM, folder / "store", CLOCK_STARTS_AT=str(AT)) as address:
        yield Shown(address, folder / "store")


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(timezone_id="UTC", locale="en-US", reduced_motion="reduce", device_scale_factor=1)
    context.set_default_timeout(COLD_MS)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_as_it_did(tab: Page, fixed: Shown, name: str) -> None:
    keys = sorted(record.key for record in make_store(fixed.store).records() if record.created_by != "a test")
    said = []
    for width, height in SIZES:
        for theme in ("light", "dark"):
            tab.set_viewport_size({"width": width, "height": height})
            tab.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            tab.goto(f"{fixed.address}/{PAGES[name].format(*keys)}")  # anew: charts follow a change late
            tab.wait_for_selector("h1")
            seen = Image.open(io.BytesIO(_settled(tab, fixed.store))).convert("RGB").reduce(KEPT)
            file = f"{name}-{width}-{theme}.png"
            if os.environ.get("RECORD_PICTURES"):
                PICTURES.mkdir(exist_ok=True)
                seen.quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
                    PICTURES / file, optimize=True
                )
            else:
                said += _compared(Image.open(PICTURES / file).convert("RGB"), seen, DIFFERENCES / file)
    assert said == []


def _settled(tab: Page, store: Path) -> bytes:
    """A picture of a page that is drawn: the next one, after the page was at rest again, is the same."""
    before = b""
    for _ in range(20):
        tab.evaluate("() => { window.idleSince = undefined }")
        tab.wait_for_function(AT_REST, polling=100)
        expect(tab.get_by_test_id("stSkeleton").filter(visible=True)).to_have_count(0)
        tab.evaluate(OF_THIS_MACHINE, str(store))
        seen = tab.screenshot(animations="disabled")
        if seen == before:
            return seen
        before = seen
    pytest.fail("the page is never at rest")


def _compared(before: Image.Image, after: Image.Image, file: Path) -> list[str]:
    """A sentence if the pictures differ: the file that shows them side by side has the differing places in red."""
    change = ImageChops.difference(before.reduce(COMPARED), after.reduce(COMPARED))
    red, green, blue = change.split()
    differs = ImageChops.lighter(ImageChops.lighter(red, green), blue).point(lambda level: 255 * (level > DIFFERENT))
    count, of = differs.histogram()[255], differs.width * differs.height
    if count <= MOST_DIFFERENT:
        return []
    marked = Image.blend(after.convert("L").convert("RGB"), Image.new("RGB", after.size, "white"), 0.6)
    marked.paste("red", mask=differs.resize(after.size, Image.Resampling.NEAREST))
    together = Image.new("RGB", (3 * after.width + 20, after.height), "grey")
    for at, picture in enumerate((before, after, marked)):
        together.paste(picture, (at * (after.width + 10), 0))
    file.parent.mkdir(parents=True, exist_ok=True)
    together.save(file)
    return [f"{count / of:.2%} differ: before, after, and where in {file}"]
