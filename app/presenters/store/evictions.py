"""What each order of eviction would cost at each size: a figure, and the same numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, Row
from cache_engine.policy.value import LRU, LRU2, VALUE
from cache_engine.replay.evictions import Played
from cache_engine.units import bytes_unit

# Colour, and a dash and a marker, so that colour is not the only difference.
_ORDERS = {
    LRU: ("Least recently used", COLOURS[0], "solid", "circle"),
    LRU2: ("Last use but one", COLOURS[1], "dash", "square"),
    VALUE: ("Least value", COLOURS[2], "dot", "diamond"),
}


def orders_figure(played: Sequence[Played]) -> go.Figure:
    """Seconds of compiling evicted kernels again, by size."""
    unit, length = bytes_unit(max((one.size_bytes for one in played), default=0))
    figure = go.Figure()
    for order, (name, colour, dash, symbol) in _ORDERS.items():
        ours = [one for one in played if one.order == order]
        figure.add_scatter(
            name=name,
            x=[one.size_bytes / length for one in ours],
            y=[one.again_s for one in ours],
            customdata=[one.hit_rate for one in ours],
            hovertemplate=f"%{{x:,.1f}} {unit}: %{{y:,.2f}} s, %{{customdata:.1%}} hits",
            line={"color": colour, "dash": dash},
            marker={"symbol": symbol, "size": 9},
            mode="lines+markers",
        )
    figure.update_layout(
        title="Compile time spent again on evicted kernels",
        margin={"t": 48, "b": 96, "l": 56, "r": 16},
        height=340,
        legend={"orientation": "h", "yref": "container", "yanchor": "bottom", "y": 0, "x": 0},
    )
    figure.update_xaxes(title=f"Store size, {unit}", rangemode="tozero")
    figure.update_yaxes(title="Seconds", rangemode="tozero")
    return figure


def orders_table(played: Sequence[Played]) -> list[Row]:
    """The numbers of the figure."""
    return [
        {
            "Store size": one.size_bytes,
            "Deleted first": _ORDERS[one.order][0],
            "Hit rate": one.hit_rate,
            "Compile time": one.compile_s * 1e3,
            "Of it, again": one.again_s * 1e3,
            "Evictions": one.evictions,
        }
        for one in played
    ]
