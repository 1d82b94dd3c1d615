"""Evaluations as figures; ``evaluated`` has the table of each."""

from __future__ import annotations

import html
from collections.abc import Sequence

import plotly.graph_objects as go

from app.presenters.evaluations.evaluated import HEAT_SIZES, Evaluated
from app.presenters.shared import COLOURS

SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up", "x")
MARGIN = {"l": 10, "r": 10, "t": 40, "b": 10}
# Below the plot, which keeps its width on a phone.
LEGEND = {"orientation": "h", "y": -0.2, "yanchor": "top"}


def roofline_figure(points: Sequence[Evaluated]) -> go.Figure:
    """Each problem's predicted rate over its arithmetic intensity, under the roofline of its chip."""
    figure = go.Figure()
    ridges = [point.on.peak_flops / point.on.dram_bandwidth for point in points]
    intensities = [point.intensity for point in points]
    low, high = min(*intensities, *ridges) / 8, max(*intensities, *ridges) * 4
    for index, chip in enumerate(dict.fromkeys(point.on for point in points)):
        colour, symbol = COLOURS[index % len(COLOURS)], SYMBOLS[index % len(SYMBOLS)]
        roof_x = [low, chip.peak_flops / chip.dram_bandwidth, high]
        roof_y = [min(chip.peak_flops, chip.dram_bandwidth * x) / 1e12 for x in roof_x]
        name = html.escape(chip.name)
        dash = "solid" if index == 0 else "dash"
        figure.add_scatter(
            x=roof_x, y=roof_y, mode="lines", line={"color": colour, "dash": dash}, name=f"{name} roofline"
        )
        on = [point for point in points if point.on == chip]
        figure.add_scatter(
            x=[point.intensity for point in on],
            y=[point.flops_rate / 1e12 for point in on],
            mode="markers",
            marker={"color": colour, "size": 9, "symbol": symbol},
            name=name,
            text=[html.escape(point.label) for point in on],
            hovertemplate="%{text}<br>%{y:.1f} TFLOP/s at %{x:.1f} FLOP/byte<extra></extra>",
        )
    figure.update_layout(title="Roofline", margin=MARGIN, height=420, legend=LEGEND)
    figure.update_xaxes(type="log", title="Arithmetic intensity, FLOP/byte")
    figure.update_yaxes(type="log", title="Predicted TFLOP/s")
    return figure


def heat_map_figure(shares: Sequence[Sequence[float | None]], k: int, chip: str) -> go.Figure:
    """The heat map, sizes evenly spaced."""
    sizes = [f"{size}" for size in HEAT_SIZES]
    figure = go.Figure(
        go.Heatmap(
            x=sizes,
            y=sizes,
            z=[[None if share is None else 100 * share for share in row] for row in shares],
            zmin=0,
            zmax=100,
            colorscale="Viridis",
            colorbar={"title": "% of peak"},
            hovertemplate="m %{x}, n %{y}: %{z:.1f} %<extra></extra>",
        )
    )
    title = f"{html.escape(chip)}: % of peak, k = {k:,}"
    figure.update_layout(title=title, margin=MARGIN, height=420)
    figure.update_xaxes(title="m", type="category")
    figure.update_yaxes(title="n", type="category")
    return figure
