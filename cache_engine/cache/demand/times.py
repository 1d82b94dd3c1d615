"""Durations of launches: measured in this store, else predicted by the GPU model."""

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
"""A tile of C: its rows, its columns, and the number of parts into which k is split."""

MEASURED, PREDICTED, UNKNOWN = "measured", "predicted", "unknown"
"""The possible origins of a launch time."""


@dataclass(frozen=True, slots=True)
class LaunchTime:
    """The duration of one launch.

    Attributes:
        us: the duration in microseconds; 0 if it is unknown.
        source: ``MEASURED`` on a device, for the fastest verified kernel of this size; ``PREDICTED`` by the GPU model,
            for a kernel of a library such as cuBLAS; or ``UNKNOWN``.
    """

    us: float
    source: str


_UNKNOWN = LaunchTime(0.0, UNKNOWN)


class LaunchTimes:
    """Launch times on one GPU for each target: the GPU measured last, else the first GPU of the model with this target.

    Attributes:
        gpus: by target and then by source, the name of the GPU to which the times returned so far apply.
        missing: the reason why times cannot be predicted here; empty when they can.
    """

    def __init__(self, timings: Iterable[Measurement]) -> None:
        """Reads ``timings``, which must come newest first."""
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
        """The launch time for each m in ``sizes``."""
        measured = [self._measured.get((shape, m)) for m in sizes]
        rest = [m for m, us in zip(sizes, measured, strict=True) if us is None]
        predicted = iter(self._predict(shape, rest))
        if len(rest) < len(sizes):
            self.gpus.setdefault(shape.arch, {})[MEASURED] = self._devices[shape.arch][1]
        return [next(predicted) if us is None else LaunchTime(us, MEASURED) for us in measured]

    def of_kernel(self, shape: Shape, m: int, selection: Selection) -> LaunchTime:
        """The launch time of a kernel for one m: measured for this kernel, else predicted from tile and split of k."""
        s = selection
        measured_as = msgspec.structs.replace(shape, specialisation=s.problem.specialisation.value)
        us = self._of_kernels.get((measured_as, m, s.family.name, s.compiler.name, s.config))
        if us is not None:
            self.gpus.setdefault(shape.arch, {})[MEASURED] = self._devices[shape.arch][1]
            return LaunchTime(us, MEASURED)
        return self._predict(shape, [m], ((s.config.block_m, s.config.block_n, s.config.split_k),))[0]

    def _predict(self, shape: Shape, sizes: Sequence[int], tiles: tuple[Tile, ...] = ()) -> list[LaunchTime]:
        """The predicted times with the fastest of ``tiles``; if none are given, with the fastest tile of a library."""
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
        """The GPU for which a target's times are predicted: the one measured last, else the first in the model."""
        from cache_engine.evaluator.chips import gpu_called, gpus_running

        running = gpus_running(arch)
        measured_on = gpu_called(self._devices.get(arch, ("", ""))[1])
        return measured_on if measured_on in running else next(iter(running), None)


@lru_cache(maxsize=16_384)
def _predicted(
    gpu: Gpu, fixed: tuple[int, int, int], sizes: tuple[int, ...], tiles: tuple[Tile, ...]
) -> tuple[LaunchTime, ...]:
    """The predicted time for each m, with ``fixed`` as n, k and batch.

    Cached, because the page that shows all shapes of a ledger calls this three times for each.
    """
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
    """The shape of a measured problem; ``None`` if its sizes are not valid."""
    _, *values = msgspec.structs.astuple(one.problem)
    names = one.problem.__struct_fields__[1:]
    try:
        return msgspec.convert({**dict(zip(names, values, strict=True)), "arch": one.arch}, Shape)
    except msgspec.ValidationError:
        return None
