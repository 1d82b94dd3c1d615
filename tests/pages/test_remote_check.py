"""The remote on Overview: hits, waits, whether it is asked, and its last error."""

from __future__ import annotations

from typing import Any

import pytest

from app.presenters.overview import FINE, LOOK, PLAIN, remote_check
from cache_engine.model.events import REMOTE_DOWN, REMOTE_UP
from cache_engine.settings import Settings

NOW = 1e9
DOWN = {"kind": REMOTE_DOWN, "happened_at": NOW - 600, "detail": "HTTP 503\x1b[31m"}
UP = {"kind": REMOTE_UP, "happened_at": NOW - 120, "detail": ""}
OTHER = {"kind": "publish", "happened_at": NOW - 60, "detail": ""}


def _row(spans: Any = None) -> dict[str, Any]:
    return {"remote_hits": 1234, "remote_sent": 7, "remote_dropped": 2, "spans": spans}


def _settings(**given: Any) -> Settings:
    return Settings().with_overrides({"remote": "s3://bucket/kernels", **given})


@pytest.mark.parametrize(
    ("events", "state", "said"),
    [
        ([OTHER], FINE, "It has not failed"),
        ([OTHER, DOWN, UP], LOOK, "stopped asking it 10 min ago"),
        ([OTHER, UP, DOWN], FINE, "It failed 10 min ago (HTTP 503"),
    ],
)
def test_its_state_is_that_of_the_last_event(events: list[dict[str, Any]], state: str, said: str) -> None:
    check = remote_check(_row(), events, _settings(), NOW)
    assert check is not None
    assert (check.state, said in check.words) == (state, True), check.words
    assert "1,234 hits" in check.words
    assert "\x1b" not in check.words + check.cause
    assert check.cause.startswith("HTTP 503") == (state == LOOK)


def test_without_a_remote_there_is_no_check_and_one_that_is_off_is_neither_good_nor_bad() -> None:
    assert remote_check(_row(), [], Settings(), NOW) is None
    check = remote_check(_row(), [DOWN], _settings(remote_mode="off"), NOW)
    assert check is not None
    assert check.state == PLAIN
    sends = remote_check(_row(), [], _settings(remote_mode="both"), NOW)
    assert sends is not None
    assert "7 sent, 2 dropped" in sends.words
