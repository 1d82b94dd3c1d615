"""Fits the GPU model's parameters to measured latencies. A user's own GPU: ``evaluator.calibration``.

Two in five (N, K) pairs are held out, always
the same ones. Least squares (Levenberg-Marquardt) on relative errors, large ones damped, each parameter between bounds
that make sense.

The file also has the errors: on pairs held out, on each GPU by the parameters of the others, and how often measurements
lie in the intervals of predictions that were made without them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.verb import Experiment
from cache_engine.evaluator.calibration import INTERVAL, Bounds, fitted_values
from cache_engine.evaluator.gpu import ALL, M_RANGES, PARAMETERS_FILE, Floats, GpuParameters, Spread, latencies_us
from cache_engine.evaluator.validation import Measurements, read_measurements
from cache_engine.settings.extras import lazy

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazy("numpy", "evaluate", "fitting")

_BOUNDS: Bounds = {
    "launch_us": (0.5, 4.0, 2.4),
    "matrix_share": (0.7, 1.4, 1.1),
    "small_tile_loss": (0.01, 40.0, 1.0),
    "throttling": (0.0, 0.4, 0.15),
    "step_cycles": (5.0, 1500.0, 170.0),
    "step_cycles_sync": (5.0, 1500.0, 170.0),
    "wave_blend": (0.0, 1.0, 0.9),
    "wave_blend_sync": (0.0, 1.0, 0.9),
    "epilogue_bytes_per_cycle": (2.0, 120.0, 18.0),
    "dram_share": (0.6, 1.0, 0.83),
    "write_weight": (0.3, 3.0, 0.7),
    # An SM reads 64 bytes a cycle from L2 at most (NVIDIA's white papers).
    "l2_bytes_per_cycle": (5.0, 60.0, 40.0),
    # With less, weights of a few megabytes come from DRAM on any GPU; above, what is copied does not fit.
    "l2_share": (0.4, 1.2, 0.65),
    "l2_sharpness": (1.5, 8.0, 4.0),
    "split_us": (0.02, 5.0, 2.8),
    "split_weight": (0.1, 4.0, 1.0),
}
_PULL = 0.02  # towards the first guess, so that what the data says nothing about stays put
_OWN_STRIDE, _JOINT_STRIDE = 4, 12


def fit(measured: list[Measurements], stride: int) -> GpuParameters:
    """Parameters that fit every ``stride``-th measurement that is not held out, of one GPU or of several.

    Without a GPU whose tensor cores read on their own, or without another, both kinds have the same numbers.
    """
    chosen = [one.only(~one.kept_out()).every(stride) for one in measured]
    kinds = {one.gpu.reads_asynchronously for one in measured}

    def of(values: dict[str, float]) -> GpuParameters:
        for name in ("step_cycles", "wave_blend"):
            if kinds == {True}:
                values[f"{name}_sync"] = values[name]
            elif kinds == {False}:
                values[name] = values[f"{name}_sync"]
        return GpuParameters(**values)

    def errors(values: dict[str, float]) -> Floats:
        parameters = of(values)
        parts = [latencies_us(parameters, one.gpu, one.m, one.n, one.k) / one.latency_us - 1 for one in chosen]
        return np.concatenate(parts)

    return of(fitted_values(errors, _BOUNDS, _PULL))


def spread(ratios: Floats, m: Floats) -> Spread:
    """The interval of measured / predicted, for each range of m; of all where a range has fewer than 30."""
    found = []
    for low, high in M_RANGES:
        there = ratios[(m >= low) & (m <= high)]
        lower, upper = np.percentile(there if len(there) >= 30 else ratios, INTERVAL)
        found.append((round(float(lower), 4), round(float(upper), 4)))
    return tuple(found)


def coverage(spread: Spread, ratios: Floats, m: Floats) -> float:
    """The share of measurements within the intervals."""
    inside = np.zeros(len(m), dtype=bool)
    for (low, high), (lower, upper) in zip(M_RANGES, spread, strict=True):
        inside |= (m >= low) & (m <= high) & (ratios >= lower) & (ratios <= upper)
    return round(float(inside.mean()), 4)


def _ratios(parameters: GpuParameters, measured: Measurements) -> Floats:
    return measured.latency_us / latencies_us(parameters, measured.gpu, measured.m, measured.n, measured.k)


def _mape(ratios: Floats) -> float:
    return round(float(np.abs(1 / ratios - 1).mean()), 4)


def fitted_document(measured: list[Measurements], source: str) -> dict[str, Any]:
    """Fits each GPU, all together and all but one, and measures the errors."""
    parameters, spreads, held_out, covered = {}, {}, {}, {}
    for one in measured:
        sys.stderr.write(f"fitting {one.gpu.name}\n")
        own = parameters[one.gpu.name] = fit([one], _OWN_STRIDE)
        seen, unseen = one.only(~one.kept_out()), one.only(one.kept_out())
        spreads[one.gpu.name] = spread(_ratios(own, seen), seen.m)
        if len(unseen.m):
            ratios = _ratios(own, unseen)
            held_out[one.gpu.name] = _mape(ratios)
            covered[one.gpu.name] = coverage(spreads[one.gpu.name], ratios, unseen.m)
    sys.stderr.write("fitting all together\n")
    parameters[ALL] = fit(measured, _JOINT_STRIDE)
    spreads[ALL] = spread(*_pooled({one.gpu.name: (_ratios(parameters[ALL], one), one.m) for one in measured}))
    unmeasured, covered_unmeasured = {}, {}
    if len(measured) > 1:
        alone = {}
        for one in measured:
            sys.stderr.write(f"predicting {one.gpu.name} by the others\n")
            ratios = _ratios(fit([other for other in measured if other is not one], _JOINT_STRIDE), one)
            alone[one.gpu.name] = (ratios, one.m)
            unmeasured[one.gpu.name] = _mape(ratios)
        spreads[ALL] = spread(*_pooled(alone))
        for name, (ratios, m) in alone.items():
            others = {other: found for other, found in alone.items() if other != name}
            covered_unmeasured[name] = coverage(spread(*_pooled(others)), ratios, m)
    return {
        "source": source,
        "fitted_at": datetime.now(UTC).date().isoformat(),
        "measurements": {one.gpu.name: len(one.m) for one in measured},
        "kept_out": {one.gpu.name: int(one.kept_out().sum()) for one in measured},
        "mape_kept_out": held_out,
        "mape_by_parameters_of_the_others": unmeasured,
        "coverage_kept_out": covered,
        "coverage_by_intervals_of_the_others": covered_unmeasured,
        "spreads": spreads,
        "parameters": {
            name: {field.name: float(f"{getattr(values, field.name):.5g}") for field in fields(GpuParameters)}
            for name, values in parameters.items()
        },
    }


def _pooled(found: Mapping[str, tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    ratios, ms = zip(*found.values(), strict=True)
    return np.concatenate(ratios), np.concatenate(ms)


@click.command(
    "fit",
    cls=Experiment,
    examples=('fit FILE.csv --source "the source of FILE"',),
    missing="NumPy is not installed.",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--source", required=True, help="Where the measurements are from, with their license.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path(PARAMETERS_FILE.name),
    show_default=True,
    help="The file to write.",
)
def fit_verb(file: Path, source: str, output: Path) -> None:
    """Fit the parameters of the GPU model to measured latencies.

    FILE is a CSV file as `gemm-cache calibrate --check all` reads it. The parameters are written to the working
    directory, never into an installed package; in a checkout, move the file to cache_engine/evaluator/.
    """
    measured = [one for one in read_measurements(file) if one.dtype == "bf16"]
    document = fitted_document(measured, source)
    output.write_text(json.dumps(document, indent=2) + "\n")
    sys.stderr.write(f"wrote {output}\n")
