"""``ldmatrix`` and ``mma.sync``: which lane holds what, and what is computed.

Source: PTX ISA 9.2, 9.7.14.5 "Matrix multiply-accumulate operation using mma instruction", the tables of "Matrix
Fragments for mma.m16n8k8" (.7), "for mma.m16n8k16 with floating point type" (.8) and "for mma.m16n8k32" (.10), and of
"ldmatrix" (.15). Sums are exact and then rounded once to the type of D; the order in which hardware adds, and how it
rounds between, is not specified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_LANE = np.arange(32)
_GROUP, _IN_GROUP = _LANE >> 2, _LANE % 4  # groupID and threadID_in_group
_ROWS, _COLUMNS = 16, 8  # of D


@dataclass(frozen=True, slots=True)
class Fragments:
    """Where the elements of each lane's registers lie, low to high: rows and columns, 32 × elements."""

    a: tuple[Array, Array]
    b: tuple[Array, Array]
    depth: int


def _table(row: Callable[[int], Array], column: Callable[[int], Array], count: int) -> tuple[Array, Array]:
    return np.stack([row(i) for i in range(count)], 1), np.stack([column(i) for i in range(count)], 1)


_M16N8K8_TF32 = Fragments(
    _table(lambda i: _GROUP + (8 if i in {1, 3} else 0), lambda i: _IN_GROUP + (4 if i in {2, 3} else 0), 4),
    _table(lambda i: _IN_GROUP + (4 if i == 1 else 0), lambda i: _GROUP, 2),
    8,
)
_M16N8K16 = Fragments(
    _table(
        lambda i: _GROUP + (0 if 0 <= i < 2 or 4 <= i < 6 else 8),
        lambda i: _IN_GROUP * 2 + (i & 1) + (8 if i >= 4 else 0),
        8,
    ),
    _table(lambda i: _IN_GROUP * 2 + (i & 1) + (8 if i >= 2 else 0), lambda i: _GROUP, 4),
    16,
)
_M16N8K32 = Fragments(
    _table(
        lambda i: _GROUP + (0 if 0 <= i < 4 or 8 <= i < 12 else 8),
        lambda i: _IN_GROUP * 4 + (i & 3) + (16 if i >= 8 else 0),
        16,
    ),
    _table(lambda i: _IN_GROUP * 4 + (i & 3) + (16 if i >= 4 else 0), lambda i: _GROUP, 8),
    32,
)
# C and D of all three.
_D = _table(lambda i: _GROUP + (0 if i < 2 else 8), lambda i: _IN_GROUP * 2 + (i & 1), 4)


def _fp8_values(exponent_bits: int, mantissa_bits: int, bias: int) -> Array:
    """The value of each of the 256 codes. OCP 8-bit Floating Point Specification 1.0, tables 1 and 2."""
    values = np.empty(256)
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent, mantissa = code >> mantissa_bits & (1 << exponent_bits) - 1, code & (1 << mantissa_bits) - 1
        fraction = mantissa / (1 << mantissa_bits)
        highest = exponent == (1 << exponent_bits) - 1
        if mantissa_bits == 3 and code & 0x7F == 0x7F:  # E4M3: NaN is one code, and there is no infinity
            values[code] = np.nan
        elif mantissa_bits == 2 and highest:
            values[code] = np.nan if mantissa else sign * np.inf
        elif exponent == 0:
            values[code] = sign * fraction * 2.0 ** (1 - bias)
        else:
            values[code] = sign * (1 + fraction) * 2.0 ** (exponent - bias)
    return values


FP8 = {"e4m3": _fp8_values(4, 3, 7), "e5m2": _fp8_values(5, 2, 15)}
"""Values by type and code."""


def _bf16(halves: Array) -> Array:
    return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _tf32(words: Array) -> Array:
    """The low 13 bits are not looked at."""
    return (words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Kind:
    """A form of ``mma``: its fragments, the type that registers are viewed as, and what elements mean."""

    fragments: Fragments
    element: str
    values: Callable[[Array], Array]
    sums: Any


KINDS = {
    "m16n8k16.row.col.f32.f16.f16.f32": Kind(_M16N8K16, "f2", lambda raw: raw.astype(np.float64), np.float32),
    "m16n8k16.row.col.f32.bf16.bf16.f32": Kind(_M16N8K16, "u2", _bf16, np.float32),
    "m16n8k8.row.col.f32.tf32.tf32.f32": Kind(_M16N8K8_TF32, "u4", _tf32, np.float32),
    "m16n8k32.row.col.f32.e4m3.e4m3.f32": Kind(_M16N8K32, "u1", lambda raw: FP8["e4m3"][raw], np.float32),
    "m16n8k32.row.col.f32.e5m2.e5m2.f32": Kind(_M16N8K32, "u1", lambda raw: FP8["e5m2"][raw], np.float32),
    "m16n8k32.row.col.s32.s8.s8.s32": Kind(_M16N8K32, "i1", lambda raw: raw.astype(np.float64), np.int32),
}
"""By what stands behind ``mma.sync.aligned``."""


def multiply(kind: Kind, a: Array, b: Array, c: Array) -> Array:
    """D of whole warps.

    Args:
        a, b: registers of 32 bits, lanes × registers; lanes of one warp after those of another.
        c: lanes × 4, of the type of the sums.

    Returns:
        As c.
    """
    warps = len(c) // 32
    fragments, depth = kind.fragments, kind.fragments.depth
    left = _gathered(kind, a, fragments.a, (warps, _ROWS, depth))
    right = _gathered(kind, b, fragments.b, (warps, depth, _COLUMNS))
    products = np.matmul(left, right)[:, _D[0], _D[1]].reshape(-1, 4)
    sums: Array = products.astype(np.int32) + c if kind.sums is np.int32 else (products + c).astype(np.float32)
    return sums


def _gathered(kind: Kind, registers: Array, table: tuple[Array, Array], shape: tuple[int, int, int]) -> Array:
    elements = np.ascontiguousarray(registers).view(kind.element).reshape(shape[0], 32, -1)
    matrices = np.empty(shape)
    matrices[:, table[0], table[1]] = kind.values(elements)
    return matrices


def load(rows: Array, transposed: bool) -> Array:
    """``ldmatrix.x4`` of whole warps.

    Args:
        rows: lanes × 4 words: the 16 bytes at the address that each lane gives.

    Returns:
        lanes × 4 registers.
    """
    matrices: Array = rows.reshape(-1, 4, 8, 4)
    if transposed:
        matrices = np.ascontiguousarray(matrices.view("u2").transpose(0, 1, 3, 2)).view("u4")
    # Lane l holds word l % 4 of row l / 4 of each matrix.
    registers: Array = matrices.transpose(0, 2, 3, 1).reshape(-1, 4)
    return registers
