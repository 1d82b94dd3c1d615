"""Least squares between bounds, for the models' parameters: Levenberg-Marquardt, errors damped where they are large."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cache_engine.evaluator.gpu import Floats
from cache_engine.settings.extras import lazy

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazy("numpy", "evaluate", "fitting")

Bounds = Mapping[str, tuple[float, float, float]]
"""By name: lower bound, upper bound, first guess."""

INTERVAL = (16.0, 84.0)
"""Percentiles, between which 68 % lie."""

_DAMPED_FROM = 0.04  # relative error above which errors count as such, not squared: mistimed rows are not to lead
_ROUNDS = 30


def fitted_values(errors: Callable[[dict[str, float]], Floats], bounds: Bounds, pull: float) -> dict[str, float]:
    """The values between bounds with the least damped errors, each pulled to its first guess."""
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
