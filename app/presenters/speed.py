"""The speed of a kernel: measured if it was timed, and predicted if the GPU model applies to its problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import plotly.graph_objects as go

from app.presenters.columns import Column
from app.presenters.evaluations import add_points, error_words, roofline_figure
from app.presenters.shared import Row, kernel_address
from cache_engine.errors import InvalidProblem
from cache_engine.evaluator.chips import GPUS, gpus_of
from cache_engine.evaluator.gpu import MODEL_VERSION
from cache_engine.insight.comparison import Pair, Value
from cache_engine.insight.passes import Priced, predicted
from cache_engine.model.artifact import Record
from cache_engine.units import human_us

MODEL = f"GPU model {MODEL_VERSION}"


def predictions(record: Record, m: int | None = None) -> tuple[list[Priced], str]:
    """The model's predictions for a kernel's problem on each GPU that runs its code; or why there are none, in words.

    Args:
        m: the number of rows, in place of that of the kernel's first request.
    """
    if not gpus_of(record.arch):
        return [], f"The GPU model covers {', '.join(GPUS)}; none of them runs this target."
    try:
        problem = record.problem.on(record.arch)
        return predicted(problem if m is None else replace(problem, m=m)), ""
    except InvalidProblem as error:
        return [], str(error)


PREDICTIONS = (
    Column("GPU", "chip.name"),
    Column("Predicted, µs", "cost.latency_us"),
    Column("Error", error_words),
    Column("TFLOP/s", lambda point: point.rate / 1e12, "decimal"),
    Column("% of peak", "utilization", "share"),
    Column("Roofline, µs", "cost.roofline_us"),
    Column("Model's tile", lambda point: f"{point.cost.tile_m} × {point.cost.tile_n}, split-k {point.cost.split_k}"),
)


TIMINGS = (
    Column("Device", "device"),
    Column("m", "m"),
    Column("Batch", "batch"),
    Column("Median, µs", "median_us"),
    Column("10th percentile, µs", "p10_us"),
    Column("90th percentile, µs", "p90_us"),
    Column("TFLOP/s", "tflops", "decimal"),
    Column("cuBLAS, µs", "reference_median_us"),
    Column("vs cuBLAS", "speed_ratio"),
    Column("Result", lambda timing: "verified" if timing["verified"] else "WRONG RESULT"),
    Column("Measured", "measured_at", "age"),
)
"""The columns of one kernel's timings."""


ALL_TIMINGS = (
    Column("Kernel", lambda one: kernel_address(one.key), "link", lambda one: one.key[:12]),
    Column("Device", "device.name"),
    Column("m × n × k", lambda one: f"{one.problem.m} × {one.problem.n} × {one.problem.k}"),
    Column("Batch", "problem.batch"),
    Column("Dtype", "problem.dtype"),
    Column("Target", "arch"),
    Column("Family", "family"),
    Column("Config", lambda one: str(one.config)),
    Column("Median, µs", lambda one: one.timing.get("median_us"), "decimal"),
    Column("TFLOP/s", lambda one: one.timing.get("tflops"), "decimal"),
    Column("Result", lambda one: "verified" if one.verified else "WRONG RESULT"),
    Column("Measured", "measured_at", "age"),
)
"""The columns of all timings of a store."""


def speed_figure(points: Sequence[Priced], timings: Iterable[Row], m: int, batch: int) -> go.Figure:
    """A figure of a problem's predictions on the rooflines of their GPUs, and of the timings with this m and batch."""
    figure = roofline_figure(points, ", predicted")
    problem = points[0].operation.work
    timings = [timing for timing in timings if (timing["m"], timing["batch"]) == (m, batch)]
    if timings:
        intensity = problem.flops / problem.moved_bytes
        words = [f"{timing['device']}, measured: {timing['tflops']:,.1f} TFLOP/s" for timing in timings]
        add_points(figure, "measured", [(intensity, timing["tflops"]) for timing in timings], words, "#d55e00", "x")
        figure.update_yaxes(title="TFLOP/s")
    return figure


def speed_rows(
    records: Sequence[Record], timings: Sequence[Sequence[Row]]
) -> tuple[dict[str, list[Value]], dict[str, list[Value]]]:
    """Times of several kernels in microseconds: measured on each device, and predicted for each GPU.

    Predictions depend on the problem alone. Those that are the same for all kernels say nothing and are left out.
    """
    measured: list[dict[str, Value]] = [
        {_timed(one): one["median_us"] for one in reversed(rows) if one["verified"]} for rows in timings
    ]
    predicted: list[dict[str, Value]] = [
        {f"cuBLAS-like kernel on {one.chip.name}, predicted": one.cost.latency_us for one in predictions(record)[0]}
        for record in records
    ]
    of_model = {name: values for name, values in _rows(predicted).items() if len(set(values)) > 1}
    return _rows(measured), of_model


def _timed(timing: Row) -> str:
    return f"m = {timing['m']:,} on {timing['device']}, measured"


def _rows(found: Sequence[Mapping[str, Value]]) -> dict[str, list[Value]]:
    names = dict.fromkeys(name for each in found for name in each)
    return {name: [each.get(name) for each in found] for name in names}


def time_text(value: Value) -> str:
    """A time in microseconds as text."""
    return human_us(value) if isinstance(value, int | float) else "–"


def time_change(pair: Pair) -> str:
    """The change from the first time to the second, as a share of the first; empty if one is unknown."""
    if isinstance(pair.first, int | float) and isinstance(pair.second, int | float) and pair.first > 0:
        return f"{pair.second / pair.first - 1:+.1%}"
    return ""
