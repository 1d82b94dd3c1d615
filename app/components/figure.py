"""Figures, drawn in the browser by a script of our own.

A Plotly figure takes tens of milliseconds of the browser, twice: once as it comes and once more in its place's width.
"""

from __future__ import annotations

from dataclasses import asdict

from app.components import mount
from app.presenters.figure import Figure


def draw(figure: Figure, *, key: str) -> None:
    """Draws a figure as wide as its place. Its table is for the caller to show."""
    mount("figure", key=key, data={"kind": type(figure).__name__, **asdict(figure)}, height=figure.height)
