"""Numbers as people read them."""

from __future__ import annotations

import pytest

from cache_engine.units import (
    counted,
    human_age,
    human_bytes,
    human_forecast,
    human_ms,
    human_rate,
    human_us,
    printable,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 * 1024**3, "5.0 GiB"),
        (3 * 1024**5, "3072.0 TiB"),
        (1024**2 - 1, "1.0 MiB"),
    ],
)
def test_bytes(size: int, text: str) -> None:
    assert human_bytes(size) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 µs"), (0.0354, "35 µs"), (1.24, "1.2 ms"), (212.4, "212 ms"), (3_400, "3.4 s"), (125_000, "2 min 5 s"),
        (3_600_000 * 3, "3 h 0 min"), (59_999, "1 min 0 s"), (999.6, "1.0 s"), (0.9999, "1.0 ms"), (9.97, "10 ms"),
    ],
)  # fmt: skip
def test_durations(ms: float, text: str) -> None:
    assert human_ms(ms) == text


@pytest.mark.parametrize(
    ("hours", "text"),
    [(3, "3 h 0 min"), (8760, "8,760 h 0 min"), (8760.1, "more than a year"), (1e300, "more than a year")],
)
def test_a_forecast_of_more_than_a_year_says_no_more(hours: float, text: str) -> None:
    assert human_forecast(hours * 3.6e6) == text


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0.000 µs"), (3.21, "3.210 µs"), (320.31, "320.3 µs"), (12_710, "12.71 ms"), (812_490, "812.5 ms"),
        (2.5e6, "2.500 s"),
    ],
)  # fmt: skip
def test_latencies(us: float, text: str) -> None:
    assert human_us(us) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-50, "just now"), (59, "just now"), (60, "1 min ago"), (3599, "59 min ago"), (3600, "1 h ago"),
        (86_399, "23 h ago"), (86_400, "1 day ago"), (86_400 * 30, "30 days ago"),
    ],
)  # fmt: skip
def test_ages(seconds: float, text: str) -> None:
    assert human_age(seconds) == text


def test_a_share_of_nothing_is_a_dash() -> None:
    assert human_rate(None) == "–"
    assert human_rate(0.8) == "80.0%"


def test_nouns_agree_with_their_number() -> None:
    assert counted(1, "kernel") == "1 kernel"
    assert counted(0, "kernel") == "0 kernels"
    assert counted(2000, "entry", "entries") == "2,000 entries"


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert printable("a\n\tb\x1b", keep="\n\t") == "a\n\tb?"
    assert printable("\x1b[31mred\x07\nline\u202e") == "?[31mred??line?"
