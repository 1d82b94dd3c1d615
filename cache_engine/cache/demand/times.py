"""Durations of launches: as this store measured them, else as the GPU model predicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from cache_engine.errors import ExtraMissing
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.measurement import Measurement
from cache_engine.model.shape_counts import Shape

if TYPE_CHECKING:
    from cache_engine.cache.selection import Selection
    from cache_engine.evaluator.chips import Gpu

Tile = tuple[int, int, int]
"""Rows, columns and split of k."""

MEASURED, PREDICTED, UNKNOWN = "measured", "predicted", "unknown"
"""The origins of a time."""


@dataclass(frozen=True, slots=True)
class LaunchTime:
    """The duration of a launch.

    Attributes:
        us: microseconds; 0 where it is unknown.
        source: ``MEASURED``, of the fastest verified kernel of this size on a device; ``PREDICTED``, by the GPU model,
            of a library's kernel; or ``UNKNOWN``.
    """

    us: float
    source: str


_UNKNOWN = LaunchTime(0.0, UNKNOWN)


class LaunchTimes:
    """The times of launches on one GPU for each target: the one that was measured on last, else the model's first.

    Attributes:
        gpus: by target and source, the GPU that the times asked for so far are of.
        missing: why nothing can be predicted here; empty when it can.
    """

    def __init__(self, timings: Iterable[Measurement]) -> None:
        """Reads measurements, the newest first."""
        self.gpus: dict[str, dict[str, str]] = {}
        self.missing = ""
        self._devices: dict[str, tuple[str, str]] = {}
        self._predicted_for: dict[str, Gpu | None] = {}
        latest: dict[tuple[Shape, int, str, str, KernelConfig], float] = {}
        for one in timings:
            device = self._devices.setdefault(one.arch, (one.device.digest(), one.device.name))
            if one.verified and one.problem.m > 0 and device[0] == one.device.digest():
                shape = _shape_of(one)
                if shape is not None:
                    place = (shape, one.problem.m, one.family, one.compiler, one.config)
                    latest.setdefault(place, one.median_us)
        self._of_kernels = latest
        self._measured: dict[tuple[Shape, int], float] = {}
        for (shape, m, *_), us in latest.items():
            self._measured[shape, m] = min(us, self._measured.get((shape, m), us))

    def of(self, shape: Shape, sizes: Sequence[int]) -> list[LaunchTime]:
        """The time of each m."""
        measured = [self._measured.get((shape, m)) for m in sizes]
        rest = [m for m, us in zip(sizes, measured, strict=True) if us is None]
        predicted = iter(self._predict(shape, rest))
        if len(rest) < len(sizes):
            self.gpus.setdefault(shape.arch, {})[MEASURED] = self._devices[shape.arch][1]
        return [next(predicted) if us is None else LaunchTime(us, MEASURED) for us in measured]

    def of_kernel(self, shape: Shape, m: int, selection: Selection) -> LaunchTime:
        """The time of one m by a kernel: measured on it, else predicted for its tile and split of k."""
        s = selection
        measured_as = msgspec.structs.replace(shape, specialisation=s.problem.specialisation.value)
        us = self._of_kernels.get((measured_as, m, s.family.name, s.compiler.name, s.config))
        if us is not None:
            self.gpus.setdefault(shape.arch, {})[MEASURED] = self._devices[shape.arch][1]
            return LaunchTime(us, MEASURED)
        return self._predict(shape, [m], ((s.config.block_m, s.config.block_n, s.config.split_k),))[0]

    def _predict(self, shape: Shape, sizes: Sequence[int], tiles: tuple[Tile, ...] = ()) -> list[LaunchTime]:
        """By the fastest of some tiles; without any, of those that a library has."""
        unknown = [_UNKNOWN] * len(sizes)
        if not sizes or self.missing:
            return unknown
        try:
            import numpy  # noqa: F401 (an extra brings it)

            from cache_engine.evaluator import gpu as model
        except (ExtraMissing, ImportError) as error:
            self.missing = str(error)
            return unknown
        if shape.arch not in self._predicted_for:
            self._predicted_for[shape.arch] = self._gpu_for(shape.arch)
        gpu = self._predicted_for[shape.arch]
        if gpu is None or not {shape.dtype, shape.out_dtype} <= set(model.DTYPES):
            return unknown
        self.gpus.setdefault(shape.arch, {})[PREDICTED] = gpu.name
        return list(_predicted(gpu, (shape.n, shape.k, shape.batch), tuple(sizes), tiles))

    def _gpu_for(self, arch: str) -> Gpu | None:
        """The GPU that a target's times are predicted for: the one that was measured on, else the model's first."""
        from cache_engine.evaluator.chips import gpu_called, gpus_running

        running = gpus_running(arch)
        measured_on = gpu_called(self._devices.get(arch, ("", ""))[1])
        return measured_on if measured_on in running else next(iter(running), None)


@lru_cache(maxsize=16_384)
def _predicted(
    gpu: Gpu, fixed: tuple[int, int, int], sizes: tuple[int, ...], tiles: tuple[Tile, ...]
) -> tuple[LaunchTime, ...]:
    """The times of n, k and batch for each m. Cached, as a page with all shapes of a ledger asks three times."""
    import numpy

    from cache_engine.evaluator import gpu as model

    _, parameters = model.parameters_of(gpu)
    m = numpy.array(sizes, dtype=float)
    n, k, batch = (numpy.full_like(m, size) for size in fixed)
    if tiles:
        times = model.choice_times_us(parameters, gpu, m, n, k, batch, tiles).min(axis=0)
    else:
        times = model.latencies_us(parameters, gpu, m, n, k, batch)
    return tuple(LaunchTime(float(us), PREDICTED) for us in times)


def _shape_of(one: Measurement) -> Shape | None:
    """The shape of a measured problem; ``None`` when it has sizes that none has."""
    _, *values = msgspec.structs.astuple(one.problem)
    names = one.problem.__struct_fields__[1:]
    try:
        return msgspec.convert({**dict(zip(names, values, strict=True)), "arch": one.arch}, Shape)
    except msgspec.ValidationError:
        return None
