"""Durations of launches: measured in this store, else predicted by the GPU model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from cache_engine.errors import ExtraMissing
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.measurement import Measurement
from cache_engine.model.shapes import Shape

if TYPE_CHECKING:
    from cache_engine.cache.selection import Selection
    from cache_engine.evaluator.chips import Gpu

Tile = tuple[int, int, int]
"""A tile of C: its rows, its columns, and the number of parts into which k is split."""
Problem = tuple[int, int, int, int]
"""The m, n, k and batch of a launch."""

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
    """Launch times on one GPU for each target: the GPU measured last, else the model's first GPU with this target.

    Attributes:
        gpus: by target and then by source, the name of the GPU to which the times returned so far apply.
        missing: the reason why times cannot be predicted here; empty when they can.
    """

    def __init__(self, timings: Iterable[Measurement]) -> None:
        """Reads ``timings``, which must come newest first."""
        self.gpus: dict[str, dict[str, str]] = {}
        self.missing = ""
        self._devices: dict[str, tuple[str, str]] = {}
        self._predicted_for: dict[tuple[str, str, str], Gpu | None] = {}
        self._ahead: dict[tuple[Shape, tuple[int, ...]], list[LaunchTime]] = {}
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

    def predict_ahead(self, asked: Mapping[Shape, Sequence[int]]) -> None:
        """Predicts the times of many shapes at once, each with the m that ``of`` will be asked for.

        That takes a tenth of the time that predicting one shape after another takes.
        """
        together: dict[Gpu, list[tuple[Shape, tuple[int, ...]]]] = {}
        for shape, sizes in asked.items():
            if (gpu := self._gpu_of(shape)) is not None:
                together.setdefault(gpu, []).append((shape, tuple(sizes)))
        for gpu, places in together.items():
            problems = [(m, shape.n, shape.k, shape.batch) for shape, sizes in places for m in sizes]
            times = iter(_predict_all(gpu, problems))
            self._ahead.update({(shape, sizes): list(islice(times, len(sizes))) for shape, sizes in places})

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
        gpu = self._gpu_of(shape) if sizes else None
        if gpu is None:
            return [_UNKNOWN] * len(sizes)
        self.gpus.setdefault(shape.arch, {})[PREDICTED] = gpu.name
        if not tiles and (ahead := self._ahead.get((shape, tuple(sizes)))):
            return ahead
        return list(_predicted(gpu, tuple((m, shape.n, shape.k, shape.batch) for m in sizes), tiles))

    def _gpu_of(self, shape: Shape) -> Gpu | None:
        """The GPU for which the times of a shape are predicted; ``None`` if they cannot be."""
        kind = shape.arch, shape.dtype, shape.out_dtype
        if not self.missing and kind not in self._predicted_for:
            try:
                import numpy  # noqa: F401 (an extra brings it)

                from cache_engine.evaluator import gpu as model
            except (ExtraMissing, ImportError) as error:
                self.missing = str(error)
                return None
            self._predicted_for[kind] = self._gpu_for(shape.arch) if set(kind[1:]) <= set(model.DTYPES) else None
        return self._predicted_for.get(kind)

    def _gpu_for(self, arch: str) -> Gpu | None:
        """The GPU for which a target's times are predicted: the one measured last, else the first in the model."""
        from cache_engine.evaluator.chips import gpu_called, gpus_running

        running = gpus_running(arch)
        measured_on = gpu_called(self._devices.get(arch, ("", ""))[1])
        return measured_on if measured_on in running else next(iter(running), None)


def _predict_all(gpu: Gpu, problems: Sequence[Problem], tiles: tuple[Tile, ...] = ()) -> list[LaunchTime]:
    import numpy

    from cache_engine.evaluator import gpu as model

    _, parameters = model.parameters_of(gpu)
    m, n, k, batch = numpy.array(problems, dtype=float).T
    if tiles:
        times = model.choice_times_us(parameters, gpu, m, n, k, batch, tiles).min(axis=0)
    else:
        times = model.latencies_us(parameters, gpu, m, n, k, batch)
    return [LaunchTime(us, PREDICTED) for us in times.tolist()]


@lru_cache(maxsize=16_384)
def _predicted(gpu: Gpu, problems: tuple[Problem, ...], tiles: tuple[Tile, ...]) -> list[LaunchTime]:
    """The predicted time for each problem of one shape; cached, because several reports ask for the same shapes."""
    return _predict_all(gpu, problems, tiles)


def _shape_of(one: Measurement) -> Shape | None:
    """The shape of a measured problem; ``None`` if its sizes are not valid."""
    _, *values = msgspec.structs.astuple(one.problem)
    names = one.problem.__struct_fields__[1:]
    try:
        return msgspec.convert({**dict(zip(names, values, strict=True)), "arch": one.arch}, Shape)
    except msgspec.ValidationError:
        return None
