"""The kernels that could serve a model's GEMMs, and what the GPU model predicts that each takes for every m.

All GPU times here are predictions of ``evaluator.gpu`` for the kernel's tile and split of k on a named GPU. That model
is calibrated on a vendor library. It sees no difference between kernels of one tile and split, so it cannot say what
constants gain (``exact``) or cost (``dynamic``) beyond the choice of the tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from cache_engine.cache.selection import Selector
from cache_engine.errors import InvalidProblem, UsageError
from cache_engine.evaluator.catalogue import ModelShape
from cache_engine.evaluator.chips import GPUS, Gpu, gpus_running
from cache_engine.evaluator.gpu import DTYPES, MODEL_VERSION, choice_times_us, parameters_of
from cache_engine.insight.coverage import cover
from cache_engine.kernels.select import ranking
from cache_engine.model.gemm import DType, GemmProblem, Specialisation
from cache_engine.model.kernel import KernelConfig

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
Tile = tuple[int, int, int]

_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Of k, that are tried for the best kernel."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One of the model's GEMMs, and the kernels that could serve it.

    Arrays that have a place for each m start with m = 0, which is never asked for.

    Attributes:
        name: what the layer is called.
        launches: how often it occurs in a step.
        tiles: rows, columns and split of k of each kernel. Kernels that share these count as one.
        seconds: kernels × m: what all launches of a step take.
        chosen, bucketed: by m, the kernel that the project's selector picks with ``nk`` and ``bucketed``.
        best: by m, the fastest kernel.
        dynamic: the kernel of ``dynamic``.
    """

    name: str
    launches: int
    tiles: tuple[Tile, ...]
    seconds: Floats
    chosen: Places
    bucketed: Places
    best: Places
    dynamic: int


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels and times that a replay has of a model on a GPU.

    Attributes:
        operations: its GEMMs.
        left_out: shapes that are not replayed, with the reason.
        predicted_by: what all times are from.
    """

    operations: tuple[Operation, ...]
    left_out: tuple[str, ...]
    predicted_by: str

    @property
    def most(self) -> int:
        """The largest m."""
        return len(self.operations[0].chosen) - 1

    @property
    def ideal_s(self) -> Floats:
        """By m, a step with the fastest kernels."""
        ideal: Floats = np.sum([each.seconds.min(axis=0) for each in self.operations], axis=0)
        return ideal


def gpu_for(arch: str, name: str | None) -> Gpu:
    """The GPU whose times are predicted: the one named, else the first known that runs code for the target.

    Raises:
        UsageError: when no known GPU runs code for the target, or the one named does not.
    """
    runs = gpus_running(arch)
    names = ", ".join(gpu.name for gpu in runs)
    if not runs:
        raise UsageError(f"no GPU of the evaluator runs {arch}; use a target of one of: {', '.join(GPUS)}")
    if name is None:
        return runs[0]
    for gpu in runs:
        if gpu.name == name.upper():
            return gpu
    raise UsageError(f"{name!r} is no GPU of the evaluator that runs {arch}; use one of: {names}")


def kernels_of(shapes: Sequence[ModelShape], arch: str, gpu: Gpu, selector: Selector, most: int, dtype: str) -> Kernels:
    """The kernels of a model for m from 1 to ``most``. Takes about a second.

    Shapes with a batch are left out: how many rows each expert or head gets, a trace does not say. Of two ways of
    computing, fused and separate, a step takes the fused one.

    Raises:
        UsageError: when no shape is left, or the GPU model does not know the type.
        InvalidProblem: when a shape is beyond what is supported.
        NotHereError: when the compiler is not installed, so that no key can be made.
    """
    if dtype not in DTYPES:
        raise InvalidProblem(f"GPU times of {dtype} are not calibrated; use one of: {', '.join(DTYPES)}")
    kept = [shape for shape in shapes if shape.batch == 1 and shape.alternative != "separate"]
    if not kept:
        raise UsageError("each shape has a batch, whose rows a trace does not say; use a model with plain layers")
    problems = {shape: replace(shape.problem(1, DType(dtype)), arch=arch) for shape in kept}
    calibrated_on, _ = parameters_of(gpu)
    on = gpu.name if calibrated_on == gpu.name else f"{gpu.name}, with the parameters of all measured GPUs"
    return Kernels(
        tuple(_operation(shape, problem, gpu, selector, most) for shape, problem in problems.items()),
        tuple(f"{shape.operation}: {shape.batch} products a launch" for shape in shapes if shape.batch != 1),
        f"GPU model {MODEL_VERSION} for {on}",
    )


def _operation(shape: ModelShape, problem: GemmProblem, gpu: Gpu, selector: Selector, most: int) -> Operation:
    tiles: dict[Tile, int] = {}

    def place(config: KernelConfig) -> int:
        return tiles.setdefault(_tile(config), len(tiles))

    def picked(specialisation: Specialisation) -> Places:
        places = np.zeros(most + 1, dtype=np.int64)
        for kernel in cover(selector, replace(problem, specialisation=specialisation), (range(1, most + 1),)):
            for ms in kernel.ms:
                places[ms.start : ms.stop : ms.step] = place(kernel.selection.config)
        return places

    chosen, bucketed = picked(Specialisation.NK), picked(Specialisation.BUCKETED)
    dynamic = place(selector.select(replace(problem, specialisation=Specialisation.DYNAMIC), None, None, None).config)
    for tile in _fastest(problem, gpu, most):
        tiles.setdefault(tile, len(tiles))
    seconds = np.zeros((len(tiles), most + 1))
    seconds[:, 1:] = shape.layers * _seconds(problem, gpu, tuple(tiles), np.arange(1, most + 1))
    return Operation(
        shape.operation, shape.layers, tuple(tiles), seconds, chosen, bucketed, seconds.argmin(axis=0), dynamic
    )


def _fastest(problem: GemmProblem, gpu: Gpu, most: int) -> list[Tile]:
    """Tiles and splits of the family's configs that are the fastest for some m, of those near multiples of 16 rows."""
    family = "tensor_core"
    heights = dict.fromkeys((config.block_m, config.block_n) for _, config in ranking(problem, family))
    tried = tuple((m, n, split) for (m, n), split in product(heights, _SPLITS))
    steps = np.arange(0, most + 1, 16)
    seconds = _seconds(problem, gpu, tried, np.unique(np.clip(np.concatenate([steps, steps + 1]), 1, most)))
    return [tried[place] for place in np.unique(seconds.argmin(axis=0)).tolist()]


def _seconds(problem: GemmProblem, gpu: Gpu, tiles: tuple[Tile, ...], ms: Places) -> Floats:
    """Predicted seconds of one launch: tiles × m."""
    m = ms.astype(np.float64)
    n, k, batch = (np.full_like(m, size) for size in (problem.n, problem.k, problem.batch))
    times: Floats = choice_times_us(parameters_of(gpu)[1], gpu, m, n, k, batch, tiles) / 1e6
    return times


def _tile(config: KernelConfig) -> Tile:
    return config.block_m, config.block_n, config.split_k
