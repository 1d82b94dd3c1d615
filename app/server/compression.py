"""Compresses the files of Streamlit's own program as they are sent, and keeps the compressed files in memory.

Streamlit 1.67 compresses its other answers, and leaves these files to a proxy. Without a proxy, as over ssh, a first
visit would wait for 9 MB. A browser asks for each file once, because a file's name changes with its content; so each
file is compressed once.

Streamlit reads a file in threads, in pieces. While other threads import the modules of pages, each change of threads
costs milliseconds, so that sixty files take half a second. Files that every page needs are read before the server
answers.
"""

from __future__ import annotations

import asyncio
import gzip
import posixpath
import re

from app.server.gate import Application, Message, Receive, Send

_FILES = "/static/"
# Fonts and pictures are compressed already. Not HTML: Streamlit answers with its page under any name it does not know,
# and each of these would be remembered.
_WORTH_IT = (b"text/javascript", b"application/javascript", b"text/css", b"application/wasm", b"image/svg+xml")
_SMALLEST_BYTES = 1000
_LEVEL = 6
_OWN = {b"content-encoding", b"content-length", b"accept-ranges", b"etag", b"vary"}
# A request with one of these is for Streamlit to answer: for a part, or for what has changed.
_SPECIAL = {b"range", b"if-none-match", b"if-modified-since"}
_NAMED = re.compile(r'"\.(/static/[^"]+)"')


class Compressed:
    """An ASGI application in front of another: answers with files as gzip where the browser reads it."""

    def __init__(self, inner: Application) -> None:
        """Stores the application; keeps no file in memory yet."""
        self._inner = inner
        self._answers: dict[str, tuple[Message, bytes]] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request or connection."""
        if not _is_for_file(scope):
            await self._inner(scope, receive, send)
            return
        start, body = self._answers.get(scope["path"]) or await self._ask(scope)
        await send({**start, "headers": list(start["headers"])})
        await send({"type": "http.response.body", "body": body})

    async def remember(self, shell: str) -> None:
        """Reads and compresses the files that the HTML page ``shell`` names."""
        for path in _NAMED.findall(shell):
            headers = [(b"host", b"localhost"), (b"accept-encoding", b"gzip")]
            await self._ask({**_GET, "path": path, "raw_path": path.encode(), "headers": headers})

    async def _ask(self, scope: Message) -> tuple[Message, bytes]:
        start: Message = {}
        parts: list[bytes] = []

        async def collect(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        # Read to its end even if its reader has gone: a part of a file must not be remembered as the whole.
        await self._inner(scope, _nothing, collect)
        headers, body = dict(start["headers"]), b"".join(parts)
        if start["status"] == 200 and _is_worth_it(headers, len(body)):
            body = await asyncio.to_thread(gzip.compress, body, _LEVEL, mtime=0)
            kept = [(name, value) for name, value in start["headers"] if name not in _OWN]
            added = [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
            if b"etag" in headers:  # weak: the same content in another form
                added.append((b"etag", b"W/" + headers[b"etag"].removeprefix(b"W/")))
            start["headers"] = [*kept, *added, (b"content-length", str(len(body)).encode())]
        if start["status"] == 200 and b"immutable" in headers.get(b"cache-control", b"") and _is_plain(scope["path"]):
            self._answers[scope["path"]] = start, body
        return start, body


_GET: Message = {
    "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
    "root_path": "", "query_string": b"", "client": None, "server": None,
}  # fmt: skip


async def _nothing() -> Message:
    """Never returns: Streamlit's answer with a file awaits this to learn whether the reader has left."""
    await asyncio.Event().wait()
    return {}


def _is_plain(path: str) -> bool:
    """Whether a path is the plain name of its file; under other spellings, a file would be kept several times."""
    return posixpath.normpath(path) == path


def _is_for_file(scope: Message) -> bool:
    """Whether a request asks for a whole file of Streamlit's program, and accepts gzip."""
    if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(_FILES):
        return False
    headers = {name.lower(): value for name, value in scope["headers"]}
    return _SPECIAL.isdisjoint(headers) and reads_gzip(headers.get(b"accept-encoding", b"").decode("latin-1"))


def reads_gzip(accepted: str) -> bool:
    """Whether a header ``Accept-Encoding`` accepts gzip: names it, and not only to refuse it (``gzip;q=0``)."""
    for coding in accepted.lower().split(","):
        name, _, weight = (part.strip() for part in coding.partition(";"))
        if name == "gzip":
            return weight.replace(" ", "").rstrip("0.") != "q="
    return False


def _is_worth_it(headers: dict[bytes, bytes], size_bytes: int) -> bool:
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip()
    return kind in _WORTH_IT and b"content-encoding" not in headers and size_bytes >= _SMALLEST_BYTES
