"""Functions that several pages share: tiles of numbers, times, titles and shares. This package has no Streamlit.

Text from the store never becomes markup: tables show it as it is, and Plotly, which interprets some HTML, gets it
escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

from app.presenters.figure import Sparkline

Row = dict[str, Any]

# Okabe and Ito's colours, which most colour-blind readers can distinguish, the accent first.
COLOURS = ("#437a00", "#0072b2", "#d55e00", "#cc79a7", "#e69f00", "#56b4e9")
GREY = "#9a9a9a"


@dataclass(frozen=True, slots=True)
class Tile:
    """A number with its name, meaning, share of a limit, course over time, and change.

    A share may be above 1. ``change_is_good`` is ``None`` for a change that is neither good nor bad.
    """

    label: str
    value: str
    help: str
    share: float | None = None
    share_text: str = ""
    course: Sparkline | None = None
    change: str = ""
    change_is_good: bool | None = None


def moment(seconds: float, zone: tzinfo) -> datetime | None:
    """A time on the reader's clock; ``None`` for "never"."""
    try:
        return datetime.fromtimestamp(seconds, zone) if seconds > 0 else None
    except (ValueError, OverflowError, OSError):
        return None  # a wrong clock, or a forged record


def when(seconds: float, zone: tzinfo) -> str:
    """A time on the reader's clock in words, to the minute."""
    at = moment(seconds, zone)
    return "at an unknown time" if at is None else f"{at:%Y-%m-%d %H:%M}"


def total(rows: Iterable[Row], column: str) -> int:
    """The sum of a column over all rows."""
    return sum(row[column] for row in rows)


def page_count(total: int, page_rows: int) -> int:
    """The number of pages of a list; at least one."""
    return max(1, -(-total // page_rows))


def rows_shown(offset: int, shown: int, total: int) -> str:
    """The numbers of the rows that a page of a list shows, in words: ``"21–40 of 1,234"``."""
    return f"{offset + 1:,}–{offset + shown:,} of {total:,}"


def kernel_address(key: str) -> str:
    """The address of a kernel's page, from any page; empty without a key."""
    return f"kernel?key={key}" if key else ""


MOST_COMPARED = 8
"""The most kernels that Compare shows side by side."""


def compare_address(keys: Sequence[str]) -> dict[str, str | list[str]]:
    """The parameters of Compare for the baseline, the kernel whose machine code is compared with it, and others."""
    named: dict[str, str | list[str]] = dict(zip("ab", keys, strict=False))
    return {**named, "more": list(keys[2:])} if len(keys) > 2 else named


def kernel_title(row: Row) -> str:
    """A kernel in one line, such as ``"4096×7168×2048 bf16 sm_90 · 128x128x32_w2x2_s4"``.

    Args:
        row: the kernel's row in the index. An adapted kernel has no problem in its row: its title is its name.
    """
    if row["m"] is None:
        return f"{row['name'] or 'unnamed'} {row['arch'] or ''}".strip()
    batch = f" batch {row['batch']}" if row["batch"] > 1 else ""
    return f"{row['m']}×{row['n']}×{row['k']}{batch} {dtypes(row)} {row['arch']} · {row['config']}"


def share(part: float, whole: float) -> float:
    """The part as a share of the whole: above 1 if a limit is exceeded; 1 if the whole is 0."""
    return part / whole if whole else 1.0


def dtypes(row: Row) -> str:
    """The dtype of A and B and, if C has another, the dtype of C, as text: ``"fp8 → bf16"``."""
    return row["dtype"] if row["dtype"] == row["out_dtype"] else f"{row['dtype']} → {row['out_dtype']}"
