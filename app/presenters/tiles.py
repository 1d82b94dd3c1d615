"""Tiling: how a kernel divides its work, as a drawing to scale."""

from __future__ import annotations

from collections.abc import Iterable

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, GREY
from cache_engine.insight.inspection import Level, Roles, ScaleBlocks, Walk, levels, plain, roles, scale_blocks, walk
from cache_engine.model.artifact import Record
from cache_engine.model.kernel import KernelConfig
from cache_engine.units import counted

_MOST_PARTS = 64  # along one side; more would be a grey area, and take long to draw
_MOST_STAGES = 6  # drawn one behind the other
_MOST_IN_RING = 16
_MOST_SCALES = 16  # whose borders are drawn; more would hide the tile
_MOST_GROUPS, _MOST_OF_A_GROUP, _BLOCKS = 4, 8, 3  # of a walk; blocks whose tiles have a colour
_LOWEST, _TALLEST = 220, 430  # pixels
_SCALES = COLOURS[4]


def tile_figure(record: Record) -> go.Figure:
    """A block's tile of C with its warps, one warp's instructions, and the tiles of A and B next to it, to scale."""
    c = record.config
    figure = go.Figure()
    gap = max(c.block_m, c.block_n, c.block_k) / 10
    _operands(figure, c, scale_blocks(record), gap)
    _rectangle(figure, 0, 0, c.block_n, c.block_m, COLOURS[0], 0.2)
    below = [f"Block {c.block_m} × {c.block_n}"]
    for level, colour, width in zip(levels(record)[1:], (COLOURS[0], GREY), (2.0, 0.5), strict=False):
        _grid(figure, level, colour, width)
        below.append(f"{level.name} {plain(level.m)} × {plain(level.n)}")
    below_m = c.block_m + (gap / 2 if _has_room(c) else gap * 1.7)  # under the label of A, if that is there
    _label(figure, c.block_n / 2, below_m, " · ".join(below))
    if c.split_k > 1:
        below_m += gap * 0.8
        _label(figure, c.block_n / 2, below_m, f"split-k over {c.split_k} blocks")
    if c.cluster > 1:
        below_m += gap * 0.8
        _label(figure, c.block_n / 2, below_m, f"cluster of {c.cluster} blocks, one below the other, shares B")
    below_m += gap
    parts = roles(record)
    if parts is not None:
        below_m = _ring(figure, record, parts, gap, below_m)
    groups = walk(record)
    if groups is not None:
        below_m = _walk(figure, c, groups, gap, below_m)
    # Shapes alone give a plot no range.
    figure.add_scatter(
        x=[-3 * gap - c.block_k, c.block_n + gap],
        y=[-3 * gap - c.block_k, below_m],
        mode="markers",
        marker_opacity=0,
        hoverinfo="skip",
        showlegend=False,
    )
    tall = (below_m + 3 * gap + c.block_k) / (c.block_n + 4 * gap + c.block_k)
    figure.update_layout(
        title="Tile shapes (elements, to scale)",
        margin={"l": 8, "r": 8, "t": 40, "b": 8},
        height=round(min(_TALLEST, max(_LOWEST, 60 + 400 * tall))),
        showlegend=False,
    )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, autorange="reversed", scaleanchor="x")
    return figure


def _operands(figure: go.Figure, c: KernelConfig, scales: ScaleBlocks | None, gap: float) -> None:
    """Draws the tiles of A, on the left, and of B, above, with their stages one behind the other, and their labels."""
    for stage in reversed(range(min(c.stages, _MOST_STAGES))):
        behind = -stage * gap / 4
        opacity = 0.1 if stage else 0.35
        _rectangle(figure, behind - gap - c.block_k, behind, c.block_k, c.block_m, COLOURS[1], opacity)
        _rectangle(figure, behind, behind - gap - c.block_k, c.block_n, c.block_k, COLOURS[2], opacity)
    of_a = [f"A {c.block_m} × {c.block_k}", f"{c.stages} stages"]
    of_b = [f"B {c.block_k} × {c.block_n}", f"{c.stages} stages"]
    if scales is not None:
        _scales(figure, c, scales, gap)
        of_a.append(f"scales {scales.a_rows} × {scales.k}")
        of_b.append(f"scales {scales.k} × {scales.b_columns}")
    if _has_room(c):
        _label(figure, -gap - c.block_k / 2, c.block_m / 2, "<br>".join(of_a))
    else:
        _label(figure, -gap - c.block_k, c.block_m + gap / 2, ", ".join(of_a), xanchor="left")
    between = "<br>" if c.block_k >= c.block_n else ", "
    _label(figure, c.block_n / 2, -gap - c.block_k / 2, between.join(of_b))


def _has_room(c: KernelConfig) -> bool:
    """Whether A's tile is high enough for its label inside; if not, the label is drawn below the tile."""
    return c.block_m >= c.block_k


def _scales(figure: go.Figure, c: KernelConfig, scales: ScaleBlocks, gap: float) -> None:
    """Draws a strip of scales along the inner edge of A and of B; lines divide A and B where another scale begins."""
    broad = gap / 4
    borders: list[tuple[float, float, float, float]] = []
    _rectangle(figure, -gap - broad, 0, broad, c.block_m, _SCALES, 0.8)
    _rectangle(figure, 0, -gap - broad, c.block_n, broad, _SCALES, 0.8)
    if c.block_m // scales.a_rows <= _MOST_SCALES:
        borders += [(-gap - c.block_k, row, -gap, row) for row in range(0, c.block_m, scales.a_rows)]
    if c.block_n // scales.b_columns <= _MOST_SCALES:
        borders += [(column, -gap - c.block_k, column, -gap) for column in range(0, c.block_n, scales.b_columns)]
    _lines(figure, borders, _SCALES, 1, "Scales")


def _ring(figure: go.Figure, record: Record, parts: Roles, gap: float, top: float) -> float:
    """Draws the producers, the stages that they fill, and the consumers, not to scale; returns the lower edge."""
    c = record.config
    high = 0.9 * gap
    whole = max(c.block_n + gap + c.block_k, 1.6 * max(c.block_m, c.block_n))  # else its words overlap
    left = (c.block_n - gap - c.block_k - whole) / 2
    side, drawn = whole * 0.2, min(c.stages, _MOST_IN_RING)
    step = (whole - 2.4 * side) / drawn
    _rectangle(figure, left, top, side, high, COLOURS[3], 0.35)
    for stage in range(drawn):
        at = left + 1.2 * side + stage * step
        _rectangle(figure, at, top, 0.9 * step, high / 2, COLOURS[1], 0.35)
        _rectangle(figure, at, top + high / 2, 0.9 * step, high / 2, COLOURS[2], 0.35)
    _rectangle(figure, left + whole - side, top, side, high, COLOURS[0], 0.35)
    for at, words in (
        (left + side / 2, f"{counted(parts.producers, 'producer')}<br>{parts.produce}"),
        (left + whole / 2, f"→ {c.stages} stages →<br>of A and B"),
        (left + whole - side / 2, f"{counted(parts.consumers, 'consumer')}<br>{parts.consume}"),
    ):
        _label(figure, at, top + 2.1 * high, words)
    group = levels(record)[1]
    if group.along_m * group.along_n == parts.consumers <= _MOST_IN_RING:
        for row in range(int(group.along_m)):
            for column in range(int(group.along_n)):
                number = row * int(group.along_n) + column + 1
                middle = (column + 0.5) * float(group.n), (row + 0.5) * float(group.m)
                _label(figure, *middle, f"Consumer {number}")
    return top + 3.4 * high


def _walk(figure: go.Figure, c: KernelConfig, groups: Walk, gap: float, top: float) -> float:
    """Draws the first groups and the last, each tile in the colour of its block; returns the drawing's lower edge.

    The drawing is not to scale and has few blocks: the number of blocks in a launch depends on the GPU.
    """
    high = 0.9 * gap
    whole = max(c.block_n + gap + c.block_k, 1.6 * max(c.block_m, c.block_n))
    left = (c.block_n - gap - c.block_k - whole) / 2
    numbers = [*range(1, min(groups.groups, _MOST_GROUPS - 1) + 1)]
    numbers += [groups.groups] if groups.groups >= _MOST_GROUPS else []
    shown = max(1, min(groups.tiles, _MOST_OF_A_GROUP))
    step = whole / _MOST_GROUPS
    for place, number in enumerate(numbers):
        for tile in range(shown):
            at = left + place * step + tile * 0.85 * step / shown
            colour = COLOURS[((number - 1) * groups.tiles + tile) % _BLOCKS]
            _rectangle(figure, at, top, 0.85 * step / shown, high, colour, 0.35)
        jump = "… " if number > place + 1 else ""
        _label(figure, left + place * step + 0.42 * step, top + 1.8 * high, f"{jump}Group {number:,}")
    words = f"{counted(groups.tiles, 'tile')} each, if rows are even · colours: which block computes it"
    _label(figure, left + whole / 2, top + 3.1 * high, words)
    return top + 4 * high


def _grid(figure: go.Figure, level: Level, colour: str, width: float) -> None:
    """Draws the grid of a level of tiling: warps over the block's tile; in the first warp its instructions or lanes."""
    if max(level.along_m, level.along_n) > _MOST_PARTS:
        return
    height, breadth = float(level.m * level.along_m), float(level.n * level.along_n)
    lines = [(0.0, row * float(level.m), breadth, row * float(level.m)) for row in range(int(level.along_m) + 1)]
    lines += [
        (column * float(level.n), 0.0, column * float(level.n), height) for column in range(int(level.along_n) + 1)
    ]
    _lines(figure, lines, colour, width, level.name)


def _lines(
    figure: go.Figure, lines: Iterable[tuple[float, float, float, float]], colour: str, width: float, name: str
) -> None:
    """Draws lines from the first point of each to the second."""
    x: list[float | None] = []
    y: list[float | None] = []
    for x0, y0, x1, y1 in lines:
        x += [x0, x1, None]
        y += [y0, y1, None]
    figure.add_scatter(x=x, y=y, mode="lines", line={"color": colour, "width": width}, hoverinfo="skip", name=name)


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


def _label(figure: go.Figure, x: float, y: float, text: str, xanchor: str = "center") -> None:
    figure.add_annotation(x=x, y=y, text=text, showarrow=False, xanchor=xanchor)
