"""Checks each request before Streamlit handles it, and adds security headers to each response.

Streamlit 1.67 checks the host name of its web socket only, trusts pages from every port of this machine, lets other
sites embed it in a frame, and sends no security headers.
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
    "The dashboard does not serve this host name. "
    "Open http://127.0.0.1:PORT, or start the dashboard with --name NAME.\n"
)
_FOREIGN_ORIGIN = (
    "A page of another site cannot connect to the dashboard. Open the dashboard itself in a tab of the browser.\n"
)
_INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


class Gate:
    """An ASGI application in front of another: rejects foreign requests, and adds headers to every response."""

    def __init__(self, inner: Application, hosts: Sequence[str], shell: str) -> None:
        """Stores the arguments; sends nothing yet.

        Args:
            hosts: the host names to serve, in the form of ``known_host``.
            shell: the HTML document that Streamlit serves; the policy allows its inline scripts.
        """
        self._inner, self._hosts = inner, tuple(hosts)
        policy = content_security_policy(shell)
        self._headers = [(name.encode(), value.encode()) for name, value in (*HEADERS, (_POLICY, policy))]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handles one request or connection."""
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
            await refuse(scope, send_guarded, 421, _UNKNOWN_HOST)
        elif scope["type"] == "websocket" and (len(origins) != 1 or not is_own_origin(origins[0], hosts[0])):
            await refuse(scope, send_guarded, 403, _FOREIGN_ORIGIN)
        else:
            await self._inner(scope, receive, send_guarded)


def known_host(host: str, names: Sequence[str]) -> bool:
    """Whether the header ``Host`` has one of these names, with any port.

    A web site can point its own name at this machine, but its requests still carry that name (DNS rebinding).

    Args:
        names: host names and addresses; ``*.example.com`` means every name below that one.
    """
    parts = _split(f"//{host}")
    if parts is None or parts.netloc != host or not parts.hostname or parts.username is not None:
        return False
    asked = parts.hostname.rstrip(".")
    allowed = [name.strip("[]").lower().rstrip(".") for name in names]
    return any(asked.endswith(name[1:]) if name.startswith("*.") else asked == name for name in allowed)


def is_own_origin(origin: str, host: str) -> bool:
    """Whether a page of ``origin`` has the host name and port of this request.

    Another port of the same machine is another program, so it is another origin.
    """
    page, asked = _split(origin), _split(f"//{host}")
    if page is None or asked is None or page.scheme not in _DEFAULT_PORTS or not page.hostname:
        return False
    default = _DEFAULT_PORTS[page.scheme]
    return (page.hostname, page.port or default) == (asked.hostname, asked.port or default)


def content_security_policy(shell: str) -> str:
    """The header that lets browsers load and run only what the dashboard serves, for the page ``shell``.

    Allowed scripts are the dashboard's files, and the shell's inline scripts by their digest.
    """
    digests = (hashlib.sha256(script.encode()).digest() for script in _INLINE_SCRIPT.findall(shell))
    scripts = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    # Streamlit's protobuf decoder compiles WebAssembly. No text runs as a program: no 'unsafe-eval'.
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
    "style-src 'self' 'unsafe-inline'",  # Streamlit and Plotly add styles while they run
)
HEADERS = (
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    ("referrer-policy", "same-origin"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
)
"""The headers of every response, except the content security policy."""


async def refuse(scope: Message, send: Send, status: int, why: str) -> None:
    """Refuses a request or connection: answers with this status and the reason in one sentence."""
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
        parts.port  # noqa: B018 (raises when it is not a number)
    except ValueError:
        return None
    return parts
