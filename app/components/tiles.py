"""Numbers side by side, each with its name and how it went."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.components import figure
from app.presenters.shared import Tile


def draw_tiles(shown: list[Tile]) -> None:
    """Draws them in one row."""
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
                figure.draw(tile.course, key=f"course of {tile.label}")
            if tile.share is not None:
                st.progress(min(1.0, tile.share), text=f"{tile.share:,.1%} {tile.share_text}")
