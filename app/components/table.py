"""Tables of a few rows, drawn as HTML by a script of our own.

Streamlit's grid takes 300 kB of programs and more than half a second of the browser, which the first page of all is not
to wait for; and pandas on the server. See ``app.tables`` for tables that are sorted and searched.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from app import context
from app.components import mount
from app.presenters.shared import Row
from app.presenters.table import cells, csv_text, numeric


def draw(
    rows: Sequence[Row],
    *,
    key: str,
    label: str,
    sizes: Collection[str] = (),
    times: Collection[str] = (),
    shares: Collection[str] = (),
    ages: Collection[str] = (),
    links: Mapping[str, str] | None = None,
    only: Collection[str] | None = None,
) -> None:
    """Draws a table, with a button that saves all of it as CSV.

    Args:
        label: what it is of, for screen readers and as the name of the file.
        sizes: columns in bytes.
        times: columns in milliseconds.
        shares: columns of shares of 1.
        ages: columns of moments to be shown as how long ago.
        links: columns of addresses, each with what their links say; they open in another tab.
        only: the columns to draw, in this order; by default all. The file has all.
    """
    said = links or {}
    here = [
        {name: context.here(row[name]) if name in said and row[name] else row[name] for name in row} for row in rows
    ]
    shown = [{name: row[name] for name in only} for row in here] if only else here
    aligned = numeric(shown)
    mount(
        "table",
        key=key,
        data={
            "label": label,
            "columns": [{"name": name, "numeric": name in aligned} for name in (shown[0] if shown else ())],
            "cells": cells(shown, time.time(), sizes=sizes, times=times, shares=shares, ages=ages, links=said),
            "file": csv_text(rows),
        },
    )
