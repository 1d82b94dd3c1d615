"""Evaluations as tables and figures. No Streamlit here, so all of it can be tested plainly."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, Row, Tile, moment
from cache_engine.catalogue import ModelShape
from cache_engine.evaluations import Evaluations
from cache_engine.evaluator.cost import Evaluation
from cache_engine.evaluator.gpu import GPUS, Gpu, Prediction, predict
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.search import evaluate
from cache_engine.units import human_bytes

Chip = Hardware | Gpu
CHIPS: dict[str, Chip] = {**PRESETS, **GPUS}
"""Chips to choose from, by name."""

HEAT_SIZES = tuple(2**power for power in range(4, 15))
"""m and n of the heat-map: 16 to 16384."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A problem on a chip, as far as both evaluators can tell."""

    label: str
    chip: str
    problem: EvaluationProblem
    result: Evaluation | Prediction

    @property
    def flops_rate(self) -> float:
        """Floating-point operations per second."""
        return self.problem.flops / (self.result.latency_us * 1e-6)

    @property
    def utilization(self) -> float:
        """Share of the chip's peak."""
        return self.flops_rate / CHIPS[self.chip].peak_flops


def evaluate_on(kept: Evaluations, label: str, problem: EvaluationProblem, chip: Chip) -> Evaluated:
    """A problem on a chip; what takes a search is kept."""
    if isinstance(chip, Gpu):
        return Evaluated(label, chip.name, problem, predict(problem, chip))
    return Evaluated(label, chip.name, problem, kept.evaluate(problem, chip).evaluation)


def model_problems(shapes: Iterable[ModelShape], m: int, dtype: str) -> list[tuple[str, int, EvaluationProblem]]:
    """A model's products for m tokens: name, how often in one pass, problem."""
    return [
        (shape.operation, shape.layers, EvaluationProblem(m, shape.n, shape.k, shape.batch, dtype)) for shape in shapes
    ]


def evaluation_tiles(evaluated: Evaluated) -> list[Tile]:
    """The numbers of one shape on one chip."""
    result = evaluated.result
    latency = Tile("Latency", f"{result.latency_us:,.2f} µs", f"Predicted, on {evaluated.chip}.")
    peak = Tile("Of the peak", f"{evaluated.utilization:.1%}", "Flops as a share of what the peak does in that time.")
    if isinstance(result, Prediction):
        whose = "all measured GPUs" if result.calibrated_on == "all" else result.calibrated_on
        return [
            latency,
            peak,
            Tile("Roofline", f"{result.roofline_us:,.2f} µs", "By the datasheet's peak and bandwidth alone."),
            Tile("Tile", f"{result.tile_m} × {result.tile_n}", f"The fastest in the model, calibrated on {whose}."),
            Tile("Split of k", f"{result.split_k}", "Parts of k that are added up afterwards."),
        ]
    return [
        latency,
        peak,
        Tile("Computing", f"{result.compute_us:,.2f} µs", "Of the slowest core."),
        Tile(
            "Moving data",
            f"{result.memory_us:,.2f} µs",
            f"Of the slowest core. {human_bytes(result.traffic_bytes)} between DRAM and all cores.",
        ),
        Tile("Tile", "×".join(map(str, result.tile)), f"m × n × k in one core's SRAM; loop order {result.order}."),
        Tile("Partition", "×".join(map(str, result.partition)), "Parts of batch × m × n × k, one for each core."),
    ]


def model_table(rows: Sequence[tuple[str, int, Sequence[Evaluated]]]) -> list[Row]:
    """A model's products, a line each, with the latency on every chip and in one pass."""
    return [
        {
            "Operation": operation,
            "Shape": f"{one.problem.m} × {one.problem.n} × {one.problem.k}",
            "Batch": one.problem.batch,
            "Times": layers,
            **{f"{evaluated.chip}, µs": evaluated.result.latency_us for evaluated in on},
            **{f"{evaluated.chip}, of peak": evaluated.utilization for evaluated in on},
            **{f"{evaluated.chip}, a pass, ms": evaluated.result.latency_us * layers / 1e3 for evaluated in on},
        }
        for operation, layers, on in rows
        for one in on[:1]
    ]


def roofline_figure(points: Sequence[Evaluated]) -> go.Figure:
    """Each problem's predicted rate over its flops per byte, under the roof of its chip."""
    figure = go.Figure()
    intensities = [point.problem.flops / point.problem.moved_bytes for point in points]
    ridges = [CHIPS[point.chip].peak_flops / CHIPS[point.chip].dram_bandwidth for point in points]
    low, high = min(*intensities, *ridges) / 8, max(*intensities, *ridges) * 4
    for index, name in enumerate(dict.fromkeys(point.chip for point in points)):
        chip, colour = CHIPS[name], COLOURS[index % len(COLOURS)]
        ridge = chip.peak_flops / chip.dram_bandwidth
        roof_x = [low, ridge, high]
        roof_y = [min(chip.peak_flops, chip.dram_bandwidth * x) / 1e12 for x in roof_x]
        figure.add_scatter(x=roof_x, y=roof_y, mode="lines", line={"color": colour}, name=f"roof of {name}")
        on = [(x, point) for x, point in zip(intensities, points, strict=True) if point.chip == name]
        figure.add_scatter(
            x=[x for x, _ in on],
            y=[point.flops_rate / 1e12 for _, point in on],
            mode="markers",
            marker={"color": colour, "size": 9},
            name=name,
            text=[html.escape(point.label) for _, point in on],
            hovertemplate="%{text}<br>%{y:.1f} TFLOP/s at %{x:.1f} flops per byte<extra></extra>",
        )
    figure.update_layout(title="Roofline", margin={"l": 10, "r": 10, "t": 40, "b": 10}, height=420)
    figure.update_xaxes(type="log", title="flops per byte moved once")
    figure.update_yaxes(type="log", title="TFLOP/s, predicted")
    return figure


def heat_map(problem: EvaluationProblem, chip: Chip) -> list[list[float]]:
    """Share of the peak for each n (rows) and m (columns) of ``HEAT_SIZES``, all else as in the problem."""

    def share(m: int, n: int) -> float:
        one = EvaluationProblem(m, n, problem.k, problem.batch, problem.dtype, problem.out_dtype)
        result = predict(one, chip) if isinstance(chip, Gpu) else evaluate(one, chip)
        return Evaluated("", chip.name, one, result).utilization

    return [[share(m, n) for m in HEAT_SIZES] for n in HEAT_SIZES]


def heat_map_figure(shares: Sequence[Sequence[float]], problem: EvaluationProblem, chip: str) -> go.Figure:
    """The heat-map, sizes evenly spaced."""
    sizes = [f"{size}" for size in HEAT_SIZES]
    figure = go.Figure(
        go.Heatmap(
            x=sizes,
            y=sizes,
            z=[[100 * share for share in row] for row in shares],
            zmin=0,
            zmax=100,
            colorscale="Viridis",
            colorbar={"title": "% of peak"},
            hovertemplate="m %{x}, n %{y}: %{z:.1f} %<extra></extra>",
        )
    )
    title = f"Share of {chip}'s peak, k = {problem.k:,}"
    figure.update_layout(title=title, margin={"l": 10, "r": 10, "t": 40, "b": 10}, height=420)
    figure.update_xaxes(title="m", type="category")
    figure.update_yaxes(title="n", type="category")
    return figure


def kept_table(summaries: Iterable[Row], zone: tzinfo) -> list[Row]:
    """Accelerators with kept results, a line each."""
    return [
        {
            "Fingerprint": row["arch_fingerprint"][:12],
            "Chip": row.get("error") or row["chip"],
            "Results": row.get("total_entries"),
            "Hits": row.get("cache_hits"),
            "Misses": row.get("cache_misses"),
            "Last one": moment(row.get("last_updated", 0.0), zone),
        }
        for row in summaries
    ]


def as_json(rows: Sequence[Row]) -> str:
    """A table as a JSON document, to be downloaded."""
    return json.dumps(rows, indent=1, ensure_ascii=False)
