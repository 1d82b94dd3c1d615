"""What instructions compute that NumPy has no function for, on the bits of all threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tests.ptx.tensor import FP8

Array = npt.NDArray[Any]


def insert_bits(field: Any, base: Any, start: Any, length: Any) -> Any:
    """``bfi``."""
    ones = (np.left_shift(1, length, dtype=np.uint64) - 1) << np.uint64(start)
    return (base & ~ones) | (np.left_shift(field, start, dtype=np.uint64) & ones)


def pick_bytes(low: Any, high: Any, selector: Any) -> Any:
    """``prmt``: each byte one of eight, or the sign of one."""
    source = np.left_shift(high, 32, dtype=np.uint64) | low
    found: Any = np.uint64(0)
    for byte in range(4):
        choice = np.right_shift(selector, 4 * byte) & 15
        value = source >> np.multiply(choice & 7, 8, dtype=np.uint64) & np.uint64(0xFF)
        value = np.where(choice & 8, np.where(value & np.uint64(0x80), 0xFF, 0), value).astype(np.uint64)
        found = found | value << np.uint64(8 * byte)
    return found


def to_bf16(bits: Array) -> Any:
    """fp32 to the nearest bf16, ties to even; of NaN the one that the ISA names."""
    rounded = bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1) >> np.uint64(16)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFF, rounded)


def to_tf32(bits: Array, ties_away: bool) -> Any:
    """fp32 to the nearest tf32; of NaN the one that the ISA names."""
    half = 0x1000 if ties_away else 0xFFF + (bits >> 13 & 1)
    rounded = (bits.astype(np.uint64) + half) & np.uint64(0xFFFFE000)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFFFFFF, rounded)


def two_to_fp8(high: Array, low: Array, kind: str) -> Any:
    """fp32 to two codes, the first in the upper byte: the nearest, ties to even, at most the largest; NaN is 0x7F."""
    fraction_bits, least, largest = (3, -6, 448.0) if kind == "e4m3" else (2, -14, 57344.0)
    values = np.stack([low, high]).astype(np.float64)
    sizes = np.minimum(np.abs(np.nan_to_num(values, nan=0.0, posinf=1e6, neginf=-1e6)), 1e6)
    unit = np.exp2(np.maximum(np.frexp(np.maximum(sizes, 2.0**-60))[1] - 1, least) - fraction_bits)
    rounded = np.minimum(np.rint(sizes / unit) * unit, largest)
    mantissa, exponent = np.frexp(rounded)
    normal = (exponent - least << fraction_bits) + np.round((2 * mantissa - 1) * 2**fraction_bits).astype(int)
    codes = np.where(rounded < 2.0**least, np.round(rounded / 2.0 ** (least - fraction_bits)), normal).astype(np.uint16)
    codes = np.where(np.isnan(values), 0x7F, codes | np.signbit(values).astype(np.uint16) << 7)
    return codes[1] << np.uint16(8) | codes[0]


def two_fp8_to_fp16(pairs: Array, kind: str) -> Any:
    """Two codes of fp8 as two fp16, the lower byte in the lower half; of NaN the one that the ISA names."""
    halves = FP8[kind][np.stack([pairs & 0xFF, pairs >> 8])]
    lower, upper = np.where(np.isnan(halves), 0x7FFF, halves.astype(np.float16).view(np.uint16)).astype(np.uint32)
    return upper << np.uint32(16) | lower
