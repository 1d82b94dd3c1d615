"""Sums for each target, as a table and as figures."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from urllib.parse import urlencode

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, Row, moment

# These have fixed colours in every store.
_KINDS = (("simt", "fp32"), ("tensor_core", "bf16"), ("tensor_core", "fp16"), ("simt", "fp64"))


def architecture_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """Sums for each target, as numbers, so that every column can be sorted."""
    return [
        {
            "Target": row["arch"],
            "Open": f"kernels?{urlencode({'arch': row['arch']})}",
            "Kernels": row["entries"],
            "Cubin size": row["size_bytes"] / 1024,
            "On disk": row["stored_bytes"] / 1024,
            "Total compile time": row["compile_ms"] / 1000,
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
            marker_color=COLOURS[number % len(COLOURS)],
            x=[html.escape(row["arch"]) for row in chosen],
            y=[row["entries"] for row in chosen],
        )
    figure.update_layout(barmode="stack", legend_title_text="Family and dtype")
    return _titled(figure, "Kernels per target", "Target", "Kernels", families)


def compile_time_figure(architectures: Sequence[Row]) -> go.Figure:
    """Median compile time per target."""
    figure = _bars(architectures, "median_compile_ms")
    return _titled(figure, "Median compile time", "Target", "ms", architectures)


def stored_bytes_figure(architectures: Sequence[Row]) -> go.Figure:
    """Bytes on disk per target."""
    figure = _bars([{**row, "kib": row["stored_bytes"] / 1024} for row in architectures], "kib")
    return _titled(figure, "Size on disk", "Target", "KiB", architectures)


def hits_figure(architectures: Sequence[Row]) -> go.Figure:
    """Hits per target."""
    return _titled(_bars(architectures, "hits"), "Hits", "Target", "Hits", architectures)


def _bars(rows: Sequence[Row], column: str) -> go.Figure:
    figure = go.Figure()
    figure.add_bar(x=[html.escape(row["arch"]) for row in rows], y=[row[column] for row in rows])
    return figure


def _titled(figure: go.Figure, title: str, x: str, y: str, rows: Sequence[Row]) -> go.Figure:
    categories = list(dict.fromkeys(html.escape(row["arch"]) for row in rows))
    figure.update_layout(
        title=title,
        xaxis_title=x,
        yaxis_title=y,
        colorway=COLOURS,
        margin={"t": 48, "b": 40, "l": 48, "r": 16},
        height=360,
    )
    # In the order of the rows, which is that of the compute capabilities.
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=categories)
    return figure
