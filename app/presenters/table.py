"""Tables of a few rows as texts: what each cell shows, what it says when pointed at, and the rows as a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from app.presenters.shared import Row
from cache_engine.units import defused, human_age, human_bytes, human_ms, human_rate

_NONE = "–"


def cells(
    rows: Sequence[Row],
    now: float,
    *,
    sizes: Collection[str] = (),
    times: Collection[str] = (),
    shares: Collection[str] = (),
    ages: Collection[str] = (),
    links: Mapping[str, str] | None = None,
) -> list[list[dict[str, Any]]]:
    """The cells of each row: ``text``; of numbers ``value`` to sort by; ``title`` to say more; ``href`` of a link.

    Args:
        now: in seconds since 1970.
        sizes: columns in bytes.
        times: columns in milliseconds.
        shares: columns of shares of 1.
        ages: columns of moments to be shown as how long ago.
        links: columns of addresses, each with what their links say.
    """
    said = links or {}

    def cell(name: str, value: Any) -> dict[str, Any]:
        if name in said:
            return {"text": said[name], "href": str(value)} if value else {"text": ""}
        if value is None:
            return {"text": _NONE}
        if isinstance(value, datetime):
            at = value.timestamp()
            text = human_age(now - at) if name in ages else f"{value:%Y-%m-%d %H:%M}"
            return {"text": text, "title": f"{value:%Y-%m-%d %H:%M:%S %Z}", "value": at}
        if isinstance(value, str):
            return {"text": value}
        form = human_bytes if name in sizes else human_ms if name in times else human_rate if name in shares else None
        text = form(value) if form else f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
        return {"text": text, "value": value}

    return [[cell(name, value) for name, value in row.items()] for row in rows]


def numeric(rows: Sequence[Row]) -> list[str]:
    """The columns of numbers and moments."""
    return [
        name
        for name in (rows[0] if rows else ())
        if any(row[name] is not None for row in rows)
        and all(row[name] is None or isinstance(row[name], int | float | datetime) for row in rows)
    ]


def csv_text(rows: Sequence[Row]) -> str:
    """Rows as CSV, numbers in the units of the rows, with an apostrophe before texts that a spreadsheet would run."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(rows[0] if rows else ())
    for row in rows:
        writer.writerow([defused(value) if isinstance(value, str) else value for value in row.values()])
    return file.getvalue()
