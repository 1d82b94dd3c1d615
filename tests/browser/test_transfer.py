"""What a first visit transfers, in a real browser and over a real socket."""

from __future__ import annotations

import gzip
import http.client
import re
from contextlib import closing
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Shown
from tests.browser.test_walk import at_rest

pytestmark = pytest.mark.browser
WAIT_MS = 60_000
TEXT = re.compile("javascript|css|svg|wasm")


def test_files_are_compressed_and_asked_for_once(first_visit: Page, shown: Shown) -> None:
    page = first_visit
    answers: list[dict[str, Any]] = []
    cached: set[str] = set()
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    network.on(
        "Network.responseReceived", lambda event: answers.append({**event["response"], "id": event["requestId"]})
    )
    network.on("Network.requestServedFromCache", lambda event: cached.add(event["requestId"]))
    for name in ("Overview", "Compile"):
        page.goto(f"{shown.address}/{'' if name == 'Overview' else name.lower()}")
        expect(page.get_by_role("heading", name=name)).to_be_visible(timeout=WAIT_MS)
        at_rest(page)  # what is asked for while the page is left is asked for again
        page.wait_for_load_state("networkidle")
    files = [answer for answer in answers if "/static/" in answer["url"] and TEXT.search(answer["mimeType"])]
    asked = [answer["url"] for answer in files if not answer["fromDiskCache"] and answer["id"] not in cached]
    assert len(asked) > 20
    assert len(set(asked)) == len(asked) < len(files)
    large = [answer["headers"] for answer in files if int(answer["headers"]["content-length"]) >= 1000]
    assert {headers.get("content-encoding") for headers in large} == {"gzip"}
    assert all("immutable" in headers["cache-control"] for headers in large)


def _ask(address: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    with closing(http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def test_a_compressed_file_is_the_file(shown: Shown) -> None:
    shell = _ask(shown.address, "/")[2].decode()
    path = "/" + shell.partition('src="./')[2].partition('"')[0]
    status, plain, body = _ask(shown.address, path)
    assert (status, "content-encoding" in plain) == (200, False)
    for _ in range(2):  # the second from memory
        status, headers, packed = _ask(shown.address, path, **{"Accept-Encoding": "br, gzip"})
        assert (status, headers["content-encoding"], headers["vary"]) == (200, "gzip", "accept-encoding")
        assert len(packed) == int(headers["content-length"]) < len(body) / 2
        assert gzip.decompress(packed) == body
        assert headers["x-content-type-options"] == "nosniff"
    again = _ask(shown.address, path, **{"Accept-Encoding": "gzip", "If-None-Match": headers["etag"]})
    assert (again[0], again[2]) == (304, b"")
    part = _ask(shown.address, path, **{"Accept-Encoding": "gzip", "Range": "bytes=0-9"})
    assert (part[0], part[2]) == (206, body[:10])
    refused = _ask(shown.address, path, **{"Accept-Encoding": "gzip;q=0"})
    assert refused[2] == body
