"""A real dashboard, in a process of its own, and a real Chromium to look at it with."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Request,
    ViewportSize,
    expect,
    sync_playwright,
)

from cache_engine.batch.jobs import Job, Jobs
from cache_engine.cache.queue import Priority
from cache_engine.cache.queue.slots import Slots
from cache_engine.model.key import CacheKey
from cache_engine.store.layout import StoreLayout
from tests.browser.forked import Forked
from tests.helpers import make_store
from tests.remote.waiting import until

# Without these Chromium asks its maker's hosts for things, and waits for answers that no test needs.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_PORTS: list[int] = []
PROGRAM = [sys.executable, "-m", "cache_engine"]
COLD_MS = 180_000  # what a first visit may take
LATE_MS = 60_000  # of anything else on a busy machine
expect.set_options(timeout=LATE_MS)
VIEWPORT: ViewportSize = {"width": 1280, "height": 900}
STILL: Literal["reduce"] = "reduce"  # what moves is drawn by the processor, a second for each page
SYSTEM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def _chromium() -> Iterator[BrowserContext]:
    """Chromium: the system's, else Playwright's own. Missing it fails in CI and skips elsewhere.

    Its profile is on disk, where it keeps the scripts that it has compiled: the next page takes half the time.
    """
    executable = next(filter(None, map(shutil.which, SYSTEM)), None)
    with sync_playwright() as playwright:
        try:
            opened = playwright.chromium.launch_persistent_context(
                "", executable_path=executable, args=list(FLAGS), viewport=VIEWPORT, reduced_motion=STILL
            )
        except Error as error:
            message = f"no Chromium to start (apt-get install chromium, or playwright install chromium): {error}"
            if os.environ.get("CI"):
                pytest.fail(message)
            pytest.skip(message)
        opened.set_default_timeout(LATE_MS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def browser(_chromium: BrowserContext) -> Browser:
    """Chromium, for contexts of a test's own: of earlier visits they have no files either."""
    assert _chromium.browser is not None
    return _chromium.browser


@pytest.fixture
def page(_chromium: BrowserContext) -> Iterator[Page]:
    """A fresh tab: what tests before have left are files in the profile's cache."""
    tab = _chromium.new_page()
    try:
        with _watched(tab):
            yield tab
    finally:
        for opened in _chromium.pages[1:]:
            opened.close()
        _chromium.clear_permissions()
        _chromium.set_storage_state({})


@pytest.fixture
def first_visit(browser: Browser) -> Iterator[Page]:
    """A tab of a browser that has no file of an earlier visit."""
    context = browser.new_context(viewport=VIEWPORT, reduced_motion=STILL)
    context.set_default_timeout(LATE_MS)
    tab = context.new_page()
    with _watched(tab):
        yield tab
        context.close()


@contextmanager
def _watched(tab: Page) -> Iterator[None]:
    """After: no script failed, nothing broke the page's content security policy, and only dashboards were asked."""
    failures: list[str] = []
    foreign: list[str] = []

    def failed(error: Error) -> None:
        failures.append(str(error))

    def said(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            failures.append(message.text)

    def asked(request: Request) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            foreign.append(request.url)

    tab.on("pageerror", failed)
    tab.on("console", said)
    tab.on("request", asked)
    try:
        yield
    finally:
        tab.remove_listener("pageerror", failed)
        tab.remove_listener("console", said)
        tab.remove_listener("request", asked)
    assert failures == []
    assert foreign == []


@pytest.fixture
def dashboard(compiled_store: Path) -> Iterator[str]:
    """The address of a dashboard of the test's own, on a store of really compiled kernels that it may change."""
    with served(PROGRAM, compiled_store) as address:
        yield address


@dataclass(frozen=True)
class Shown:
    """A dashboard that tests share, and its store: they look, and change nothing.

    Attributes:
        address: of the dashboard.
        store: of really compiled kernels.
    """

    address: str
    store: Path


@pytest.fixture(scope="session")
def shown(_compiled: Path, tmp_path_factory: pytest.TempPathFactory, _chromium: BrowserContext) -> Iterator[Shown]:
    """One dashboard for all tests of a worker that change nothing.

    The first visit is made here: server and browser are cold then, and on a busy machine it takes longer than a test
    waits for anything.
    """
    store = Path(shutil.copytree(_compiled, tmp_path_factory.mktemp("shown") / "store"))
    with served(PROGRAM, store) as address:
        tab = _chromium.new_page()
        tab.goto(f"{address}/kernels", timeout=COLD_MS)
        tab.locator("tbody a").first.wait_for(timeout=COLD_MS)
        tab.close()
        yield Shown(address, store)
    assert sorted(make_store(store).keys()) == sorted(make_store(_compiled).keys())


@contextmanager
def job_held(store: Path) -> Iterator[None]:
    """Waits until the job of a store has some kernels, then holds all compile slots: it keeps no processor busy.

    A job says how long it will take after a few kernels only, so it is not held at the first.
    """
    layout, count = StoreLayout(store), len(os.sched_getaffinity(0))
    until(lambda: any(isinstance(job, Job) and job.progress and job.progress.done > 4 for job in Jobs(layout).recent()))
    slots = Slots(layout, count, 60.0)
    with ExitStack() as held:
        for number in range(count):
            assert held.enter_context(slots.turn(CacheKey(f"{number:064x}"), Priority.CALLER)) is None
        yield


@contextmanager
def served(program: list[str], store: Path, *options: str, **environment: str) -> Iterator[str]:
    """Runs a program's ``dashboard`` on a store; yields its address. After: it asked no other host for anything.

    That of this checkout, ``PROGRAM``, is forked from a process that has everything imported.
    """
    port = _free_port()
    command = [*program, "--store", str(store), "dashboard", "--port", str(port), *options]
    log, connections = store.with_suffix(".log"), store.with_suffix(".connections")
    watched = {"PYTHONPATH": str(Path(__file__).with_name("watched")), "CONNECTIONS_LOG": str(connections)}
    variables = {**os.environ, **watched, **environment}
    server: subprocess.Popen[bytes] | Forked
    if program == PROGRAM:
        server = Forked(command[len(program) :], variables, log)
    else:
        with log.open("wb") as output:
            server = subprocess.Popen(command, stdout=output, stderr=output, cwd="/", env=variables)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_served(address, server, log)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=600)
    assert not connections.exists(), connections.read_text()


def _free_port() -> int:
    """One that a dashboard had before, if it is free again: Chromium has compiled the scripts of that address."""
    for known in (*_PORTS, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the one before linger
            try:
                probe.bind(("127.0.0.1", known))
            except OSError:
                continue
            port = int(probe.getsockname()[1])
            if port not in _PORTS:
                _PORTS.append(port)
            return port
    pytest.fail("no port is free")


def _wait_until_served(address: str, server: subprocess.Popen[bytes] | Forked, log: Path) -> None:
    def answers() -> bool:
        if server.poll() is not None:
            pytest.fail(f"the dashboard did not come up: {log.read_text(errors='replace')}")
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            return False

    until(answers)
