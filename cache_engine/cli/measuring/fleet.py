"""``bench fleet``: what a fleet would ask of a shared store."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from cache_engine.bench.fleet.costs import MODEL, TARGET, measure
from cache_engine.bench.fleet.events import PLANS, Assumed, Outcome, outcome
from cache_engine.cli import terminal
from cache_engine.cli.documents import measured
from cache_engine.cli.support import emit
from cache_engine.cli.terminal import LEFT, RIGHT, print_table
from cache_engine.units import counted, human_bytes, human_ms


def bench_fleet(nodes: int, as_json: bool) -> None:
    """Measures what one machine pays for a kernel, and prints what follows for a fleet.

    Raises:
        ExtraMissing: when the extra remote or trust is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="gemm-cache-bench-") as folder:
        costs = measure(Path(folder))
    assumed = Assumed()
    with terminal.progress("Fleets", len(PLANS)) as (bar, task):
        outcomes = []
        for plan in PLANS:
            outcomes.append(outcome(plan, nodes, costs, assumed))
            bar.advance(task)
    document = measured.FleetBenchmark(
        machine=measured.this_machine(), nodes=nodes, costs=costs, assumed=assumed, outcomes=outcomes
    )
    emit(document, as_json, lambda: _print(document))


def _print(d: measured.FleetBenchmark) -> None:
    costs, assumed = d.costs, d.assumed
    compiling = human_ms(statistics.median(costs.compile_s) * 1e3)
    print(
        f"Measured on {d.machine}: compiling a kernel of {MODEL} for {TARGET} {compiling} (median of "
        f"{len(costs.compile_s)}), taking one from a remote {human_ms(costs.take_s * 1e3)}, "
        f"{human_bytes(statistics.median(costs.object_bytes))} each, {counted(costs.kernels, 'kernel')}."
    )
    print(
        f"Assumed: the store serves {assumed.store_requests_per_s:,.0f} requests a second, a round trip takes "
        f"{human_ms(assumed.round_trip_s * 1e3)}, a machine reads {human_bytes(assumed.machine_bytes_per_s)}/s, waits "
        f"{assumed.patience_s:g} s and then compiles for {assumed.retry_s:g} s.\n"
    )
    numbers = ("requests", "most a second", "bytes", "bytes/s at most", "compiled", "too many", "warm", "99 %")
    print_table(
        {f"{d.nodes:,} machines": LEFT, **dict.fromkeys(numbers, RIGHT)},
        [_row(one) for one in d.outcomes],
        dispensable=("99 %", "bytes/s at most", "bytes"),
    )
    print(
        "\nToo many: compiled although another machine compiled the same kernel. Warm: from a machine's start until it "
        "has all kernels, the median; and the time that 99 % keep."
    )


def _row(one: Outcome) -> tuple[str, ...]:
    return (
        one.plan.name, f"{one.requests:,}", f"{one.peak_requests:,}", human_bytes(one.moved_bytes),
        human_bytes(one.peak_bytes), f"{one.compiles:,}", f"{one.duplicates:,}", f"{one.warm_p50_s:,.1f} s",
        f"{one.warm_p99_s:,.1f} s",
    )  # fmt: skip
