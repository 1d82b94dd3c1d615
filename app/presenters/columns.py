"""Columns of tables: which value of a row a column shows, the text of that value, and tables as CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from operator import attrgetter
from typing import Any, Literal

from app.presenters.shared import Row, moment
from cache_engine.units import defused, human_age, human_bytes, human_ms, human_rate, human_us

Kind = Literal["", "count", "decimal", "bytes", "ms", "us", "share", "when", "age", "link"]
_FORMS: dict[Kind, Callable[[Any], str]] = {
    "bytes": human_bytes,
    "ms": human_ms,
    "us": human_us,
    "share": human_rate,
}
_NONE = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, a list or a grid.

    Attributes:
        of: the name of the row's field that the column shows, with dots for a field of a field; or a function of the
            row.
        kind: the kind of the values, which decides their text: ``bytes``, milliseconds (``ms``), microseconds
            (``us``), shares of 1 (``share``), addresses (``link``), or times as a date (``when``) or as an ``age``; a
            time is a moment, or seconds since 1970.
        words: the text of a link: the same in each row, or a function of the row.
        sort: the sort order of the list's query that a click on the header asks for; empty for none.
        title: a function from a row to the text that a list shows when the reader points at its cell.
        hidden: whether a list shows it only to readers who choose it.
        bar: whether a plain table draws a bar behind each number, as long as its share of the column's largest number.
        weight: for a link, a function from a row to the part of the cell that a bar fills, from 0 to 1, by which the
            column is sorted; ``None`` for no bar.
        alert: whether a row's bar and text have the colour of a warning.
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
    weight: Callable[[Any], float | None] | None = None
    alert: Callable[[Any], bool] | None = None

    @property
    def is_numeric(self) -> bool:
        """Whether the values of the column are aligned to the right."""
        return self.kind not in ("", "link")

    def value(self, row: Any, zone: tzinfo) -> Any:
        """The value of a row, a mapping or an object, in this column; a time as a moment on the reader's clock."""
        if callable(self.of):
            found = self.of(row)
        else:
            found = row[self.of] if isinstance(row, Mapping) else attrgetter(self.of)(row)
        is_time = self.kind in ("when", "age") and not isinstance(found, datetime)
        return moment(found or 0.0, zone) if is_time else found


def rows_of(values: Iterable[Any], columns: Sequence[Column], zone: tzinfo) -> list[Row]:
    """A row for each value, with a value for each column; for a link whose text differs by row, that text."""
    return [
        {column.name: column.words(one) if callable(column.words) else column.value(one, zone) for column in columns}
        for one in values
    ]


def cells(values: Iterable[Any], columns: Sequence[Column], zone: tzinfo, now: float) -> list[list[dict[str, Any]]]:
    """The cells of each row: ``text``; for a number ``value``, to sort by; ``title`` for pointing; ``href`` of a link.

    Args:
        now: the present time in seconds since 1970, for ages.
    """
    return [
        [_cell(one, column, zone, now) | ({"title": column.title(one)} if column.title else {}) for column in columns]
        for one in values
    ]


def _cell(row: Any, column: Column, zone: tzinfo, now: float) -> dict[str, Any]:
    value = column.value(row, zone)
    if column.kind == "link":
        words = column.words(row) if callable(column.words) else column.words if value else ""
        weight = None if column.weight is None else column.weight(row)
        return {
            "text": words,
            **({"href": str(value)} if value else {}),
            **({} if weight is None else {"value": weight, "bar": weight}),
            **({"alert": True} if column.alert is not None and column.alert(row) else {}),
        }
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


def csv_of(values: Sequence[Any], columns: Sequence[Column], zone: tzinfo) -> str:
    """Values as CSV, numbers without a change of unit, with an apostrophe before texts that a spreadsheet would run."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow([column.name for column in columns] if values else ())
    for row in rows_of(values, columns, zone):
        writer.writerow([defused(value) if isinstance(value, str) else value for value in row.values()])
    return file.getvalue()
