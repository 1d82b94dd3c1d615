"""Evaluations as numbers, tables, figures and files. No Streamlit here, so tests need none.

Plotly draws figures in which a reader zooms in and saves the picture: points on logarithmic axes. It interprets some
HTML, so text from stores and users is escaped here.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC
from itertools import permutations
from operator import le

import msgspec
import plotly.graph_objects as go

from app.presenters.columns import Column, rows_of
from app.presenters.shared import COLOURS, Row, Tile, total
from cache_engine.errors import InvalidHardware, SearchStopped, UsageError
from cache_engine.evaluator.catalogue import ModelShape
from cache_engine.evaluator.catalogue.layers import Parallel, layers_named, layers_of
from cache_engine.evaluator.catalogue.model_configs import LARGEST_CONFIG_BYTES, published
from cache_engine.evaluator.chips import GPUS, Gpu, chip_of
from cache_engine.evaluator.gpu import DTYPES, Prediction, predict
from cache_engine.evaluator.grouped import Work
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.search import evaluate, most_tiles
from cache_engine.evaluator.validation import PUBLISHED_MAPE, PUBLISHED_MAPE_UNMEASURED
from cache_engine.insight.passes import ModelPass, Operation, Priced
from cache_engine.units import human_bytes, human_us, ms_unit

Point = tuple[float, float]
_MARGIN = {"l": 8, "r": 8, "t": 40, "b": 8}
SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up", "x")


def cloud(title: str, across: str, up: str, height: int = 420) -> go.Figure:
    """An empty figure; ``across`` and ``up`` are the titles of its axes, ``height`` is in pixels."""
    figure = go.Figure()
    figure.update_layout(title=title, height=height, margin=_MARGIN, legend={"orientation": "h", "y": -0.2})
    figure.update_xaxes(type="log", title=across)
    figure.update_yaxes(type="log", title=up)
    return figure


def add_line(figure: go.Figure, name: str, points: Sequence[Point], colour: str, *, dashed: bool = False) -> None:
    """Adds a line through points."""
    line = {"color": colour, "width": 2, "dash": "dash" if dashed else "solid"}
    x, y = zip(*points, strict=True)
    figure.add_scatter(x=x, y=y, name=html.escape(name), mode="lines", line=line, hoverinfo="skip")


def add_points(
    figure: go.Figure,
    name: str,
    points: Sequence[Point],
    words: Sequence[str],
    colour: str,
    symbol: str,
    size: int = 10,
) -> None:
    """Adds the points of one series; a point shows its words when the reader points at it."""
    x, y = zip(*points, strict=True)
    said = [html.escape(one).replace("\n", "<br>") for one in words]
    marker = {"color": colour, "symbol": symbol, "size": size}
    figure.add_scatter(
        x=x, y=y, name=html.escape(name), mode="markers", marker=marker, hovertext=said, hoverinfo="text"
    )


Chip = Hardware | Gpu
CHIPS: dict[str, Chip] = {**GPUS, **PRESETS}
"""Chips to choose from, by name."""

HEAT_SIZES = tuple(2**power for power in range(4, 15))
"""The values of m and of n in the heat map: powers of two from 16 to 16384."""

LARGEST_DESCRIPTION = 4096
"""The most bytes of a chip's description, which is part of the address."""

MOST_TILES = 2**16
"""The most tile sizes of a custom chip along m or n: searching one partition then takes 0.1 s at most."""

# Names appear in headings too, and none of these characters makes markup there.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 .+-]|(?<=[A-Za-z0-9])_(?=[A-Za-z0-9]))*+", re.ASCII)


def described_chip(text: str | bytes) -> Chip:
    """The chip that a JSON text describes, an accelerator or, with a field ``sms``, a GPU.

    Raises:
        InvalidHardware: when a field is missing, unknown, contradictory or out of range, or the name is taken.
    """
    if len(text) > LARGEST_DESCRIPTION:
        raise InvalidHardware(f"the description is longer than {LARGEST_DESCRIPTION:,} bytes")
    try:
        description = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidHardware(f"the description is not JSON: {error}") from error
    chip = chip_of(description, "the description")
    if _NAME.fullmatch(chip.name) is None:
        raise InvalidHardware(
            f"name is {chip.name!r}; use letters, digits, spaces, . + - and, between letters or digits, _"
        )
    if isinstance(chip, Hardware) and max(most_tiles(chip)) > MOST_TILES:
        raise InvalidHardware(
            f"{max(most_tiles(chip)):,} tile sizes fit into the SRAM of {chip.name}, and a page searches at most "
            f"{MOST_TILES:,}; give larger cube_m and cube_n or less sram_bytes, or run gemm-cache evaluate"
        )
    known = CHIPS.get(chip.name)
    if known is not None and known != chip:
        raise InvalidHardware(f"the name {chip.name!r} is taken by another chip; choose another name")
    return chip


def chip_text(chip: Chip) -> str:
    """A chip's description for ``described_chip``, in few characters."""
    fields = chip.to_dict() if isinstance(chip, Hardware) else asdict(chip)
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def evaluation_tiles(evaluated: Priced) -> list[Tile]:
    """The predicted numbers of a single shape on one chip, as tiles."""
    result = evaluated.cost
    latency = Tile("Latency", human_us(result.latency_us), f"Predicted for {evaluated.chip.name}.")
    peak = Tile("% of peak", f"{evaluated.utilization:.1%}", "Achieved ÷ peak FLOP/s.")
    if isinstance(result, Prediction):
        most = f"68% of measurements lie from {human_us(result.low_us)} to {human_us(result.high_us)}."
        whose = "all measured GPUs" if result.calibrated_on == "all" else result.calibrated_on
        return [
            replace(latency, help=f"{latency.help} {most}", change=error_words(evaluated)),
            peak,
            Tile("Roofline", human_us(result.roofline_us), "Roofline bound from datasheet peak and bandwidth."),
            Tile("Tile", f"{result.tile_m} × {result.tile_n}", f"Best tile in the model (calibrated on {whose})."),
            Tile("Split-k", f"{result.split_k}", "Number of k slices reduced at the end."),
        ]
    return [
        latency,
        peak,
        Tile("Compute time", human_us(result.compute_us), "On the slowest core."),
        Tile(
            "Memory time",
            human_us(result.memory_us),
            f"On the slowest core. All cores together move {human_bytes(result.traffic_bytes)} to and from DRAM.",
        ),
        Tile("Tile", "×".join(map(str, result.tile)), f"m × n × k in the SRAM of one core; loop order {result.order}."),
        Tile("Partition", "×".join(map(str, result.partition)), "Core grid: batch × m × n × k."),
    ]


def error_words(point: Priced) -> str:
    """The mean error of the model's predictions for a GPU in words; unknown for a type that was never measured."""
    dtype, calibrated_on = point.operation.work.dtype, getattr(point.cost, "calibrated_on", "")
    if dtype not in DTYPES:
        return f"error unknown: {dtype} was never measured"
    if calibrated_on in PUBLISHED_MAPE:
        return f"±{PUBLISHED_MAPE[calibrated_on]}% on average"
    best, worst = PUBLISHED_MAPE_UNMEASURED
    return f"±{best:.0f}–{worst:.0f}%, never measured"


def slower_words(points: Sequence[Priced]) -> str:
    """The reason why a GPU is predicted slower than another that has no higher rates; empty if no GPU is."""
    said: dict[float, str] = {}
    for first, second in permutations(points, 2):
        one, other = first.cost, second.cost
        if not (isinstance(one, Prediction) and isinstance(other, Prediction)):
            continue
        rates = (first.peak, first.chip.dram_bandwidth), (second.peak, second.chip.dram_bandwidth)
        if rates[0] != rates[1] and all(map(le, *rates)) and one.latency_us < other.latency_us:
            difference = "less" if other.low_us <= one.high_us else "more"
            said[other.latency_us / one.latency_us] = (
                f"{second.chip.name} is predicted slower than {first.chip.name}, which has no higher rates: GPUs are "
                f"calibrated apart, on measurements of each. The difference is {difference} than the model's error."
            )
    return said[max(said)] if said else ""  # of several such pairs, the one that surprises most


def comparison_table(evaluated: Sequence[Priced]) -> list[Row]:
    """One problem on two chips, metric by metric, and the ratio of the second to the first."""
    first, second = evaluated
    unit, length = ms_unit(max(one.cost.latency_us for one in evaluated) / 1e3)
    numbers = (
        (f"Latency, {unit}", [one.cost.latency_us / 1e3 / length for one in evaluated]),
        ("Rate, TFLOP/s", [one.rate / 1e12 for one in evaluated]),
        ("% of peak", [100 * one.utilization for one in evaluated]),
        ("Peak, TFLOP/s", [one.peak / 1e12 for one in evaluated]),
        ("DRAM, TB/s", [one.chip.dram_bandwidth / 1e12 for one in evaluated]),
    )
    return [
        {"Metric": name, first.chip.name: values[0], second.chip.name: values[1], "Ratio": values[1] / values[0]}
        for name, values in numbers
    ]


def heat_map(problem: Work, chip: Chip, may_go_on: Callable[[], bool] = lambda: True) -> list[list[float | None]]:
    """Share of the peak rate for each n (rows) and m (columns) of ``HEAT_SIZES``; k, types and batch as in the problem.

    Cells that were not searched, because ``may_go_on`` returned false before, are ``None``.
    """

    def share(m: int, n: int) -> float | None:
        one = EvaluationProblem(m, n, problem.k, problem.batch, problem.dtype, problem.out_dtype, problem.scales)
        if isinstance(chip, Gpu):
            return Priced(Operation("", one, 1), chip, predict(one, chip)).utilization
        try:
            return Priced(Operation("", one, 1), chip, evaluate(one, chip, may_go_on=may_go_on)).utilization
        except SearchStopped:
            return None

    return [[share(m, n) for m in HEAT_SIZES] for n in HEAT_SIZES]


def unsearched(shares: Sequence[Sequence[float | None]]) -> int:
    """The number of cells of a heat map that were not searched, for lack of time."""
    return sum(share is None for row in shares for share in row)


def heat_table(shares: Sequence[Sequence[float | None]]) -> list[Row]:
    """The numbers of a heat map, in percent: a row for each n, a column for each m."""
    return [
        {
            "n \\ m": n,
            **{f"{m}": None if share is None else 100 * share for m, share in zip(HEAT_SIZES, row, strict=True)},
        }
        for n, row in zip(HEAT_SIZES, shares, strict=True)
    ]


ROOFLINE = (
    Column("Shape", "operation.name"),
    Column("Chip", "chip.name"),
    Column("FLOP/byte", "intensity"),
    Column("TFLOP/s", lambda point: point.rate / 1e12),
    Column("Roofline, TFLOP/s", lambda point: point.roof / 1e12),
    Column("Limited by", lambda point: "compute" if point.roof == point.peak else "memory"),
)


def roofline_table(points: Sequence[Priced]) -> list[Row]:
    """The numbers of a roofline plot, a row for each problem on a chip."""
    return rows_of(points, ROOFLINE, UTC)


def roofline_figure(points: Sequence[Priced], suffix: str = "") -> go.Figure:
    """Each problem's predicted rate over its arithmetic intensity, under the roofline of its chip.

    Args:
        suffix: a text added to the names of points.
    """
    figure = cloud("Roofline", "Arithmetic intensity, FLOP/byte", "Predicted TFLOP/s")
    ridges = [point.peak / point.chip.dram_bandwidth for point in points]
    intensities = [point.intensity for point in points]
    low, high = min(*intensities, *ridges) / 8, max(*intensities, *ridges) * 4
    for index, (chip, peak) in enumerate(dict.fromkeys((point.chip, point.peak) for point in points)):
        colour, symbol = COLOURS[index % len(COLOURS)], SYMBOLS[index % len(SYMBOLS)]
        corners = [(x, min(peak, chip.dram_bandwidth * x) / 1e12) for x in (low, peak / chip.dram_bandwidth, high)]
        add_line(figure, f"{chip.name} roofline", corners, colour, dashed=index > 0)
        on = [point for point in points if (point.chip, point.peak) == (chip, peak)]
        at = [(point.intensity, point.rate / 1e12) for point in on]
        words = [
            f"{point.operation.name}\n{y:,.1f} TFLOP/s at {x:,.1f} FLOP/byte"
            for point, (x, y) in zip(on, at, strict=True)
        ]
        add_points(figure, f"{chip.name}{suffix}", at, words, colour, symbol)
    return figure


def heat_map_figure(shares: Sequence[Sequence[float | None]], k: int, chip: str) -> go.Figure:
    """The heat map as a figure: each power of two of m and n takes the same width."""
    sizes = [f"{size}" for size in HEAT_SIZES]
    percent = [[None if share is None else 100 * share for share in row] for row in shares]
    figure = go.Figure()
    figure.add_heatmap(
        x=sizes, y=sizes, z=percent, zmin=0, zmax=100, colorscale="Viridis", colorbar_title="% of peak",
        hovertemplate="m %{x}, n %{y}: %{z:.1f}%<extra></extra>",
    )  # fmt: skip
    title = f"{html.escape(chip)}: % of peak, k = {k:,}"
    figure.update_layout(title=title, height=420, margin={"l": 8, "r": 8, "t": 40, "b": 8})
    figure.update_xaxes(type="category", title="m")
    figure.update_yaxes(type="category", title="n")
    return figure


def shapes_on_one_chip(model: str, config: bytes | None, name: str, parallel: Parallel) -> list[ModelShape]:
    """The shapes of a model of the catalogue, or of an uploaded config.json.

    Raises:
        UsageError: when a field is wrong, or a parallel size does not divide it.
    """
    if config is None:
        return layers_named(model, parallel)
    if len(config) > LARGEST_CONFIG_BYTES:
        raise UsageError(f"{name} is larger than {LARGEST_CONFIG_BYTES:,} bytes; a model's config.json is small")
    try:
        described = msgspec.json.decode(config)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
    return layers_of(published(described, name, name), parallel)


def pass_table(passes: Sequence[ModelPass]) -> list[Row]:
    """A row for each operation with its costs on every chip, and their totals."""
    table = [
        {
            "Operation": first.operation.name,
            "m × n × k": first.operation.shape_text,
            "Batch": first.operation.work.batch,
            "Calls per pass": first.operation.calls,
            "GFLOP": first.flops / 1e9,
            **{f"{one.chip.name}, µs": one.rows[index].cost.latency_us for one in passes},
            **{f"{one.chip.name}, ms per pass": one.rows[index].pass_us / 1e3 for one in passes},
            **{f"{one.chip.name}, share": one.rows[index].pass_us / one.pass_us for one in passes},
            **{f"{one.chip.name}, bound by": one.rows[index].bound_by for one in passes},
            **{f"{one.chip.name}, % of peak": one.rows[index].utilization for one in passes},
            **{f"{one.chip.name}, MB": one.rows[index].moved_bytes / 1e6 for one in passes},
        }
        for index, first in enumerate(passes[0].rows)
    ]
    added = [name for name in table[0] if name == "GFLOP" or name.endswith((", MB", ", share", "per pass"))]
    sums = {name: total(table, name) for name in added if name != "Calls per pass"}
    peak = {f"{one.chip.name}, % of peak": one.utilization for one in passes}
    return [*table, {**dict.fromkeys(table[0]), "Operation": "Total", **sums, **peak}]


def pass_tiles(one: ModelPass) -> list[Tile]:
    """The time of a pass on a chip, and of one layer of each kind, as tiles."""
    return [
        Tile(
            "Pass",
            human_us(one.pass_us),
            f"All products with weights, predicted for {one.chip.name}. The error is that of one product.",
            change=error_words(one.rows[0]) if isinstance(one.chip, Gpu) else "",
        ),
        Tile("% of peak", f"{one.utilization:.1%}", "Achieved ÷ peak FLOP/s, over the pass."),
        *(
            Tile(f"One {kind}", human_us(latency), "All its products, once each.")
            for kind, latency in one.layers().items()
        ),
    ]


def slower_operations(passes: Sequence[ModelPass]) -> str:
    """The reason why an operation is predicted slower on a GPU than on one without higher rates; else empty."""
    said = (slower_words(rows) for rows in zip(*(one.rows for one in passes), strict=True))
    return next(filter(None, said), "")
