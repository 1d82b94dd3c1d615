"""Figures that Plotly draws, where a reader zooms in and saves the picture: bars, and points on logarithmic axes.

Plotly reads some HTML, so text that is not ours is escaped here.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

Point = tuple[float, float]
_MARGIN = {"l": 8, "r": 8, "t": 40, "b": 8}
SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up", "x")


def bars_across(
    names: Iterable[str],
    values: Sequence[float],
    words: Sequence[str],
    colours: str | Sequence[str],
    *,
    from_: Sequence[float] | None = None,
    **layout: Any,
) -> go.Figure:
    """Bars from left to right, the first on top, each with its words.

    Args:
        from_: where each bar begins; by default at 0.
        layout: of the figure: ``title``, ``height`` and what else Plotly takes.
    """
    figure = go.Figure()
    figure.add_bar(
        x=values,
        y=[html.escape(name) for name in names],
        base=from_,
        orientation="h",
        marker_color=colours,
        text=words,
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    figure.update_layout(margin=_MARGIN, showlegend=False, **layout)
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def words_behind(figure: go.Figure) -> None:
    """Writes the words of bars behind them, which needs room to the right of the longest."""
    figure.update_traces(textposition="outside", cliponaxis=False)


def cloud(title: str, across: str, up: str, height: int = 420) -> go.Figure:
    """An empty figure; ``across`` and ``up`` are the titles of its axes, ``height`` is in pixels."""
    figure = go.Figure()
    figure.update_layout(title=title, height=height, margin=_MARGIN, legend={"orientation": "h", "y": -0.2})
    figure.update_xaxes(type="log", title=across)
    figure.update_yaxes(type="log", title=up)
    return figure


def add_line(figure: go.Figure, name: str, points: Sequence[Point], colour: str, *, dashed: bool = False) -> None:
    """Adds a line through points."""
    line = {"color": colour, "width": 2, "dash": "dash" if dashed else "solid"}
    x, y = zip(*points, strict=True)
    figure.add_scatter(x=x, y=y, name=html.escape(name), mode="lines", line=line, hoverinfo="skip")


def add_points(
    figure: go.Figure,
    name: str,
    points: Sequence[Point],
    words: Sequence[str],
    colour: str,
    symbol: str,
    size: int = 10,
) -> None:
    """Adds the points of one series; a point shows its words when the reader points at it."""
    x, y = zip(*points, strict=True)
    said = [html.escape(one).replace("\n", "<br>") for one in words]
    marker = {"color": colour, "symbol": symbol, "size": size}
    figure.add_scatter(
        x=x, y=y, name=html.escape(name), mode="markers", marker=marker, hovertext=said, hoverinfo="text"
    )
