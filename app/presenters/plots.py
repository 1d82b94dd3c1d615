"""Figures that Plotly draws, where a reader zooms in and saves the picture: points on logarithmic axes.

Plotly interprets some HTML, so text from stores and users is escaped here.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import plotly.graph_objects as go

Point = tuple[float, float]
_MARGIN = {"l": 8, "r": 8, "t": 40, "b": 8}
SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up", "x")


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
