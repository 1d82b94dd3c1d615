"""Chips by name or from a file: accelerators of the core-grid model, and GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cache_engine.errors import InvalidHardware
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.inputs import open_input

if TYPE_CHECKING:
    from cache_engine.evaluator.gpus import Gpu

_FILE_BYTES = 2**20

_REFERENCE_NAMES = {
    "sram_size_bytes": ("sram_bytes", 1),
    "sram_size_kb": ("sram_bytes", 1024),
    "sram_kb": ("sram_bytes", 1024),
    "dram_bandwidth_bytes": ("dram_bandwidth", 1),
    "compute_dma_overlap_rate": ("compute_dma_overlap", 1),
    "chip_type": ("name", 1),
}
"""Names of the public reference evaluator, ours, and by how much its number is multiplied."""

_NOT_OF_A_PRODUCT = (
    "flops_dtype", "eu_num", "intra_bw", "inter_bw", "c2c_bw_unidirectional_gbps", "intra_latency_us",
    "inter_latency_us", "comm_latency",
)  # fmt: skip
"""Its fields of vector units and communication, which no matrix multiplication of one chip depends on."""


def load_chip(name_or_file: str | Path) -> Hardware | Gpu:
    """A known chip by its name, else the JSON file of that path; one with a field ``sms`` describes a GPU.

    Raises:
        InvalidHardware: when there is neither, or the file has invalid fields.
    """
    name = str(name_or_file).upper()
    if name in PRESETS:
        return PRESETS[name]
    from cache_engine.evaluator.gpus import GPUS

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
    """The chip that a JSON object describes; one with a field ``sms`` is a GPU.

    Fields of an accelerator may have the names of the public reference evaluator.

    Raises:
        InvalidHardware: naming the invalid field.
    """
    if isinstance(description, dict) and "sms" in description:
        from cache_engine.evaluator.gpus import Gpu

        return Gpu.from_dict(description, source)
    return Hardware.from_dict(_in_our_names(description, source), source)


def load_hardware(name_or_file: str | Path) -> Hardware:
    """As ``load_chip``, for the core-grid model alone.

    Raises:
        InvalidHardware: also when it is a GPU.
    """
    chip = load_chip(name_or_file)
    if not isinstance(chip, Hardware):
        raise InvalidHardware(f"{chip.name} is a GPU; the core-grid model knows {', '.join(PRESETS)} and files")
    return chip


def load_gpu(name_or_file: str | Path) -> Gpu:
    """As ``load_chip``, for the GPU model alone.

    Raises:
        InvalidHardware: also when it is no GPU.
    """
    chip = load_chip(name_or_file)
    if isinstance(chip, Hardware):
        raise InvalidHardware(f"{chip.name} is no GPU; a description of a GPU has a field sms")
    return chip


def _in_our_names(description: Any, source: str) -> Any:
    """An accelerator whose fields have the reference's names, in ours."""
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
    from cache_engine.evaluator.gpus import GPUS

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
