"""Permission to delete from a store, or import into it, through a server. Pure: ``app.guard`` gathers the facts.

A configured token or login is required of everyone. Without either, only the user at this machine may: the server must
be bound to loopback, and the request must look in every way like one of a browser here. A proxy can hide all of this:
behind a proxy, configure one of the two, and also on a machine with other users.
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
        bound_to: the address that the server listens at; empty is every one.
        peer: the address that the connection is from; empty is this machine's own.
        headers: of the request that opened the connection, by their names in lower case.
    """

    bound_to: str
    peer: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Visitor:
    """The credentials of a visitor.

    Attributes:
        login: whether the server has a login set up at all.
        user: the name that was logged in with; empty before.
        proved: whether the admin token was given.
    """

    login: bool = False
    user: str = ""
    proved: bool = False


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether a visitor may act.

    Attributes:
        granted: whether.
        by: who, for the audit log.
        why_not: what is missing, for people.
        asks_for: what grants it: any of ``TOKEN`` and ``LOGIN``.
    """

    granted: bool
    by: str = ""
    why_not: str = ""
    asks_for: tuple[str, ...] = ()


def permission(
    request: Request, visitor: Visitor, *, token: bool, users: tuple[str, ...], read_only: bool = False
) -> Permission:
    """Whether a visitor may act.

    Args:
        read_only: whether no one may.
        token: whether an admin token is set.
        users: who may once logged in; ``ANYONE`` stands for all who can log in.
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
    """The reason why a request may not come from a browser on this machine; ``None`` when it does."""
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
    """Whether what was given is the token; takes equally long for every input.

    Either may hold lone surrogates: an environment variable whose bytes are no UTF-8, or what a program sends.
    """
    return hmac.compare_digest(*map(_digest, (token, given)))


class Attempts:
    """Delays for the answers to wrong tokens. Safe to use from several threads.

    Only wrong tokens are counted, after they were compared, so a correct one is never refused: behind a proxy all
    visitors have one address, and a guesser there would lock out the owner. The token makes guessing hopeless:
    16 random letters and digits are 95 bits, and at a thousand guesses a second, more than this server draws pages,
    half of them take 10¹⁷ years. The waits keep the guesses of a tab apart, and so help a token that is less random.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wrong: dict[str, tuple[int, float]] = {}
        self._next_answer = 0.0

    def wrong(self, peer: str, now: float) -> float:
        """Counts a wrong token from an address; returns for how many seconds its answer waits.

        Twice as long each time for one address; and all answers to wrong tokens, wherever they are from, are given one
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
    """The user of this machine that the process runs as, for the audit."""
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
