"""Evaluations as numbers, tables and files. No Streamlit here, so tests need none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import tzinfo

import msgspec

from app.presenters.downloads import MOST_ROWS, csv_file
from app.presenters.shared import Row, Tile, dtypes, moment
from cache_engine.errors import InvalidHardware, SearchStopped
from cache_engine.evaluator.chips import GPUS, Gpu, chip_of
from cache_engine.evaluator.cost import Evaluation
from cache_engine.evaluator.gpu import Prediction, predict
from cache_engine.evaluator.grouped import Work
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations, Pruned
from cache_engine.evaluator.search import evaluate, most_tiles
from cache_engine.index.evaluations import EvaluationFilter, evaluations
from cache_engine.index.sync import Mirror
from cache_engine.insight.passes import peak_of
from cache_engine.units import human_bytes, human_us, ms_unit

Chip = Hardware | Gpu
CHIPS: dict[str, Chip] = {**PRESETS, **GPUS}
"""Chips to choose from, by name."""

HEAT_SIZES = tuple(2**power for power in range(4, 15))
"""m and n of the heat map: 16 to 16384."""

LARGEST_DESCRIPTION = 4096
"""The most bytes of a chip's description, which is part of the address."""

MOST_TILES = 2**16
"""The most tile sizes of a custom chip along m or n: searching one partition then takes 0.1 s at most."""

# Names appear in headings too, and none of these characters makes markup there.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 .+-]|(?<=[A-Za-z0-9])_(?=[A-Za-z0-9]))*+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A problem on a chip, with what both evaluators have in common."""

    label: str
    on: Chip
    problem: Work
    result: Evaluation | Prediction

    @property
    def chip(self) -> str:
        """The chip's name."""
        return self.on.name

    @property
    def flops_rate(self) -> float:
        """Floating-point operations per second."""
        return self.problem.flops / (self.result.latency_us * 1e-6)

    @property
    def intensity(self) -> float:
        """Floating-point operations per byte, each operand moved once."""
        return self.problem.flops / self.problem.moved_bytes

    @property
    def peak(self) -> float:
        """Operations per second of the chip at most, of the problem's type."""
        return peak_of(self.on, self.problem.dtype)

    @property
    def utilization(self) -> float:
        """Share of the chip's peak."""
        return self.flops_rate / self.peak

    @property
    def bound_by(self) -> str:
        """What limits it according to the roofline."""
        return "compute" if self.intensity >= self.peak / self.on.dram_bandwidth else "memory"


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


def evaluate_on(
    kept: Evaluations, label: str, problem: EvaluationProblem, chip: Chip, may_go_on: Callable[[], bool] = lambda: True
) -> Evaluated:
    """A problem on a chip, from the stored results where they have it. Stores nothing: a reader only looks.

    Raises:
        SearchStopped: when ``may_go_on`` says no before a search ends.
    """
    if isinstance(chip, Gpu):
        return Evaluated(label, chip, problem, predict(problem, chip))
    stored = kept.look_up(problem, chip)
    found = evaluate(problem, chip, may_go_on=may_go_on) if stored is None else stored.evaluation
    return Evaluated(label, chip, problem, found)


def evaluation_tiles(evaluated: Evaluated) -> list[Tile]:
    """The numbers of a single shape on one chip."""
    result = evaluated.result
    latency = Tile("Latency", human_us(result.latency_us), f"Predicted for {evaluated.chip}.")
    peak = Tile("% of peak", f"{evaluated.utilization:.1%}", "Achieved ÷ peak FLOP/s.")
    if isinstance(result, Prediction):
        whose = "all measured GPUs" if result.calibrated_on == "all" else result.calibrated_on
        return [
            Tile(
                "Latency",
                human_us(result.latency_us),
                f"Predicted for {evaluated.chip}. 68% of measurements lie from {human_us(result.low_us)} to "
                f"{human_us(result.high_us)}.",
            ),
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


def comparison_table(evaluated: Sequence[Evaluated]) -> list[Row]:
    """One problem on two chips, metric by metric, and the ratio of the second to the first."""
    first, second = evaluated
    unit, length = ms_unit(max(one.result.latency_us for one in evaluated) / 1e3)
    numbers = (
        (f"Latency, {unit}", [one.result.latency_us / 1e3 / length for one in evaluated]),
        ("Rate, TFLOP/s", [one.flops_rate / 1e12 for one in evaluated]),
        ("% of peak", [100 * one.utilization for one in evaluated]),
        ("Peak, TFLOP/s", [one.peak / 1e12 for one in evaluated]),
        ("DRAM, TB/s", [one.on.dram_bandwidth / 1e12 for one in evaluated]),
    )
    return [
        {"Metric": name, first.chip: values[0], second.chip: values[1], "Ratio": values[1] / values[0]}
        for name, values in numbers
    ]


def heat_map(
    problem: EvaluationProblem, chip: Chip, may_go_on: Callable[[], bool] = lambda: True
) -> list[list[float | None]]:
    """Share of the peak for each n (rows) and m (columns) of ``HEAT_SIZES``, all else as in the problem.

    Cells that ``may_go_on`` leaves no time for are ``None``.
    """

    def share(m: int, n: int) -> float | None:
        one = EvaluationProblem(m, n, problem.k, problem.batch, problem.dtype, problem.out_dtype)
        if isinstance(chip, Gpu):
            return Evaluated("", chip, one, predict(one, chip)).utilization
        try:
            return Evaluated("", chip, one, evaluate(one, chip, may_go_on=may_go_on)).utilization
        except SearchStopped:
            return None

    return [[share(m, n) for m in HEAT_SIZES] for n in HEAT_SIZES]


def unsearched(shares: Sequence[Sequence[float | None]]) -> int:
    """How many cells of a heat map there was no time for."""
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


def roofline_table(points: Sequence[Evaluated]) -> list[Row]:
    """The numbers of a roofline plot."""
    return [
        {
            "Shape": point.label,
            "Chip": point.chip,
            "FLOP/byte": point.intensity,
            "TFLOP/s": point.flops_rate / 1e12,
            "Roofline, TFLOP/s": min(point.peak, point.on.dram_bandwidth * point.intensity) / 1e12,
            "Limited by": point.bound_by,
        }
        for point in points
    ]


def chip_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """Accelerators with saved results, a row each."""
    return [
        {
            "Fingerprint": row["fingerprint"][:12],
            "Chip": row["error"] or row["chip"],
            "Results": row["results"],
            "Corrupt": row["damaged"] + row["damaged_lines"],
            "Hits": row["hits"],
            "Misses": row["misses"],
            "Total search time, s": row["search_hours"] * 3600,
            "Last added": moment(row["last_updated"], zone),
        }
        for row in rows
    ]


def kept_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """Saved results, a row each."""
    return [
        {
            "Chip": row["chip"] or row["fingerprint"][:12],
            "m × n × k": f"{row['m']} × {row['n']} × {row['k']}",
            "Batch": row["batch"],
            "Dtype": dtypes(row),
            "Search mode": _searched(row),
            "Latency, µs": row["latency_us"],
            "% of peak": row["utilization"],
            "Tile": row["tile"],
            "Order": row["loop_order"],
            "Partition": row["partition"],
            "Search, ms": row["search_ms"],
            "Created": moment(row["made_at"], zone),
            "Last used": moment(row["last_used_at"], zone),
        }
        for row in rows
    ]


def pruned_table(pruned: Iterable[Pruned], zone: tzinfo) -> list[Row]:
    """Saved results that pruning would delete, a row each."""
    return [
        {
            "Chip": f"{one.chip} ({one.fingerprint[:8]})" if one.chip else one.fingerprint[:12],
            "Last used": moment(one.last_used, zone),
            "Result": one.key,
            "Reason": one.reason,
        }
        for one in pruned
    ]


def _searched(row: Row) -> str:
    searched = [name for name in ("tile", "partition") if row[f"{name}_search"]]
    costs = ["partial sums"] if row["reduce_partial_sums"] else []
    rate = [f"rate × {row['compute_rate']:g}"] if row["compute_rate"] != 1 else []
    return ", ".join([" and ".join(searched) or "nothing", *costs, *rate])


def as_json(rows: Sequence[Row]) -> str:
    """A table as a JSON document, to download."""
    return json.dumps(rows, indent=1, ensure_ascii=False)


def as_csv(rows: Sequence[Row]) -> bytes:
    """A table as CSV without formulas, to download."""
    import pyarrow

    return csv_file(pyarrow.Table.from_pylist(list(rows)).to_reader())


def kept_csv(mirror: Mirror, chosen: EvaluationFilter, sort: str, *, descending: bool) -> bytes:
    """Saved results as CSV, every column, at most ``MOST_ROWS``.

    Raises:
        MirrorError: when the mirror cannot be read.
    """
    with mirror.read() as connection:
        return as_csv(evaluations(connection, chosen, sort=sort, descending=descending, limit=MOST_ROWS))
