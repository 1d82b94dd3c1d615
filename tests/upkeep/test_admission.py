"""Permissions: no remote visitor may act without a token or a login; and guessing is slow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cache_engine.upkeep.admission import (
    ANYONE,
    LOGIN,
    TOKEN,
    Attempts,
    Request,
    Visitor,
    fits,
    is_loopback,
    local_user,
    permission,
    why_not_local,
)

HERE = Request(
    "127.0.0.1", "", {"host": "127.0.0.1:8501", "origin": "http://127.0.0.1:8501", "user-agent": "a browser"}
)
NOBODY = Visitor()
FAR = replace(HERE, bound_to="0.0.0.0", peer="203.0.113.7")


def _may(request: Request, visitor: Visitor = NOBODY, *, token: bool = False, users: tuple[str, ...] = ()) -> bool:
    return permission(request, visitor, token=token, users=users).granted


def test_without_a_token_or_login_local_users_may_act() -> None:
    given = permission(HERE, Visitor(), token=False, users=())
    assert given.granted
    assert given.by == f"{local_user()} (dashboard)"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8501", "localhost:8501", "LOCALHOST", "[::1]:8501", "127.9.9.9"]
)
def test_names_of_this_machine_are_local(host: str) -> None:
    assert why_not_local(replace(HERE, headers={"host": host})) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bound_to": "0.0.0.0"}, "listens at 0.0.0.0"),
        ({"bound_to": "::"}, "listens at ::"),
        ({"bound_to": ""}, "every address"),
        ({"bound_to": "10.0.0.5"}, "listens at 10.0.0.5"),
        ({"peer": "10.0.0.9"}, "another machine"),
        ({"peer": "::ffff:10.0.0.9"}, "another machine"),
    ],
)
def test_anything_but_loopback_is_not_local(change: dict[str, Any], said: str) -> None:
    assert said in (why_not_local(replace(HERE, **change)) or "")
    assert not _may(replace(HERE, **change))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": ""},
        {"host": "cache.example.com"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "localhost@evil.example"},
        {"host": "[::1"},
        {"host": "localhost", "x-forwarded-for": "127.0.0.1"},
        {"host": "localhost", "x-forwarded-proto": "https"},
        {"host": "localhost", "forwarded": "for=127.0.0.1"},
        {"host": "localhost", "via": "1.1 proxy"},
        {"host": "localhost", "x-real-ip": "127.0.0.1"},
        {"host": "localhost", "origin": "https://cache.example.com"},
        {"host": "localhost", "origin": "null"},
    ],
    ids=str,
)
def test_a_proxy_in_front_does_not_make_a_request_local(headers: dict[str, str]) -> None:
    assert why_not_local(replace(HERE, headers=headers))


def test_a_token_that_is_set_is_asked_for_here_too_and_opens_from_anywhere() -> None:
    for request in (HERE, FAR):
        refused = permission(request, Visitor(), token=True, users=())
        assert (refused.granted, refused.asks_for) == (False, (TOKEN,))
    granted = permission(FAR, Visitor(proved=True), token=True, users=())
    assert (granted.granted, granted.by) == (True, "admin token, from 203.0.113.7")


def test_a_login_opens_only_for_those_who_are_named() -> None:
    assert permission(FAR, Visitor(login=True), token=False, users=(ANYONE,)).asks_for == (LOGIN,)
    ada = Visitor(login=True, user="Ada@example.com")
    assert not _may(FAR, ada)
    assert not _may(HERE, ada), "a login that is set up is asked for here too"
    assert not _may(FAR, ada, users=("grace@example.com",))
    assert _may(FAR, ada, users=("ada@example.com",))
    assert permission(FAR, ada, token=False, users=(ANYONE,)).by == "Ada@example.com"
    assert permission(FAR, ada, token=True, users=()).asks_for == (TOKEN,), "logging in again would not help"


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("", False), ("0", False),
     ("127.1", False), ("host.local", False)],
)  # fmt: skip
def test_addresses_of_this_machine(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_only_the_token_fits() -> None:
    token = "correct-horse-battery"
    assert fits(token, f" {token}\n")
    assert not any(fits(token, wrong) for wrong in ("", token[:-1], token + "x", token.upper(), "ü" * 50))


def test_text_that_is_no_unicode_fits_only_if_it_is_the_token() -> None:
    assert not fits("a-token", "a-token\ud800")
    assert not fits("a-token\udcff", "a-token")
    assert fits("a-token\udcff", "a-token\udcff"), "a token in the environment may be any bytes"


def test_each_wrong_token_of_an_address_waits_twice_as_long() -> None:
    attempts, now = Attempts(), 1000.0
    waits = []
    for _ in range(9):
        waits.append(attempts.wrong("a", now))
        now += waits[-1]
    assert waits == [0.25, 0.5, 1, 2, 4, 8, 16, 16, 16]
    assert attempts.wrong("b", now) == 0.25, "another address"
    assert attempts.wrong("a", now + 901) == 0.25, "forgotten"


def test_wrong_tokens_from_everywhere_are_answered_one_after_another() -> None:
    attempts = Attempts()
    waits = [attempts.wrong(f"address {number}", 1000.0) for number in range(200)]
    assert waits[2:160] == pytest.approx([0.1 * (number + 1) for number in range(2, 160)])
    assert waits[160:] == [16.0] * 40, "none waits for ever"
    assert attempts.wrong("another", 1020.0) == 0.25


def test_guessers_take_no_memory() -> None:
    attempts = Attempts()
    for number in range(5000):
        attempts.wrong(str(number), 6000.0)
    assert len(attempts._wrong) <= 1000
