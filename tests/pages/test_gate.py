"""Which names and origins are the dashboard's own, and what its policy names; by plain calls."""

from __future__ import annotations

import base64
import hashlib

import pytest

from app.server.gate import content_security_policy, is_own_origin, known_host

NAMES = ("127.0.0.1", "localhost", "::1", "gpu7.example.com", "*.lab.example.com")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8501", "LocalHost:1", "localhost.:8501", "[::1]:8501", "gpu7.example.com",
     "a.lab.example.com:443"],
)  # fmt: skip
def test_names_it_was_given_are_known_at_any_port(host: str) -> None:
    assert known_host(host, NAMES)


@pytest.mark.parametrize(
    "host",
    ["", ":8501", "evil.example", "gpu8.example.com", "lab.example.com", "evillab.example.com",
     "127.0.0.1.evil.example", "127.0.0.1:port", "127.0.0.1:99999", "user@127.0.0.1", "127.0.0.1/x", "127.0.0.1?x",
     "127.0.0.1#x", "[::1", "*", "*.lab.example.com@evil.example", "evil.example\\.lab.example.com@x"],
)  # fmt: skip
def test_no_other_name_is_known(host: str) -> None:
    assert not known_host(host, NAMES)


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://127.0.0.1:8501", "127.0.0.1:8501", True),
        ("http://LOCALHOST:8501", "localhost:8501", True),
        ("http://[::1]:8501", "[::1]:8501", True),
        ("https://gpu7.example.com", "gpu7.example.com", True),
        ("https://gpu7.example.com", "gpu7.example.com:443", True),
        ("http://gpu7.example.com", "gpu7.example.com:80", True),
        ("http://127.0.0.1:8502", "127.0.0.1:8501", False),
        ("http://localhost:8501", "127.0.0.1:8501", False),
        ("http://127.0.0.1", "127.0.0.1:8501", False),
        ("https://gpu7.example.com", "gpu7.example.com:80", False),
        ("null", "null", False),
        ("", "", False),
        ("file://127.0.0.1:8501", "127.0.0.1:8501", False),
        ("http://127.0.0.1:x", "127.0.0.1:8501", False),
    ],
)
def test_an_origin_is_its_own_where_name_and_port_are_those_asked_for(origin: str, host: str, own: bool) -> None:
    assert is_own_origin(origin, host) is own


def test_of_scripts_in_the_page_only_those_it_was_served_with_run() -> None:
    script = "\n  window.prerenderReady = false\n"
    policy = content_security_policy(f'<script>{script}</script><script type="module" src="./a.js"></script>')
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.endswith(f"script-src 'self' 'wasm-unsafe-eval' 'sha256-{digest}'")
