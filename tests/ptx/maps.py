"""Tensor maps, in a form of this machine's own: what stands where the driver's ``cuTensorMapEncodeTiled`` does.

The driver's form is secret; its rules are not, and are held here a second time.
Source: CUDA Driver API 13, "Tensor Map Object Management", ``cuTensorMapEncodeTiled``. That copies of a tensor of tf32
are rounded, CUTLASS says (examples/48_hopper_warp_specialized_gemm: TMA converts fp32 to tf32); to the nearest, ties to
even, Triton's interpreter (triton-lang/triton, pull request 11751, compared with a GPU of 12.0).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.ptx.faults import Fault

Array = npt.NDArray[Any]
SIZE = 128
SWIZZLE_NONE, SWIZZLE_128B = 0, 3
_FORM = struct.Struct("<Q5Q4Q5HBBB")
_TF32 = 11
# CUtensorMapDataType: the bytes of an element.
_ELEMENTS = {0: 1, 1: 2, 2: 4, 6: 2, 7: 4, 9: 2, 11: 4}


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor in global memory and the boxes that are copied of it, the fastest dimension first.

    Attributes:
        strides: bytes from one to the next of each dimension but the first.
    """

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    kind: int
    swizzle: int

    @property
    def element(self) -> int:
        """Bytes of one."""
        return _ELEMENTS[self.kind]

    @property
    def box_bytes(self) -> int:
        """Of shared memory."""
        return int(np.prod(self.box)) * self.element


def encode(
    kind: int, address: int, sizes: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...], swizzle: int
) -> Array:
    """What the launch passes to the kernel.

    Raises:
        Fault: when a rule is broken; the driver would answer with an error.
    """
    rank, element = len(sizes), _ELEMENTS[kind]
    rules = (
        (1 <= rank <= 5 and len(box) == rank and len(strides) == rank - 1, "it has 1 to 5 dimensions"),
        (address % 16 == 0, "it begins at a multiple of 16 bytes"),
        (all(1 <= size <= 1 << 32 for size in sizes), "its sizes are 1 to 2^32"),
        (
            all(stride % 16 == 0 and 0 < stride < 1 << 40 for stride in strides),
            "strides are multiples of 16 below 2^40",
        ),
        (all(1 <= edge <= 256 for edge in box), "the edges of a box are 1 to 256"),
        (box[0] * element % 16 == 0, "lines of a box are multiples of 16 bytes"),
        (swizzle in (SWIZZLE_NONE, SWIZZLE_128B), "the swizzle is none or 128 bytes; others are not known here"),
        (swizzle == SWIZZLE_NONE or box[0] * element <= 128, "lines are at most as long as what is swizzled"),
    )
    for is_kept, rule in rules:
        if not is_kept:
            raise Fault(f"a tensor map breaks a rule: {rule}")
    filled = ((*one, *[0] * (count - len(one))) for one, count in ((sizes, 5), (strides, 4), (box, 5)))
    packed = _FORM.pack(address, *(value for part in filled for value in part), rank, kind, swizzle)
    return np.frombuffer(packed.ljust(SIZE, b"\xee"), dtype=f"V{SIZE}")


def decode(raw: Array) -> TensorMap:
    """What ``encode`` made."""
    address, *rest, rank, kind, swizzle = _FORM.unpack(raw.tobytes()[: _FORM.size])
    return TensorMap(
        address, tuple(rest[:rank]), tuple(rest[5 : 5 + rank - 1]), tuple(rest[9 : 9 + rank]), kind, swizzle
    )


def box_of(tensor: TensorMap, memory: Array, first: tuple[int, ...]) -> Array:
    """The bytes of a box that begins at some element, as lines; what lies outside is 0.

    Args:
        memory: the bytes of the array that the tensor begins.
    """
    places, is_inside = places_of(tensor, first)
    if is_inside.any() and places[is_inside].max() + tensor.element > len(memory):
        raise Fault("a tensor map reaches beyond the array that it is of")
    found = np.zeros((*places.shape, tensor.element), dtype=np.uint8)
    found[is_inside] = memory[places[is_inside][:, None] + np.arange(tensor.element)]
    lines: Array = found.reshape(-1, tensor.box[0] * tensor.element)
    return rounded_to_tf32(lines.view(np.uint32)).view(np.uint8) if tensor.kind == _TF32 else lines


def places_of(tensor: TensorMap, first: tuple[int, ...]) -> tuple[Array, Array]:
    """Where each element of a box lies behind the tensor's first byte, and which are inside of it; slowest first."""
    places = np.zeros(tensor.box[::-1], dtype=np.int64)
    is_inside = np.ones(tensor.box[::-1], dtype=bool)
    strides = (tensor.element, *tensor.strides)
    for axis, (start, edge, size, stride) in enumerate(zip(first, tensor.box, tensor.sizes, strides, strict=True)):
        index = start + np.arange(edge).reshape([-1 if axis == at else 1 for at in reversed(range(len(first)))])
        places = places + index * stride
        is_inside = is_inside & (index >= 0) & (index < size)
    return places, is_inside


def rounded_to_tf32(bits: Array) -> Array:
    """Of fp32: to the nearest with ten bits of mantissa, ties to even; infinity and NaN stay."""
    is_finite = bits & np.uint32(0x7F800000) != np.uint32(0x7F800000)
    rounded = (bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    result: Array = np.where(is_finite, rounded, bits)
    return result


def offsets_of(tensor: TensorMap, start: int) -> Array:
    """Where in shared memory each piece of 16 bytes of a box lies, lines × pieces."""
    count = tensor.box_bytes // 16
    linear = start + np.arange(count) * 16
    if tensor.swizzle == SWIZZLE_128B:
        if tensor.box[0] * tensor.element != 128:
            raise Fault("lines shorter than what is swizzled are not known here")
        linear = linear ^ (linear >> 7 & 7) << 4
    places: Array = linear.reshape(-1, tensor.box[0] * tensor.element // 16)
    return places
