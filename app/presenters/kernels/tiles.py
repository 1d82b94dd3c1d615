"""Tiling: how a kernel divides its work, as a drawing to scale."""

from __future__ import annotations

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, GREY
from cache_engine.insight.tiling import Level, levels, plain
from cache_engine.model.artifact import Record

_MOST_PARTS = 64  # along one side; more would be a grey area, and take long to draw
_MOST_STAGES = 6  # drawn one behind the other


def tile_figure(record: Record) -> go.Figure:
    """A block's tile of C with its warps, one warp's instructions, and the tiles of A and B next to it, to scale."""
    c = record.config
    figure = go.Figure()
    gap = max(c.block_m, c.block_n, c.block_k) / 10
    drawn = min(c.stages, _MOST_STAGES)
    for stage in reversed(range(drawn)):
        behind = -stage * gap / 4
        opacity = 0.1 if stage else 0.35
        _rectangle(figure, behind - gap - c.block_k, behind, c.block_k, c.block_m, COLOURS[1], opacity)
        _rectangle(figure, behind, behind - gap - c.block_k, c.block_n, c.block_k, COLOURS[2], opacity)
    _rectangle(figure, 0, 0, c.block_n, c.block_m, COLOURS[0], 0.2)
    lines = [f"A {c.block_m} × {c.block_k}", f"{c.stages} stages"]
    if c.block_m > c.block_k:
        _label(figure, -gap - c.block_k / 2, c.block_m / 2, "<br>".join(lines))
    else:  # too low for two lines of text
        _label(figure, -gap - c.block_k / 2, c.block_m + gap / 2, ", ".join(lines))
    _label(figure, c.block_n / 2, -gap - c.block_k / 2, f"B {c.block_k} × {c.block_n}, {c.stages} stages")
    below = [f"Block {c.block_m} × {c.block_n}"]
    for level, colour, width in zip(levels(record)[1:], (COLOURS[0], GREY), (2.0, 0.5), strict=False):
        _grid(figure, level, colour, width)
        below.append(f"{level.name} {plain(level.m)} × {plain(level.n)}")
    _label(figure, c.block_n / 2, c.block_m + gap / 2, " · ".join(below))
    if c.split_k > 1:
        _label(figure, c.block_n / 2, c.block_m + gap * 1.3, f"split-k over {c.split_k} blocks")
    # Shapes alone give a plot no range.
    figure.add_scatter(
        x=[-3 * gap - c.block_k, c.block_n + gap],
        y=[-3 * gap - c.block_k, c.block_m + 2 * gap],
        mode="markers",
        marker_opacity=0,
        hoverinfo="skip",
        showlegend=False,
    )
    figure.update_layout(
        title="Tile shapes (elements, to scale)", margin={"l": 8, "r": 8, "t": 40, "b": 8}, height=430, showlegend=False
    )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, autorange="reversed", scaleanchor="x")
    return figure


def _grid(figure: go.Figure, level: Level, colour: str, width: float) -> None:
    """The grid of a level: warps over the block's tile, and in the first warp its instructions or lanes."""
    if max(level.along_m, level.along_n) > _MOST_PARTS:
        return
    height, breadth = float(level.m * level.along_m), float(level.n * level.along_n)
    lines = [(0.0, row * float(level.m), breadth, row * float(level.m)) for row in range(int(level.along_m) + 1)]
    lines += [
        (column * float(level.n), 0.0, column * float(level.n), height) for column in range(int(level.along_n) + 1)
    ]
    x: list[float | None] = []
    y: list[float | None] = []
    for x0, y0, x1, y1 in lines:
        x += [x0, x1, None]
        y += [y0, y1, None]
    figure.add_scatter(
        x=x, y=y, mode="lines", line={"color": colour, "width": width}, hoverinfo="skip", name=level.name
    )


def _rectangle(figure: go.Figure, x: float, y: float, width: float, height: float, colour: str, opacity: float) -> None:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    figure.add_shape(
        type="rect",
        x0=x,
        y0=y,
        x1=x + width,
        y1=y + height,
        line={"color": colour, "width": 1},
        fillcolor=f"rgba({red},{green},{blue},{opacity})",
        layer="below",
    )


def _label(figure: go.Figure, x: float, y: float, text: str) -> None:
    figure.add_annotation(x=x, y=y, text=text, showarrow=False)
