"""Columns of tables: the value of a row that a column shows, its form as text, and tables as files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from operator import attrgetter
from typing import Any, Literal

from app.presenters.shared import Row, moment
from cache_engine.units import defused, human_age, human_bytes, human_ms, human_rate

Kind = Literal["", "count", "decimal", "bytes", "ms", "share", "when", "age", "link"]
_FORMS: dict[Kind, Callable[[Any], str]] = {"bytes": human_bytes, "ms": human_ms, "share": human_rate}
_NONE = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, a list or a grid.

    Attributes:
        of: a field of the row, with dots where it is a field of a field, or a function of the row.
        kind: how values read: ``bytes``, milliseconds (``ms``), shares of 1, times (seconds since 1970,
            or moments) of day (``when``) or as an ``age``, or addresses (``link``).
        words: the text of a link: the same in each row, or a function of the row.
        sort: the order that a list's header asks for, of those of the list's query.
        title: what a list's cell says when pointed at, of its row.
        hidden: whether a list shows it only to readers who choose it.
        bar: whether a plain table draws a bar behind each number: its part of the column's largest.
    """

    name: str
    of: str | Callable[[Any], Any]
    kind: Kind = ""
    words: str | Callable[[Any], str] = "open"
    help: str | None = None
    sort: str = ""
    title: Callable[[Any], str] | None = None
    hidden: bool = False
    bar: bool = False

    @property
    def is_numeric(self) -> bool:
        """Whether the values of the column are aligned to the right."""
        return self.kind not in ("", "link")

    def value(self, row: Any, zone: tzinfo) -> Any:
        """The value of a row, a mapping or an object; a time is a moment on the reader's clock."""
        if callable(self.of):
            found = self.of(row)
        else:
            found = row[self.of] if isinstance(row, Mapping) else attrgetter(self.of)(row)
        is_time = self.kind in ("when", "age") and not isinstance(found, datetime)
        return moment(found or 0.0, zone) if is_time else found


def rows_of(values: Iterable[Any], columns: Sequence[Column], zone: tzinfo) -> list[Row]:
    """A row for each value, with a value for each column: the words of a link where each row has its own."""
    return [
        {column.name: column.words(one) if callable(column.words) else column.value(one, zone) for column in columns}
        for one in values
    ]


def cells(values: Iterable[Any], columns: Sequence[Column], zone: tzinfo, now: float) -> list[list[dict[str, Any]]]:
    """The cells of each row: ``text``; of numbers ``value`` to sort by; ``title`` to say more; ``href`` of a link.

    Args:
        now: in seconds since 1970.
    """
    return [[_cell(one, column, zone, now) for column in columns] for one in values]


def _cell(row: Any, column: Column, zone: tzinfo, now: float) -> dict[str, Any]:
    value = column.value(row, zone)
    if column.kind == "link":
        words = column.words(row) if callable(column.words) else column.words if value else ""
        return {"text": words, "href": str(value)} if value else {"text": words}
    if value is None:
        return {"text": _NONE}
    if isinstance(value, datetime):
        at = value.timestamp()
        text = human_age(now - at) if column.kind == "age" else f"{value:%Y-%m-%d %H:%M}"
        return {"text": text, "title": f"{value:%Y-%m-%d %H:%M:%S %Z}", "value": at}
    if isinstance(value, str):
        return {"text": value}
    form = _FORMS.get(column.kind)
    digits = ",.4g" if isinstance(value, float) and abs(value) < 1e4 else ",.0f" if isinstance(value, float) else ","
    return {"text": form(value) if form else f"{value:{digits}}", "value": value}


def csv_text(rows: Sequence[Row]) -> str:
    """Rows as CSV, numbers in the units of the rows, with an apostrophe before texts that a spreadsheet would run."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(rows[0] if rows else ())
    for row in rows:
        writer.writerow([defused(value) if isinstance(value, str) else value for value in row.values()])
    return file.getvalue()
