"""A real dashboard, in a process of its own, and a real Chromium to look at it with."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

from tests.browser.forked import Forked
from tests.helpers import make_store, without_settings

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
PROGRAM = [sys.executable, "-m", "cache_engine"]
SYSTEM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium: the system's, else Playwright's own. Missing it fails in CI and skips elsewhere."""
    executable = next(filter(None, map(shutil.which, SYSTEM)), None)
    with sync_playwright() as playwright:
        try:
            opened = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        except Error as error:
            message = f"no Chromium to start (apt-get install chromium, or playwright install chromium): {error}"
            if os.environ.get("CI"):
                pytest.fail(message)
            pytest.skip(message)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh browser tab.

    After the test: no script failed, nothing broke the page's content security policy, and nothing but the dashboard
    was asked for anything.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    failures: list[str] = []
    foreign: list[str] = []
    tab.on("pageerror", lambda error: failures.append(str(error)))
    tab.on("console", lambda said: failures.append(said.text) if "Content Security Policy" in said.text else None)
    tab.on(
        "request",
        lambda request: (
            None if request.url.startswith(("http://127.0.0.1:", "data:", "blob:")) else foreign.append(request.url)
        ),
    )
    yield tab
    context.close()
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
def shown(_compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """One dashboard for all tests of a worker that only look."""
    store = Path(shutil.copytree(_compiled, tmp_path_factory.mktemp("shown") / "store"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_settings(monkeypatch)
        with served(PROGRAM, store) as address:
            yield Shown(address, store)
    assert sorted(make_store(store).keys()) == sorted(make_store(_compiled).keys())


@contextmanager
def served(program: list[str], store: Path, *options: str, **environment: str) -> Iterator[str]:
    """Runs a program's ``dashboard`` on a store; yields its address. After: it asked no other host for anything.

    That of this checkout, ``PROGRAM``, is forked from a process that has everything imported.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
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
        server.wait(timeout=20)
    assert not connections.exists(), connections.read_text()


def _wait_until_served(address: str, server: subprocess.Popen[bytes] | Forked, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    pytest.fail(f"the dashboard did not come up: {log.read_text(errors='replace')}")
