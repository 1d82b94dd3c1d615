"""The page that Streamlit serves has the dashboard's style sheet from its first moment."""

from __future__ import annotations

import asyncio
import gzip
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.server.gate import Message
from app.server.style import Styled, style_sheet

PAGE = b"<html><head><title>x</title></head><body></head></body></html>"
STYLED = b"<html><head><title>x</title><style>a { b: c }</style></head><body></head></body></html>"
ASKED = [(b"Accept", b"text/html,*/*"), (b"Accept-Encoding", b"gzip")]


def answered(
    body: bytes, kind: bytes, *, method: str = "GET", headers: Any = (), status: int = 200
) -> tuple[dict[bytes, bytes], bytes]:
    """The headers and the body that a browser gets from a server with this body, which compresses where it may."""

    async def server(scope: Message, receive: Any, send: Any) -> None:
        packed = gzip.compress(body) if b"gzip" in dict(scope["headers"]).get(b"Accept-Encoding", b"") else body
        sent = [(b"content-type", kind), (b"content-length", str(len(packed)).encode()), (b"etag", b'"1"')]
        await send({"type": "http.response.start", "status": status, "headers": sent})
        await send({"type": "http.response.body", "body": packed[:20], "more_body": True})
        await send({"type": "http.response.body", "body": packed[20:]})

    got: list[Message] = []

    async def collect(message: Message) -> None:
        got.append(message)

    async def nothing() -> Message:
        return {}

    scope = {"type": "http", "method": method, "path": "/", "headers": list(headers)}
    # In a thread of its own: in this one a browser of other tests may have a loop that runs.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(Styled(server, "a { b: c }")(scope, nothing, collect))).result()
    return dict(got[0]["headers"]), b"".join(message["body"] for message in got[1:])


def test_a_page_has_the_sheet_once_in_its_head_and_its_new_length() -> None:
    headers, body = answered(PAGE, b"text/html; charset=utf-8", headers=ASKED)
    assert body == STYLED
    assert headers == {b"content-type": b"text/html; charset=utf-8", b"content-length": str(len(STYLED)).encode()}


@pytest.mark.parametrize(
    "asked",
    [
        {"kind": b"text/javascript", "headers": ASKED[:1]},
        {"kind": b"text/html", "headers": ASKED[:1], "method": "HEAD"},
        {"kind": b"text/html", "headers": ASKED[:1], "status": 404},
        {"kind": b"text/html"},
    ],
    ids=["a script", "no body", "an error", "a program"],
)
def test_every_other_answer_stays_as_it_is(asked: Any) -> None:
    headers, body = answered(PAGE, **asked)
    assert body == PAGE
    assert headers[b"etag"] == b'"1"'


def test_the_sheet_ends_no_element_and_has_the_rules_of_components() -> None:
    assert "<" not in style_sheet()
    assert ".drawn {" in style_sheet()
    assert ".kernels {" in style_sheet()
