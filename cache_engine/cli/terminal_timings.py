"""How timings appear on a terminal, and what tuning has found."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from cache_engine.cli.terminal import LEFT, RIGHT, print_table
from cache_engine.model.measurement import Measurement
from cache_engine.units import counted, human_age, human_ms, printable


def print_timings(timings: Sequence[Measurement]) -> None:
    """Timings, a line each."""
    now = time.time()
    columns = {"key": LEFT, "device": LEFT, "m × n × k": RIGHT, "batch": RIGHT, "types": LEFT, "target": LEFT,
               "family": LEFT, "config": LEFT, "median": RIGHT, "10th": RIGHT, "90th": RIGHT, "TFLOP/s": RIGHT,
               "× reference": RIGHT, "result": LEFT, "config from": LEFT, "measured": RIGHT}  # fmt: skip
    print_table(
        columns,
        [
            (
                one.key[:12], one.device.name, f"{one.problem.m} × {one.problem.n} × {one.problem.k}",
                one.problem.batch, f"{one.problem.dtype}→{one.problem.out_dtype}", one.arch, one.family, one.config,
                *(_micros(one.timing.get(name)) for name in ("median_us", "p10_us", "p90_us")),
                _number(one.timing.get("tflops")), _number(one.timing.get("speed_ratio")),
                "right" if one.verified else "WRONG", one.config_from, human_age(now - one.measured_at),
            )
            for one in timings
        ],
        dispensable=("config from", "10th", "90th", "batch", "types", "family", "target"),
    )  # fmt: skip


def print_tuning(document: Mapping[str, Any]) -> None:
    """What ``tune`` has timed, or would time."""
    rows = document["candidates"]
    if document["dry_run"]:
        columns = {"family": LEFT, "config": LEFT, "predicted": RIGHT, "compiled": LEFT, "key": LEFT}
        print_table(
            columns,
            [
                (row["family"], row["config_text"], _micros(row["predicted_us"]), _tier(row["tier"]), row["key"][:12])
                for row in rows
            ],
        )
        print(f"\n{_whose(document)}\nWould time {counted(len(rows), 'config')}.")
        return
    columns = {"family": LEFT, "config": LEFT, "predicted": RIGHT, "measured": RIGHT, "measured ÷ predicted": RIGHT,
               "TFLOP/s": RIGHT, "result": LEFT}  # fmt: skip
    print_table(
        columns,
        [
            (
                row["family"], row["config_text"], _micros(row["predicted_us"]), _micros(row["median_us"]),
                _number(row["ratio"]), _number(row["tflops"]), row["trouble"] or "right",
            )
            for row in rows
        ],
    )  # fmt: skip
    chosen = document["chosen"]
    print(f"\n{_whose(document)}")
    print(printable(f"{chosen['family']} {chosen['config_text']} serves now, {chosen['config_from']}."))


def _whose(document: Mapping[str, Any]) -> str:
    clock = f"{document['clock_mhz']:,.0f} MHz"
    whose = f"{document['device']}'s {clock}" if document["device"] else f"{clock}, as no GPU is here"
    return printable(f"Predicted by the cost model that ranks configs, in cycles, told at {whose}.")


def _tier(tier: str | None) -> str:
    return "no" if tier is None else f"yes ({tier})"


def _micros(value: Any) -> str:
    return human_ms(value / 1e3) if isinstance(value, int | float) and abs(value) < 1e15 else "–"


def _number(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, int | float) and abs(value) < 1e15 else "–"
