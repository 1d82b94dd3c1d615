"""Evaluations as numbers, tables, figures and files. No Streamlit here, so tests need none."""

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
from app.presenters.plots import SYMBOLS, add_line, add_points, cloud
from app.presenters.shared import COLOURS, Row, Tile
from cache_engine.errors import InvalidHardware, SearchStopped
from cache_engine.evaluator.chips import GPUS, Gpu, chip_of
from cache_engine.evaluator.gpu import DTYPES, Prediction, predict
from cache_engine.evaluator.grouped import Work
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.search import evaluate, most_tiles
from cache_engine.evaluator.validation import PUBLISHED_MAPE, PUBLISHED_MAPE_UNMEASURED
from cache_engine.insight.passes import Operation, Priced
from cache_engine.units import human_bytes, human_us, ms_unit

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
        InvalidHardware: naming the field that is missing, unknown, contradictory or out of range, or a name taken.
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
    """The reason why a GPU is predicted slower than another that has no higher rates; empty where none is."""
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
        suffix: the end of the names of points.
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
