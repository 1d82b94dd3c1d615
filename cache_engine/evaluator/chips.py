"""Chips by name or from a file: accelerators of the core-grid model, and GPUs with or without a calibration."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from cache_engine.errors import InvalidHardware
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.inputs import open_input
from cache_engine.model.architecture import runs_on

# ---- A user's own measurements of a GPU: a few factors, and the errors of predictions then ----

FACTORS = ("launch", "compute", "memory", "steps", "epilogue")
"""The factors of a calibration. Each multiplies one of the model's times."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Factors that multiply the model's times on one GPU, fitted to measurements of that GPU.

    Args:
        id: 12 hexadecimal digits that identify the measurements; results name their calibration by it.
        source: the origin of the measurements.
        model: the version of the GPU model.
        base: the parameters that the factors apply to: those of the GPU, by its name, or ``"all"``.
        rows: the number of measurements.
        launch, compute, memory, steps, epilogue: the factors.
        low, high: two in three ratios measured / predicted lie between these two numbers, for measurements that were
            left out of the fit.
        error_before, error_after: the mean absolute error of predictions, as a share, without the calibration, and with
            it by cross-validation.

    Raises:
        InvalidHardware: naming the field and its allowed values.
    """

    id: str
    source: str
    model: str
    base: str
    rows: int
    launch: float
    compute: float
    memory: float
    steps: float
    epilogue: float
    low: float
    high: float
    error_before: float
    error_after: float

    def __post_init__(self) -> None:
        for name in ("id", "source", "model", "base"):
            value = getattr(self, name)
            if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
                raise InvalidHardware(f"calibration.{name} must be a text of 1 to 200 printable characters")
        for field in fields(self)[4:]:
            value = getattr(self, field.name)
            least = 0.0 if field.name.startswith("error") else 0.001
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1e9:
                raise InvalidHardware(f"calibration.{field.name} is {value!r}; it must be a number above 0")
        if self.low > self.high:
            raise InvalidHardware(f"calibration.low is {self.low:g}, above calibration.high, {self.high:g}")

    @classmethod
    def from_dict(cls, description: Any, source: str) -> Calibration:
        """The calibration that a JSON object describes; raises ``InvalidHardware`` naming a missing or wrong field."""
        names = [field.name for field in fields(cls)]
        if not isinstance(description, dict):
            raise InvalidHardware(f"{source}: calibration is no JSON object of fields such as {names[0]}")
        for name in names:
            if name not in description:
                raise InvalidHardware(f"{source} lacks the field calibration.{name}")
        unknown = sorted(set(description) - set(names))
        if unknown:
            raise InvalidHardware(f"{source} has an unknown field calibration.{unknown[0]}")
        return cls(**description)


# ---- GPUs as their datasheets describe them; the GPU model needs no more to predict times on one ----

_TYPICAL_SHARE = 0.8
"""The share of the peak that the best matrix multiplications reach. The GPUs below have 0.77 to 0.87, unless power
limits them.
"""
_ASYNCHRONOUS_FROM = 5e12
"""The bf16 operations per second and SM from which a GPU is taken for Hopper or later; Ampere and Ada have fewer."""

_RANGES = {
    "peak_flops": (1, 1e20),
    "dram_bandwidth": (1, 1e18),
    "sms": (1, 1e6),
    "l2_bytes": (1, 1e13),
    "clock_ghz": (0.01, 1e3),
    "matmul_flops": (0, 1e20),
    "l2_partitions": (1, 1e3),
    "fp8_flops": (0, 1e20),
    "int8_ops": (0, 1e20),
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its datasheet, and its calibration, if it has one. Rates are dense, that is without sparsity.

    Args:
        peak_flops: operations per second in bf16 with fp32 accumulation.
        dram_bandwidth: bytes per second.
        sms: streaming multiprocessors, or compute units.
        l2_bytes: bytes of the last cache before memory.
        clock_ghz: the clock at which the peak holds.
        matmul_flops: the highest measured operations per second of a bf16 matrix multiplication; 0 means 0.8 of the
            peak.
        l2_partitions: the number of parts of the L2; data that all SMs read has a copy in each part.
        fp8_flops: operations per second in fp8; 0 if the tensor cores do not have the type.
        int8_ops: operations per second in int8; 0 if the tensor cores do not have the type.
        asynchronous: whether tensor cores read operands from shared memory on their own, as from Hopper on; ``None``
            decides by the rate of an SM.
        calibration: the factors fitted to measurements of this GPU, or ``None``.

    Raises:
        InvalidHardware: naming the field and its allowed values.
    """

    name: str
    peak_flops: float
    dram_bandwidth: float
    sms: int
    l2_bytes: int
    clock_ghz: float = 1.7
    matmul_flops: float = 0.0
    l2_partitions: int = 1
    fp8_flops: float = 0.0
    int8_ops: float = 0.0
    asynchronous: bool | None = None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or len(self.name) > 100 or not self.name.isprintable():
            raise InvalidHardware(f"name is {self.name!r}; it must be a text of 1 to 100 printable characters")
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise InvalidHardware(f"{name} is {value!r}; it must be a number from {least:g} to {most:g}")
        if not (self.asynchronous is None or isinstance(self.asynchronous, bool)):
            raise InvalidHardware(f"asynchronous is {self.asynchronous!r}; it must be true, false or null")
        if self.matmul_flops > 2 * self.peak_flops:
            raise InvalidHardware(f"matmul_flops is {self.matmul_flops:g}, far above peak_flops {self.peak_flops:g}")

    @property
    def reads_asynchronously(self) -> bool:
        """Whether tensor cores read shared memory on their own.

        This is ``asynchronous`` or, if that is ``None``, follows from the rate of an SM.
        """
        return self.peak_flops / self.sms > _ASYNCHRONOUS_FROM if self.asynchronous is None else self.asynchronous

    @property
    def reached_flops(self) -> float:
        """``matmul_flops`` or, if that is 0, a typical share of the peak."""
        return self.matmul_flops or _TYPICAL_SHARE * self.peak_flops

    def peak_of(self, dtype: str) -> float:
        """Operations per second on inputs of a type, without sparsity; 0 if the GPU does not have the type."""
        return {"fp8": self.fp8_flops, "int8": self.int8_ops}.get(dtype, self.peak_flops)

    @classmethod
    def from_dict(cls, description: dict[str, Any], source: str) -> Gpu:
        """The GPU that a JSON object describes; raises ``InvalidHardware`` naming a missing or invalid field."""
        names = [field.name for field in fields(cls)]
        for name in names[:5]:
            if name not in description:
                raise InvalidHardware(f"{source} lacks the field {name}")
        unknown = sorted(set(description) - set(names))
        if unknown:
            raise InvalidHardware(f"{source} has an unknown field {unknown[0]!r}; fields are: {', '.join(names)}")
        calibration = description.get("calibration")
        if calibration is not None:
            calibration = Calibration.from_dict(calibration, source)
        return cls(**{**description, "calibration": calibration})


_MIB = 2**20

# Peaks, bandwidth, SMs and clocks: the vendors' datasheets and white papers, dense rates. ``matmul_flops``: S. Bekman,
# "Machine Learning Engineering", table "Maximum Achievable Matmul FLOPS" (M), or the bf16 column of
# https://github.com/zzc0721/torch-performance-test-data (T). L2 in partitions: white papers of A100 and H100; two dies
# in B200. AMD's caches: ROCm documentation, "AMD GPU specifications".
GPUS = {
    gpu.name: gpu
    for gpu in (
        # A100 80GB SXM (M), H100 SXM5 (M), H200 SXM (M: as H100), B200 SXM (M)
        Gpu("A100", 312e12, 2.039e12, 108, 40 * _MIB, 1.41, 271.2e12, 2, 0, 624e12),
        Gpu("H100", 989.4e12, 3.352e12, 132, 50 * _MIB, 1.83, 794.5e12, 2, 1978.9e12, 1978.9e12),
        Gpu("H200", 989.4e12, 4.8e12, 132, 50 * _MIB, 1.83, 794.5e12, 2, 1978.9e12, 1978.9e12),
        Gpu("B200", 2250e12, 8.0e12, 148, 126 * _MIB, 1.856, 1745e12, 2, 4500e12, 4500e12),
        # T: 269 of 362 TFLOP/s at 350 W
        Gpu("L40S", 362.05e12, 0.864e12, 142, 96 * _MIB, 2.52, 269.2e12, 1, 733e12, 733e12),
        # M: 828.6 at 900 W with HBM3e. The figures are of GH200 with 96 GB of HBM3.
        Gpu("GH200", 989.4e12, 4.0e12, 132, 50 * _MIB, 1.83, 828.6e12, 2, 1978.9e12, 1978.9e12),
        # T. Hopper's tensor cores at a rate below Ampere's.
        Gpu("H20", 148e12, 4.0e12, 78, 60 * _MIB, 1.83, 142.2e12, 2, 296e12, 296e12, True),
        # M. The datasheet's int8 rate is no longer twice that of bf16, and sources differ; it is left out.
        Gpu("B300", 2250e12, 8.0e12, 148, 126 * _MIB, 1.856, 1769e12, 2, 4500e12),
        # T: at 72 W, 59 of 121 TFLOP/s for 8192 × 8192 × 8192
        Gpu("L4", 121e12, 0.3e12, 58, 48 * _MIB, 2.04, 59.4e12, 1, 242e12, 242e12),
        # T. Tensor cores of GeForce sum in fp32 at half rate, so the fp8 rate is that with fp32 sums too.
        Gpu("RTX4090", 165.2e12, 1.008e12, 128, 72 * _MIB, 2.52, 163e12, 1, 330.3e12, 660.6e12),
        # A40 and A6000: T. A10: no figure found; the operations per watt of the A40, the same chip, at 150 W
        Gpu("A40", 149.7e12, 0.696e12, 84, 6 * _MIB, 1.74, 122.3e12, 1, 0, 299.3e12),
        Gpu("A6000", 154.8e12, 0.768e12, 84, 6 * _MIB, 1.8, 123.3e12, 1, 0, 309.7e12),
        Gpu("A10", 125e12, 0.6e12, 72, 6 * _MIB, 1.695, 61e12, 1, 0, 250e12),
        # MI300X: M; memory-side Infinity Cache as the last cache. MI210: the share of MI250X, 147 of 191.5 a die (M)
        Gpu("MI300X", 1307.4e12, 5.3e12, 304, 256 * _MIB, 2.1, 668.4e12, 1, 2614.9e12, 2614.9e12),
        Gpu("MI210", 181e12, 1.6384e12, 104, 8 * _MIB, 1.7, 139e12, 1, 0, 181e12),
    )
}
"""GPUs known by name. The first GPU of a target stands for the target if no GPU is named."""

TARGETS = {
    "A100": "sm_80", "H100": "sm_90", "H200": "sm_90", "B200": "sm_100", "L40S": "sm_89", "GH200": "sm_90",
    "H20": "sm_90", "B300": "sm_103", "L4": "sm_89", "RTX4090": "sm_89", "A40": "sm_86", "A6000": "sm_86",
    "A10": "sm_86",
}  # fmt: skip
"""The plain target of each NVIDIA GPU; AMD's GPUs have none. Source: NVIDIA, "CUDA GPU Compute Capability"."""


def gpus_running(target: str) -> list[Gpu]:
    """The GPUs of ``GPUS`` that run code compiled for a target, such as ``"sm_90"``; those of the target first."""
    chips = {chip.name for chip in runs_on(target)}
    running = [gpu for name, gpu in GPUS.items() if TARGETS.get(name) in chips]
    return sorted(running, key=lambda gpu: TARGETS[gpu.name] != target.rstrip("af"))


def gpus_of(target: str) -> list[Gpu]:
    """The known GPUs of a target itself; if there are none, all known GPUs that run its code."""
    running = gpus_running(target)
    return [gpu for gpu in running if TARGETS[gpu.name] == target.rstrip("af")] or running


def gpu_called(name: str) -> Gpu | None:
    """The known GPU with a name that a driver or a table uses, such as ``NVIDIA H100 80GB HBM3`` or ``h100_sxm``."""
    words = re.split(r"[^A-Z0-9]+", name.upper())
    pairs = [first + second for first, second in pairwise(words)]
    return next((GPUS[word] for word in (*words, *pairs) if word in GPUS), None)


_FILE_BYTES = 2**20

_REFERENCE_NAMES = {
    "sram_size_bytes": ("sram_bytes", 1),
    "sram_size_kb": ("sram_bytes", 1024),
    "sram_kb": ("sram_bytes", 1024),
    "dram_bandwidth_bytes": ("dram_bandwidth", 1),
    "compute_dma_overlap_rate": ("compute_dma_overlap", 1),
    "chip_type": ("name", 1),
}
"""For each field name of the public reference evaluator: our name, and the factor that converts its number."""

_NOT_OF_A_PRODUCT = (
    "flops_dtype", "eu_num", "intra_bw", "inter_bw", "c2c_bw_unidirectional_gbps", "intra_latency_us",
    "inter_latency_us", "comm_latency",
)  # fmt: skip
"""The reference evaluator's fields for vector units and communication, which do not affect a matrix multiplication on
one chip.
"""


def load_chip(name_or_file: str | Path) -> Hardware | Gpu:
    """The known chip with this name, else the chip in the JSON file with this path; a field ``sms`` makes it a GPU.

    Raises:
        InvalidHardware: when there is no such chip or file, or the file has invalid fields.
    """
    name = str(name_or_file).upper()
    if name in PRESETS:
        return PRESETS[name]
    if name in GPUS:
        return GPUS[name]
    path = Path(name_or_file)
    description = _read(path)
    try:
        return chip_of(description, str(path))
    except InvalidHardware as error:
        text = str(error)
        raise InvalidHardware(text if text.startswith(str(path)) else f"{path}: {text}") from error


def chip_of(description: Any, source: str) -> Hardware | Gpu:
    """The chip that a JSON object describes; a field ``sms`` makes it a GPU.

    An accelerator's fields may have the names of the public reference evaluator.

    Raises:
        InvalidHardware: naming the invalid field.
    """
    if isinstance(description, dict) and "sms" in description:
        return Gpu.from_dict(description, source)
    return Hardware.from_dict(_in_our_names(description, source), source)


def load_hardware(name_or_file: str | Path) -> Hardware:
    """The accelerator with this name, or in the JSON file with this path; as ``load_chip``, but never a GPU.

    Raises:
        InvalidHardware: also when the chip is a GPU.
    """
    chip = load_chip(name_or_file)
    if not isinstance(chip, Hardware):
        raise InvalidHardware(f"{chip.name} is a GPU; the core-grid model knows {', '.join(PRESETS)} and files")
    return chip


def load_gpu(name_or_file: str | Path) -> Gpu:
    """The GPU with this name, or in the JSON file with this path; as ``load_chip``, but never an accelerator.

    Raises:
        InvalidHardware: also when the chip is not a GPU.
    """
    chip = load_chip(name_or_file)
    if isinstance(chip, Hardware):
        raise InvalidHardware(f"{chip.name} is no GPU; a description of a GPU has a field sms")
    return chip


def _in_our_names(description: Any, source: str) -> Any:
    """An accelerator's description with the reference evaluator's field names replaced by ours."""
    if not isinstance(description, dict):
        return description
    ours = {name: value for name, value in description.items() if name not in {*_REFERENCE_NAMES, *_NOT_OF_A_PRODUCT}}
    for theirs, (name, unit) in _REFERENCE_NAMES.items():
        if theirs not in description:
            continue
        if name in ours:
            raise InvalidHardware(f"{source} has {theirs} and another name of the same field, {name}; leave one out")
        value = description[theirs]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        ours[name] = value * unit if is_number else value
    return ours


def _read(path: Path) -> Any:
    try:
        with open_input(path) as file:
            data = file.read(_FILE_BYTES + 1)
    except OSError as error:
        names = ", ".join((*PRESETS, *GPUS))
        raise InvalidHardware(
            f"{str(path)!r} is neither a known chip ({names}) nor a file that can be read: {error.strerror}"
        ) from error
    except ValueError as error:
        raise InvalidHardware(f"{str(path)!r} is no name of a chip or file") from error
    if len(data) > _FILE_BYTES:
        raise InvalidHardware(f"{path} is larger than 1 MiB; a description of hardware is a small JSON object")
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidHardware(f"{path} is no JSON: {error}") from error
