"""Fits the parameters of the GPU model to measured latencies, and writes them to a file.

::

    python -m cache_engine.evaluator.fit_gpu FILE.csv[.gz] --source "where FILE is from"

They are written to ``gpu_parameters.json`` in the working directory, never into an installed package; in a checkout,
move the file to ``cache_engine/evaluator/`` to use it. FILE has columns arch, M, N, K, latency_us. Two in five (N, K)
pairs, always the same ones, are held out of the fit; ``gemm-cache evaluations validate FILE --kept-out`` reports how
well they are predicted. Least squares by Levenberg-Marquardt on relative errors, large ones damped, each parameter
between bounds that make sense.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from cache_engine.evaluator.gpu import ALL, PARAMETERS_FILE, Floats, GpuParameters, latencies_us
from cache_engine.evaluator.validation import Measurements, read_measurements

# Name: lower bound, upper bound, first guess.
_BOUNDS = {
    "launch_us": (0.3, 4.0, 1.2),
    "tile_us": (0.02, 4.0, 0.8),
    "epilogue_us": (0.001, 3.0, 0.3),
    "step_us": (0.001, 0.5, 0.06),
    "matrix_share": (0.4, 1.0, 0.8),
    "small_tile_loss": (0.01, 60.0, 1.0),
    "dram_share": (0.5, 1.0, 0.82),
    "write_weight": (0.3, 4.0, 1.0),
    "l2_factor": (1.0, 16.0, 5.0),
    "l2_share": (0.003, 1.0, 0.02),
    "l2_sharpness": (1.0, 8.0, 4.0),
    "wave_blend": (0.0, 1.0, 0.8),
    "norm": (1.0, 10.0, 3.0),
    "split_us": (0.02, 5.0, 2.0),
    "split_weight": (0.02, 4.0, 1.0),
    "throttling": (0.0, 0.3, 0.1),
}
_LOW, _HIGH, _FIRST = (np.array(column) for column in zip(*_BOUNDS.values(), strict=True))

_DAMPED_FROM = 0.04  # relative error above which errors count as such, not squared: mistimed rows are not to lead
_PULL = 0.02  # towards the middle of the bounds, so that what the data says nothing about stays put
_ROUNDS = 30


def fit(measured: list[Measurements], stride: int) -> GpuParameters:
    """Parameters that fit every ``stride``-th measurement that is not held out, of one GPU or of several."""
    chosen = [one.only(~one.kept_out()).every(stride) for one in measured]

    def errors(x: Floats) -> Floats:
        parameters = _decode(x)
        parts = [latencies_us(parameters, one.gpu, one.m, one.n, one.k) / one.latency_us - 1 for one in chosen]
        return np.concatenate([_damped(np.minimum(part, 10.0)) for part in parts] + [_PULL * x])

    share = (_FIRST - _LOW) / (_HIGH - _LOW)
    return _decode(_least_squares(errors, np.log(share / (1 - share))))


def _decode(x: Floats) -> GpuParameters:
    values = _LOW + (_HIGH - _LOW) / (1 + np.exp(-x))
    return GpuParameters(**{name: float(value) for name, value in zip(_BOUNDS, values, strict=True)})


def _damped(errors: Floats) -> Floats:
    damped: Floats = np.sign(errors) * np.sqrt(2 * _DAMPED_FROM**2 * (np.sqrt(1 + (errors / _DAMPED_FROM) ** 2) - 1))
    return damped


def _least_squares(errors: Callable[[Floats], Floats], x: Floats) -> Floats:
    """Levenberg-Marquardt with slopes from differences."""
    damping, step = 1e-2, 1e-3
    current = errors(x)
    for _ in range(_ROUNDS):
        slopes = np.stack([(errors(x + step * unit) - current) / step for unit in np.eye(len(x))], axis=1)
        normal = slopes.T @ slopes
        before = current @ current
        for _ in range(6):
            scaled = normal + damping * np.diag(np.diag(normal) + 1e-6)
            moved = x + np.clip(np.linalg.solve(scaled, -slopes.T @ current), -0.7, 0.7)
            candidate = errors(moved)
            if candidate @ candidate < before:
                x, current, damping = moved, candidate, max(damping / 3, 1e-6)
                break
            damping *= 4
        if before - current @ current < 1e-4 * before:
            break
    return x


def main() -> None:
    """Reads measurements, fits each GPU and all together, and writes the file."""
    parser = argparse.ArgumentParser(description="Fits the parameters of the GPU model.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--source", required=True, help="where the measurements are from, with their license")
    parser.add_argument("--output", type=Path, default=Path(PARAMETERS_FILE.name))
    arguments = parser.parse_args()
    measured = read_measurements(arguments.file)
    parameters = {}
    for one in measured:
        sys.stderr.write(f"fitting {one.gpu.name}\n")
        parameters[one.gpu.name] = fit([one], 4)
    sys.stderr.write("fitting all together\n")
    parameters[ALL] = fit(measured, 12)
    unmeasured = {}
    for one in measured if len(measured) > 1 else []:
        sys.stderr.write(f"predicting {one.gpu.name} by the others\n")
        others = fit([other for other in measured if other is not one], 12)
        predicted = latencies_us(others, one.gpu, one.m, one.n, one.k)
        unmeasured[one.gpu.name] = round(float(np.abs(predicted / one.latency_us - 1).mean()), 4)
    document = {
        "source": arguments.source,
        "fitted_at": datetime.now(UTC).date().isoformat(),
        "measurements": {one.gpu.name: len(one.m) for one in measured},
        "kept_out": {one.gpu.name: int(one.kept_out().sum()) for one in measured},
        "mape_by_parameters_of_the_others": unmeasured,
        "parameters": {
            name: {field: float(f"{getattr(values, field):.5g}") for field in _BOUNDS}
            for name, values in parameters.items()
        },
    }
    arguments.output.write_text(json.dumps(document, indent=2) + "\n")
    sys.stderr.write(f"wrote {arguments.output}\n")


if __name__ == "__main__":
    main()
