"""Evaluations as figures; ``evaluated`` has the table of each."""

from __future__ import annotations

from collections.abc import Sequence

from app.presenters.evaluations.evaluated import HEAT_SIZES, Evaluated
from app.presenters.figure import SYMBOLS, Cloud, Dots, HeatMap, Line
from app.presenters.shared import COLOURS


def roofline_figure(points: Sequence[Evaluated]) -> Cloud:
    """Each problem's predicted rate over its arithmetic intensity, under the roofline of its chip."""
    lines, dots = [], []
    ridges = [point.peak / point.on.dram_bandwidth for point in points]
    intensities = [point.intensity for point in points]
    low, high = min(*intensities, *ridges) / 8, max(*intensities, *ridges) * 4
    for index, (chip, peak) in enumerate(dict.fromkeys((point.on, point.peak) for point in points)):
        colour, symbol = COLOURS[index % len(COLOURS)], SYMBOLS[index % len(SYMBOLS)]
        corners = [(x, min(peak, chip.dram_bandwidth * x) / 1e12) for x in (low, peak / chip.dram_bandwidth, high)]
        lines.append(Line(f"{chip.name} roofline", corners, colour, index > 0))
        on = [point for point in points if (point.on, point.peak) == (chip, peak)]
        at = [(point.intensity, point.flops_rate / 1e12) for point in on]
        words = [f"{point.label}\n{y:,.1f} TFLOP/s at {x:,.1f} FLOP/byte" for point, (x, y) in zip(on, at, strict=True)]
        dots.append(Dots(chip.name, at, words, colour, symbol))
    return Cloud("Roofline", "Arithmetic intensity, FLOP/byte", "Predicted TFLOP/s", lines, dots)


def heat_map_figure(shares: Sequence[Sequence[float | None]], k: int, chip: str) -> HeatMap:
    """The heat map, sizes evenly spaced."""
    sizes = [f"{size}" for size in HEAT_SIZES]
    percent = [[None if share is None else 100 * share for share in row] for row in shares]
    return HeatMap(f"{chip}: % of peak, k = {k:,}", sizes, sizes, percent, "m", "n", "% of peak")
