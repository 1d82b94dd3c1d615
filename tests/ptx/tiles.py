"""Matrices in shared memory as ``wgmma`` reads them, and what it computes.

Source: PTX ISA 9.2, 9.7.15.5.1 "Register Fragments and Shared Memory Matrix Layouts" of ``wgmma``: "Strides" with the
canonical layouts, "Matrix Descriptor Format", and the accumulator "D" of m64nNk16 and its likes. Swizzling by 128 bytes
alone is known here: an address's bits 4 to 6 are replaced by their exclusive or with bits 7 to 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.ptx.faults import Fault
from tests.ptx.tensor import KINDS, Kind

Array = npt.NDArray[Any]
ROWS = 64
_SWIZZLE_128B = 1
_LANE = np.arange(128)
DEPTH_BYTES = 32
FORMS = {
    "k16.f32.f16.f16": (KINDS["m16n8k16.row.col.f32.f16.f16.f32"], 2),
    "k16.f32.bf16.bf16": (KINDS["m16n8k16.row.col.f32.bf16.bf16.f32"], 2),
    "k8.f32.tf32.tf32": (KINDS["m16n8k8.row.col.f32.tf32.tf32.f32"], 4),
    "k32.f32.e4m3.e4m3": (KINDS["m16n8k32.row.col.f32.e4m3.e4m3.f32"], 1),
    "k32.f32.e5m2.e5m2": (KINDS["m16n8k32.row.col.f32.e5m2.e5m2.f32"], 1),
}
"""By what stands behind m64nN: what elements mean, and their bytes."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A matrix: where it begins, and how far apart its parts lie, in bytes."""

    start: int
    leading: int
    stride: int

    @classmethod
    def of(cls, bits: int) -> Descriptor:
        """Reads the 64 bits."""
        if bits >> 62 != _SWIZZLE_128B:
            raise Fault(f"a matrix is swizzled in mode {bits >> 62}, which is not known here")
        if bits & ~(3 << 62 | 0x3FFF << 32 | 0x3FFF << 16 | 0x3FFF):
            raise Fault(f"the descriptor {bits:#x} of a matrix has bits that must be 0, or an offset of its base")
        return cls((bits & 0x3FFF) << 4, (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4)

    def chunks(self, count: int, size: int, across: bool) -> Array:
        """The addresses of its pieces of 16 bytes.

        Args:
            count: rows of A, or columns of B.
            size: bytes of an element.
            across: whether neighbours in memory are rows or columns, in place of neighbours in k.

        Returns:
            count × 2 along k; else depth × (count / 8).
        """
        if across:
            depth, chunk = np.arange(DEPTH_BYTES // size)[:, None], np.arange(count * size // 16)[None]
            lines = depth % 8 * 128 + depth // 8 * self.stride
            address = self.start + lines + chunk // 8 * self.leading + chunk % 8 * 16
        else:
            row, chunk = np.arange(count)[:, None], np.arange(DEPTH_BYTES // 16)[None]
            address = self.start + row % 8 * 128 + row // 8 * self.stride + chunk * 16
        swizzled: Array = address ^ (address >> 7 & 7) << 4
        return swizzled


def matrix(kind: Kind, raw: Array, across: bool) -> Array:
    """Values, rows of A or columns of B × k, of the pieces of 16 bytes that were read."""
    elements = np.ascontiguousarray(raw).reshape(raw.shape[0], -1).view(kind.element)
    values: Array = kind.values(elements)
    return values.T if across else values


def sums(a: Array, b: Array, before: Array | None) -> Array:
    """Lanes of a warp group × registers: A · B of 64 × N, and what there was before."""
    with np.errstate(invalid="ignore"):
        product = a @ b.T
    count = product.shape[1] // 2
    index = np.arange(count)[None]
    rows = (_LANE // 32 * 16 + _LANE % 32 // 4)[:, None] + index // 2 % 2 * 8
    columns = (_LANE % 4 * 2)[:, None] + index % 2 + index // 4 * 8
    held = product[rows, columns]
    result: Array = (held if before is None else held + before).astype(np.float32)
    return result
