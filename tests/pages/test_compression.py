"""Which answers are compressed; by plain calls."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.server.compression import Compressed, reads_gzip
from app.server.gate import Message, Receive, Send

BODY = b"let tile = 128;\n" * 100


@pytest.mark.parametrize("accepted", ["gzip", "gzip, deflate, br, zstd", "br, GZIP;q=0.5", "gzip;q=1.0"])
def test_gzip_is_read(accepted: str) -> None:
    assert reads_gzip(accepted)


@pytest.mark.parametrize("accepted", ["", "br", "identity", "gzip;q=0", "gzip; q=0.000", "gzipped"])
def test_gzip_is_not_read(accepted: str) -> None:
    assert not reads_gzip(accepted)


def _run(work: Coroutine[None, None, None]) -> None:
    # In a thread of its own: in this one a browser of other tests may have a loop that runs.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(work)).result()


def _answer(app: Compressed, path: str, **more: bytes) -> tuple[dict[bytes, bytes], bytes]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("a GET has no body")

    headers = [
        (b"Accept-Encoding", b"gzip"),
        *((name.replace("_", "-").encode(), value) for name, value in more.items()),
    ]
    _run(app({"type": "http", "method": "GET", "path": path, "headers": headers}, receive, send))
    return dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:])


@pytest.mark.parametrize(
    ("path", "kind", "status", "packed"),
    [
        ("/static/js/a.js", b"text/javascript; charset=utf-8", 200, True),
        ("/static/css/a.css", b"text/css", 200, True),
        ("/static/js/a.js", b"text/javascript", 500, False),
        ("/static/media/a.woff2", b"font/woff2", 200, False),
        # Streamlit's page, which it serves under any unknown name: each would be remembered.
        ("/static/unknown", b"text/html", 200, False),
        ("/media/a.js", b"text/javascript", 200, False),
    ],
)
def test_files_of_the_page_alone_are_compressed(path: str, kind: bytes, status: int, packed: bool) -> None:
    async def inner(_: Message, __: Receive, send: Send) -> None:
        headers = [(b"content-type", kind), (b"content-length", str(len(BODY)).encode()), (b"etag", b'"1"')]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for half in (BODY[:700], BODY[700:]):
            await send({"type": "http.response.body", "body": half, "more_body": half is not BODY[700:]})

    headers, body = _answer(Compressed(inner), path)
    assert (gzip.decompress(body) if packed else body) == BODY
    assert headers.get(b"content-encoding") == (b"gzip" if packed else None)
    assert int(headers[b"content-length"]) == len(body)
    assert headers[b"etag"] == (b'W/"1"' if packed else b'"1"')


def test_a_changed_file_is_compressed_again() -> None:
    answers = iter([(b'"1"', BODY), (b'"2"', BODY[::-1])])

    async def inner(_: Message, __: Receive, send: Send) -> None:
        etag, body = next(answers)
        headers = [(b"content-type", b"text/css"), (b"etag", etag)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    app = Compressed(inner)
    assert [gzip.decompress(_answer(app, "/static/a.css")[1]) for _ in range(2)] == [BODY, BODY[::-1]]


def test_a_file_that_never_changes_is_read_once_and_what_a_page_names_before_it_is_asked_for() -> None:
    asked: list[str] = []

    async def inner(scope: Message, _: Receive, send: Send) -> None:
        asked.append(scope["path"])
        headers = [(b"content-type", b"text/css"), (b"cache-control", b"public, immutable"), (b"etag", b'"1"')]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": BODY})

    app = Compressed(inner)
    _run(app.remember('<link href="./favicon.png"><script src="./static/js/a.js"></script>'))
    assert asked == ["/static/js/a.js"]
    first, again = (_answer(app, "/static/js/a.js") for _ in range(2))
    assert asked == ["/static/js/a.js"]
    assert first == again
    assert gzip.decompress(first[1]) == BODY
    for _ in range(2):  # under each of its many other names it would be remembered again
        _answer(app, "/static/js//a.js")
    assert asked[1:] == ["/static/js//a.js"] * 2
    _answer(app, "/static/js/a.js", if_none_match=b'W/"1"')
    assert asked[3:] == ["/static/js/a.js"], "whether a browser has it already is for the server to say"


def test_a_reader_that_goes_away_leaves_no_part_of_a_file_to_others() -> None:
    async def inner(_: Message, receive: Receive, send: Send) -> None:
        """As Starlette's ``FileResponse``: it ends where its reader has gone."""
        gone = asyncio.ensure_future(receive())
        headers = [(b"content-type", b"text/css"), (b"cache-control", b"public, immutable"), (b"etag", b'"1"')]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": BODY[:700], "more_body": True})
        await asyncio.sleep(0)
        if not gone.done():
            await send({"type": "http.response.body", "body": BODY[700:]})
        gone.cancel()

    async def leave() -> Message:
        return {"type": "http.disconnect"}

    async def ignore(_: Message) -> None:
        pass

    app = Compressed(inner)
    headers = [(b"accept-encoding", b"gzip")]
    _run(app({"type": "http", "method": "GET", "path": "/static/js/a.css", "headers": headers}, leave, ignore))
    assert gzip.decompress(_answer(app, "/static/js/a.css")[1]) == BODY
