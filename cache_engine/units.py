"""Formats numbers as text, and reads durations."""

from __future__ import annotations

import re

_SECONDS = {
    "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0,
}  # fmt: skip

FORMULA = r"^[=+\-@\t\r]"
"""A pattern for the start of a text that a spreadsheet would run as a formula."""


def human_bytes(size: float) -> str:
    """A size in powers of 1024: ``"18.3 KiB"``."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if round(size, 1) < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def human_ms(ms: float) -> str:
    """A duration given in milliseconds: ``"35 µs"``, ``"212 ms"``, ``"3.4 s"``, ``"2 min 5 s"``."""
    if round(ms * 1e3) < 1000:
        return f"{ms * 1e3:.0f} µs"
    if round(ms, 1) < 10:
        return f"{ms:.1f} ms"
    if round(ms) < 1000:
        return f"{ms:.0f} ms"
    if round(ms / 1e3, 1) < 60:
        return f"{ms / 1e3:.1f} s"
    minutes, seconds = divmod(round(ms / 1e3), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def human_forecast(ms: float) -> str:
    """A predicted wait in milliseconds, as ``human_ms`` writes it, or ``"more than a year"``."""
    return "more than a year" if ms > 365 * 86_400e3 else human_ms(ms)


def read_seconds(text: str, unit: str = "") -> float | None:
    """The seconds of a duration such as ``"24h"``, ``"1.5ms"`` or ``"2min"``; ``None`` if the text is not a duration.

    Args:
        unit: the unit of a number that has none. Empty: such a number is refused.
    """
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([a-zµ]*)", text)
    length = _SECONDS.get(found[2] or unit) if found else None
    return None if found is None or length is None else float(found[1]) * length


def human_us(us: float) -> str:
    """A latency given in microseconds, to four digits: ``"3.210 µs"``, ``"320.3 µs"``, ``"12.71 ms"``."""
    unit, length = ms_unit(us / 1e3)
    value = us / 1e3 / length
    digits = 3 if round(value, 3) < 10 else 2 if round(value, 2) < 100 else 1
    return f"{value:,.{digits}f} {unit}"


def ms_unit(largest: float) -> tuple[str, float]:
    """The unit that suits durations up to ``largest`` milliseconds, and the milliseconds in one unit."""
    for name, length, below in (("µs", 1e-3, 1.0), ("ms", 1.0, 1e3), ("s", 1e3, 6e5), ("min", 6e4, 3.6e7)):
        if largest < below:
            return name, length
    return "h", 3.6e6


def counted(count: int, one: str, several: str | None = None) -> str:
    """A count with its noun: ``"1 kernel"``, ``"2,000 kernels"``, ``"2 entries"``."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def human_age(seconds: float) -> str:
    """A past time as text, from its age in seconds: ``"just now"``, ``"5 min ago"``, ``"3 days ago"``.

    A negative age (clock jump) is "just now".
    """
    if seconds < 60:
        return "just now"
    for unit, length in (("min", 60), ("h", 3600), ("day", 86_400)):
        count = int(seconds // length)
        if unit == "day" or seconds < length * (60 if unit == "min" else 24):
            plural = "s" if unit == "day" and count != 1 else ""
            return f"{count:,} {unit}{plural} ago"
    raise AssertionError("unreachable")


def human_rate(share: float | None) -> str:
    """A share as a percentage; a dash for ``None``, when there is nothing to divide by."""
    return "–" if share is None else f"{share:.1%}"


def defused(text: str) -> str:
    """Text for a cell of a CSV file; an apostrophe goes before it if a spreadsheet would run it as a formula."""
    return f"'{text}" if re.match(FORMULA, text) else text


def printable(text: str, keep: str = "") -> str:
    """Text from a file, made safe for a terminal: control characters become ``?``, except those in ``keep``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else "?" for char in text)
