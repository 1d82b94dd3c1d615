"""Accelerators of the core-grid model: cores that each have a matrix unit and SRAM, and share the DRAM bandwidth."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields, replace
from typing import Any

from cache_engine.errors import InvalidHardware
from cache_engine.evaluator.problem import ITEMSIZE

_LIMIT_INT = 2**40
_LIMIT_CORES = 65_536
_LIMIT_FLOAT = 1e18


@dataclass(frozen=True, slots=True)
class Hardware:
    """The description of an accelerator. Every field enters the fingerprint, so results of two descriptions never mix.

    Args:
        name: the accelerator's name.
        num_cores: the number of cores that share the work, at most 65 536.
        cube_m: rows of A in the block that a core's matrix unit multiplies in one cycle.
        cube_k: columns of A and rows of B in that block.
        cube_n: columns of B in that block.
        freq_ghz: clock of the matrix unit, in 10⁹ cycles per second.
        sram_bytes: on-chip memory of one core.
        sram_utilization: the share of the SRAM that tiles may fill, above 0, at most 1.
        dram_bandwidth: bytes per second of the whole chip; each core has an equal share.
        lane_num: rows of a tile in SRAM are padded to a multiple of this many.
        align_bytes: bytes of a row of C in SRAM are padded to a multiple of this.
        compute_dma_overlap: share of the shorter of computing and moving data that hides behind the longer, 0 to 1.
        rates: for types that the matrix unit multiplies faster or slower than its clock says, how many times as fast: a
            mapping such as ``{"int8": 2}``.

    Raises:
        InvalidHardware: naming the field and its allowed values.
    """

    name: str
    num_cores: int
    cube_m: int
    cube_k: int
    cube_n: int
    freq_ghz: float
    sram_bytes: int
    sram_utilization: float
    dram_bandwidth: float
    lane_num: int
    align_bytes: int
    compute_dma_overlap: float
    rates: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", _rates(self.rates))
        if not isinstance(self.name, str) or not self.name or len(self.name) > 100 or not self.name.isprintable():
            raise InvalidHardware(f"name is {self.name!r}; it must be a text of 1 to 100 printable characters")
        for name in _WHOLE:
            value = getattr(self, name)
            limit = _LIMIT_CORES if name == "num_cores" else _LIMIT_INT
            if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= limit or value % 1:
                raise InvalidHardware(f"{name} is {value!r}; it must be a whole number from 1 to {limit:,}")
            object.__setattr__(self, name, int(value))
        for name, zero_too, high in (
            ("freq_ghz", False, _LIMIT_FLOAT),
            ("dram_bandwidth", False, _LIMIT_FLOAT),
            ("sram_utilization", False, 1),
            ("compute_dma_overlap", True, 1),
        ):
            value = getattr(self, name)
            number = not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= high
            if not number or (value == 0 and not zero_too):
                what = "from 0" if zero_too else "above 0"
                raise InvalidHardware(f"{name} is {value!r}; it must be a number {what}, at most {high:g}")
            object.__setattr__(self, name, float(value))

    @property
    def peak_flops(self) -> float:
        """Floating-point operations per second of the whole chip, a multiply-add counted as two."""
        return 2.0 * self.num_cores * self.cube_m * self.cube_k * self.cube_n * self.freq_ghz * 1e9

    def rate_of(self, dtype: str) -> float:
        """The speed of the matrix unit for a type, as a multiple of the rate that its clock gives."""
        return dict(self.rates).get(dtype, 1.0)

    @property
    def usable_sram(self) -> int:
        """Bytes of a core's SRAM that tiles may fill."""
        return math.floor(self.sram_bytes * self.sram_utilization)

    def fingerprint(self) -> str:
        """A fingerprint of 32 hexadecimal digits. Two descriptions that differ in any field have different ones."""
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "rates" and not value:
                continue  # as before there were any, so that results of such a chip stay
            text = value.hex() if isinstance(value, float) else str(value)
            parts.append(f"{len(field.name)}:{field.name}{len(text)}:{text}")
        return hashlib.sha256("".join(("13:core-grid-hw1", *parts)).encode()).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """All fields, in the form that ``from_dict`` reads."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        rates = dict(values.pop("rates"))
        return {**values, "rates": rates} if rates else values

    @classmethod
    def from_dict(cls, description: Any, source: str = "hardware") -> Hardware:
        """The hardware that a JSON object describes.

        ``peak_flops`` may be given in place of ``freq_ghz``, which then follows from it; if both are given, they must
        agree.

        Raises:
            InvalidHardware: naming the field that is missing, unknown, contradictory or out of range.
        """
        if not isinstance(description, dict):
            raise InvalidHardware(f"{source} is no JSON object of fields such as name and num_cores")
        values = dict(description)
        peak = values.pop("peak_flops", None)
        names = [field.name for field in fields(cls)]
        unknown = sorted(map(str, set(values) - set(names)))
        if unknown:
            raise InvalidHardware(f"{source} has an unknown field {unknown[0]!r}; fields are: {', '.join(names)}")
        given = {"freq_ghz": 1.0, **values} if peak is not None else values
        missing = [name for name in names if name not in given and name != "rates"]
        if missing:
            hint = " (or peak_flops)" if missing[0] == "freq_ghz" else ""
            raise InvalidHardware(f"{source} lacks the field {missing[0]}{hint}")
        hardware = cls(**given)
        if peak is None:
            return hardware
        if isinstance(peak, bool) or not isinstance(peak, int | float) or not 0 < peak <= 1e30:
            raise InvalidHardware(f"peak_flops is {peak!r}; it must be a number above 0")
        freq_ghz = hardware.freq_ghz * peak / hardware.peak_flops
        if "freq_ghz" in values and not math.isclose(freq_ghz, hardware.freq_ghz, rel_tol=1e-6):
            raise InvalidHardware(
                f"peak_flops {peak:g} and freq_ghz {hardware.freq_ghz:g} contradict each other: this peak needs "
                f"{freq_ghz:g} GHz; leave one out"
            )
        return hardware if "freq_ghz" in values else replace(hardware, freq_ghz=freq_ghz)


def _rates(given: Any) -> tuple[tuple[str, float], ...]:
    """The rates by type, sorted by type, without rates of 1; ``given`` is a mapping or pairs."""
    pairs = list(given.items()) if isinstance(given, dict) else given
    is_listed = isinstance(pairs, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
    )
    if not is_listed:
        raise InvalidHardware(f'rates is {given!r}; it must be an object such as {{"int8": 2}}')
    for dtype, rate in pairs:
        if not isinstance(dtype, str) or dtype not in ITEMSIZE:
            raise InvalidHardware(f"rates has an unknown type {dtype!r}; use one or more of: {', '.join(ITEMSIZE)}")
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 1e-6 <= rate <= 1e6:
            raise InvalidHardware(f"rates.{dtype} is {rate!r}; it must be a number from 0.000001 to 1,000,000")
    return tuple(sorted((str(dtype), float(rate)) for dtype, rate in dict(pairs).items() if rate != 1))


_WHOLE = ("num_cores", "cube_m", "cube_k", "cube_n", "sram_bytes", "lane_num", "align_bytes")


def _sg226(name: str, cores: int, tflops: float, dram_bandwidth: float) -> Hardware:
    return Hardware.from_dict(
        {
            "name": name,
            "num_cores": cores,
            "cube_m": 16,
            "cube_k": 32,
            "cube_n": 8,
            "peak_flops": tflops * 1e12,
            "sram_bytes": 2 * 2**20,
            "sram_utilization": 0.45,
            "dram_bandwidth": dram_bandwidth,
            "lane_num": 16,
            "align_bytes": 32,
            "compute_dma_overlap": 0.8,
        }
    )


PRESETS = {
    hardware.name: hardware
    for hardware in (
        _sg226("SG2260E", 64, 768, 11_468.8e9),
        _sg226("SG2261", 64, 256, 4e12),
        _sg226("SG2262", 64, 384, 12e12),
    )
}
"""Accelerators known by name, each by its public configuration."""
