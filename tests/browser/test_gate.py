"""Who is answered over real sockets, and what real browsers are asked to forbid."""

from __future__ import annotations

import http.client
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from email.message import Message
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

from tests.browser.conftest import served
from tests.helpers import make_store
from tests.remote.waiting import until

pytestmark = pytest.mark.browser
WAIT_MS = 60_000
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "x3JJHMbDL1EzLkh9GBhXDw==",
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard on an empty store, for all tests of this file: none changes it."""
    store = make_store(tmp_path_factory.mktemp("gate") / "store").layout.root
    with served([sys.executable, "-m", "cache_engine"], store) as served_at:
        yield served_at


def _port(address: str) -> int:
    return int(address.rsplit(":", 1)[1])


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Message
    body: str


def _ask(address: str, path: str, method: str = "GET", body: bytes | None = None, /, **headers: str) -> Answer:
    """The answer to one request, with these headers alone."""
    connection = http.client.HTTPConnection("127.0.0.1", _port(address), timeout=20)
    with closing(connection):
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        with connection.getresponse() as answer:
            text = "" if answer.status == 101 else answer.read().decode("utf-8", "replace")
            return Answer(answer.status, answer.headers, text)


def test_every_answer_forbids_frames_and_foreign_content(address: str) -> None:
    """Pages, files, downloads, Streamlit's endpoints, refusals and errors alike."""
    host = f"127.0.0.1:{_port(address)}"
    shell = _ask(address, "/", Host=host).body
    script = shell.partition('src="./')[2].partition('"')[0]
    assert script.endswith(".js")
    answers = [
        ("GET", "/", host, 200),
        ("GET", "/admin", host, 200),
        ("GET", f"/{script}", host, 200),
        ("GET", "/_stcore/health", host, 200),
        ("GET", "/_stcore/host-config", host, 200),
        ("GET", "/media/none.csv", host, 404),
        ("POST", "/", host, 405),
        ("GET", "//evil.example", host, 400),
        ("PUT", "/_stcore/upload_file/none/none", host, 403),
        ("GET", "/", "evil.example", 421),
    ]
    for method, path, asked, status in answers:
        answer = _ask(address, path, method, Host=asked)
        assert answer.status == status, path
        policy = dict(
            part.partition(" ")[::2] for part in (answer.headers.get("Content-Security-Policy") or "").split("; ")
        )
        assert policy["frame-ancestors"] == "'none'", path
        assert policy["default-src"] == "'none'", path
        assert "unsafe-eval'" not in policy["script-src"].replace("wasm-unsafe-eval", ""), path
        assert "unsafe-inline" not in policy["script-src"], path
        assert answer.headers.get("X-Frame-Options") == "DENY", path
        assert answer.headers.get("X-Content-Type-Options") == "nosniff", path
        assert answer.headers.get("Referrer-Policy") == "same-origin", path
        assert answer.headers.get("Cross-Origin-Resource-Policy") == "same-origin", path


@pytest.mark.parametrize("path", ["/", "/static/js/none.js", "/_stcore/health", "/_stcore/host-config", "/media/x"])
def test_everything_is_served_under_known_names_alone(address: str, path: str) -> None:
    """A page on the web that points a name of its own at 127.0.0.1 must get nothing (DNS rebinding)."""
    port = _port(address)
    for host in (f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", f"localhost@evil.example:{port}", ""):
        assert _ask(address, path, Host=host).status == 421, host
    assert _ask(address, path).status == 400, "a request that names no host"
    for host in (f"127.0.0.1:{port}", f"LOCALHOST:{port}", "localhost"):
        assert _ask(address, path, Host=host).status in (200, 404), host


def test_the_web_socket_opens_for_the_dashboards_own_pages_alone(address: str) -> None:
    """Another port of this machine is another program; and no browser leaves the origin out."""
    port = _port(address)
    own = f"127.0.0.1:{port}"
    for host, origin, status in (
        (own, f"http://{own}", 101),
        (f"localhost:{port}", f"http://localhost:{port}", 101),
        (own, f"http://127.0.0.1:{port + 1}", 403),
        (own, "http://127.0.0.1", 403),
        (own, f"http://localhost:{port}", 403),
        (own, f"https://localhost:{port}", 403),
        (own, f"http://evil.example:{port}", 403),
        (own, "http://app.streamlit.app", 403),
        (own, "null", 403),
        (own, None, 403),
        (f"evil.example:{port}", f"http://evil.example:{port}", 421),
    ):
        headers: dict[str, Any] = {"Host": host, **UPGRADE} | ({} if origin is None else {"Origin": origin})
        assert _ask(address, "/_stcore/stream", **headers).status == status, (host, origin)


def test_no_page_elsewhere_may_send_it_messages(address: str) -> None:
    """Streamlit's own hosting may by default, and anyone can run an application there."""
    answer = _ask(address, "/_stcore/host-config", Host=f"127.0.0.1:{_port(address)}")
    assert json.loads(answer.body)["allowedOrigins"] == []


def test_a_link_that_asks_for_an_infinite_number_shows_the_default(page: Page, address: str) -> None:
    """And its own page works: tests of refusals would also pass against a dashboard that answers no request."""
    page.goto(f"{address}/evaluations?e_m=1e999&e_n=-inf")
    expect(page.get_by_text("s_m = 1e999")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_test_id("stException")).to_have_count(0)


def test_a_file_with_a_nul_in_its_name_breaks_no_tab_and_what_a_tab_may_upload_is_bounded(
    page: Page, address: str
) -> None:
    text, sent = b"arch,M\nH100,1\n", list[Request]()

    def with_nul(route: Route) -> None:
        sent.append(route.request)
        body = route.request.post_data_buffer or b""
        route.continue_(post_data=body.replace(b"mine.csv", b"mi\0e.csv"))

    page.route("**/_stcore/upload_file/**", with_nul)
    page.goto(f"{address}/evaluations?e_kind=Validation")
    field = page.locator("input[type=file]").last
    field.set_input_files({"name": "mine.csv", "mimeType": "text/csv", "buffer": text})
    expect(page.get_by_text("mi?e.csv lacks the column N")).to_be_visible(timeout=WAIT_MS)
    path = urlsplit(sent[0].url).path
    headers = {name: value for name, value in sent[0].all_headers().items() if "xsrf" in name or name == "cookie"}
    headers |= {"Host": f"127.0.0.1:{_port(address)}", "Content-Type": "multipart/form-data; boundary=x"}
    with ExitStack() as coming:
        for size_bytes in (64 * 2**20, 64 * 2**20 - len(text)):  # which stay under way
            connection = coming.enter_context(closing(http.client.HTTPConnection("127.0.0.1", _port(address))))
            connection.putrequest("PUT", path, skip_host=True)
            for name, value in {**headers, "Content-Length": str(size_bytes)}.items():
                connection.putheader(name, value)
            connection.endheaders()
        one_more = partial(_ask, address, path, "PUT", b"x", **headers, **{"Content-Length": "1"})
        until(lambda: one_more().status == 413)
        assert "Remove a file" in one_more().body


def test_a_page_of_another_port_can_neither_frame_it_nor_read_from_it(browser: Browser, address: str) -> None:
    """In a real browser, where Admin may be unlocked in another tab."""
    with _foreign_page(address) as foreign:
        tab = browser.new_context().new_page()
        tab.goto(foreign)
        for kind in ("websocket", "script"):
            expect(tab.locator(f"#{kind}")).to_have_text("refused", timeout=WAIT_MS)
        frame = tab.locator("iframe").element_handle().content_frame()
        assert frame is not None
        frame.wait_for_load_state()
        assert frame.url.startswith("chrome-error:")
        assert frame.locator("#root").count() == 0
        tab.context.close()


def test_only_this_machine_is_served(address: str) -> None:
    with open("/proc/net/tcp", encoding="ascii") as sockets:
        listening = [line.split()[1] for line in sockets if line.split()[3] == "0A"]
    addresses = [local.split(":")[0] for local in listening if int(local.split(":")[1], 16) == _port(address)]
    assert addresses == ["0100007F"]


@contextmanager
def _foreign_page(target: str) -> Iterator[str]:
    """Serves a page at another port that frames the dashboard, opens its web socket and loads from it."""
    document = f"""<!doctype html><p id="websocket"></p><p id="script"></p>
        <iframe src="{target}/admin"></iframe><script>
        const say = (kind, text) => document.getElementById(kind).textContent = text;
        const socket = new WebSocket("{target.replace("http", "ws")}/_stcore/stream", ["streamlit"]);
        socket.onopen = () => say("websocket", "open"); socket.onerror = () => say("websocket", "refused");
        const script = document.createElement("script"); script.src = "{target}/_stcore/health";
        script.onload = () => say("script", "loaded"); script.onerror = () => say("script", "refused");
        document.head.append(script);</script>""".encode()

    class Document(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(document)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Document)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
