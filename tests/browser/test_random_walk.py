"""Hundreds of clicks, choices and texts at random, while programs compile and clean the same store.

Meanwhile the store vanishes, has a full disk and is read-only in turn; other frameworks' entries have names of 200
letters.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path

import pytest
from playwright.sync_api import Error, Locator, Page, expect

from tests.browser.conftest import PROGRAM, served
from tests.browser.test_walk import at_rest
from tests.frameworks.fixtures import unpack

pytestmark = [pytest.mark.browser, pytest.mark.soak, pytest.mark.usefixtures("home")]
STEPS = int(os.environ.get("WALK_STEPS", "300"))
SEED = int(os.environ.get("WALK_SEED", "33"))
CLICK_MS = 2_000
TROUBLE_STEPS = 25  # with a sound store, and then as many with a trouble
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
# Root may write everywhere; without these rights the dashboard may not write where the folder's mode says so.
ORDINARY = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--"] if os.geteuid() == 0 else []


@contextmanager
def _others_at_work(store: Path, may: threading.Lock) -> Iterator[None]:
    """Meanwhile processes compile new kernels of the store and evict old ones, unless the store is in trouble."""
    over = threading.Event()

    def work() -> None:
        for number in range(10_000):
            for words in (
                ["compile", str(16 * (number % 9 + 1)), "96", str(64 + 16 * (number % 40)), "--arch", "sm_80"],
                ["clean", "--max-entries", "12", "--yes"],
            ):
                with may:
                    subprocess.run([*PROGRAM, "--store", str(store), *words], check=True, capture_output=True)
                if over.wait(2.0):
                    return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _vanished(store: Path, _server: int) -> Iterator[None]:
    away = store.rename(store.with_name("away"))
    try:
        yield
        assert not store.exists(), "the dashboard made a store where one was deleted"
    finally:
        away.rename(store)


@contextmanager
def _full(_store: Path, server: int) -> Iterator[None]:
    """The dashboard cannot make a file longer, as on a full disk."""
    _, most = resource.prlimit(server, resource.RLIMIT_FSIZE)
    resource.prlimit(server, resource.RLIMIT_FSIZE, (0, most))
    yield
    resource.prlimit(server, resource.RLIMIT_FSIZE, (most, most))


@contextmanager
def _read_only(store: Path, _server: int) -> Iterator[None]:
    modes = {path: path.stat().st_mode for path in (store, *store.rglob("*"))}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    yield
    for path, mode in modes.items():
        path.chmod(mode)


def _long_names(folder: Path) -> Path:
    """A cache of Triton whose kernels have names of 200 letters."""
    cache = unpack("triton", folder)
    for path in [*cache.rglob("*.*")]:
        name, suffix = path.name.split(".", 1)
        if path.is_file():
            long = path.rename(path.with_name(f"{name:k<200}.{suffix}"))
            if suffix == "json":
                long.write_text(long.read_text().replace(f'"name": "{name}"', f'"name": "{name:k<200}"'))
    return cache


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


def test_a_walk_at_random_meets_no_error(page: Page, compiled_store: Path, tmp_path: Path) -> None:
    """No traceback, no page without a heading, no script that fails; the seed and the last steps say how to repeat."""
    chance = random.Random(SEED)
    done: list[str] = []
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog opened: {dialog.message}"))
    may, troubles = threading.Lock(), cycle((_vanished, _full, _read_only))
    process, log = tmp_path / "process", compiled_store.with_suffix(".log")
    program = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(process), *ORDINARY, *PROGRAM]
    where = {"GEMM_CACHE_CACHES": f"triton={_long_names(tmp_path)}"}
    with (
        served(program, compiled_store, **where) as dashboard,
        _others_at_work(compiled_store, may),
        ExitStack() as trouble,
    ):
        page.goto(dashboard)
        for step in range(STEPS):
            if step % TROUBLE_STEPS == 0:
                trouble.close()
                if step // TROUBLE_STEPS % 2:
                    trouble.enter_context(may)
                    happens = next(troubles)
                    trouble.enter_context(happens(compiled_store, int(process.read_text())))
                    done.append(f"nothing, but the store is {happens.__name__}")
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
            assert "Traceback" not in log.read_text(), said  # also of an error that the next drawing took away
    acted = [step for step in done if not step.startswith(("no ", "nothing"))]
    assert len(acted) > STEPS / 2, done
