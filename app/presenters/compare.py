"""Two kernels side by side."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, Row
from cache_engine.compilers.disassembly import OTHER
from cache_engine.insight.comparison import Pair, change, shown


def pair_table(pairs: Iterable[Pair], first: str, second: str) -> list[Row]:
    """Properties of two kernels side by side, as text: a column holds numbers and words. Changes, if there are any."""
    rows = [
        {"Property": pair.name, first: shown(pair.first), second: shown(pair.second), "Change": change(pair)}
        for pair in pairs
    ]
    if not any(row["Change"] for row in rows):
        for row in rows:
            del row["Change"]
    return rows


def compared_figure(pairs: Sequence[Pair], first: str, second: str) -> go.Figure:
    """Instructions of two kernels by class, side by side."""
    classes = [pair for pair in pairs if pair.name not in (OTHER, "total")]
    figure = go.Figure()
    for name, colour, counts in (
        (first, COLOURS[0], [pair.first or 0 for pair in classes]),
        (second, COLOURS[1], [pair.second or 0 for pair in classes]),
    ):
        figure.add_bar(name=html.escape(name), marker_color=colour, x=[pair.name for pair in classes], y=counts)
    figure.update_layout(barmode="group", margin={"t": 8, "b": 8, "l": 8, "r": 8}, height=300)
    figure.update_layout(legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"})
    figure.update_xaxes(type="category")
    return figure
