"""Compresses Streamlit's own files on their way out.

Streamlit 1.67 compresses its other answers, and leaves these to a proxy. Without one, as over ssh, a first visit would
wait for 9 MB. A browser asks for each file once, as its name changes with its content; so each is compressed once.
"""

from __future__ import annotations

import asyncio
import gzip

from app.server.gate import Application, Message, Receive, Send

_FILES = "/static/"
# Fonts and pictures are compressed already. Not HTML: Streamlit answers with its page under any name it does not know,
# and each of these would be remembered.
_WORTH_IT = (b"text/javascript", b"application/javascript", b"text/css", b"application/wasm", b"image/svg+xml")
_SMALLEST_BYTES = 1000
_LEVEL = 6
_OWN = {b"content-encoding", b"content-length", b"accept-ranges", b"etag", b"vary"}


class Compressed:
    """An ASGI application in front of another: answers with files as gzip where the browser reads it."""

    def __init__(self, inner: Application) -> None:
        """Compresses nothing yet."""
        self._inner = inner
        self._files: dict[tuple[str, bytes], bytes] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request or connection."""
        if not _is_for_file(scope):
            await self._inner(scope, receive, send)
            return
        start: Message = {}
        parts: list[bytes] = []

        async def collect(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self._inner(scope, receive, collect)
        headers, body = dict(start["headers"]), b"".join(parts)
        if start["status"] == 200 and _is_worth_it(headers, len(body)):
            body = await self._compressed(scope["path"], headers.get(b"etag", b""), body)
            kept = [(name, value) for name, value in start["headers"] if name not in _OWN]
            added = [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
            if b"etag" in headers:  # weak: the same content in another form
                added.append((b"etag", b"W/" + headers[b"etag"].removeprefix(b"W/")))
            start["headers"] = [*kept, *added, (b"content-length", str(len(body)).encode())]
        await send(start)
        await send({"type": "http.response.body", "body": body})

    async def _compressed(self, path: str, etag: bytes, body: bytes) -> bytes:
        known = self._files.get((path, etag))
        if known is None:
            known = self._files[path, etag] = await asyncio.to_thread(gzip.compress, body, _LEVEL, mtime=0)
        return known


def _is_for_file(scope: Message) -> bool:
    """Whether a request is for the whole of one of Streamlit's files, in gzip if need be."""
    if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(_FILES):
        return False
    headers = {name.lower(): value for name, value in scope["headers"]}
    return b"range" not in headers and reads_gzip(headers.get(b"accept-encoding", b"").decode("latin-1"))


def reads_gzip(accepted: str) -> bool:
    """Whether a header ``Accept-Encoding`` names gzip, and not to refuse it (``gzip;q=0``)."""
    for coding in accepted.lower().split(","):
        name, _, weight = (part.strip() for part in coding.partition(";"))
        if name == "gzip":
            return weight.replace(" ", "").rstrip("0.") != "q="
    return False


def _is_worth_it(headers: dict[bytes, bytes], size_bytes: int) -> bool:
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip()
    return kind in _WORTH_IT and b"content-encoding" not in headers and size_bytes >= _SMALLEST_BYTES
