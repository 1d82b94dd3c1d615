"""Adds the dashboard's style sheet to the page that Streamlit serves.

A page's script could send the style sheet only together with the page's content, which would move when the styles come.
"""

from __future__ import annotations

from pathlib import Path

from app.server.gate import Application, Message, Receive, Send

_HEAD_ENDS = b"</head>"
# What the sheet changes, or would leave in a browser after an update of this package alone.
_OWN = {b"content-length", b"etag", b"last-modified"}


def style_sheet() -> str:
    """The page's style sheet and those of components, which would else be drawn without their styles at first."""
    here = Path(__file__).parents[1]
    files = (here / "server" / "page.css", *sorted((here / "components" / "static").glob("*.css")))
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


class Styled:
    """An ASGI application in front of another: adds the style sheet to its HTML."""

    def __init__(self, inner: Application, sheet: str) -> None:
        """Stores the arguments; sends nothing yet."""
        self._inner, self._tag = inner, b"<style>%b</style>" % sheet.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request or connection."""
        if not _asks_for_page(scope):
            await self._inner(scope, receive, send)
            return
        # Streamlit compresses its page under some addresses; the few kilobytes are sent as they are.
        plain = [(name, value) for name, value in scope["headers"] if name.lower() != b"accept-encoding"]
        start: Message = {}
        parts: list[bytes] = []

        async def send_styled(message: Message) -> None:
            if message["type"] == "http.response.start" and _is_page(message):
                start.update(message)
            elif not start:
                await send(message)
            else:
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    body = b"".join(parts).replace(_HEAD_ENDS, self._tag + _HEAD_ENDS, 1)
                    kept = [(name, value) for name, value in start["headers"] if name.lower() not in _OWN]
                    await send({**start, "headers": [*kept, (b"content-length", str(len(body)).encode())]})
                    await send({"type": "http.response.body", "body": body})

        await self._inner({**scope, "headers": plain}, receive, send_styled)


def _asks_for_page(scope: Message) -> bool:
    """Whether a request is a browser's for a page: only then does it accept HTML by name."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return False
    return any(name.lower() == b"accept" and b"text/html" in value for name, value in scope["headers"])


def _is_page(start: Message) -> bool:
    kinds = [value for name, value in start["headers"] if name.lower() == b"content-type"]
    return start["status"] == 200 and bool(kinds) and kinds[0].startswith(b"text/html")
