"""Figures, and numbers side by side, drawn in the browser by a script of our own.

Plotly is not used: its figures take tens of milliseconds of the browser, and are drawn twice, the second time in final
width.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import streamlit as st

from app.components import mount
from app.presenters.figure import Figure
from app.presenters.shared import Tile


def draw(figure: Figure, *, key: str) -> None:
    """Draws a figure in the full width of its container. The caller shows the table of the same numbers."""
    mount("figure", key=key, data={"kind": type(figure).__name__, **asdict(figure)}, height=figure.height)


def draw_tiles(shown: list[Tile]) -> None:
    """Draws tiles side by side: each a number with its name, change, course over time, and share of a limit."""
    for column, tile in zip(st.columns(len(shown)), shown, strict=True):
        with column, st.container(border=True, height="stretch"):
            good: Any = {True: "normal", False: "inverse", None: "off"}[tile.change_is_good]
            st.metric(
                tile.label,
                tile.value,
                tile.change or None,
                good,
                help=tile.help,
                delta_arrow="off" if tile.change_is_good is None else "auto",
            )
            if tile.course is not None:  # not Streamlit's own: a first visit waits for Vega
                draw(tile.course, key=f"course of {tile.label}")
            if tile.share is not None:
                is_over = tile.share > 1
                with st.container(key=f"{'over' if is_over else 'within'}-limit-{tile.label}"):
                    words = f"{tile.share:,.1%} {tile.share_text}{', over the limit' if is_over else ''}"
                    st.progress(min(1.0, tile.share), text=words)
