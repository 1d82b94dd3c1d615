"""A kernel's timing as it is stored: which kernel, for which problem, on which device, and how long it took."""

from __future__ import annotations

from typing import Any

import msgspec

from cache_engine.model.artifact import RecordedProblem, Seconds
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.kernel import KernelConfig

GIVEN, COST_MODEL, TUNED = "given", "cost model", "tuning"
"""Where a config comes from; ``"measured on …"`` where measurements chose it."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One timing of one kernel. It says all that choosing a config needs, so it outlives the entry that was timed.

    Attributes:
        key: the entry's CacheKey.
        problem: what it was timed with, on ``arch``.
        config_from: where its config came from; see ``GIVEN``.
        timing: every field of ``device.timer.Timing`` but the device, by name, whatever they are in the program that
            measured. What is no number (an error that is NaN) is ``None``.
        measured_at: seconds since 1970, UTC.
        measured_by: the program and its version.
    """

    key: str
    family: str
    compiler: str
    compiler_version: str
    arch: str
    problem: RecordedProblem
    config: KernelConfig
    config_from: str
    device: DeviceFingerprint
    timing: dict[str, Any]
    measured_at: Seconds
    measured_by: str

    @property
    def median_us(self) -> float:
        """The median time."""
        return float(self.timing["median_us"])

    @property
    def verified(self) -> bool:
        """Whether the kernel was seen to compute the right thing."""
        return self.timing["verified"] is True

    @property
    def fault(self) -> str:
        """Why it cannot have been measured; empty when it can."""
        median = self.timing.get("median_us")
        if isinstance(median, bool) or not isinstance(median, int | float) or not 0 < median <= 1e15:
            return f"median_us is {str(median)[:20]!r}; it must be a number above 0, at most 1e15"
        if not isinstance(self.timing.get("verified"), bool):
            return "verified must be true or false"
        return ""
