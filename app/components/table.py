"""Tables of a few rows, drawn as HTML by a script of our own.

Streamlit's grid takes 300 kB of programs and more than half a second of the browser, which the first page of all is not
to wait for; and pandas on the server. See ``app.tables`` for tables that are sorted and searched.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from app import context
from app.components import mount
from app.presenters.columns import Column, cells, csv_text, rows_of


def draw(
    values: Iterable[Any], columns: Sequence[Column], *, key: str, label: str, only: Collection[str] | None = None
) -> None:
    """Draws a table, with a button that saves all of it as CSV.

    Args:
        columns: links among them open in another tab.
        label: what it is of, for screen readers and as the name of the file.
        only: the columns to draw; by default all. The file has all.
    """
    rows = rows_of(values, columns, context.timezone())
    drawn = [column for column in columns if only is None or column.name in only]
    links = [column.name for column in drawn if column.kind == "link"]
    here = [{**row, **{name: row[name] and context.here(row[name]) for name in links}} for row in rows]
    mount(
        "table",
        key=key,
        data={
            "label": label,
            "columns": [{"name": column.name, "numeric": column.is_numeric} for column in drawn] if rows else [],
            "cells": cells(here, drawn, time.time()),
            "file": csv_text(rows),
        },
    )
