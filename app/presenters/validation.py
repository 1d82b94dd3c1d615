"""Measured latencies compared with predicted ones: errors as a table, and a scatter plot."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from app.presenters.evaluations import SYMBOLS, add_line, add_points, cloud
from app.presenters.shared import COLOURS, GREY, Row
from cache_engine.evaluator import validation
from cache_engine.units import human_us

MOST_POINTS = 2_000
"""The most points of a scatter plot for each GPU; if there are more, an even sample is drawn."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Measured latencies compared with predicted ones.

    Attributes:
        lines: errors by GPU and range of m.
        points: measurements with predictions, at most ``MOST_POINTS`` for each GPU.
        count: the number of measurements.
    """

    lines: list[validation.Validated]
    points: list[Row]
    count: int


def validation_of(
    data: bytes, name: str, *, kept_out: bool = False, may_go_on: Callable[[], bool] = lambda: True
) -> Validation:
    """The errors of the GPU model on measured latencies, a CSV, gzipped if its name ends in .gz.

    Args:
        kept_out: whether to use only the measurements whose (N, K) was left out of all fits.

    Raises:
        UsageError: naming the invalid line, or what is missing.
        SearchStopped: when ``may_go_on`` says no.
    """
    with validation.as_text(io.BytesIO(data), name) as file:
        measured = [one.only(one.kept_out()) if kept_out else one for one in validation.parse_measurements(file, name)]
    lines = [line for one in measured for line in validation.validate(one, may_go_on)]
    points = [row for one in measured for row in _points(one)]
    return Validation(lines, points, sum(len(one.m) for one in measured))


def _points(measured: validation.Measurements) -> list[Row]:
    shown = measured.every(max(1, -(-len(measured.m) // MOST_POINTS)))
    columns = (shown.m, shown.n, shown.k, shown.latency_us, validation.predictions(shown))
    return [
        {
            "GPU": shown.gpu.name,
            "m × n × k": f"{m:.0f} × {n:.0f} × {k:.0f}",
            "Measured, µs": us,
            "Predicted, µs": predicted,
            "Error": predicted / us - 1,
        }
        for m, n, k, us, predicted in zip(*(np.asarray(column).tolist() for column in columns), strict=True)
    ]


def validation_table(lines: Sequence[validation.Validated]) -> list[Row]:
    """Errors by GPU and range of m, of the model and of the roofline."""
    return [
        {
            "GPU": line.arch,
            "Dtype": line.dtype,
            "m": validation.range_text(line.m_from, line.m_to),
            "Rows": line.count,
            "MAPE": line.model.mape,
            "Median": line.model.median,
            "Bias": line.model.bias,
            "Within 20%": line.model.within_20,
            "In interval": line.inside,
            "Roofline: MAPE": line.roofline.mape,
            "Roofline: bias": line.roofline.bias,
            "Roofline: within 20%": line.roofline.within_20,
        }
        for line in lines
    ]


def validation_figure(points: Sequence[Row]) -> go.Figure:
    """A scatter plot of predicted and measured latencies; on its line, both are equal."""
    both = [point[name] for point in points for name in ("Measured, µs", "Predicted, µs")]
    ends = [(at, at) for at in (min(both) / 1.5, max(both) * 1.5)]
    figure = cloud("Predicted vs measured latency", "Measured, µs", "Predicted, µs", 480)
    add_line(figure, "y = x", ends, GREY, dashed=True)
    for index, gpu in enumerate(dict.fromkeys(point["GPU"] for point in points)):
        own = [point for point in points if point["GPU"] == gpu]
        at = [(point["Measured, µs"], point["Predicted, µs"]) for point in own]
        words = [
            f"{point['m × n × k']}, error {point['Error']:+.1%}\nmeasured {human_us(x)}, predicted {human_us(y)}"
            for point, (x, y) in zip(own, at, strict=True)
        ]
        add_points(figure, gpu, at, words, COLOURS[index % len(COLOURS)], SYMBOLS[index % len(SYMBOLS)], size=6)
    return figure
