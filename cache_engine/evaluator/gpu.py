"""How long a bf16 or fp16 GEMM takes on a real GPU: a model with 16 parameters, calibrated on measured latencies.

For each choice of thread-block tile and split of k that libraries offer, the model adds up

- the launch, and for a split the further kernel and the traffic of adding up;
- waves of tiles over the SMs, between whole ones and evenly spread, each with a start, an epilogue that grows with the
  tile, and steps along k that take some time however small the tile is;
- multiplying, DRAM and L2, each at the share of its datasheet rate that was fitted, and of these mostly the slowest: a
  norm. Small tiles multiply at a lower rate; what fits into a share of L2 needs no DRAM; multiplying for long lowers
  the clock;

and takes the fastest. Roofline, its baseline, knows only the datasheet's peak and bandwidth.

Parameters are in ``gpu_parameters.json``, with what they were fitted on; ``fit_gpu`` makes it. A GPU without
measurements uses those fitted on all measured ones together.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from cache_engine.errors import InvalidHardware, InvalidProblem
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.extras import needing
from cache_engine.model.architecture import runs_on

with needing("evaluate", "the GPU model"):
    import numpy as np
    from numpy.typing import NDArray

EVALUATOR = "gpu"
MODEL_VERSION = "1.0.0"
PARAMETERS_FILE = Path(__file__).with_name("gpu_parameters.json")
ALL = "all"
"""Name of the parameters fitted on every measured GPU together."""

DTYPES = ("bf16", "fp16")

_TILES = (
    (16, 32), (16, 64), (32, 32), (32, 64), (64, 32), (64, 64), (64, 128), (128, 64), (128, 128), (128, 192),
    (192, 128), (64, 256), (256, 64), (128, 256), (256, 128), (256, 256),
)  # fmt: skip
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
Choices = tuple[tuple[int, int, int], ...]
"""Of the tile's rows and columns, and the split of k."""

CHOICES: Choices = tuple((m, n, split) for (m, n), split in product(_TILES, _SPLITS))

_STEP_K = 32
_LARGE_TILE = 128 * 256
_ITEM_BYTES = 2
_PARTIAL_BYTES = 4
_WARM_UP_US = 1000.0
"""How long multiplying takes to lower the clock."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GpuParameters:
    """What is fitted. Shares and factors are of datasheet rates.

    Attributes:
        launch_us: of any kernel.
        tile_us, epilogue_us: for each tile an SM does: in any case, and for a tile of 128 × 256 in proportion to its
            size.
        step_us: each 64 of k, however small the tile.
        matrix_share: of the peak, by large tiles.
        small_tile_loss: how much longer tiles take to multiply, for each of 1/m + 1/n.
        dram_share: of the bandwidth.
        write_weight: a byte written, in bytes read.
        l2_factor: bandwidth of L2, in that of DRAM.
        l2_share, l2_sharpness: share of L2 in which operands stay from one launch to the next, and how suddenly.
        wave_blend: 0 when SMs wait for the last of each wave, 1 when work is spread evenly.
        norm: exponent by which multiplying, DRAM and L2 are combined; the larger, the better they overlap.
        split_us, split_weight: for a split of k: the further kernel, and its traffic through L2.
        throttling: how much longer multiplying at full rate takes once the clock is lowered.
    """

    launch_us: float
    tile_us: float
    epilogue_us: float
    step_us: float
    matrix_share: float
    small_tile_loss: float
    dram_share: float
    write_weight: float
    l2_factor: float
    l2_share: float
    l2_sharpness: float
    wave_blend: float
    norm: float
    split_us: float
    split_weight: float
    throttling: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its datasheet.

    Args:
        peak_flops: dense bf16, fp32 accumulation, per second.
        dram_bandwidth: bytes per second.
        sms: streaming multiprocessors.
        l2_bytes: L2 cache.

    Raises:
        InvalidHardware: naming the field and what it may be.
    """

    name: str
    peak_flops: float
    dram_bandwidth: float
    sms: int
    l2_bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or len(self.name) > 100 or not self.name.isprintable():
            raise InvalidHardware(f"name is {self.name!r}; it must be a text of 1 to 100 printable characters")
        for name, limit in (("peak_flops", 1e20), ("dram_bandwidth", 1e18), ("sms", 1e6), ("l2_bytes", 1e13)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= limit:
                raise InvalidHardware(f"{name} is {value!r}; it must be a number from 1 to {limit:g}")

    @classmethod
    def from_dict(cls, description: dict[str, Any], source: str) -> Gpu:
        """The GPU that a JSON object describes; raises ``InvalidHardware`` naming a missing or unknown field."""
        names = [field.name for field in fields(cls)]
        for name in names:
            if name not in description:
                raise InvalidHardware(f"{source} lacks the field {name}")
        unknown = sorted(set(description) - set(names))
        if unknown:
            raise InvalidHardware(f"{source} has an unknown field {unknown[0]!r}; fields are: {', '.join(names)}")
        return cls(**description)


GPUS = {
    gpu.name: gpu
    for gpu in (
        # NVIDIA's datasheets: dense bf16 peak and memory bandwidth; SMs and L2 of the same products.
        Gpu("A100", 312e12, 2.039e12, 108, 40 * 2**20),  # A100 80GB SXM
        Gpu("H100", 989.4e12, 3.352e12, 132, 50 * 2**20),  # H100 SXM5
        Gpu("H200", 989.4e12, 4.8e12, 132, 50 * 2**20),  # H200 SXM
        Gpu("B200", 2250e12, 8.0e12, 148, 126 * 2**20),  # B200 SXM
        Gpu("L40S", 362.05e12, 0.864e12, 142, 96 * 2**20),
    )
}
"""GPUs known by name."""

# Source: NVIDIA, "CUDA GPU Compute Capability".
_TARGETS = {"A100": "sm_80", "H100": "sm_90", "H200": "sm_90", "B200": "sm_100", "L40S": "sm_89"}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says about a problem on a GPU.

    Attributes:
        latency_us: predicted.
        roofline_us: by the datasheet's peak and bandwidth alone.
        tile_m, tile_n, split_k: the choice that is the fastest in the model.
        calibrated_on: whose measurements the parameters are from: the GPU's own name, or ``"all"``.
    """

    latency_us: float
    roofline_us: float
    tile_m: int
    tile_n: int
    split_k: int
    calibrated_on: str


def predict(problem: EvaluationProblem, gpu: Gpu) -> Prediction:
    """The predicted latency of a problem. Measurements had batch 1 only; products of a batch share waves.

    Raises:
        InvalidProblem: for a dtype it was not calibrated for.
    """
    if problem.dtype not in DTYPES or problem.out_dtype not in DTYPES:
        raise InvalidProblem(f"dtype {problem.dtype} is not calibrated on GPUs; use one of: {', '.join(DTYPES)}")
    calibrated_on, parameters = parameters_of(gpu)
    sizes = [np.array([float(size)]) for size in (problem.m, problem.n, problem.k, problem.batch)]
    m, n, k, batch = sizes
    times = choice_times_us(parameters, gpu, m, n, k, batch)[:, 0]
    chosen = int(times.argmin())
    return Prediction(
        float(times[chosen]), float(roofline_us(gpu, *sizes)[0]), *CHOICES[chosen], calibrated_on=calibrated_on
    )


def latencies_us(parameters: GpuParameters, gpu: Gpu, m: Floats, n: Floats, k: Floats) -> Floats:
    """Predicted latencies of as many problems as the arrays are long, batch 1."""
    fastest: Floats = choice_times_us(parameters, gpu, m, n, k, np.ones_like(m)).min(axis=0)
    return fastest


def roofline_us(gpu: Gpu, m: Floats, n: Floats, k: Floats, batch: Floats | float = 1.0) -> Floats:
    """The longer of computing at the peak and moving each operand once at the datasheet's bandwidth."""
    compute = 2 * batch * m * n * k / gpu.peak_flops
    memory = _ITEM_BYTES * batch * (m * k + k * n + m * n) / gpu.dram_bandwidth
    return np.maximum(compute, memory) * 1e6


def choice_times_us(
    p: GpuParameters, gpu: Gpu, m: Floats, n: Floats, k: Floats, batch: Floats, choices: Choices = CHOICES
) -> Floats:
    """What each choice would take: one row for each, one column for each problem."""
    tile_m, tile_n, split = _columns(choices)
    l2_bandwidth = gpu.dram_bandwidth * p.l2_factor
    depth = np.ceil(k / split / _STEP_K) * _STEP_K
    tiles = np.ceil(m / tile_m) * np.ceil(n / tile_n) * split * batch
    spread = np.maximum(tiles / gpu.sms, 1)
    waves = (1 - p.wave_blend) * np.ceil(tiles / gpu.sms) + p.wave_blend * spread

    rate = gpu.peak_flops / gpu.sms * p.matrix_share / (1 + p.small_tile_loss * (1 / tile_m + 1 / tile_n))
    multiplying = waves * 2 * tile_m * tile_n * depth / rate * 1e6
    moved = _ITEM_BYTES * batch * (m * k + k * n + p.write_weight * m * n)
    from_dram = 1 / (1 + (moved / (gpu.l2_bytes * p.l2_share)) ** -p.l2_sharpness)
    dram = np.broadcast_to(moved * from_dram / (gpu.dram_bandwidth * p.dram_share) * 1e6, tiles.shape)
    through_l2 = _ITEM_BYTES * (tiles * (tile_m + tile_n) * depth + batch * m * n)
    l2 = through_l2 / l2_bandwidth * 1e6
    stepping = waves * depth / 64 * p.step_us

    overlapped = _norm(p.norm, multiplying, stepping, dram, l2)
    around = waves * (p.tile_us + p.epilogue_us * tile_m * tile_n / _LARGE_TILE)
    adding = p.split_us + p.split_weight * _PARTIAL_BYTES * split * batch * m * n / l2_bandwidth * 1e6
    times: Floats = p.launch_us + around + overlapped + (split > 1) * adding
    throttled = p.throttling * (multiplying / times) ** 4 * (1 - np.exp(-times / _WARM_UP_US))
    times *= 1 + throttled
    return times


@lru_cache(maxsize=64)
def _columns(choices: Choices) -> list[Floats]:
    """The choices' tile rows, tile columns and splits, each as a column."""
    return [np.array(column, dtype=np.float64)[:, None] for column in zip(*choices, strict=True)]


def _norm(exponent: float, *parts: Floats) -> Floats:
    """The parts' norm, scaled by the largest so that no power overflows."""
    largest = np.maximum.reduce(parts)
    total: Floats = largest * sum((part / largest) ** exponent for part in parts) ** (1 / exponent)
    return total


class _ParametersFile(msgspec.Struct):
    parameters: dict[str, dict[str, float]]
    source: str
    fitted_at: str


@lru_cache(maxsize=1)
def fitted() -> dict[str, GpuParameters]:
    """Parameters by the GPU they were fitted on."""
    file = msgspec.json.decode(PARAMETERS_FILE.read_bytes(), type=_ParametersFile)
    return {name: GpuParameters(**values) for name, values in file.parameters.items()}


def gpus_running(target: str) -> list[Gpu]:
    """The GPUs of ``GPUS`` that run code compiled for a target, such as ``"sm_90"``."""
    chips = {chip.name for chip in runs_on(target)}
    return [gpu for name, gpu in GPUS.items() if _TARGETS[name] in chips]


def parameters_of(gpu: Gpu) -> tuple[str, GpuParameters]:
    """A GPU's parameters, and whose measurements they are from; its own only for the one described in ``GPUS``."""
    name = gpu.name if gpu.name in fitted() and GPUS.get(gpu.name) == gpu else ALL
    return name, fitted()[name]
