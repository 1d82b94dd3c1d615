"""The predicted time of a GEMM on a real GPU: a model with 16 parameters, calibrated on measured latencies.

For each choice of thread-block tile and split of k that libraries offer, the model adds up

- the launch, and for a split the further kernel and the traffic of adding up;
- waves of tiles over the SMs, between whole ones and evenly spread, each with an epilogue that grows with the tile, and
  steps along k that take some cycles however small the tile is;
- multiplying, DRAM and L2, each at a fitted share of the GPU's rate: a norm, in which the slowest counts most. Weights
  come from the L2 if five copies fit into a part of it; multiplying for long lowers the clock;

and takes the fastest choice. Roofline, the baseline, knows only the datasheet's peak and bandwidth.

Parameters hold for every GPU, because each is a share of a datasheet value, or per clock cycle: the rates of L2 and
epilogue grow with the tensor cores' rate per SM and cycle. GPUs whose tensor cores read shared memory on their own have
other values for two parameters. A measured GPU has its own set; any other GPU has the set fitted on all measured GPUs.
``benchmarks.fit_gpu`` writes the sets to ``gpu_parameters.json``; docs/decisions/0015-gpu-model-by-datasheet.md has the
reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from cache_engine.errors import InvalidHardware, InvalidProblem
from cache_engine.evaluator.chips import GPUS, Gpu
from cache_engine.evaluator.problem import ITEMSIZE, EvaluationProblem
from cache_engine.settings.extras import lazy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = lazy("numpy", "evaluate", "the GPU model")

EVALUATOR = "gpu"
MODEL_VERSION = "2.0.0"
PARAMETERS_FILE = Path(__file__).with_name("gpu_parameters.json")
ALL = "all"
"""The name of the parameters that were fitted on all measured GPUs together."""

DTYPES = ("bf16", "fp16")
"""The types of A and B whose times were measured."""
RATED = (*DTYPES, "fp8", "int8")
"""The types that can be predicted; unmeasured types are predicted from their rate in the datasheet."""

M_RANGES = ((1, 16), (17, 64), (65, 256), (257, 1024), (1025, 4096), (4097, 10**12))
"""Ranges of m. Each has its own interval of predictions, and its own errors in a validation."""

Choices = tuple[tuple[int, int, int], ...]
"""Choices of the model: each is the tile's rows and columns, and the split of k."""

_TILES = (
    (16, 64), (32, 64), (64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128),
)  # fmt: skip
_WAVES = (1, 2)
"""The tiles per SM up to which libraries split k; the model tries each number, and also no split."""
_MOST_SPLIT, _LEAST_DEPTH = 32, 256

_STEP_K = 64
_PARTIAL_BYTES = 4
_ROTATED = 5
"""The number of copies of the weights that the measurements used in turn; all of them together may not fit the L2."""
_WIDE = 4096
"""The operations per SM and cycle of an H100, for which the fields ``…_per_cycle`` hold. For a GPU with another number,
those fields are multiplied by the ratio of the two numbers to the power ``_GROWTH``.
"""
_GROWTH = 0.75
_WARM_UP_US = 1000.0
"""The time constant in microseconds with which the clock falls while a GPU multiplies."""
_BLOCK = 256
"""The number of problems computed at a time, so that the arrays stay in the processor's cache."""

Floats: TypeAlias = "NDArray[np.float64]"


@dataclass(frozen=True, slots=True)
class GpuParameters:
    """The fitted parameters of the model.

    Attributes:
        launch_us: the time of any kernel's launch.
        matrix_share: the rate of large tiles before the clock falls, as a share of ``Gpu.reached_flops``.
        small_tile_loss: the extra time to multiply a tile of m × n, as a factor times (1/m + 1/n).
        throttling: the extra share of time for multiplying at full rate once the clock has fallen.
        step_cycles, step_cycles_sync: the least cycles for each 64 of k, however small the tile; the second if warps
            load the operands.
        wave_blend, wave_blend_sync: 0 if all SMs wait for the last tile of each wave, 1 if work is spread evenly; the
            second if warps load the operands.
        epilogue_bytes_per_cycle: bytes of C that an SM's epilogue handles in a cycle.
        dram_share: the share of the DRAM bandwidth that is reached.
        write_weight: the cost of a written byte, in read bytes.
        l2_bytes_per_cycle: bytes that an SM reads from the L2 in a cycle.
        l2_share, l2_sharpness: the share of a part of the L2 that weights used in turn may fill and still be found
            there, and how abruptly they are no longer found when they are larger.
        split_us, split_weight: for a split of k, the time of the further kernel, and the weight of its traffic through
            the L2.
    """

    launch_us: float
    matrix_share: float
    small_tile_loss: float
    throttling: float
    step_cycles: float
    step_cycles_sync: float
    wave_blend: float
    wave_blend_sync: float
    epilogue_bytes_per_cycle: float
    dram_share: float
    write_weight: float
    l2_bytes_per_cycle: float
    l2_share: float
    l2_sharpness: float
    split_us: float
    split_weight: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The model's result for a problem on a GPU.

    Attributes:
        latency_us: the predicted time.
        roofline_us: the time by the datasheet's peak and bandwidth alone.
        tile_m, tile_n, split_k: the fastest choice of the model.
        calibrated_on: the GPU whose measurements the parameters were fitted to, or ``"all"``.
        low_us, high_us: the interval in which 68 % of measurements are expected to lie.
        calibration: the id of the user's own calibration; empty without one.
    """

    latency_us: float
    roofline_us: float
    tile_m: int
    tile_n: int
    split_k: int
    calibrated_on: str
    low_us: float = 0.0
    high_us: float = 0.0
    calibration: str = ""


def predict(problem: EvaluationProblem, gpu: Gpu) -> Prediction:
    """The predicted latency of a problem.

    All measurements had batch 1. For a larger batch, the model assumes that the products share waves of tiles.

    Raises:
        InvalidProblem: for a dtype that cannot be predicted, or that this GPU does not have.
    """
    check_rated(gpu, problem.dtype, problem.out_dtype)
    m, n, k, batch = (np.array([float(size)]) for size in (problem.m, problem.n, problem.k, problem.batch))
    work = _Work(m, n, k, batch, problem.in_bytes, problem.out_bytes, scale_bytes=problem.scale_bytes)
    return _predicted(gpu, work, problem.dtype, problem.m)


def predict_grouped(
    sizes: Sequence[int], n: int, k: int, gpu: Gpu, dtype: str = "bf16", out_dtype: str = "bf16", scales: str = ""
) -> Prediction:
    """The predicted latency of a grouped GEMM, such as a mixture of experts: one launch of several products.

    Each product has its own m, from ``sizes``, and its own weights, n × k. Groups without rows cost nothing.

    Raises:
        InvalidProblem: as ``predict``, or when no group has rows.
    """
    check_rated(gpu, dtype, out_dtype)
    parts = [EvaluationProblem(m, n, k, 1, dtype, out_dtype, scales) for m in sizes if m]
    if not parts:
        raise InvalidProblem("every group has 0 rows; give at least one group some")
    rows, of_each = [part.m for part in parts], parts[0]
    groups = np.array([float(len(rows))])
    work = _Work(
        np.array([sum(rows) / len(rows)]), np.array([float(n)]), np.array([float(k)]), groups,
        of_each.in_bytes, of_each.out_bytes, np.array(rows, dtype=np.float64), of_each.scale_bytes,
    )  # fmt: skip
    return _predicted(gpu, work, dtype, sum(rows) / len(rows))


def latencies_us(
    parameters: GpuParameters, gpu: Gpu, m: Floats, n: Floats, k: Floats, batch: Floats | float = 1.0,
    dtype: str = "bf16",
) -> Floats:  # fmt: skip
    """The predicted latencies, in microseconds, of the problems in the arrays.

    The type is one of ``RATED``; results have 2 bytes.
    """
    batches = np.broadcast_to(np.asarray(batch, dtype=np.float64), m.shape)
    times = np.empty(len(m))
    for at in range(0, len(m), _BLOCK):
        part = slice(at, at + _BLOCK)
        work = _Work(m[part], n[part], k[part], batches[part], ITEMSIZE[dtype])
        times[part] = _fastest(parameters, gpu, work, dtype)[0]
    return times


def roofline_us(gpu: Gpu, m: Floats, n: Floats, k: Floats, batch: Floats | float = 1.0, dtype: str = "bf16") -> Floats:
    """The roofline's times in µs: computing at the peak or, if longer, moving each operand once at full bandwidth."""
    batches = np.broadcast_to(np.asarray(batch, dtype=np.float64), m.shape)
    return _roofline_us(gpu, _Work(m, n, k, batches, ITEMSIZE[dtype]), dtype)


def choice_times_us(
    p: GpuParameters, gpu: Gpu, m: Floats, n: Floats, k: Floats, batch: Floats, choices: Choices
) -> Floats:
    """The time in microseconds of each choice in bf16: a row for each choice, a column for each problem."""
    tile_m, tile_n, split = _columns(choices)
    work = _Work(m, n, k, batch)
    tiles = work.tiles(tile_m, tile_n) * split
    times, multiplying = _Costs(p, gpu, work, "bf16").of(tile_m, tile_n, split, tiles)
    return times * _throttled(p, times, multiplying)


@dataclass(frozen=True, slots=True)
class _Work:
    """Several problems, each with one place in every array. A grouped problem has its mean m and each group's rows."""

    m: Floats
    n: Floats
    k: Floats
    batch: Floats
    in_bytes: int = 2
    out_bytes: int = 2
    rows: Floats | None = None
    scale_bytes: tuple[float, float] = (0.0, 0.0)

    def tiles(self, tile_m: Floats, tile_n: Floats) -> Floats:
        """The number of tiles of C: a row for each size of tile, a column for each problem."""
        if self.rows is None:
            down: Floats = np.ceil(self.m / tile_m) * self.batch
        else:
            down = np.ceil(self.rows / tile_m).sum(axis=1, keepdims=True)
        return down * np.ceil(self.n / tile_n)


class _Costs:
    """The times of problems on a GPU. The constructor computes what all choices of tile and split have in common."""

    def __init__(self, p: GpuParameters, gpu: Gpu, work: _Work, dtype: str) -> None:
        factor = gpu.calibration
        self._gpu, self._work = gpu, work
        per_us = gpu.clock_ghz * 1e3
        rate = gpu.peak_of(dtype)
        width = (rate / gpu.sms / per_us / 1e6 / _WIDE * work.in_bytes / 2) ** _GROWTH
        self._l2 = p.l2_bytes_per_cycle * width * per_us * gpu.sms
        self._rate = gpu.reached_flops / gpu.peak_flops * rate * p.matrix_share / gpu.sms / 1e6
        self._loss = p.small_tile_loss
        self._blend = p.wave_blend if gpu.reads_asynchronously else p.wave_blend_sync
        self._step = (p.step_cycles if gpu.reads_asynchronously else p.step_cycles_sync) / per_us / _STEP_K
        self._step *= work.in_bytes / 2
        self._epilogue = work.out_bytes / (p.epilogue_bytes_per_cycle * width * per_us)
        self._launch, memory = p.launch_us, 1.0
        if factor is not None:
            self._launch *= factor.launch
            self._rate /= factor.compute
            self._step *= factor.steps
            self._epilogue *= factor.epilogue
            memory = factor.memory
        written = work.batch * work.m * work.n * work.out_bytes
        read = work.batch * work.m * work.k * (work.in_bytes + work.scale_bytes[0])
        weights = work.batch * work.n * work.k * (work.in_bytes + work.scale_bytes[1])
        kept = gpu.l2_bytes / gpu.l2_partitions * p.l2_share
        away = 1 / (1 + ((_ROTATED * (weights + written) + read) / kept) ** -p.l2_sharpness)
        moved = weights + read + p.write_weight * written
        self._dram = (moved * away / (gpu.dram_bandwidth * p.dram_share) * (1e6 * memory)) ** 4
        self._written = written / self._l2
        self._adding = p.split_us + np.zeros_like(written)
        self._partial = p.split_weight * _PARTIAL_BYTES / work.out_bytes * self._written

    def of(self, tile_m: Floats, tile_n: Floats, split: Floats | None, tiles: Floats) -> tuple[Floats, Floats]:
        """The times of choices whose numbers of tiles are ``tiles``, and the part of each time spent multiplying.

        Both are in microseconds, as arrays of choices × problems.
        """
        area = tile_m * tile_n
        k = self._work.k / _STEP_K
        depth = np.ceil(k if split is None else k / split) * _STEP_K
        per_sm = tiles / self._gpu.sms
        waves = (1 - self._blend) * np.ceil(per_sm) + self._blend * np.maximum(per_sm, 1)
        deep = waves * depth
        multiplying = 2 * (area + self._loss * (tile_m + tile_n)) / self._rate
        of_a, of_b = self._work.scale_bytes
        copied = self._work.in_bytes * (tile_m + tile_n) + (of_a * tile_m + of_b * tile_n)
        through_l2 = tiles * depth * (copied / self._l2) + self._written
        overlapped = np.sqrt(
            np.sqrt(_fourth(deep) * (multiplying**4 + self._step**4) + _fourth(through_l2) + self._dram)
        )
        times = self._launch + overlapped + waves * (area * self._epilogue)
        if split is not None:
            times += (split > 1) * (self._adding + split * self._partial)
        return times, deep * multiplying


def _fastest(p: GpuParameters, gpu: Gpu, work: _Work, dtype: str = "bf16") -> tuple[Floats, Floats, Floats]:
    """For each problem, its fastest choice: the time in µs, the tile's index in ``_TILES``, and the split of k."""
    tile_m, tile_n, _ = _columns(tuple((*tile, 1) for tile in _TILES))
    costs, tiles = _Costs(p, gpu, work, dtype), work.tiles(tile_m, tile_n)
    most = np.maximum(np.minimum(np.floor(work.k / _LEAST_DEPTH), _MOST_SPLIT), 1)
    places = np.arange(tiles.shape[1])
    best = np.full((4, len(places)), np.inf)
    for waves in (0, *_WAVES):
        split = np.clip(np.floor(waves * gpu.sms / tiles), 1, most) if waves else None
        times, multiplying = costs.of(tile_m, tile_n, split, tiles if split is None else tiles * split)
        row = times.argmin(axis=0)
        splits = np.ones(len(places)) if split is None else split[row, places]
        found = np.stack([times[row, places], multiplying[row, places], row, splits])
        best = np.where(found[0] < best[0], found, best)
    return best[0] * _throttled(p, best[0], best[1]), best[2], best[3]


def _throttled(p: GpuParameters, times: Floats, multiplying: Floats) -> Floats:
    factor: Floats = 1 + p.throttling * (multiplying / times) ** 4 * (1 - np.exp(-times / _WARM_UP_US))
    return factor


def _fourth(x: Floats) -> Floats:
    squared = x * x
    squared *= squared
    return squared


def _predicted(gpu: Gpu, work: _Work, dtype: str, m: float) -> Prediction:
    calibrated_on, parameters = parameters_of(gpu)
    times, tile, split = _fastest(parameters, gpu, work, dtype)
    latency, (tile_m, tile_n) = float(times[0]), _TILES[int(tile[0])]
    low, high = spread_of(gpu, m, dtype)
    return Prediction(
        latency, float(_roofline_us(gpu, work, dtype)[0]), tile_m, tile_n, int(split[0]), calibrated_on,
        latency * low, latency * high, gpu.calibration.id if gpu.calibration else "",
    )  # fmt: skip


def _roofline_us(gpu: Gpu, work: _Work, dtype: str) -> Floats:
    compute = 2 * work.batch * work.m * work.n * work.k / gpu.peak_of(dtype)
    of_a, of_b = work.scale_bytes
    operands = (work.m * work.k + work.k * work.n) * work.in_bytes + work.m * work.n * work.out_bytes
    operands = operands + work.k * (work.m * of_a + work.n * of_b)
    return np.maximum(compute, work.batch * operands / gpu.dram_bandwidth) * 1e6


def check_rated(gpu: Gpu, dtype: str, out_dtype: str = "bf16") -> None:
    """Checks that times of products of these types can be predicted for a GPU.

    Raises:
        InvalidProblem: naming the types that can be predicted.
    """
    if dtype not in RATED or out_dtype not in DTYPES:
        raise InvalidProblem(
            f"dtype {dtype} with results in {out_dtype} is not calibrated on GPUs; use: {', '.join(RATED)}, with "
            f"results in {' or '.join(DTYPES)}"
        )
    if not gpu.peak_of(dtype):
        raise InvalidProblem(f"{gpu.name} has no rate for {dtype}; use another type, or a description that has one")


@lru_cache(maxsize=64)
def _columns(choices: Choices) -> list[Floats]:
    """The tile rows, the tile columns and the splits of the choices, each as a column."""
    return [np.array(column, dtype=np.float64)[:, None] for column in zip(*choices, strict=True)]


Spread = tuple[tuple[float, float], ...]
"""For each of ``M_RANGES``, the ratios measured / predicted between which two in three measurements lie."""


class _ParametersFile(msgspec.Struct):
    parameters: dict[str, dict[str, float]]
    spreads: dict[str, Spread]
    source: str
    fitted_at: str


@lru_cache(maxsize=1)
def _file() -> _ParametersFile:
    return msgspec.json.decode(PARAMETERS_FILE.read_bytes(), type=_ParametersFile)


@lru_cache(maxsize=1)
def fitted() -> dict[str, GpuParameters]:
    """The parameters, by the GPU whose measurements they were fitted to."""
    return {name: GpuParameters(**values) for name, values in _file().parameters.items()}


def parameters_of(gpu: Gpu) -> tuple[str, GpuParameters]:
    """A GPU's parameters, and the name of the GPU they were fitted to, or ``all``.

    A GPU has parameters of its own only if it is described exactly as in ``GPUS``.

    Raises:
        InvalidHardware: when the GPU was calibrated with another version of the model.
    """
    made = gpu.calibration
    if made is not None:
        if made.base not in fitted() or made.model != MODEL_VERSION:
            raise InvalidHardware(
                f"{gpu.name} was calibrated with GPU model {made.model[:20]}, and this is {MODEL_VERSION}; run "
                f"gemm-cache calibrate again"
            )
        return made.base, fitted()[made.base]
    is_known = gpu.name in fitted() and GPUS.get(gpu.name) == gpu
    name = gpu.name if is_known else ALL
    return name, fitted()[name]


def spread_of(gpu: Gpu, m: float, dtype: str = "bf16") -> tuple[float, float]:
    """The ratios measured / predicted on this GPU between which two in three measurements lie.

    For a GPU or type without measurements: the ratios found when each GPU was predicted from the others.
    """
    if gpu.calibration is not None:
        return gpu.calibration.low, gpu.calibration.high
    name = parameters_of(gpu)[0] if dtype in DTYPES else ALL
    place = next((place for place, (_, most) in enumerate(M_RANGES) if m <= most), len(M_RANGES) - 1)
    return _file().spreads[name][place]
