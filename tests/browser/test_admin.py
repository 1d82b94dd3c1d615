"""Admin in a real browser: damage mended, and a dashboard that others can reach."""

from __future__ import annotations

import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Shown, served
from tests.helpers import blob_file, make_store

pytestmark = pytest.mark.browser
WAIT_MS = 60_000
TOKEN = "correct-horse-battery"
PROGRAM = [sys.executable, "-m", "cache_engine"]


def _confirm_all(page: Page) -> None:
    page.get_by_label("Type 4 to enable deletion").fill("4", timeout=WAIT_MS)
    page.get_by_label("Type 4 to enable deletion").press("Enter")
    page.get_by_role("button", name="Delete 4 kernels").click()
    expect(page.get_by_text("Deleted 4 kernels")).to_be_visible(timeout=WAIT_MS)


def test_damage_is_found_repaired_and_examined(page: Page, dashboard: str, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    key = next(store.keys())
    blob_file(store, key).write_bytes(b"damaged")
    page.goto(f"{dashboard}/admin?tab=Integrity")
    page.get_by_role("button", name="Run check").click()
    expect(page.get_by_text("Repair plan: 2 files")).to_be_visible(timeout=WAIT_MS)
    page.get_by_text("I have reviewed").click()
    page.get_by_role("button", name="Repair 1 finding").click()
    expect(page.get_by_text("No problems found. 3 kernels checked.")).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("radio", name="Quarantine").click()
    expect(page).to_have_url(re.compile("check=Quarantine"), timeout=WAIT_MS)
    expect(page.get_by_label("Type 1 to delete")).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("radio", name="Log", exact=True).click()
    expect(page.get_by_role("cell", name=re.compile("1 of 1 findings"))).to_be_visible(timeout=WAIT_MS)
    assert store.get(key) is None


@pytest.mark.soak
def test_served_to_others_nothing_can_be_deleted(page: Page, compiled_store: Path) -> None:
    """As ``pages/test_admin_access.py`` tries every day without a browser."""
    with served(PROGRAM, compiled_store, "--host", "0.0.0.0") as address:
        page.goto(f"{address}/admin?rule=all")
        expect(page.get_by_text("the dashboard listens at 0.0.0.0")).to_be_visible(timeout=WAIT_MS)
        expect(page.get_by_text("Will delete 4 kernels")).to_be_visible(timeout=WAIT_MS)
        expect(page.get_by_role("button", name="Delete 4 kernels")).to_be_disabled(timeout=WAIT_MS)
        expect(page.get_by_label("Type 4 to enable deletion")).to_be_disabled(timeout=WAIT_MS)


def test_served_to_others_the_token_unlocks(page: Page, compiled_store: Path) -> None:
    with served(PROGRAM, compiled_store, "--host", "0.0.0.0", GEMM_CACHE_ADMIN_TOKEN=TOKEN) as address:
        page.goto(f"{address}/admin?rule=all")
        expect(page.get_by_role("button", name="Delete 4 kernels")).to_be_disabled(timeout=WAIT_MS)
        page.get_by_label("Admin token").fill("wrong-horse-battery")
        page.get_by_role("button", name="Unlock").click()
        expect(page.get_by_text("Wrong token.")).to_be_visible(timeout=WAIT_MS)
        page.get_by_label("Admin token").fill(TOKEN)
        page.get_by_role("button", name="Unlock").click()
        expect(page.get_by_text("Unlocked: admin token, from this machine.")).to_be_visible(timeout=WAIT_MS)
        _confirm_all(page)
        assert TOKEN not in page.content()
    assert TOKEN not in compiled_store.with_suffix(".log").read_text()


def test_a_request_through_a_proxy_is_never_local(page: Page, shown: Shown) -> None:
    with _proxy(int(shown.address.rsplit(":", 1)[1]), b"X-Forwarded-For: 127.0.0.1, 203.0.113.7\r\n") as port:
        page.goto(f"http://127.0.0.1:{port}/admin?rule=all")
        expect(page.get_by_text("the request is from another machine")).to_be_visible(timeout=WAIT_MS)
        expect(page.get_by_label("Type 4 to enable deletion")).to_be_disabled(timeout=WAIT_MS)
    page.goto(f"{shown.address}/admin?rule=all")
    expect(page.get_by_label("Type 4 to enable deletion")).to_be_enabled(timeout=WAIT_MS)


@contextmanager
def _proxy(to_port: int, header: bytes) -> Iterator[int]:
    """Passes connections on, with a header more in the first request of each."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                inside, _ = listener.accept()
                outside = socket.create_connection(("127.0.0.1", to_port))
                threading.Thread(target=_pass_on, args=(inside, outside, header), daemon=True).start()
                threading.Thread(target=_pass_on, args=(outside, inside, b""), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # closing alone would not end the wait for the next connection
        listener.close()


def _pass_on(source: socket.socket, target: socket.socket, header: bytes) -> None:
    with source, suppress(OSError):
        while data := source.recv(65_536):
            if header:
                line, end, rest = data.partition(b"\r\n")
                data, header = line + end + header + rest, b""
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
