"""How fast a kernel is: measured, where it was timed, and predicted, where the GPU model applies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import tzinfo
from urllib.parse import urlencode

from app.presenters.evaluations.evaluated import Evaluated
from app.presenters.evaluations.figures import roofline_figure
from app.presenters.figure import Cloud, Dots
from app.presenters.shared import Row, moment
from cache_engine.errors import InvalidProblem
from cache_engine.evaluator.chips import GPUS, gpus_running
from cache_engine.evaluator.gpu import MODEL_VERSION, Prediction
from cache_engine.evaluator.grouped import predict_work, work_of
from cache_engine.insight.comparison import Pair
from cache_engine.model.artifact import Record
from cache_engine.model.measurement import Measurement
from cache_engine.units import human_us

MODEL = f"GPU model {MODEL_VERSION}"


def predictions(record: Record, m: int | None = None) -> tuple[list[Evaluated], str]:
    """The model's predictions for a kernel's problem on each GPU that runs its code; or why there are none, in words.

    Args:
        m: in place of that of the first request.
    """
    p = record.problem
    gpus = gpus_running(record.arch)
    if not gpus:
        return [], f"The GPU model covers {', '.join(GPUS)}; none of them runs this target."
    try:
        problem = p.on(record.arch)
        work = work_of(problem if m is None else replace(problem, m=m))
        return [Evaluated("predicted", gpu, work, predict_work(work, gpu)) for gpu in gpus], ""
    except InvalidProblem as error:
        return [], str(error)


def prediction_table(points: Iterable[Evaluated]) -> list[Row]:
    """Predictions, a row for each GPU."""
    return [
        {
            "GPU": point.chip,
            "Predicted, µs": point.result.latency_us,
            "TFLOP/s": point.flops_rate / 1e12,
            "% of peak": point.utilization,
            "Roofline, µs": point.result.roofline_us,
            "Model's tile": f"{point.result.tile_m} × {point.result.tile_n}, split-k {point.result.split_k}",
        }
        for point in points
        if isinstance(point.result, Prediction)
    ]


def timing_table(timings: Iterable[Row], zone: tzinfo) -> list[Row]:
    """Timings, a row each."""
    return [
        {
            "Device": timing["device"],
            "m": timing["m"],
            "Batch": timing["batch"],
            "Median, µs": timing["median_us"],
            "10th percentile, µs": timing["p10_us"],
            "90th percentile, µs": timing["p90_us"],
            "TFLOP/s": timing["tflops"],
            "cuBLAS, µs": timing["reference_median_us"],
            "vs cuBLAS": timing["speed_ratio"],
            "Result": "verified" if timing["verified"] else "WRONG RESULT",
            "Measured": moment(timing["measured_at"], zone),
        }
        for timing in timings
    ]


def all_timings_table(timings: Iterable[Measurement], zone: tzinfo) -> list[Row]:
    """Timings of a store, a row each."""
    return [
        {
            "Kernel": f"/kernel?{urlencode({'key': one.key})}",
            "Device": one.device.name,
            "m × n × k": f"{one.problem.m} × {one.problem.n} × {one.problem.k}",
            "Batch": one.problem.batch,
            "Dtype": one.problem.dtype,
            "Target": one.arch,
            "Family": one.family,
            "Config": str(one.config),
            "Median, µs": one.timing.get("median_us"),
            "TFLOP/s": one.timing.get("tflops"),
            "Result": "verified" if one.verified else "WRONG RESULT",
            "Measured": moment(one.measured_at, zone),
        }
        for one in timings
    ]


def speed_figure(points: Sequence[Evaluated], timings: Iterable[Row], m: int, batch: int) -> Cloud:
    """Predictions of one problem on the rooflines of their GPUs, and the timings of this m and batch."""
    figure = roofline_figure(points)
    dots = [replace(one, name=f"{one.name}, predicted") for one in figure.dots]
    problem = points[0].problem
    timings = [timing for timing in timings if (timing["m"], timing["batch"]) == (m, batch)]
    if not timings:
        return replace(figure, dots=dots)
    intensity = problem.flops / problem.moved_bytes
    words = [f"{timing['device']}, measured: {timing['tflops']:,.1f} TFLOP/s" for timing in timings]
    measured = Dots("measured", [(intensity, timing["tflops"]) for timing in timings], words, "#d55e00", "x")
    return replace(figure, up="TFLOP/s", dots=[*dots, measured])


def speed_pairs(first: Record, second: Record, timings: tuple[Sequence[Row], Sequence[Row]]) -> list[Pair]:
    """Times of two kernels side by side: measured on each device, predicted for each GPU."""
    measured = [
        {f"m = {timing['m']:,} on {timing['device']}": human_us(timing["median_us"]) for timing in reversed(rows)}
        for rows in timings
    ]
    predicted = [
        {point.chip: human_us(point.result.latency_us) for point in predictions(record)[0]}
        for record in (first, second)
    ]
    return [
        Pair(f"{name}, {how}", values[0].get(name), values[1].get(name))
        for how, values in (("measured", measured), ("predicted", predicted))
        for name in dict.fromkeys((*values[0], *values[1]))
    ]
