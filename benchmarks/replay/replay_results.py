"""The report of a replay, from the document that ``replay --json`` printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from benchmarks.replay import ORACLE
from benchmarks.replay.documents import EvictionRow, Replayed, ReplayedStore, ReplayRow
from cache_engine.cli.support import named
from cache_engine.errors import UsageError
from cache_engine.inputs import open_input
from cache_engine.insight.report.drawing import Bar, Series, bars, columns
from cache_engine.insight.report.page import MOST_ROWS, Facts, Figure, Note, Report, Section, Table, moment
from cache_engine.units import counted, human_bytes, human_ms, human_rate

LARGEST_DOCUMENT, LARGEST_NUMBER = 16 * 2**20, 1e18
_MOST_ORDERS = 20  # each has a column at each size


def replay_report(path: Path) -> Report:
    """The report.

    Raises:
        UsageError: when the file is not what ``replay --json`` prints.
    """
    with named(path), open_input(path) as file:
        data = file.read(LARGEST_DOCUMENT + 1)
    if len(data) > LARGEST_DOCUMENT:
        raise UsageError(f"{path} is larger than {human_bytes(LARGEST_DOCUMENT)}, which no replay prints")
    try:
        found: Replayed | ReplayedStore = msgspec.json.decode(data, type=Replayed)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        try:
            found = msgspec.json.decode(data, type=ReplayedStore)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise UsageError(f"{path} is not what python -m benchmarks replay --json prints: {error}") from error
    wrong = _out_of_range(found)
    if wrong:
        raise UsageError(f"{path} is not what python -m benchmarks replay --json prints: {wrong}")
    return _of_trace(found) if isinstance(found, Replayed) else _of_store(found)


def _out_of_range(found: Replayed | ReplayedStore) -> str:
    """The reason why no replay can have printed it; empty if one can."""
    if len(found.rows) > MOST_ROWS:
        return f"it has {len(found.rows):,} rows; at most {MOST_ROWS:,}"
    if isinstance(found, ReplayedStore) and len({row.order for row in found.rows}) > _MOST_ORDERS:
        return f"it has more than {_MOST_ORDERS} orders of eviction"
    for part in (found, *found.rows):
        for name, value in msgspec.structs.asdict(part).items():
            if isinstance(value, int | float) and not 0 <= value <= LARGEST_NUMBER:
                return f"{name} is {value}; from 0 to {LARGEST_NUMBER:g}"
    return ""


def _of_trace(d: Replayed) -> Report:
    facts = Facts(
        {
            "Trace": f"{d.trace}: {counted(d.requests, 'request')} in {human_ms(d.duration_seconds * 1e3)}",
            "Model": f"{d.model}, {d.dtype}, {d.arch}",
            "GPU times": f"predicted by the {d.gpu_times}; GEMMs alone",
            "A compile": f"{human_ms(d.compile_seconds * 1e3)}, {human_bytes(d.kernel_bytes)}: {d.compile_from}",
            "Server": f"{d.token_budget:,} tokens, {d.sequences:,} sequences; {counted(d.slots, 'compile')} at a time",
        }
    )
    sections = [Section("What was replayed", (facts, *(Note(f"Left out: {text}") for text in d.left_out)))]
    for load, start in dict.fromkeys((row.load, row.start) for row in d.rows):
        rows = [row for row in d.rows if (row.load, row.start) == (load, start)]
        sections.append(Section(f"Load × {load:g}, start: {start}", (_policies(rows),)))
    sections.append(
        Section(
            "How to read this",
            (
                Note(
                    "Lost: GPU seconds that the fastest kernels would have saved. Cost: lost, stalls, and compiles "
                    "that no step waited for, at a GPU second each. × optimum: the cost in that of the best kernels "
                    "in hindsight."
                ),
            ),
        )
    )
    options = {
        "model": d.model,
        "arch": d.arch,
        "dtype": d.dtype,
        "gpu": d.gpu,
        "slots": f"{d.slots}",
        "token-budget": f"{d.token_budget}",
        "sequences": f"{d.sequences}",
        "horizon": f"{d.horizon_seconds:g}",
        "ahead": f"{d.ahead_seconds:g}",
    }
    asked = [f"--{name}={value}" for name, value in options.items()]
    for name in ("load", "start", "policy"):
        values = dict.fromkeys(value for row in d.rows if (value := getattr(row, name)) != ORACLE)
        asked += [f"--{name}={value:g}" if isinstance(value, float) else f"--{name}={value}" for value in values]
    return Report("Replay of policies", f"{d.trace}, {d.model}, {d.gpu}", _command(d.trace, *asked), tuple(sections))


def _command(*arguments: str) -> str:
    again = shlex.join(("python", "-m", "benchmarks", "replay", *arguments, "--json"))
    return f"{again} > replay.json && python -m benchmarks report replay.json -o replay.html"


def _policies(rows: list[ReplayRow]) -> Figure:
    cost = [Bar(row.policy, row.cost_gpu_seconds, f"{row.cost_gpu_seconds:,.1f} s") for row in rows]
    heads = (
        "Policy", "Kernels", "Compiling", "Stall", "P99 step", "P50 first token", "P99 first token", "Lost", "Cost",
        "× optimum", "Size",
    )  # fmt: skip
    table = Table(
        heads,
        tuple(
            (
                row.policy,
                f"{row.kernels:,}",
                *(
                    human_ms(seconds * 1e3)
                    for seconds in (
                        row.compile_seconds,
                        row.stall_seconds,
                        row.stall_p99_seconds,
                        row.first_token_p50_seconds,
                        row.first_token_p99_seconds,
                        row.lost_gpu_seconds,
                        row.cost_gpu_seconds,
                    )
                ),
                "–" if row.ratio is None else f"{row.ratio:,.2f}",
                human_bytes(row.stored_bytes),
            )
            for row in rows
        ),
    )
    return Figure("Cost in GPU seconds", bars(cost), table)


def _of_store(d: ReplayedStore) -> Report:
    facts = Facts(
        {
            "Requests": f"{d.requests:,.0f}, {d.left_out:,.0f} left out; counted since {moment(d.since or 0)}",
            "Kernels": f"{d.kernels:,}, of {human_bytes(d.needed_bytes)} together",
            "Not in the store": f"{d.predicted_kernels:,}: their sizes and compile times are predicted",
            "Limit": human_bytes(d.max_bytes),
        }
    )
    sections = [Section("What was replayed", (facts,))]
    if d.rows:
        sections.append(Section("Orders of eviction", (_orders(d.rows),)))
    sizes = [f"--size={size}" for size in dict.fromkeys(row.size_bytes for row in d.rows)]
    return Report("Replay of a store's requests", "journal", _command("journal", *sizes), tuple(sections))


def _orders(rows: list[EvictionRow]) -> Figure:
    sizes, orders = dict.fromkeys(row.size_bytes for row in rows), dict.fromkeys(row.order for row in rows)
    by_place = {(row.size_bytes, row.order): row.compile_seconds for row in rows}
    series = [
        Series(
            order,
            [by_place.get((size, order), 0.0) for size in sizes],
            [human_ms(by_place.get((size, order), 0.0) * 1e3) for size in sizes],
        )
        for order in orders
    ]
    drawn = columns([human_bytes(size) for size in sizes], series)
    table = Table(
        ("Order", "Size", "Hit rate", "Compiling", "Of that, again", "Evictions"),
        tuple(
            (
                row.order,
                human_bytes(row.size_bytes),
                human_rate(row.hit_rate),
                human_ms(row.compile_seconds * 1e3),
                human_ms(row.again_seconds * 1e3),
                f"{row.evictions:,}",
            )
            for row in rows
        ),
    )
    return Figure("Seconds of compiling, by size of the store", drawn, table)
