"""The stored timing of a kernel: the kernel, the problem, the device and the duration."""

from __future__ import annotations

from typing import Any, TypeGuard

import msgspec

from cache_engine.model.artifact import RecordedProblem, Seconds
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import is_key

GIVEN, COST_MODEL, TUNED = "given", "cost model", "tuning"
"""The possible origins of a config; a config that measurements chose has ``"measured on …"`` instead."""

_TEXTS = ("family", "compiler", "compiler_version", "arch", "config_from", "measured_by")
_TIMES = ("p10_us", "p90_us", "tflops", "reference_median_us", "speed_ratio", "max_rel_error")
_LONGEST_TEXT = 300
_LARGEST = 1e300


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One timing of one kernel. It has all facts that the choice of a config needs, even after the entry is deleted.

    Attributes:
        key: the entry's CacheKey.
        problem: the problem that was timed, on ``arch``.
        config_from: the origin of the config: ``"given"``, ``"cost model"``, ``"tuning"`` or ``"measured on …"``.
        timing: the fields of ``gpu.timer.Timing`` except the device, by name, as the program that measured had them. A
            value that is not a number (an error that is NaN) is ``None``.
        measured_at: the time, in seconds since 1970, UTC.
        measured_by: the program that measured, its version and build, such as ``gemm-cache 0.2.0+3f2a91c0d4e5``.
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
        """The median time of a launch, in microseconds."""
        return float(self.timing["median_us"])

    @property
    def verified(self) -> bool:
        """Whether the kernel's result was checked and correct."""
        return self.timing["verified"] is True

    @property
    def fault(self) -> str | None:
        """The reason why the timing cannot be a real measurement; ``None`` if it can."""
        if not is_key(self.key):
            return "key is not that of a kernel"
        texts = {name: getattr(self, name) for name in _TEXTS}
        texts |= {f"device {name}": getattr(self.device, name) for name in ("name", "arch", "driver")}
        problem = msgspec.structs.asdict(self.problem)
        texts |= {f"problem {name}": value for name, value in problem.items() if isinstance(value, str)}
        for name, text in texts.items():
            if len(text) > _LONGEST_TEXT or not text.isprintable():
                return f"{name} must be at most {_LONGEST_TEXT} printable characters"
        for name in ("sms", "memory_bytes", "l2_bytes", "clock_khz"):
            if not 0 <= getattr(self.device, name) <= 2**53:
                return f"device {name} must be a whole number from 0 to 2**53"
        return self._timing_fault()

    def _timing_fault(self) -> str | None:
        median = self.timing.get("median_us")
        if not _is_number(median) or not 0 < median <= 1e15:
            return "median_us must be a number above 0, at most 1e15"
        if not isinstance(self.timing.get("verified"), bool):
            return "verified must be true or false"
        for name, value in self.timing.items():
            # The fields of later versions are unknown; any number must fit into a float.
            if _is_number(value) and not -_LARGEST <= value <= _LARGEST:
                return f"{name[:40]!r} must be a number of at most 1e300"
            if name in _TIMES and not (value is None or (_is_number(value) and value >= 0)):
                return f"{name} must be a number, 0 or more"
        return None


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
