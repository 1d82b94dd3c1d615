"""Fits the factors of a GPU's model to a user's measurements, and finds the gain in accuracy by cross-validation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cache_engine.errors import UsageError
from cache_engine.evaluator.chips import FACTORS, Calibration, Gpu, gpu_called
from cache_engine.evaluator.gpu import MODEL_VERSION, Floats, latencies_us, parameters_of, roofline_us
from cache_engine.evaluator.validation import Measurements
from cache_engine.model.measurement import Measurement
from cache_engine.settings.extras import lazy

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazy("numpy", "evaluate", "calibrating")

Bounds = Mapping[str, tuple[float, float, float]]
"""For each value to fit, by name: its lower bound, upper bound, and first guess."""

INTERVAL = (16.0, 84.0)
"""The lower and the upper percentile that enclose 68 % of the ratios measured / predicted."""

LEAST_ROWS, LEAST_PAIRS = 20, 5
"""The fewest measurements, and the fewest different (N, K) among them, that a calibration needs."""

_FOLDS = 5
FITS = _FOLDS + 1
"""The number of fits that a calibration does: some with a part of the measurements left out, and one with all."""
_MOST_FITTED = 2_000  # rows of a fit; more change nothing
_BOUNDS = dict.fromkeys(FACTORS, (0.1, 10.0, 1.0))
_PULL = 0.02  # each factor towards 1, for each square root of a row
_FASTEST = 2.0, 10.0  # of the peak, as boards may clock higher, and of the bandwidth, as operands may come from L2
_SLOWEST = 100.0  # of what is predicted


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The result of a calibration.

    Attributes:
        gpu: the GPU with its calibration.
        bias_before, bias_after: the mean error of predictions, as a share of the measured time, without the
            calibration and with it by cross-validation; negative if predictions are too fast.
        inside: the share of measurements that lie in the interval of a prediction made without them; it should be 68 %.
    """

    gpu: Gpu
    bias_before: float
    bias_after: float
    inside: float

    @property
    def is_better(self) -> bool:
        """Whether cross-validation shows that the calibration makes predictions more accurate."""
        found = self.gpu.calibration
        return found is not None and found.error_after < found.error_before


def calibrate(
    measured: Measurements, source: str, name: str = "", fitted: Callable[[], None] = lambda: None
) -> Calibrated:
    """Fits the factors of a GPU to measurements.

    The calibration's errors are those of predicting each (N, K) by a fit without the measurements of that (N, K).

    Args:
        source: the origin of the measurements, which is stored in the result.
        name: the name of the calibrated GPU; by default the GPU's name and ``calibrated``.
        fitted: called after each of ``FITS`` fits.

    Raises:
        UsageError: when there are too few measurements, or one is impossible; the text names its line, counted from 1
            with the header.
    """
    gpu = replace(measured.gpu, calibration=None)
    measured = replace(measured, gpu=gpu)
    base, _ = parameters_of(gpu)
    plain = _predicted(gpu, measured)
    _check(measured, plain, source)
    folds = _folds(measured)
    unseen = np.empty_like(plain)
    for fold in range(_FOLDS):
        without = _with(gpu, _fitted(measured.only(folds != fold)), base)
        unseen[folds == fold] = _predicted(without, measured.only(folds == fold))
        fitted()
    errors_before, errors_after = plain / measured.latency_us - 1, unseen / measured.latency_us - 1
    ratios = measured.latency_us / unseen
    low, high = (float(share) for share in np.percentile(ratios, INTERVAL))
    calibration = Calibration(
        _id(measured, source),
        source[:200],
        MODEL_VERSION,
        base,
        len(measured.m),
        **_fitted(measured),
        low=low,
        high=high,
        error_before=float(np.abs(errors_before).mean()),
        error_after=float(np.abs(errors_after).mean()),
    )
    fitted()
    calibrated = replace(gpu, name=name or f"{gpu.name} calibrated"[:100], calibration=calibration)
    inside = _inside(ratios, folds)
    return Calibrated(calibrated, float(errors_before.mean()), float(errors_after.mean()), inside)


def timings_of(timings: Iterable[Measurement], gpu: Gpu | None) -> tuple[Measurements, str]:
    """The store's timings in 16-bit types on one GPU, and the name of the device.

    For each problem, only the fastest time is returned, whether of a kernel of ours or of cuBLAS.

    Args:
        gpu: the GPU of the timings; by default the known GPU with the name of the device that has the most timings.

    Raises:
        UsageError: when there are no timings, or when no GPU is given and the device is no known GPU.
    """
    found: dict[str, dict[tuple[int, int, int], float]] = {}
    for one in timings:
        p = one.problem
        if one.verified and p.batch == 1 and p.m > 0 and {p.dtype, p.out_dtype} <= {"bf16", "fp16"}:
            library = one.timing.get("reference_median_us")
            times = [one.median_us, *([library] if isinstance(library, int | float) and library > 0 else [])]
            of_device = found.setdefault(one.device.name, {})
            size = (p.m, p.n, p.k)
            of_device[size] = min(*times, of_device.get(size, times[0]))
    if not found:
        raise UsageError("the store has no verified timings in bf16 or fp16; gemm-cache tune measures some")
    device = max(found, key=lambda name: len(found[name]))
    known = gpu or gpu_called(device)
    if known is None:
        raise UsageError(f"the timings are of {device[:60]!r}, which the model does not know; describe it with --chip")
    rows = np.array([(*size, us) for size, us in found[device].items()], dtype=float)
    return Measurements(known, *rows.T), device


def _check(measured: Measurements, plain: Floats, source: str) -> None:
    pairs = len(set(zip(measured.n.tolist(), measured.k.tolist(), strict=True)))
    if len(measured.m) < LEAST_ROWS or pairs < LEAST_PAIRS:
        raise UsageError(
            f"{source} has {len(measured.m):,} rows with {pairs:,} pairs of N and K; it takes {LEAST_ROWS} rows or "
            f"more, with {LEAST_PAIRS} pairs or more"
        )
    gpu = measured.gpu
    ideal = replace(gpu, peak_flops=gpu.peak_flops * _FASTEST[0], dram_bandwidth=gpu.dram_bandwidth * _FASTEST[1])
    least = roofline_us(ideal, measured.m, measured.n, measured.k)
    for row in np.flatnonzero((measured.latency_us < least) | (measured.latency_us > _SLOWEST * plain)):
        us = measured.latency_us[row]
        where = f"{source}, line {row + 2}: latency_us is {us:g}"
        if us < least[row]:
            raise UsageError(f"{where}, and {gpu.name} takes more than {least[row]:,.3g}; check the unit")
        raise UsageError(f"{where}, and {plain[row]:,.3g} is predicted; check the unit")


def _fitted(measured: Measurements) -> dict[str, float]:
    some = measured.every(max(1, -(-len(measured.m) // _MOST_FITTED)))
    base, _ = parameters_of(some.gpu)

    def errors(values: dict[str, float]) -> Floats:
        return _predicted(_with(some.gpu, values, base), some) / some.latency_us - 1

    return fitted_values(errors, _BOUNDS, _PULL * float(np.sqrt(len(some.m))))


def _with(gpu: Gpu, factors: dict[str, float], base: str) -> Gpu:
    found = Calibration("none", "none", MODEL_VERSION, base, 1, **factors, low=1, high=1, error_before=0, error_after=0)
    return replace(gpu, calibration=found)


def _predicted(gpu: Gpu, measured: Measurements) -> Floats:
    return latencies_us(parameters_of(gpu)[1], gpu, measured.m, measured.n, measured.k)


def _folds(measured: Measurements) -> Floats:
    """For each measurement, the number of the fit that leaves it out.

    The same fit leaves out all measurements of one (N, K), and each fit leaves out pairs of all sizes.
    """
    pairs = sorted(set(zip(measured.n.tolist(), measured.k.tolist(), strict=True)))
    fold = {pair: place % _FOLDS for place, pair in enumerate(pairs)}
    return np.array([fold[pair] for pair in zip(measured.n.tolist(), measured.k.tolist(), strict=True)])


def _inside(ratios: Floats, folds: Floats) -> float:
    """The share of measurements whose ratio lies in the interval of the ratios in all other folds."""
    inside = []
    for fold in range(_FOLDS):
        low, high = np.percentile(ratios[folds != fold], INTERVAL)
        inside.append((ratios[folds == fold] >= low) & (ratios[folds == fold] <= high))
    return float(np.concatenate(inside).mean())


def _id(measured: Measurements, source: str) -> str:
    rows = np.stack([measured.m, measured.n, measured.k, measured.latency_us])
    text = f"{MODEL_VERSION} {measured.gpu!r} {source} ".encode()
    return hashlib.sha256(text + np.ascontiguousarray(rows).tobytes()).hexdigest()[:12]


# ---- Least squares between bounds: Levenberg-Marquardt, errors damped where they are large ----

_DAMPED_FROM = 0.04  # relative error above which errors count as such, not squared: mistimed rows are not to lead
_ROUNDS = 30


def fitted_values(errors: Callable[[dict[str, float]], Floats], bounds: Bounds, pull: float) -> dict[str, float]:
    """The values within bounds that make the errors least; ``pull`` is the weight of each value's first guess.

    Large errors are damped, so that a few mistimed measurements do not decide the values.
    """
    low, high, first = (np.array(column) for column in zip(*bounds.values(), strict=True))

    def decode(x: Floats) -> dict[str, float]:
        values = low + (high - low) / (1 + np.exp(-x))
        return {name: float(value) for name, value in zip(bounds, values, strict=True)}

    share = (first - low) / (high - low)
    start = np.log(share / (1 - share))

    def damped(x: Floats) -> Floats:
        return np.concatenate([_damped(np.minimum(errors(decode(x)), 10.0)), pull * (x - start)])

    return decode(_least_squares(damped, start))


def _damped(errors: Floats) -> Floats:
    damped: Floats = np.sign(errors) * np.sqrt(2 * _DAMPED_FROM**2 * (np.sqrt(1 + (errors / _DAMPED_FROM) ** 2) - 1))
    return damped


def _least_squares(errors: Callable[[Floats], Floats], x: Floats) -> Floats:
    """Levenberg-Marquardt least squares, with slopes from finite differences; returns the best ``x``."""
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
