"""Permission to delete from a store, or import into it, through a server. Pure: ``app.guard`` gathers the facts.

If a token or a login is configured, every visitor must use it. If not, only the user at this machine may act: the
server must listen on loopback only, and the request must look in every way like one from a browser here. A proxy can
hide all of this: behind a proxy, and on a machine with other users, configure a token or a login.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

# What proxies and tunnels add to a request; and every header that starts with x-forwarded.
_FORWARDED = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"})
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.25, 16.0
_BETWEEN_ANSWERS_S = 0.1
_FORGOTTEN_AFTER_S = 900.0
_MOST_PEERS = 1000
ANYONE = "*"

TOKEN, LOGIN = "token", "login"
READ_ONLY = "this dashboard is read-only (--read-only)"


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the server.

    Attributes:
        bound_to: the address that the server listens at; empty means every address.
        peer: the address that the connection comes from; empty means this machine.
        headers: the headers of the request that opened the connection, by lower-case name.
    """

    bound_to: str
    peer: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Visitor:
    """The credentials of a visitor of the dashboard.

    Attributes:
        login: whether the server has a login set up at all.
        user: the name of the logged-in user; empty before the login.
        proved: whether the visitor has given the right admin token.
    """

    login: bool = False
    user: str = ""
    proved: bool = False


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether a visitor may delete from the store or import into it.

    Attributes:
        granted: whether the visitor may delete and import.
        by: the name of the visitor, for the audit log.
        why_not: the reason why the visitor may not act, in words; empty if the visitor may.
        asks_for: what the visitor needs for the permission: ``TOKEN``, ``LOGIN`` or both.
    """

    granted: bool
    by: str = ""
    why_not: str = ""
    asks_for: tuple[str, ...] = ()


def permission(
    request: Request, visitor: Visitor, *, token: bool, users: tuple[str, ...], read_only: bool = False
) -> Permission:
    """Decides whether a visitor may delete from the store or import into it.

    Args:
        read_only: whether nobody may delete or import.
        token: whether an admin token is set.
        users: the users who may do so once logged in; ``ANYONE`` means all users who can log in.
    """
    if read_only:
        return Permission(False, why_not=READ_ONLY)
    asks_for = tuple(way for way, there in ((TOKEN, token), (LOGIN, visitor.login)) if there)
    if not asks_for:
        elsewhere = why_not_local(request)
        if elsewhere:
            return Permission(False, why_not=f"{elsewhere}, and neither a login nor an admin token is set up")
        return Permission(True, by=f"{local_user()} (dashboard)")
    if visitor.proved:
        return Permission(True, by=f"admin token, from {request.peer or 'this machine'}")
    if visitor.user and (ANYONE in users or visitor.user.casefold() in {user.casefold() for user in users}):
        return Permission(True, by=visitor.user)
    if visitor.user:
        # Logging in once more would not help.
        rest = (TOKEN,) if token else ()
        return Permission(False, why_not=f"{visitor.user} is not an admin (admin_users)", asks_for=rest)
    wanted = " or ".join(_IN_WORDS[way] for way in asks_for)
    return Permission(False, why_not=f"this dashboard requires {wanted}", asks_for=asks_for)


_IN_WORDS = {TOKEN: "the admin token", LOGIN: "a login"}


def why_not_local(request: Request) -> str | None:
    """The sign that a request may come from elsewhere than a browser on this machine; ``None`` if there is none."""
    if not is_loopback(request.bound_to):
        return f"the dashboard listens at {request.bound_to or 'every address of this machine'}, not only at its own"
    if request.peer and not is_loopback(request.peer):
        return "the request is from another machine"
    for name in request.headers:
        if name in _FORWARDED or name.startswith("x-forwarded"):
            return f"the request came through a proxy (it has the header {name})"
    if not is_loopback(_host(f"//{request.headers.get('host', '')}")):
        return "the request's Host is not this machine"
    origin = request.headers.get("origin")
    if origin is not None and not is_loopback(_host(origin)):
        return "it is a cross-origin request"
    return None


def is_loopback(address: str) -> bool:
    """Whether an address or host name can only be this machine's own."""
    if address.lower() == "localhost":
        return True
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def fits(token: str, given: str) -> bool:
    """Whether ``given`` equals the token; takes equally long for every input.

    Both may hold lone surrogates: from an environment variable that is not UTF-8, or from a hostile program.
    """
    return hmac.compare_digest(*map(_digest, (token, given)))


class Attempts:
    """Delays for the answers to wrong tokens. Safe to use from several threads.

    Only wrong tokens are counted, after they were compared, so a correct token is never refused: behind a proxy all
    visitors have one address, and an attacker could otherwise lock out the owner. Guessing is hopeless: a token of 16
    random letters and digits has 95 bits, and at a thousand guesses a second, trying half of them takes 10¹⁷ years.
    The delays slow a browser tab's guesses, which helps a token that is less random.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wrong: dict[str, tuple[int, float]] = {}
        self._next_answer = 0.0

    def wrong(self, peer: str, now: float) -> float:
        """Counts a wrong token from an address; returns the seconds to wait before answering.

        The wait doubles with each wrong token from one address. Answers to wrong tokens of all addresses are given one
        after another.
        """
        with self._lock:
            count, last = self._wrong.pop(peer, (0, now))  # to the end of the line
            count = 1 if now - last > _FORGOTTEN_AFTER_S else count + 1
            self._wrong[peer] = count, now
            if len(self._wrong) > _MOST_PEERS:
                del self._wrong[next(iter(self._wrong))]
            self._next_answer = min(max(self._next_answer, now) + _BETWEEN_ANSWERS_S, now + _LONGEST_WAIT_S)
            return max(_wait_s(count), self._next_answer - now)


def local_user() -> str:
    """The name of the user that this process runs as, for the audit log."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # as in many containers
        return f"user {os.geteuid()}"


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.strip().encode(errors="surrogatepass")).digest()


def _wait_s(count: int) -> float:
    return min(_FIRST_WAIT_S * 2.0 ** (min(count, 10) - 1), _LONGEST_WAIT_S)
