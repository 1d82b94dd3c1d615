"""Tiling: how a kernel divides its work, as a drawing to scale and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, GREY, Row
from cache_engine.kernels.simt import LANES_M, LANES_N, Simt
from cache_engine.kernels.tensor_core import MMA_K_BYTES, MMA_M, MMA_N, TensorCore
from cache_engine.model.artifact import Record
from cache_engine.model.gemm import DType
from cache_engine.model.kernel import ceil_div

_MOST_PARTS = 64  # along one side; more would be a grey area, and take long to draw
_MOST_STAGES = 6  # drawn one behind the other


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the tiling: its tile of C, its depth in k, and how many of it its parent holds."""

    name: str
    m: Fraction
    n: Fraction
    k: int
    along_m: Fraction
    along_n: Fraction


def levels(record: Record) -> list[Level]:
    """Block, warp and instruction (or lane), largest first; as far as the family fixes them."""
    c = record.config
    block = Level("Block", Fraction(c.block_m), Fraction(c.block_n), c.block_k, Fraction(1), Fraction(1))
    if record.family not in (TensorCore.name, Simt.name):
        return [block]  # Triton places warps and chooses instructions itself
    warp_m, warp_n = Fraction(c.block_m, c.warps_m), Fraction(c.block_n, c.warps_n)
    warp = Level("Warp", warp_m, warp_n, c.block_k, Fraction(c.warps_m), Fraction(c.warps_n))
    if record.family == Simt.name:
        m, n = warp_m / LANES_M, warp_n / LANES_N
        return [block, warp, Level("Lane", m, n, 1, Fraction(LANES_M), Fraction(LANES_N))]
    try:
        depth = MMA_K_BYTES // DType(record.problem.dtype).itemsize
    except ValueError:
        return [block, warp]
    return [block, warp, Level("mma", Fraction(MMA_M), Fraction(MMA_N), depth, warp_m / MMA_M, warp_n / MMA_N)]


def level_table(record: Record) -> list[Row]:
    """The tiling, a row for each level."""
    p, c = record.problem, record.config
    grid_m, grid_n = ceil_div(p.m, c.block_m), ceil_div(p.n, c.block_n)
    steps = ceil_div(ceil_div(p.k, c.block_k), c.split_k)
    split = f" × {c.split_k} split-k slices" if c.split_k > 1 else ""
    rows = [
        {
            "Level": "Grid",
            "Tile of C": f"{p.m} × {p.n}",
            "k depth": f"{p.k}",
            "Count": f"{grid_m} × {grid_n} blocks{split} × batch {p.batch}; {steps} steps of {c.block_k}",
        }
    ]
    parent = ""
    for level in levels(record):
        inside = f"{_plain(level.along_m)} × {_plain(level.along_n)} per {parent}"
        held = inside if parent else f"{c.stages}-stage pipeline in shared memory"
        parent = level.name.lower()
        part = f"{_plain(level.m)} × {_plain(level.n)}"
        rows.append({"Level": level.name, "Tile of C": part, "k depth": f"{level.k}", "Count": held})
    return rows


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
        below.append(f"{level.name} {_plain(level.m)} × {_plain(level.n)}")
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
        title="Tile shapes (elements, to scale)", margin={"l": 8, "r": 8, "t": 40, "b": 8}, height=460, showlegend=False
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


def _plain(number: Fraction) -> str:
    return f"{int(number)}" if number.denominator == 1 else f"{float(number):.1f}"
