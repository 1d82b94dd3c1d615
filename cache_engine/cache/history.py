"""The measured history: the configs that were fastest for a problem, on the local GPU or on a named one.

Only verified timings count, and only the latest of each config. Timings of the same problem with another m count too,
if that m is at most twice or half as large; nearer m come first. A tile divides twice the rows in much the same way,
and more rows differently.

A process reads its store's measurements once, when it first chooses a config. After that, its choices, and so its keys,
change only by its own measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import combinations
from math import ceil, floor, isqrt
from typing import TYPE_CHECKING

import msgspec

from cache_engine.errors import GemmCacheError
from cache_engine.kernels.select import FAMILIES, predicted_cycles
from cache_engine.logs import Log, fields
from cache_engine.model.artifact import RecordedProblem
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem, Specialisation
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.measurement import Measurement
from cache_engine.process import Locked

if TYPE_CHECKING:
    from cache_engine.kernels.agreement import Compared, Factors
    from cache_engine.store.timings import Timings

_log = Log(__name__)

NEAREST = 2.0
"""A measured m counts if it is at most this factor larger or smaller than the problem's m."""

_Kind = tuple[object, ...]
_Rankings = dict[_Kind, dict[int, list[Measurement]]]


class History(Locked):
    """Verified measurements, by problem. Safe to use from several threads."""

    def __init__(self, timings: Callable[[], Timings | None], device: str | None = None) -> None:
        """Reads nothing yet.

        Args:
            timings: a function that returns the measurements, if there are any.
            device: the device whose measurements count: a GPU's name, or the first digits of its fingerprint. By
                default the local GPU; without a GPU there is no history.
        """
        super().__init__()
        self._timings = timings
        self._device = device
        self._read: _Rankings | None = None
        self._factors: Factors | None = None

    def rankings(self, problem: GemmProblem) -> Sequence[list[Measurement]]:
        """For each measured m near the problem's, the timings of its configs; the nearest m first.

        Each list has the timing of the fastest config first.
        """
        by_m = self._by_m(problem)
        if not by_m:
            return ()
        # Problems that share a kernel must get the same config, so a measurement of one size does not count.
        m, *sizes = problem.planned_sizes
        if sizes != [problem.n, problem.k, problem.batch]:
            return ()
        distance = {measured: max(measured / m, m / measured) for measured in by_m}
        return [by_m[m] for m in sorted(by_m, key=lambda m: (distance[m], m)) if distance[m] <= NEAREST]

    @property
    def has_exact(self) -> bool:
        """Whether any exact kernel (for one m only) was timed."""
        return any(Specialisation.EXACT.value in kind for kind in self._rankings())

    def median_us(self, problem: GemmProblem, family: str, compiler: str, config: KernelConfig) -> float | None:
        """The median time of one config for exactly this problem, in microseconds; ``None`` if it was not measured."""
        ranked = (self._by_m(problem) or {}).get(problem.m, ())
        wanted = (family, compiler, config)
        return next((one.median_us for one in ranked if (one.family, one.compiler, one.config) == wanted), None)

    def turning_points(self, problem: GemmProblem, last: int) -> set[int]:
        """Each m above the problem's, up to ``last``, for which ``rankings`` may differ from those for m - 1.

        A measurement at x counts from m = x / 2 to 2 * x. Of x and a larger y, x is nearer as long as m * m <= x * y,
        and y is nearer above that. Nothing else in ``rankings`` depends on m.
        """
        by_m = self._by_m(problem)
        sizes = sorted(by_m or ())
        points = {ceil(size / NEAREST) for size in sizes} | {floor(size * NEAREST) + 1 for size in sizes}
        for size, larger in combinations(sizes, 2):
            if larger <= NEAREST * NEAREST * size:  # otherwise no m counts both measurements
                points.add(isqrt(size * larger) + 1)
        return {point for point in points if problem.m < point <= last}

    def factors(self) -> Factors:
        """The factors that correct the cost model, from the device's timings; none if there are too few."""
        if self._factors is None:
            known = self._rankings()
            self._factors = _factors(known) if known else ()
        return self._factors

    def forget(self) -> None:
        """Forgets the measurements, so that the next use reads them again."""
        self._read = self._factors = None

    def _rankings(self) -> _Rankings:
        known = self._read
        if known is None:
            with self._lock:
                known = self._read = _rank(self._measurements())
        return known

    def _by_m(self, problem: GemmProblem) -> dict[int, list[Measurement]] | None:
        known = self._rankings()
        return known.get(_kind(RecordedProblem.of(problem), problem.arch or "")) if known else None

    def promoted(self, measurement: Measurement, kernel: object) -> str:
        """The reason, as text, why a config was chosen in place of the cost model's choice; also logs it."""
        one, words = measurement, self.in_words(measurement)
        extra = fields("promotion", kernel=kernel, family=one.family, median_us=one.median_us)
        _log.info("promoted: in place of %s, %s with %s, %s", kernel, one.family, one.config, words, extra=extra)
        return words

    def in_words(self, measurement: Measurement) -> str:
        """The text for ``config_from`` of a choice that this measurement decided."""
        return f"measured on {measurement.device.name}: {measurement.median_us:.4g} µs at m = {measurement.problem.m}"

    def _measurements(self) -> list[Measurement]:
        """The device's timings; none if they cannot be read, because a lookup must not fail for that."""
        try:
            timings = self._timings()
            if timings is None:
                return []
            if self._device is not None:
                return self._of_named(timings, self._device)
        except OSError as error:
            _log.warning("timings cannot be read, and the cost model chooses: %s", error)
            return []
        from cache_engine.gpu.probe import gpu

        device = gpu()
        return timings.of_device(device.digest()) if isinstance(device, DeviceFingerprint) else []

    def _of_named(self, timings: Timings, name: str) -> list[Measurement]:
        """The timings of the device with this name; if several have it, the timings of the device measured last."""
        wanted = name.lower()
        named = []
        for fingerprint in timings.fingerprints():
            there = timings.of_device(fingerprint)
            by_digits = len(wanted) >= 4 and fingerprint.startswith(wanted)
            if there and (by_digits or there[0].device.name.lower() == wanted):
                named.append(there)
        if named:
            return max(named, key=lambda there: there[0].measured_at)
        _log.warning(
            "there are no timings of %r, and the cost model chooses; gemm-cache timings lists what there is", name
        )
        return []


def _rank(measurements: list[Measurement]) -> _Rankings:
    """The configs with a verified latest timing, fastest first; grouped by problem without m, then by m."""
    latest: dict[tuple[_Kind, int, str, str, KernelConfig], Measurement] = {}
    for one in measurements:  # newest first
        latest.setdefault((_kind(one.problem, one.arch), one.problem.m, one.family, one.compiler, one.config), one)
    found: _Rankings = {}
    for (kind, m, *_), one in latest.items():
        if one.verified and m > 0:
            found.setdefault(kind, {}).setdefault(m, []).append(one)
    for by_m in found.values():
        for ranked in by_m.values():
            ranked.sort(key=lambda one: one.median_us)
    return found


def compared(measurements: Iterable[Measurement]) -> list[Compared]:
    """The latest verified timing of each config of a device, newest first, with the cost model's prediction for it."""
    return list(_compared(_rank(list(measurements))))


def _factors(rankings: _Rankings) -> Factors:
    from cache_engine.kernels.agreement import agreement, factors  # few stores have timings

    return factors(agreement(_compared(rankings)).corrections)


def _compared(rankings: _Rankings) -> Iterator[Compared]:
    from cache_engine.kernels.agreement import Compared

    for kind, by_m in rankings.items():
        for m, timings in by_m.items():
            for one in timings:
                # A family, target or config may be unknown to this program, or impossible by now.
                if one.family in FAMILIES:
                    with suppress(GemmCacheError):
                        cycles = predicted_cycles(one.problem.on(one.arch), one.family, one.config)
                        tile = (one.config.block_m, one.config.block_n)
                        yield Compared((kind, m, one.compiler), one.family, tile, cycles, one.median_us)


def _kind(problem: RecordedProblem, arch: str) -> _Kind:
    """The properties that a measurement must have in common with a problem to count for it: all except m."""
    _m, *rest = msgspec.structs.astuple(problem)  # m is the first field
    return (*rest, arch)
