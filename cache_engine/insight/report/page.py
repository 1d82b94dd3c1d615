"""What a report consists of. All texts are plain: ``html`` escapes them, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

MOST_ROWS = 1_000
"""Rows of a table; a report says how many it leaves out."""

MOST_CHARACTERS = 1_000_000
"""Characters of a text, of whole lines; a report says how many lines it leaves out."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties by name."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells as people read them.

    Attributes:
        words: how many columns, from the left, hold words; the others hold numbers.
        left_out: how many rows there are that ``rows`` has not.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing under its title, with the table of its numbers.

    Attributes:
        svg: made by ``drawing``, which escapes what it is given.
    """

    title: str
    svg: str
    table: Table


@dataclass(frozen=True, slots=True)
class Text:
    """Lines of a program, a log or a diff, under a name; shown whole when opened."""

    name: str
    content: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command to copy."""

    line: str


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence."""

    words: str


Part = Facts | Table | Figure | Text | Command | Note


@dataclass(frozen=True, slots=True)
class Section:
    """Parts under a heading."""

    heading: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report.

    Attributes:
        subtitle: what identifies what it is about, such as the whole key.
        command: the command that makes the report again.
    """

    title: str
    subtitle: str
    command: str
    sections: tuple[Section, ...]


def moment(seconds: float) -> str:
    """A time, given in seconds since 1970, in words; a report is read in any time zone, so UTC."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC" if seconds > 0 else "never"
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"  # a wrong clock, or a forged record
