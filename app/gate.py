"""What stands between the network and Streamlit: who is answered, and what browsers are asked to forbid.

Streamlit 1.67 checks the host name of its web socket alone, trusts a page from any port of this machine, may be shown
inside another site's page, and sends none of the headers that browsers act on. All of that is settled here, for every
request, before Streamlit sees it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

_DEFAULT_PORTS = {"http": 80, "https": 443}
_UNKNOWN_HOST = (
    "The dashboard does not answer to this name. Ask for it as http://127.0.0.1:PORT, or start it with --name NAME.\n"
)
_FOREIGN_ORIGIN = "Only the dashboard's own pages may open this connection.\n"
_INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


class Gate:
    """An ASGI application in front of another: it refuses what is not for it, and adds headers to every answer."""

    def __init__(self, inner: Application, hosts: Sequence[str], shell: str) -> None:
        """Decides nothing yet.

        Args:
            hosts: the names that are answered, as ``known_host`` takes them.
            shell: the HTML document that Streamlit answers with, for the scripts that stand in it.
        """
        self._inner, self._hosts = inner, tuple(hosts)
        policy = content_security_policy(shell)
        self._headers = [(name.encode(), value.encode()) for name, value in (*HEADERS, (_POLICY, policy))]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request or connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._inner(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                own = {name for name, _ in self._headers}
                theirs = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in own]
                message["headers"] = [*theirs, *self._headers]
            await send(message)

        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        hosts, origins = ([value for name, value in headers if name == wanted] for wanted in ("host", "origin"))
        if len(hosts) != 1 or not known_host(hosts[0], self._hosts):
            await _refuse(scope, send_guarded, 421, _UNKNOWN_HOST)
        elif scope["type"] == "websocket" and (len(origins) != 1 or not is_own_origin(origins[0], hosts[0])):
            await _refuse(scope, send_guarded, 403, _FOREIGN_ORIGIN)
        else:
            await self._inner(scope, receive, send_guarded)


def known_host(host: str, names: Sequence[str]) -> bool:
    """Whether the header ``Host`` has one of these names, whatever the port.

    A page on the web that points a name of its own at this machine still asks under that name (DNS rebinding).

    Args:
        names: host names and addresses; ``*.example.com`` stands for every name below that one.
    """
    parts = _split(f"//{host}")
    if parts is None or parts.netloc != host or not parts.hostname or parts.username is not None:
        return False
    asked = parts.hostname.rstrip(".")
    allowed = [name.strip("[]").lower().rstrip(".") for name in names]
    return any(asked.endswith(name[1:]) if name.startswith("*.") else asked == name for name in allowed)


def is_own_origin(origin: str, host: str) -> bool:
    """Whether a page of ``origin`` was served under the name and port that this request asks for.

    Another port of the same machine is another program, so it is another origin.
    """
    page, asked = _split(origin), _split(f"//{host}")
    if page is None or asked is None or page.scheme not in _DEFAULT_PORTS or not page.hostname:
        return False
    default = _DEFAULT_PORTS[page.scheme]
    return (page.hostname, page.port or default) == (asked.hostname, asked.port or default)


def content_security_policy(shell: str) -> str:
    """What browsers may load and run, for a page whose HTML is ``shell``: nothing but what the dashboard serves.

    Scripts are files of the dashboard, and those in the shell by their digest.
    """
    digests = (hashlib.sha256(script.encode()).digest() for script in _INLINE_SCRIPT.findall(shell))
    scripts = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    # Streamlit's protobuf decoder compiles WebAssembly. Text is never run as a program: no 'unsafe-eval'.
    return "; ".join((*_POLICY_PARTS, f"script-src 'self' 'wasm-unsafe-eval' {scripts}"))


_POLICY = "content-security-policy"
_POLICY_PARTS = (
    "default-src 'none'",
    "base-uri 'none'",
    "connect-src 'self'",
    "font-src 'self' data:",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "img-src 'self' data: blob:",
    "manifest-src 'self'",
    "style-src 'self' 'unsafe-inline'",  # what Streamlit and Plotly write into the page as they run
)
HEADERS = (
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    ("referrer-policy", "same-origin"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
)
"""What every answer has, besides the policy on content."""


async def _refuse(scope: Message, send: Send, status: int, why: str) -> None:
    kind = "http"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008})
            return
        kind = "websocket.http"
    body = why.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": f"{kind}.response.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": body})


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 (raises when it is no number)
    except ValueError:
        return None
    return parts
