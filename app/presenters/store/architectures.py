"""Sums for each target, as a table and as figures."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from urllib.parse import urlencode

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, Row, moment
from cache_engine.units import bytes_unit, ms_unit

# These have fixed colours in every store.
_KINDS = (("simt", "fp32"), ("tensor_core", "bf16"), ("tensor_core", "fp16"), ("simt", "fp64"))
# Enough that no two kinds have one colour: three families with six dtypes at most.
_COLOURS = (
    *COLOURS, "#7f3b08", "#542788", "#01665e", "#c51b7d", "#35978f", "#8c510a", "#2d004b", "#b2182b", "#4d4d4d",
    "#1b7837", "#053061", "#dfc27d",
)  # fmt: skip


def architecture_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """Sums for each target, as numbers, so that every column can be sorted."""
    return [
        {
            "Target": row["arch"],
            "Open": f"kernels?{urlencode({'arch': row['arch']})}",
            "Kernels": row["entries"],
            "Cubin size": row["size_bytes"],
            "On disk": row["stored_bytes"],
            "Total compile time": row["compile_ms"],
            "Median compile time": row["median_compile_ms"],
            "Hits": row["hits"],
            "Misses": row["misses"],
            "Families": ", ".join(row["families"]),
            "Dtypes": ", ".join(row["dtypes"]),
            "Last used": moment(row["last_used_at"], zone),
        }
        for row in rows
    ]


def entries_figure(families: Sequence[Row]) -> go.Figure:
    """Kernels per target, stacked by family and dtype."""
    figure = go.Figure()
    kinds = sorted({(row["family"], row["dtype"]) for row in families})
    unlisted = [kind for kind in kinds if kind not in _KINDS]
    for family, dtype in kinds:
        kind = (family, dtype)
        chosen = [row for row in families if (row["family"], row["dtype"]) == kind]
        number = _KINDS.index(kind) if kind in _KINDS else len(_KINDS) + unlisted.index(kind)
        figure.add_bar(
            name=html.escape(f"{family} {dtype}"),
            marker_color=_COLOURS[number % len(_COLOURS)],
            x=[html.escape(row["arch"]) for row in chosen],
            y=[row["entries"] for row in chosen],
        )
    figure = _titled(figure, "Kernels by family and dtype", "Kernels", families)
    figure.update_layout(
        barmode="stack", legend={"orientation": "h", "yanchor": "top", "y": -0.22, "x": 0, "entrywidth": 0}
    )
    return figure


def compile_time_figure(architectures: Sequence[Row]) -> go.Figure:
    """Median compile time per target."""
    unit, length = ms_unit(max((row["median_compile_ms"] or 0.0 for row in architectures), default=0.0))
    figure = _bars([{**row, "time": (row["median_compile_ms"] or 0.0) / length} for row in architectures], "time")
    return _titled(figure, "Median compile time", unit, architectures)


def stored_bytes_figure(architectures: Sequence[Row]) -> go.Figure:
    """Bytes on disk per target."""
    unit, length = bytes_unit(max((row["stored_bytes"] for row in architectures), default=0))
    figure = _bars([{**row, "size": row["stored_bytes"] / length} for row in architectures], "size")
    return _titled(figure, "Size on disk", unit, architectures)


def hits_figure(architectures: Sequence[Row]) -> go.Figure:
    """Hits per target."""
    return _titled(_bars(architectures, "hits"), "Hits", "Hits", architectures)


def _bars(rows: Sequence[Row], column: str) -> go.Figure:
    figure = go.Figure()
    figure.add_bar(x=[html.escape(row["arch"]) for row in rows], y=[row[column] for row in rows])
    return figure


def _titled(figure: go.Figure, title: str, y: str, rows: Sequence[Row]) -> go.Figure:
    categories = list(dict.fromkeys(html.escape(row["arch"]) for row in rows))
    figure.update_layout(
        title=title,
        yaxis_title=y,
        colorway=COLOURS,
        margin={"t": 40, "b": 24, "l": 48, "r": 8},
        height=250,
    )
    # In the order of the rows, which is that of the compute capabilities.
    figure.update_yaxes(tickformat=",~f", rangemode="tozero")
    if not any(value for bars in figure.data for value in bars.y):
        figure.update_yaxes(range=[0, 1], tickvals=[0])  # Plotly would show values from -1 to 1
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=categories)
    return figure


def speed_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """What was measured for each target and GPU."""
    return [
        {
            "Target": row["arch"],
            "GPU": row["device"],
            "Kernels timed": row["kernels"],
            "Timings": row["timings"],
            "Median TFLOP/s": row["median_tflops"],
            "Best TFLOP/s": row["best_tflops"],
            "Compared with a library": row["compared"],
            "Median speed, % of the library's": row["median_ratio"],
            "Last timed": moment(row["measured_at"], zone),
        }
        for row in rows
    ]
